"""Scenarios of texts: Reuters, News, and IMDB with customer reviews."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.feature_extraction.text import CountVectorizer
from torch import Tensor

from forsaken._random import Purpose, generator
from forsaken.bench.datasets.store import load_dataset
from forsaken.bench.scenarios.plan import Plan
from forsaken.bench.scenarios.scenario import Scenario, id_scenario, ood_scenario
from forsaken.bench.scenarios.splits import Rows, draw_members, draw_strangers, halve
from forsaken.bench.scenarios.words import Vocabulary, split_words, word_vectors
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.types import Array, Progress, Tick

_SIGNATURE = re.compile(r"--\s*")
_QUOTE = re.compile(r"\s*[>|]|In article|.*(writes|wrote|says|said):\s*$")

# Labels 35 to 45 alone hold 311 documents, fewer than the paper's sizes need; these eleven topics hold 1,766.
REUTERS_STRANGERS = (8, 9, 10, 11, 13, 16, 27, 33, 35, 42, 44)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts with the class numbers of the task; strangers have -1. `test` marks an official test part."""

    texts: Array
    labels: Array
    names: tuple[str, ...]
    test: Array | None = None

    def task(self) -> tuple[Rows, Rows | None]:
        """Return the training and test rows of the task, or all of its rows and None."""
        inside = self.labels >= 0
        if self.test is None:
            return np.flatnonzero(inside), None
        return np.flatnonzero(inside & ~self.test), np.flatnonzero(inside & self.test)


def reuters(plan: Plan, seed: int, progress: Progress) -> Scenario:
    """Build a scenario of the 46-topic Reuters newswires; all 11,228 documents are pooled.

    The option `borrowed` gives an article without a body the body of an earlier one, as the file in Keras does.
    """
    records = load_dataset("reuters46", columns=("title", "newid"), progress=progress)
    texts = borrowed_bodies(records) if plan.options.get("borrowed") else records.content
    strangers = plan.options.get("strangers", ())
    return _scenario(plan, seed, Corpus(texts, *_renumbered(records, strangers)), progress)


def news(plan: Plan, seed: int, progress: Progress) -> Scenario:
    """Build a scenario of 20 Newsgroups: what the authors wrote, in its 11,314 "bydate" training documents."""
    records = load_dataset("20newsgroups", "train", progress=progress)
    texts = np.array([own_words(text) for text in records.content], dtype=object)
    return _scenario(plan, seed, Corpus(texts, *_renumbered(records, plan.options.get("strangers", ()))), progress)


def imdb(plan: Plan, seed: int, progress: Progress) -> Scenario:
    """Build a scenario of IMDB's film reviews; with the option `reviews`, customer reviews are the strangers."""
    parts = [load_dataset("imdb", "train", progress=progress), load_dataset("imdb", "test", progress=progress)]
    texts = [part.content for part in parts]
    labels = [part.labels for part in parts if part.labels is not None]
    test = np.repeat([False, True], [len(part) for part in parts])
    if plan.options.get("reviews"):
        reviews = load_dataset("customer-review", progress=progress)
        texts.append(reviews.content)
        labels.append(np.full(len(reviews), -1))
        test = np.append(test, np.zeros(len(reviews), dtype=bool))
    return _scenario(plan, seed, Corpus(np.concatenate(texts), np.concatenate(labels), parts[0].names, test), progress)


def own_words(message: str) -> str:
    r"""Return what the author of a message wrote: no headers, no quotes and no signature.

    >>> own_words("From: a@b\nSubject: c\n\nIn article 1 d writes:\n> Hello\nHello\nthere\n--\na")
    'Hello\nthere'
    """
    head, gap, body = message.partition("\n\n")
    lines = (body if gap else head).split("\n")
    end = next((at for at, line in enumerate(lines) if _SIGNATURE.fullmatch(line)), len(lines))
    return "\n".join(line for line in lines[:end] if not _QUOTE.match(line))


def borrowed_bodies(records: Records) -> Array:
    """Return the texts, where each article without a body has that of the nearest earlier article with one.

    An article has no body where its text equals its title; one without any earlier body keeps its title.
    """
    texts, titles, order = records.content, records.columns["title"], np.argsort(records.columns["newid"])
    bare = (texts == titles)[order]
    last = np.maximum.accumulate(np.where(bare, -1, np.arange(len(order))))
    source = np.where(last < 0, np.arange(len(order)), last)
    borrowed = texts.copy()
    borrowed[order] = texts[order[source]]
    return borrowed


def _renumbered(records: Records, strangers: tuple[int, ...]) -> tuple[Array, tuple[str, ...]]:
    """Return class numbers without gaps, -1 for strangers, and the names that are left."""
    count = len(records.names)
    inside = [number for number in range(count) if number not in strangers]
    numbers = np.full(count, -1)
    numbers[inside] = np.arange(len(inside))
    return numbers[records.labels], tuple(records.names[number] for number in inside)


def _scenario(plan: Plan, seed: int, corpus: Corpus, progress: Progress) -> Scenario:
    draw = generator(seed, Purpose.SCENARIO_ROWS)
    frame = plan.frame(seed)
    train, test = corpus.task()
    if not bool((corpus.labels < 0).any()):
        members = draw_members(train, test, plan.sizes, draw)
        samples, given = _encoded(plan, corpus, members.halves.learnt, progress)
        return id_scenario(
            frame, samples, members.halves, members.forget, members.reference, given=given, names=corpus.names
        )
    halves, _ = halve(train, test, plan.sizes, draw)
    strangers = draw_strangers(np.flatnonzero(corpus.labels < 0), plan.sizes, draw, ", ".join(plan.datasets))
    samples, given = _encoded(plan, corpus, halves.learnt, progress)
    return ood_scenario(frame, samples, halves, strangers, given=given, names=corpus.names)


def _encoded(plan: Plan, corpus: Corpus, learnt: Rows, progress: Progress) -> tuple[Samples, dict[str, Tensor]]:
    """Turn texts into bags or sequences of the words that are most frequent in the rows `learnt`.

    Neither these words nor their vectors come from a sample that is to be forgotten.
    """
    options: Any = plan.options
    labels = torch.from_numpy(corpus.labels.astype(np.int64))
    if "length" not in options:
        progress(Tick("count words", 0, 1))
        bags = CountVectorizer(max_features=options["words"], binary=True, dtype=np.float32)
        bags.fit(corpus.texts[learnt])
        matrix = bags.transform(corpus.texts)
        matrix.resize(len(corpus.texts), options["words"])  # a small corpus may have fewer words than the network reads
        progress(Tick("count words", 1, 1))
        return Samples(torch.from_numpy(matrix.toarray()), labels), {}
    texts = split_words(corpus.texts.tolist(), progress)
    known = [texts[at] for at in learnt]
    vocabulary = Vocabulary.fit(known, options["words"])
    given = {}
    if "dimensions" in options:
        progress(Tick("learn word vectors", 0, 1))
        given["vectors"] = word_vectors(known, vocabulary, dimensions=options["dimensions"], window=options["window"])
        progress(Tick("learn word vectors", 1, 1))
    return Samples(vocabulary.sequences(texts, options["length"]), labels), given
