"""Scenarios of texts: Reuters, News, and IMDB with customer reviews; and how texts become numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.utils.extmath import randomized_svd
from torch import Tensor

from forsaken._random import Purpose, generator
from forsaken.bench.datasets.store import load_dataset
from forsaken.bench.scenarios.scenario import (
    Plan,
    Rows,
    Scenario,
    draw_members,
    draw_strangers,
    halve,
    id_scenario,
    ood_scenario,
)
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import EmptyError
from forsaken.types import Array, Progress, Tick, silent

PADDING, UNKNOWN = 0, 1  # the first two token numbers
_WORD = re.compile(r"[\w']+")
_TAG = re.compile(r"</?[a-z][^<>]{0,40}>")  # reviews carry line breaks of HTML
_TICK = 2000  # texts between two signs of life
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
    train, test = corpus.task()
    if not bool((corpus.labels < 0).any()):
        members = draw_members(train, test, plan.sizes, draw)
        samples, given = _encoded(plan, corpus, members.halves.learnt, progress)
        return id_scenario(
            plan, seed, samples, members.halves, members.forget, members.reference, given=given, names=corpus.names
        )
    halves, _ = halve(train, test, plan.sizes, draw)
    strangers = draw_strangers(np.flatnonzero(corpus.labels < 0), plan.sizes, draw, ", ".join(plan.datasets))
    samples, given = _encoded(plan, corpus, halves.learnt, progress)
    return ood_scenario(plan, seed, samples, halves, strangers, given=given, names=corpus.names)


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


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without HTML tags.

    >>> words("It's <br />FINE, really.")
    ["it's", 'fine', 'really']
    """
    return _WORD.findall(_TAG.sub(" ", text.lower()))


def split_words(texts: Sequence[str], progress: Progress = silent) -> list[list[str]]:
    """Return the words of every text."""
    found = []
    for at, text in enumerate(texts):
        if at % _TICK == 0:
            progress(Tick("split into words", at, len(texts)))
        found.append(words(text))
    progress(Tick("split into words", len(texts), len(texts)))
    return found


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The most frequent words of a corpus. Token 0 is padding, token 1 a word that is not in the vocabulary.

    >>> known = Vocabulary.fit([["a", "b", "a"], ["c", "a", "b"]], size=2)
    >>> known.sequences([["b", "a", "z"], []], length=4).tolist()
    [[3, 2, 1, 0], [0, 0, 0, 0]]
    """

    numbers: dict[str, int]

    def __len__(self) -> int:
        return len(self.numbers) + 2

    @classmethod
    def fit(cls, texts: Iterable[Sequence[str]], size: int) -> Vocabulary:
        """Take the `size` most frequent words; among equally frequent ones, the first in alphabetical order."""
        counts = Counter(chain.from_iterable(texts))
        if not counts:
            raise EmptyError("the corpus holds no words, so no vocabulary can be made; give texts")
        ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:size]
        return cls({word: at + 2 for at, (word, _) in enumerate(ordered)})

    def tokens(self, text: Sequence[str]) -> list[int]:
        """Return the numbers of the words of one text."""
        return [self.numbers.get(word, UNKNOWN) for word in text]

    def sequences(self, texts: Sequence[Sequence[str]], length: int) -> Tensor:
        """Return the first `length` tokens of every text, padded at the end (texts x length)."""
        matrix = np.full((len(texts), length), PADDING, dtype=np.int64)
        for at, text in enumerate(texts):
            tokens = self.tokens(text[:length])
            matrix[at, : len(tokens)] = tokens
        return torch.from_numpy(matrix)


def word_vectors(texts: Sequence[Sequence[str]], known: Vocabulary, *, dimensions: int, window: int) -> Tensor:
    """Return a vector for every token of a vocabulary, learnt from which words stand near each other.

    The positive pointwise mutual information of word pairs within `window` words, factorised by a truncated singular
    value decomposition with square roots of the singular values (Levy, Goldberg and Dagan 2015), scaled to a root
    mean square of 1/2. Padding and unknown words are zero.

    Returns
    -------
    Tensor
        tokens x `dimensions`, float32; the same bits for the same texts.
    """
    size = len(known)
    pairs = _near(texts, known, window, size)
    total = pairs.sum()
    rows, columns = np.asarray(pairs.sum(1)).ravel(), np.asarray(pairs.sum(0)).ravel()
    shape = pairs.tocoo()
    information = np.log(shape.data * total / (rows[shape.row] * columns[shape.col]))
    kept = information > 0
    positive = sparse.csr_matrix((information[kept], (shape.row[kept], shape.col[kept])), shape=(size, size))
    left, strength, _ = randomized_svd(positive, dimensions, random_state=0)
    vectors = left * np.sqrt(strength)
    vectors *= 0.5 / np.sqrt(np.square(vectors[2:]).mean())
    vectors[:2] = 0
    return torch.tensor(vectors, dtype=torch.float32)


def _near(texts: Sequence[Sequence[str]], known: Vocabulary, window: int, size: int) -> Any:
    """Count how often two known words stand within `window` words of each other, nearer pairs counting more."""
    # Texts are laid end to end with a gap, so that no pair spans two of them.
    gap = [UNKNOWN] * window
    stream = np.fromiter(chain.from_iterable(known.tokens(text) + gap for text in texts), dtype=np.int64)
    counts = sparse.csr_matrix((size, size))
    for distance in range(1, window + 1):
        first, second = stream[:-distance], stream[distance:]
        both = (first != UNKNOWN) & (second != UNKNOWN)
        weights = np.full(int(both.sum()), 1 / distance)
        counts = counts + sparse.csr_matrix((weights, (first[both], second[both])), shape=(size, size))
    return counts + counts.T
