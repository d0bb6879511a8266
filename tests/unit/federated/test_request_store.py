"""The node's store: what it refuses, what it keeps, and that a change is there as a whole or not at all."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import torch

from forsaken.errors import DataNotFoundError, InputError, OutputError
from forsaken.federated.scaling import Ledger
from forsaken.federated.store import FILE, Requests, Upload

MASK = {"w": torch.arange(6.0).reshape(2, 3)}


@pytest.fixture
def store(tmp_path: Path) -> Requests:
    found = Requests(tmp_path / "node")
    found.register(20, [18, 19])
    return found


def test_a_request_is_there_for_another_process(store: Requests, tmp_path: Path) -> None:
    filed = store.file([3, 1, 3])
    assert Requests(tmp_path / "node", existing=True).all() == [filed]
    assert filed.rows == (1, 3)
    assert (filed.state, filed.attempt) == ("filed", 1)
    assert (tmp_path / "node" / FILE).stat().st_mode & 0o077 == 0, "for the owner alone"


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ([], "rows is empty"),
        ([5, 20], "this node has no row 20, expected rows from 0 to 19"),
        ([-1], "this node has no row -1"),
        ([4, 7], "row 4 is already in request 1"),
        ([10, 18], "row 18 has no reference"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words_and_nothing_is_filed(
    store: Requests, rows: list[int], word: str
) -> None:
    first = store.file([4])
    with pytest.raises(InputError, match=word):
        store.file(rows)
    assert store.all() == [first]


def test_an_operator_s_wrong_folder_is_told_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match="has no store of a node"):
        Requests(tmp_path / "nobody", existing=True)
    assert not (tmp_path / "nobody").exists()


def test_an_empty_file_is_no_store_and_stays_empty(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    with pytest.raises(DataNotFoundError, match="has no store of a node"):
        Requests(tmp_path, existing=True)
    assert (tmp_path / FILE).stat().st_size == 0


def test_a_node_that_never_took_part_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="after one round"):
        Requests(tmp_path).file([1])


def test_a_damaged_store_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database" * 200)
    with pytest.raises(OutputError, match="restore the file"):
        Requests(tmp_path)


def test_the_way_of_a_request(store: Requests) -> None:
    number = store.file([0, 1]).id
    store.begin(number, MASK, 2.5)
    upload = Upload("token", number, 4, 1.5)
    store.uploaded(upload, Ledger(step=4))
    assert store.open_upload() == upload
    found = store.mask(number)
    assert found is not None
    assert torch.equal(found["w"], MASK["w"])
    assert store.get(number).distance == 2.5
    store.settle(upload, Ledger(1.0, 0.0, 5), counted=True)
    assert store.open_upload() is None
    store.confirm(number, Ledger(1.0, 0.0, 5), "all of it")
    assert store.mask(number) is None
    store.refile(number, "it came back")
    again = store.get(number)
    assert (again.state, again.attempt, again.ledger) == ("filed", 2, Ledger())
    store.begin(number, MASK, 1.0)
    assert store.get(number).distance == 2.5, "the distance of the first time is what a check compares with"
    store.check(number, "it is gone")
    assert store.get(number).state == "checked"
    words = [what.split(":")[0] for _, what in store.events(number)]
    assert words == ["filed", "uploaded in round 5", "round 5 counted it", "confirmed", "filed again", "checked"]


def test_a_mask_leaves_no_trace_in_the_file(store: Requests, tmp_path: Path) -> None:
    number = store.file([0]).id
    store.begin(number, {"secretly-named": torch.rand(2000)}, 1.0)
    assert b"secretly-named" in (tmp_path / "node" / FILE).read_bytes()
    store.confirm(number, Ledger(1.0), "done")
    assert b"secretly-named" not in (tmp_path / "node" / FILE).read_bytes()


def test_a_change_that_is_broken_off_is_not_there(store: Requests) -> None:
    number = store.file([0]).id
    upload = Upload("token", number, 0, 1.0)
    store.uploaded(upload, Ledger())
    before = store.all(), store.events(number)
    with pytest.raises(OutputError, match="UNIQUE"):
        store.uploaded(upload, Ledger(0.5, 0.5, 7))  # the same token a second time
    assert (store.all(), store.events(number)) == before


def test_a_problem_is_noted_once(store: Requests) -> None:
    number = store.file([0]).id
    store.fail(number, "no references")
    store.fail(number, "no references")
    assert store.get(number).problem == "no references"
    assert len(store.events(number)) == 2


def test_commits_are_flushed(store: Requests) -> None:
    with store._connected() as base:
        assert base.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL
        assert base.execute("PRAGMA secure_delete").fetchone()[0] == 1


def test_two_processes_at_once_wait_for_each_other(store: Requests, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "node" / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    import threading

    filed = []
    thread = threading.Thread(target=lambda: filed.append(Requests(tmp_path / "node").file([2])))
    thread.start()
    thread.join(0.2)
    assert not filed, "it waits"
    other.execute("ROLLBACK")
    thread.join(10)
    assert len(filed) == 1
