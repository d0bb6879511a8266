"""The table of datasets: every row is complete, and agrees with the files that are already there."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from forsaken.bench.datasets.registry import DATASETS, Archive, Dataset

ALL = list(DATASETS.values())
ARCHIVES = [archive for dataset in ALL for archive in dataset.archives]
LENGTH = {"md5": 32, "sha256": 64}
LABEL_COLUMNS = {"image": {"image", "label"}, "text": {"text", "label"}, "lines": {"text"}}


def test_the_datasets_are_those_of_the_documents() -> None:
    assert set(DATASETS) == {
        *("cifar10", "cifar100", "stl10", "tiny-imagenet", "imdb", "20newsgroups", "reuters46", "reuters-r52"),
        *("customer-review", "ptb", "mnist"),
    }


@pytest.mark.parametrize("dataset", ALL, ids=lambda dataset: dataset.name)
def test_every_row_is_complete(dataset: Dataset) -> None:
    assert DATASETS[dataset.name] is dataset
    assert dataset.title
    assert dataset.cite
    assert dataset.terms
    assert dataset.home.startswith(("http://", "https://"))
    assert dataset.archives
    assert dataset.parts.keys() == dataset.rows.keys()
    assert all(re.fullmatch(r"[a-z0-9_]+", stem) for stem in dataset.parts.values())
    assert all(count > 0 for count in dataset.rows.values())
    assert (dataset.classes == 0) == (dataset.kind == "lines")
    assert len(dataset.class_names) in {0, dataset.classes}
    assert len(set(dataset.class_names)) == len(dataset.class_names)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.file)
def test_every_archive_is_complete(archive: Archive) -> None:
    assert re.fullmatch(r"https?://[\w.-]+/[\w./~-]+", archive.url)
    assert re.fullmatch(r"\w[\w.-]+", archive.file)
    assert archive.megabytes > 0
    if archive.checksum is not None:
        kind, _, digest = archive.checksum.partition(":")
        assert re.fullmatch(rf"[0-9a-f]{{{LENGTH[kind]}}}", digest)


def test_only_files_that_nobody_vouches_for_have_no_checksum() -> None:
    without = {archive.file for archive in ARCHIVES if archive.checksum is None}
    assert without == {"CR.train", "CR.dev", "CR.test", "r52-train.txt", "r52-test.txt"}


def test_no_two_files_share_a_name_or_a_checksum() -> None:
    checksums = [archive.checksum for archive in ARCHIVES if archive.checksum]
    assert len({archive.file for archive in ARCHIVES}) == len(ARCHIVES)
    assert len(set(checksums)) == len(checksums)


def test_no_archive_is_a_pickle() -> None:
    assert not [archive for archive in ARCHIVES if "python" in archive.url or archive.file.endswith((".pkl", ".npz"))]


@pytest.mark.skipif("FORSAKEN_DATA" not in os.environ, reason="FORSAKEN_DATA is not set")
@pytest.mark.parametrize("dataset", ALL, ids=lambda dataset: dataset.name)
def test_the_rows_agree_with_the_files_that_are_there(dataset: Dataset) -> None:
    folder = Path(os.environ["FORSAKEN_DATA"])
    for split, stem in dataset.parts.items():
        files = sorted(folder.glob(f"{stem}.parquet")) + sorted(folder.glob(f"{stem}-*-of-*.parquet"))
        if not files:
            continue
        columns = set(pq.read_schema(files[0]).names)
        assert columns >= LABEL_COLUMNS[dataset.kind]
        wanted = [name for name in ("label", "label_name", "split") if name in columns]
        rows = [row for file in files for row in pq.read_table(file, columns=wanted).to_pylist()]
        rows = [row for row in rows if row.get("split", split) == split]
        assert {row["label"] for row in rows} <= set(range(dataset.classes))
        if dataset.name != "tiny-imagenet":  # only a part of it is there
            assert len(rows) == dataset.rows[split]
        if "label_name" in columns and dataset.class_names:
            assert all(dataset.class_names[row["label"]] == row["label_name"] for row in rows)
