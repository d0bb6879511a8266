"""The Large Movie Review Dataset: a review a file, its rating in the file's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from forsaken.bench.datasets.originals.archives import damaged, given, tar_members
from forsaken.types import Progress

IMDB = "aclImdb_v1.tar.gz"
_REVIEW = re.compile(r"(?:.*/)?(train|test)/(neg|pos)/(\d+)_(\d+)\.txt")
_LABELS = ("neg", "pos")


def imdb(files: Mapping[str, Path], progress: Progress) -> dict[str, pa.Table]:
    """Read the labelled reviews, negative (0) before positive (1), by file number."""
    path = given(files, IMDB)
    rows: dict[str, list[tuple[int, int, int, str]]] = {"train": [], "test": []}
    for name, content in tar_members(path, lambda name: _REVIEW.fullmatch(name) is not None, progress):
        match = _REVIEW.fullmatch(name)
        if match is not None:
            split, kind, number, rating = match.groups()
            try:
                rows[split].append((_LABELS.index(kind), int(number), int(rating), content.decode()))
            except UnicodeDecodeError as error:
                raise damaged(path, f"{name} is not UTF-8") from error
    tables = {}
    for split, reviews in rows.items():
        if {label for label, *_ in reviews} != {0, 1}:
            raise damaged(path, f"its {split} part holds {len(reviews)} reviews, expected negative and positive ones")
        labels, numbers, ratings, texts = zip(*sorted(reviews), strict=True)
        tables[f"imdb_{split}"] = pa.table(
            {
                "text": pa.array(texts, pa.string()),
                "label": pa.array(labels, pa.int8()),
                "rating": pa.array(ratings, pa.int8()),
                "doc_id": pa.array(numbers, pa.int32()),
            }
        )
    return tables
