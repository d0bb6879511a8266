"""From a server to the data folder and back: a small dataset's life, and everything that may go wrong in it."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock

from forsaken.bench.datasets import download, store
from forsaken.bench.datasets.download import get_dataset
from forsaken.bench.datasets.registry import DATASETS, Archive, Dataset
from forsaken.bench.datasets.store import check_datasets, checked_labels, data_folder, load_dataset, presence
from forsaken.errors import DataError, DataNotFoundError, EmptyError, OutputError, UnknownNameError
from forsaken.types import Progress, Tick

CONTENT = b"1 good\n0 bad\n1 fine\n0 poor\n" + b"0 dull\n1 great\n"
REAL = os.environ.get("FORSAKEN_DATA")


def parse(files: Mapping[str, Path], progress: Progress) -> dict[str, pa.Table]:
    lines = [line.split() for line in files["toy.txt"].read_text().splitlines()]
    table = pa.table({"text": [text for _, text in lines], "label": pa.array([int(n) for n, _ in lines], pa.int8())})
    progress(Tick("read toy.txt", 1, 1))
    return {"toy_train": table.slice(0, 4), "toy_test": table.slice(4)}


@dataclass
class World:
    """A data folder, a server, and how often it was asked."""

    folder: Path
    dataset: Dataset
    monkeypatch: pytest.MonkeyPatch
    content: bytes = CONTENT
    asked: list[str] = field(default_factory=list)

    def change(self, **facts: Any) -> None:
        self.dataset = dataclasses.replace(self.dataset, **facts)
        self.monkeypatch.setitem(DATASETS, "toy-reviews", self.dataset)

    def put(self, name: str, **columns: Any) -> Path:
        self.folder.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), self.folder / name)
        return self.folder / name

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("[!.]*") if path.is_file())

    def problems(self, *names: str) -> list[str]:
        return [finding.problem for finding in check_datasets(names or ["toy-reviews"]) if finding.problem]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            made.asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(made.content)))
            self.end_headers()
            self.wfile.write(made.content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    archive = Archive(f"http://127.0.0.1:{server.server_address[1]}/toy.txt", "toy.txt", None, 0.1)
    facts = {"title": "Toy", "kind": "text", "home": "http://x/", "cite": "Nobody, 2025", "terms": "none"}
    parts = {"train": "toy_train", "test": "toy_test"}
    toy = Dataset("toy-reviews", **facts, archives=(archive,), parts=parts, rows={"train": 4, "test": 2}, classes=2,
                  class_names=("negative", "positive"), parse=parse)  # fmt: skip
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("FORSAKEN_DATA", str(tmp_path / "data"))
    made = World(tmp_path / "data", toy, monkeypatch)
    made.change()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


def test_get_load_and_check(world: World) -> None:
    paths = get_dataset("toy-reviews")
    assert paths == [world.folder / "toy_train.parquet", world.folder / "toy_test.parquet"]
    train, test = load_dataset("toy-reviews", "train"), load_dataset("toy-reviews", "test")
    assert (train.content.tolist(), train.labels.tolist()) == (["good", "bad", "fine", "poor"], [1, 0, 1, 0])
    assert (test.content.tolist(), test.names) == (["dull", "great"], ("negative", "positive"))
    assert load_dataset("toy-reviews").content.tolist() == train.content.tolist() + test.content.tolist()
    findings = list(check_datasets(["toy-reviews"]))
    assert [(found.file, found.rows, found.problem, found.note) for found in findings] == [
        ("toy_train.parquet", 4, "", "checksum as written"),
        ("toy_test.parquet", 2, "", "checksum as written"),
    ]
    noted = json.loads((world.folder / "normalised.json").read_text())
    assert noted == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.mark.parametrize("keep", [False, True])
def test_originals_are_removed_unless_they_are_to_be_kept(world: World, keep: bool) -> None:
    get_dataset("toy-reviews", keep_originals=keep)
    assert ("originals/toy.txt" in world.files()) is keep
    assert {"normalised.json", "toy_train.parquet", "toy_test.parquet"} <= set(world.files())


def test_a_second_get_asks_nobody_unless_forced(world: World) -> None:
    first = get_dataset("toy-reviews")
    stamp = first[0].stat().st_mtime_ns
    assert get_dataset("toy-reviews") == first
    assert (len(world.asked), first[0].stat().st_mtime_ns) == (1, stamp)
    first[0].write_bytes(b"damaged")
    assert get_dataset("toy-reviews", force=True) == first
    assert len(world.asked) == 2
    assert len(load_dataset("toy-reviews", "train")) == 4


def test_original_files_in_the_folder_need_no_network_and_are_left_alone(world: World) -> None:
    world.folder.mkdir()
    (world.folder / "toy.txt").write_bytes(CONTENT)
    assert presence(world.dataset) == "yes"
    assert load_dataset("toy-reviews", "test").content.tolist() == ["dull", "great"]
    assert [found.note for found in check_datasets(["toy-reviews"])] == ["original files"] * 2
    get_dataset("toy-reviews")
    assert world.asked == []
    assert {"toy.txt", "toy_test.parquet"} <= set(world.files())


def test_original_files_are_checked_against_the_published_checksum(world: World) -> None:
    published = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    world.change(archives=(dataclasses.replace(world.dataset.archives[0], checksum=published),))
    world.folder.mkdir()
    (world.folder / "toy.txt").write_bytes(CONTENT)
    assert [found.note for found in check_datasets(["toy-reviews"])] == ["original files, checksum as published"] * 2
    (world.folder / "toy.txt").write_bytes(CONTENT.replace(b"fine", b"fins"))
    assert re.search(r"toy\.txt: its sha256 is .*published is .*get it again", world.problems()[0])


@pytest.mark.parametrize("kind", [DataError, KeyboardInterrupt])
def test_nothing_is_written_when_parsing_fails(world: World, kind: type[BaseException]) -> None:
    def fail(files: Mapping[str, Path], progress: Progress) -> dict[str, pa.Table]:
        raise kind("torn")

    world.change(parse=fail)
    with pytest.raises(kind, match="torn"):
        get_dataset("toy-reviews")
    assert world.files() == ["originals/checksums.json", "originals/toy.txt"]
    world.change(parse=parse)
    assert len(get_dataset("toy-reviews")) == 2
    assert len(world.asked) == 1


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt("enough")])
@pytest.mark.parametrize("there", [False, True])
def test_nothing_half_written_is_left_when_writing_fails(world: World, error: BaseException, there: bool) -> None:
    def fail(table: pa.Table, file: Any, **settings: Any) -> None:
        file.write(b"PAR1 and then")
        raise error

    if there:
        get_dataset("toy-reviews", keep_originals=True)
    before = {name: (world.folder / name).read_bytes() for name in world.files()} if there else {}
    with world.monkeypatch.context() as patch:
        patch.setattr(download.pq, "write_table", fail)
        with pytest.raises((OutputError, KeyboardInterrupt), match=r"toy_train\.parquet: No space left|enough"):
            get_dataset("toy-reviews", force=True)
    left = {name: (world.folder / name).read_bytes() for name in world.files()}
    assert (left == before) if there else left.keys() == {"originals/checksums.json", "originals/toy.txt"}
    assert len(get_dataset("toy-reviews")) == 2
    assert world.problems() == []


def test_a_wrong_number_of_rows_is_refused(world: World) -> None:
    world.change(rows={"train": 4, "test": 3})
    with pytest.raises(DataError, match=r"toy-reviews gave 2 rows for toy_test, expected 3; .*get it again"):
        get_dataset("toy-reviews")
    assert [name for name in world.files() if name.endswith(".parquet")] == []


def test_a_changed_byte_is_noticed(world: World) -> None:
    path = get_dataset("toy-reviews")[0]
    content = bytearray(path.read_bytes())
    content[content.index(b"ARROW:schema")] ^= 1
    path.write_bytes(content)
    assert load_dataset("toy-reviews", "train").content.tolist() == ["good", "bad", "fine", "poor"]
    (problem,) = world.problems()
    assert hashlib.sha256(content).hexdigest() in problem
    assert "forsaken datasets get toy-reviews --force" in problem


def test_shards_are_read_in_order_and_a_missing_one_is_noticed(world: World) -> None:
    world.put("toy_train-00001-of-00002.parquet", text=["c", "d"], label=[1, 0])
    with pytest.raises(
        DataError, match=r"holds 1 of the 2 files toy_train-\*\.parquet, or of several sets; copy the others"
    ):
        load_dataset("toy-reviews", "train")
    assert "holds 1 of the 2 files" in world.problems()[0]
    world.put("toy_train-00000-of-00002.parquet", text=["a", "b"], label=[0, 1])
    assert load_dataset("toy-reviews", "train").content.tolist() == ["a", "b", "c", "d"]
    first = next(check_datasets(["toy-reviews"]))
    assert (first.file, first.rows, first.note) == ("toy_train-*.parquet", 4, "no checksum recorded")
    world.put("toy_train.parquet", text=["a", "b"], label=[0, 1])
    assert next(check_datasets(["toy-reviews"])).note == "no checksum recorded; a part of the complete 4"


def test_labels_out_of_range_and_empty_classes_are_noticed(world: World) -> None:
    world.put("toy_train.parquet", text=["a", "b"], label=[0, 2])
    world.put("toy_test.parquet", text=["a", "b"], label=[0, 0])
    high, empty = world.problems()
    assert re.search(r"label of row 1 is 2, expected 0 to 1", high)
    assert re.search(r"class 1 is empty", empty)
    with pytest.raises(DataError, match="dataset toy-reviews, train: the label of row 1 is 2"):
        load_dataset("toy-reviews", "train")


def test_splits_of_one_file_are_told_apart_by_its_column(world: World) -> None:
    world.change(parts={"train": "toy", "test": "toy"})
    world.put(
        "toy.parquet",
        text=list("abcd"),
        label=[0, 1, 1, 0],
        split=["train", "test", "train", "test"],
        year=[1, 2, 3, 4],
    )
    assert load_dataset("toy-reviews", "test", columns=["year"]).columns["year"].tolist() == [2, 4]
    assert load_dataset("toy-reviews", "train").content.tolist() == ["a", "c"]
    assert len(load_dataset("toy-reviews")) == 4
    world.put("toy.parquet", text=["a", "b"], label=[0, 1], split=["train", "train"])
    with pytest.raises(EmptyError, match="dataset toy-reviews, test holds no rows"):
        load_dataset("toy-reviews", "test")


def test_unknown_names_are_helped(world: World) -> None:
    for call in (load_dataset, get_dataset, lambda name: list(check_datasets([name]))):
        with pytest.raises(UnknownNameError, match=r"unknown dataset 'toy-review'; did you mean 'toy-reviews'\?"):
            call("toy-review")
    with pytest.raises(UnknownNameError, match=r"unknown split of toy-reviews 'tets'; did you mean 'test'\?"):
        load_dataset("toy-reviews", "tets")
    get_dataset("toy-reviews")
    with pytest.raises(DataError, match="no column 'rating'"):
        load_dataset("toy-reviews", "test", columns=["rating"])


def test_a_missing_dataset_says_how_to_get_it(world: World) -> None:
    with pytest.raises(
        DataNotFoundError, match=r"toy_train\.parquet in .*data .*run: forsaken datasets get toy-reviews$"
    ):
        load_dataset("toy-reviews")
    assert all("run: forsaken datasets get toy-reviews" in problem for problem in world.problems())
    assert len(world.problems()) == 2
    assert list(check_datasets()) == []
    assert presence(world.dataset) == "no"


def test_damaged_files_are_named(world: World) -> None:
    get_dataset("toy-reviews")[1].write_bytes(b"PAR1")
    (problem,) = world.problems()
    assert re.search(r"toy_test\.parquet cannot be read as Parquet .*get or export it again", problem)
    (world.folder / "normalised.json").write_text("{")
    assert re.search(r"normalised\.json cannot be read .*delete it", world.problems()[0])


def test_a_folder_that_cannot_be_made_is_named(world: World) -> None:
    world.folder.write_text("")
    with pytest.raises(OutputError, match=r"cannot make the folder .*data: .*name another folder in FORSAKEN_DATA"):
        get_dataset("toy-reviews")


def test_the_folder_is_the_named_one_or_the_platforms_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FORSAKEN_DATA", "~/sets")
    assert data_folder() == tmp_path / "sets"
    monkeypatch.delenv("FORSAKEN_DATA")
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache" / name)
    assert data_folder() == tmp_path / "cache" / "forsaken"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_split_column_is_named(world: World) -> None:
    world.change(parts={"train": "toy", "test": "toy"})
    world.put("toy.parquet", text=["a", "b"], label=[0, 1])
    with pytest.raises(DataError, match="split"):
        load_dataset("toy-reviews", "train")


def test_files_that_differ_in_their_types_are_joined_or_named(world: World) -> None:
    world.put("toy_train.parquet", text=["a", "b"], label=pa.array([0, 1], pa.int8()))
    world.put("toy_test.parquet", text=["a", "b"], label=pa.array([0, 1], pa.int64()))
    assert len(load_dataset("toy-reviews")) == 4


@pytest.mark.parametrize("columns", [{"text": ["a", "b"], "label": ["x", "y"]}, {"words": ["a", "b"], "topic": [0, 1]}])
def test_check_notices_other_columns_than_the_datasets(world: World, columns: dict[str, Any]) -> None:
    world.put("toy_train.parquet", **columns)
    assert any("toy_test" not in problem for problem in world.problems())


def test_get_downloads_the_originals_that_are_not_in_the_folder(world: World) -> None:
    def halves(files: Mapping[str, Path], progress: Progress) -> dict[str, pa.Table]:
        tables = parse({"toy.txt": next(iter(files.values()))}, progress)
        return {stem: table for stem, table in tables.items() if f"{stem}.txt" in files}

    url = world.dataset.archives[0].url
    world.change(
        archives=tuple(Archive(url, f"{stem}.txt", None, 0.1) for stem in ("toy_train", "toy_test")), parse=halves
    )
    world.folder.mkdir()
    (world.folder / "toy_test.txt").write_bytes(CONTENT)
    assert [path.name for path in get_dataset("toy-reviews")] == ["toy_train.parquet", "toy_test.parquet"]


@pytest.mark.skipif(REAL is None, reason="FORSAKEN_DATA is not set")
@pytest.mark.parametrize("name", DATASETS)
def test_the_datasets_that_are_there_load_with_all_their_rows(name: str) -> None:
    dataset = DATASETS[name]
    if presence(dataset) == "no":
        pytest.skip(f"{name} is not in {REAL}")
    least = min(dataset.rows, key=lambda split: dataset.rows[split])
    for split in [least] if dataset.kind == "image" else dataset.rows:
        found = load_dataset(name, split, size=(8, 8) if dataset.kind == "image" else None)
        files = store.files_of(dataset, dataset.parts[split])
        part = name == "tiny-imagenet" and sum(pq.read_metadata(path).num_rows for path in files)
        assert len(found) == (part or dataset.rows[split])
        assert found.kind == ("image" if dataset.kind == "image" else "text")
        assert (found.labels is None) == (dataset.classes == 0)
        assert found.labels is None or len(set(found.labels.tolist())) == dataset.classes == len(found.names)


def test_one_process_at_a_time_gets_a_dataset(world: World) -> None:
    world.folder.mkdir(parents=True, exist_ok=True)
    with FileLock(world.folder / ".lock"), pytest.raises(OutputError, match="another process is getting a dataset"):
        get_dataset("toy-reviews")
    assert get_dataset("toy-reviews")


def test_an_original_with_another_checksum_is_never_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORSAKEN_DATA", str(tmp_path))
    for split in ("train", "valid", "test"):
        (tmp_path / f"ptb.{split}.txt.gz").write_bytes(gzip.compress(b" tampered \n"))
    with pytest.raises(DataError, match=r"ptb\.train\.txt\.gz: its md5 is .*, published is f26c4b92"):
        load_dataset("ptb", "train")


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_out_of_range_is_named_with_its_row(label: int) -> None:
    with pytest.raises(DataError, match=rf"here: the label of row 2 is {label}, expected 0 to 2 \(1 rows in all"):
        checked_labels(np.array([0, 1, label, 2]), 3, "here")


def test_a_class_without_rows_is_named_and_good_labels_become_int64() -> None:
    with pytest.raises(DataError, match=r"here: class 1 is empty \(2 of 4 classes are\)"):
        checked_labels(np.array([0, 2]), 4, "here")
    good = checked_labels(np.array([1, 0], np.int8), 2, "here")
    assert (good.tolist(), good.dtype) == ([1, 0], np.int64)
