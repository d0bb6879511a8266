"""20 Newsgroups, the version split by date: a message a file, in a folder a group."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from forsaken.bench.datasets.originals.archives import damaged, given, tar_members
from forsaken.types import Progress

NEWS = "20news-bydate.tar.gz"
_MESSAGE = re.compile(r"(?:.*/)?20news-bydate-(train|test)/([^/]+)/(\d+)")


def newsgroups(files: Mapping[str, Path], progress: Progress) -> dict[str, pa.Table]:
    """Read the whole messages, headers and all, as Latin-1, by group and number; labels are alphabetical."""
    path = given(files, NEWS)
    rows: dict[str, list[tuple[str, int, str]]] = {"train": [], "test": []}
    for name, content in tar_members(path, lambda name: _MESSAGE.fullmatch(name) is not None, progress):
        match = _MESSAGE.fullmatch(name)
        if match is not None:
            split, group, number = match.groups()
            rows[split].append((group, int(number), content.decode("latin-1")))
    groups = sorted({group for group, *_ in rows["train"]})
    if not groups or groups != sorted({group for group, *_ in rows["test"]}):
        raise damaged(path, "its train and test parts do not hold the same groups")
    tables = {}
    for split, messages in rows.items():
        names, numbers, texts = zip(*sorted(messages), strict=True)
        tables[f"20newsgroups_{split}"] = pa.table(
            {
                "text": pa.array(texts, pa.string()),
                "label": pa.array([groups.index(name) for name in names], pa.int8()),
                "label_name": pa.array(names, pa.string()),
                "doc_id": pa.array(numbers, pa.int32()),
            }
        )
    return tables
