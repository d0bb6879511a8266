"""Plain text files with a sample a line: customer reviews, Reuters R52, Penn TreeBank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from forsaken.bench.datasets.originals.archives import damaged, given, reading, unzipped
from forsaken.types import Progress, Tick

REVIEWS = {"train": "CR.train", "dev": "CR.dev", "test": "CR.test"}
R52 = {"train": "r52-train.txt", "test": "r52-test.txt"}
PTB = {"train": "ptb.train.txt", "valid": "ptb.valid.txt", "test": "ptb.test.txt"}


def customer_review(files: Mapping[str, Path], progress: Progress) -> dict[str, pa.Table]:
    """Read lines of text, tab, 0 (negative) or 1 (positive); the text is kept as it is."""
    texts, labels, splits = [], [], []
    for split, path, line in _all_lines(files, REVIEWS, progress):
        text, tab, label = line.rpartition("\t")
        if not tab or label.strip() not in {"0", "1"}:
            raise damaged(path, "it has a line that does not end in a tab and 0 or 1")
        texts.append(text)
        labels.append(int(label))
        splits.append(split)
    return {"customer_review": _table(texts, labels, splits)}


def reuters_r52(files: Mapping[str, Path], progress: Progress) -> dict[str, pa.Table]:
    """Read lines of topic, tab, text; labels are alphabetical."""
    texts, names, splits = [], [], []
    for split, path, line in _all_lines(files, R52, progress):
        name, tab, text = line.partition("\t")
        if not tab or not name:
            raise damaged(path, "it has a line that does not begin with a topic and a tab")
        texts.append(text.strip())
        names.append(name)
        splits.append(split)
    number = {name: at for at, name in enumerate(sorted(set(names)))}
    table = _table(texts, [number[name] for name in names], splits)
    return {"reuters_r52": table.add_column(2, "label_name", pa.array(names, pa.string()))}


def ptb(files: Mapping[str, Path], progress: Progress) -> dict[str, pa.Table]:
    """Read a row a line, without the blank that stands around every line."""
    texts: dict[str, list[str]] = {split: [] for split in PTB}
    for split, _, line in _all_lines(files, PTB, progress):
        texts[split].append(line.strip())
    return {f"ptb_{split}": pa.table({"text": pa.array(rows, pa.string())}) for split, rows in texts.items()}


def _all_lines(
    files: Mapping[str, Path], names: Mapping[str, str], progress: Progress
) -> Iterator[tuple[str, Path, str]]:
    for at, (split, name) in enumerate(names.items(), start=1):
        path = given(files, name)
        with reading(path):
            content = (unzipped(path) if path.suffix == ".gz" else path.read_bytes()).decode()
        # Not splitlines(): the texts hold control characters at which it would cut.
        lines = content.removesuffix("\n").split("\n")
        if lines == [""]:
            raise damaged(path, "it is empty")
        for line in lines:
            yield split, path, line.removesuffix("\r")
        progress(Tick(f"read {name}", at, len(names)))


def _table(texts: Sequence[str], labels: Sequence[int], splits: Sequence[str]) -> pa.Table:
    return pa.table(
        {
            "text": pa.array(texts, pa.string()),
            "label": pa.array(labels, pa.int8()),
            "split": pa.array(splits, pa.string()),
        }
    )
