"""Reuters-21578: 22 SGML files, read into the 46 topics that Keras calls `reuters`, as text and in Keras's order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from forsaken.bench.datasets.originals.archives import chosen_members, damaged, given
from forsaken.types import Progress

REUTERS = "reuters21578.tar.gz"
FEWEST = 15  # documents that a topic needs
_MEMBERS = tuple(f"reut2-{number:03d}.sgm" for number in range(22))
_ARTICLE = re.compile(r"<REUTERS\b([^>]*)>(.*?)</REUTERS>", re.DOTALL)
_NUMBER = re.compile(r'\bNEWID="(\d+)"')
_INNER = re.compile(r"<([A-Z]+)>.*?</\1>", re.DOTALL)
_ENTITY = re.compile(r"&(lt|gt|amp|#\d{1,5});")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_NAMED = {"lt": "<", "gt": ">", "amp": "&"}


@dataclass(frozen=True, slots=True)
class _Article:
    number: int
    topic: str
    title: str
    text: str


def reuters46(files: Mapping[str, Path], progress: Progress) -> dict[str, pa.Table]:
    """Read the documents whose first topic is the first topic of at least 15.

    Labels count topics by first appearance, in the order of NEWID. The text is the body; where there is none, the
    title, and where there is neither, the unprocessed text. Keras's shuffle decides the rows, and their first 80 % are
    the training part.
    """
    path = given(files, REUTERS)
    members = chosen_members(path, _MEMBERS, progress)
    articles = sorted(
        (article for name in _MEMBERS for article in _articles(members[name].decode("latin-1"), name, path)),
        key=lambda article: article.number,
    )
    if len({article.number for article in articles}) != len(articles):
        raise damaged(path, "two of its articles have the same NEWID")
    sizes = Counter(article.topic for article in articles)
    kept = [article for article in articles if sizes[article.topic] >= FEWEST]
    if not kept:
        raise damaged(path, f"no topic has {FEWEST} articles")
    labels = {topic: at for at, topic in enumerate(dict.fromkeys(article.topic for article in kept))}
    order = np.arange(len(kept))
    np.random.RandomState(113).shuffle(order)  # Keras's own shuffle
    rows = [kept[at] for at in order]
    train = int(0.8 * len(rows))
    columns = {
        "text": pa.array([row.text for row in rows], pa.string()),
        "label": pa.array([labels[row.topic] for row in rows], pa.int8()),
        "label_name": pa.array([row.topic for row in rows], pa.string()),
        "split": pa.array(["train"] * train + ["test"] * (len(rows) - train), pa.string()),
        "title": pa.array([row.title for row in rows], pa.string()),
        "newid": pa.array([row.number for row in rows], pa.int32()),
    }
    return {"reuters46": pa.table(columns)}


def _articles(content: str, name: str, path: Path) -> Iterator[_Article]:
    found = _ARTICLE.findall(content)
    if not found or len(found) != content.count("<REUTERS"):
        raise damaged(path, f"{name} has {content.count('<REUTERS')} articles, of which {len(found)} are complete")
    for head, inside in found:
        number = _NUMBER.search(head)
        if number is None:
            raise damaged(path, f"{name} has an article without NEWID")
        topics = re.findall("<D>(.*?)</D>", _element(inside, "TOPICS"))
        if topics:
            whole = _element(inside, "TEXT")
            title = _plain(_element(whole, "TITLE"))
            text = _plain(_element(whole, "BODY")) or title or _plain(_INNER.sub("", whole))
            yield _Article(int(number[1]), topics[0], title, text)


def _element(content: str, tag: str) -> str:
    match = re.search(rf"<{tag}\b[^>]*>(.*?)</{tag}>", content, re.DOTALL)
    return match[1] if match else ""


def _plain(content: str) -> str:
    """Decode the entities that SGML uses here, and drop control characters and the blank around."""

    def decoded(match: re.Match[str]) -> str:
        return _NAMED.get(match[1]) or chr(int(match[1][1:]))

    return _CONTROL.sub("", _ENTITY.sub(decoded, content)).strip()
