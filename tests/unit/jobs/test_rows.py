"""The sets of a job as rows: where they come from, which are chosen, and which are drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_folders import MARKER, table, write_job
from PIL import Image

from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import DataError, DataNotFoundError, EmptyError, ForsakenError, InputError, SettingsError
from forsaken.jobs.code import call, user_code
from forsaken.jobs.configuration import read_job
from forsaken.jobs.rows import Reader, Rows, comparable

TRAIN = np.arange(20, dtype=np.float32)[:, None] * np.ones((1, 3), dtype=np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(table(TRAIN, np.arange(20) % 4, first=100), tmp_path / "train.parquet")
    pq.write_table(table(TRAIN[:2] + 0.5, np.array([0, 1]), first=500), tmp_path / "test.parquet")
    pq.write_table(table(TRAIN[[3, 5]], np.array([3, 1]), first=900), tmp_path / "forget.parquet")
    return tmp_path


def reader(folder: Path, **data: Any) -> Reader:
    seed = data.pop("seed", 0)
    given = {"train": "train.parquet", "test": "test.parquet", "reference": None} | data
    return Reader(read_job(write_job(folder, data=given, method={"seed": seed})))


def numbers(rows: Rows | None) -> list[float]:
    assert rows is not None
    assert isinstance(rows.content, Records)
    return rows.content.content[:, 0].tolist()  # type: ignore[no-any-return]


def test_a_file_is_read_once(folder: Path) -> None:
    sets = reader(folder)
    train = sets.given("train")
    assert train is sets.given("train")
    assert numbers(train) == TRAIN[:, 0].tolist()
    assert train is not None
    assert (train.home, train.path) == ("train", folder / "train.parquet")
    assert train.index.tolist() == list(range(20))
    assert sets.given("retain") is None


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [([4, 2], [4, 2]), (["4", 2, "2", 4], [4, 2]), ([0], [0]), ([19], [19])],
)
def test_rows_by_number_in_the_order_of_the_ids_each_once(folder: Path, ids: list[Any], wanted: list[int]) -> None:
    found = reader(folder, forget={"of": "train", "ids": ids}).given("forget")
    assert numbers(found) == wanted
    assert found is not None
    assert (found.name, found.home, found.index.tolist()) == ("forget", "train", wanted)


def test_rows_by_the_ids_of_a_column(folder: Path) -> None:
    found = reader(folder, id="id", forget={"of": "train", "ids": [105, "103"]}).given("forget")
    assert numbers(found) == [5, 3]
    assert found is not None
    assert found.ids is not None
    assert found.ids.tolist() == [105, 103]


@pytest.mark.parametrize(
    ("column", "asked", "wanted"),
    [
        (["007", "7", "8"], "7", 1),
        (["007", "012", "8"], "007", 0),
        (["1.10", "1.1", "2"], "1.1", 1),
        (["12345678901234567890", "12345678901234567891", "1"], "12345678901234567891", 1),
        (["12e3", "1200e1", "1"], "12e3", 0),
        (["true", "false", "1"], "true", 0),
        (["2024-01-01 10:00:00", "2024-01-02 10:00:00", "1"], "2024-01-02 10:00:00", 1),
    ],
)
def test_ids_of_a_csv_file_are_what_is_written_there(folder: Path, column: list[str], asked: str, wanted: int) -> None:
    lines = [f"{one},{at},{at % 2}" for at, one in enumerate(column)]
    (folder / "t.csv").write_text("\n".join(["who,f,label", *lines]))
    (folder / "ids.txt").write_text(f"{asked}\n")
    found = reader(folder, id="who", train="t.csv", test=None, forget={"of": "train", "ids": "ids.txt"}).given("forget")
    assert numbers(found) == [wanted]
    assert found is not None
    assert found.ids is not None
    assert found.ids.tolist() == [asked]


def test_a_row_of_a_csv_file_without_an_id_is_told(folder: Path) -> None:
    (folder / "t.csv").write_text("who,f,label\na,1,0\n,2,1\n")
    with pytest.raises(DataError, match="column 'who' has no value in row 1"):
        reader(folder, id="who", train="t.csv", test=None, forget={"of": "train", "ids": ["a"]}).given("forget")


def test_long_numbers_are_ids_to_their_last_digit(folder: Path) -> None:
    long = np.array([5, 2**63 + 1, 2**63 + 2, 2**63 + 3], dtype=np.uint64)
    pq.write_table(pa.table({"who": long, "f": np.arange(4.0), "label": [0, 1, 0, 1]}), folder / "t.parquet")
    for at, one in enumerate(long.tolist()):
        (folder / "ids.txt").write_text(f"{one}\n")
        data = {"train": "t.parquet", "test": None, "forget": {"of": "train", "ids": "ids.txt"}}
        assert numbers(reader(folder, id="who", **data).given("forget")) == [at]


def test_an_id_that_two_rows_have_means_both(folder: Path) -> None:
    pq.write_table(
        pa.table({"f0": [0.0, 1.0, 2.0], "f1": [0.0, 1.0, 2.0], "who": ["b", "a", "b"]}), folder / "t.parquet"
    )
    found = reader(folder, id="who", train="t.parquet", test=None, forget={"of": "train", "ids": ["b"]}).given("forget")
    assert numbers(found) == [0, 2]


@pytest.mark.parametrize(
    "content",
    [
        b"103\n105\n",
        b"\xef\xbb\xbf103\r\n105\r\n",
        b"id\n103\n105\n105\n",
        b"\xef\xbb\xbfid,name\r\n103,Ann\r\n105,Bob\r\n",
        b'"103"\n\n  105  \n\n',
        b"103,with,more\n105",
    ],
    ids=["plain", "mark and CRLF", "header and twice", "table", "quotes and blanks", "no last line end"],
)
def test_files_of_ids(folder: Path, content: bytes) -> None:
    (folder / "ids.csv").write_bytes(content)
    assert numbers(reader(folder, id="id", forget={"of": "train", "ids": "ids.csv"}).given("forget")) == [3, 5]


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b"", EmptyError, "names no id"),
        (b"\n\n  \n", EmptyError, "names no id"),
        (b"id\n", EmptyError, "names no id"),
        (b"\xff\xfe1\x000\x00", DataError, "not UTF-8"),
        (b"1\x002", DataError, "not a text file"),
        (b'"' + b"x" * 200_000 + b'"', ForsakenError, "ids"),
        (b"103\n" + MARKER.encode(), InputError, "1 of 2 ids are not in the column 'id' of train (first: number 2"),
        (b"9" * 5000, InputError, "1 of 1 ids"),
        (b"-1\n103", InputError, "1 of 2 ids"),
    ],
)
def test_bad_files_of_ids(folder: Path, content: bytes, kind: type[Exception], words: str) -> None:
    (folder / "ids.txt").write_bytes(content)
    with pytest.raises(kind) as found:
        reader(folder, id="id", forget={"of": "train", "ids": "ids.txt"}).given("forget")
    assert words in str(found.value)
    assert MARKER not in str(found.value)


@pytest.mark.parametrize("id_", [MARKER, "20", "-1", "1.0", "9" * 5000, "²", "٣", "1_0", "0x1"])
def test_ids_that_are_no_row_numbers_are_counted_and_not_quoted(folder: Path, id_: str) -> None:
    with pytest.raises(InputError) as found:
        reader(folder, forget={"of": "train", "ids": ["3", id_]}).given("forget")
    assert "1 of 2 ids are not among the row numbers of train, 0 to 19 (first: number 2 of" in str(found.value)
    assert "name it: id =" in str(found.value)
    assert MARKER not in str(found.value)


def test_a_file_of_ids_that_is_not_there(folder: Path) -> None:
    with pytest.raises(DataNotFoundError, match=r"no file of ids .*ids\.txt"):
        reader(folder, forget={"of": "train", "ids": "ids.txt"}).given("forget")


def test_a_folder_in_place_of_a_file_of_ids(folder: Path) -> None:
    (folder / "ids.txt").mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        reader(folder, forget={"of": "train", "ids": "ids.txt"}).given("forget")


def test_ids_of_a_column_that_is_not_there(folder: Path) -> None:
    with pytest.raises(DataError, match="the column 'who'"):
        reader(folder, id="who", forget={"of": "train", "ids": [1]}).given("forget")


def test_references_need_neither_the_ids_nor_the_labels_of_the_others(folder: Path) -> None:
    pq.write_table(pa.table({"f0": [1.0], "f1": [2.0], "f2": [3.0]}), folder / "strangers.parquet")
    renamed = table(TRAIN, np.arange(20) % 4, first=100).rename_columns(["f0", "f1", "f2", "topic", "who"])
    pq.write_table(renamed, folder / "train.parquet")
    given = {"id": "who", "label": "topic", "reference": "strangers.parquet", "test": None}
    sets = reader(folder, **given, forget={"of": "train", "ids": [103]})
    assert numbers(sets.given("reference")) == [1.0]
    assert numbers(sets.given("forget")) == [3.0]


def test_pictures_by_the_names_of_their_files(folder: Path) -> None:
    for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
        path = folder / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (int(path.stem), len(name), 7)).save(path)
    data = {"train": "pictures", "test": None, "forget": {"of": "train", "ids": ["dog/1.png", "cat/2.png"]}}
    found = reader(folder, **data).given("forget")
    assert found is not None
    assert found.index.tolist() == [2, 1]
    assert isinstance(found.content, Records)
    assert found.content.labels.tolist() == [1, 0]  # type: ignore[union-attr]


def test_a_draw_never_has_what_is_forgotten_nor_copies_of_it(folder: Path) -> None:
    train = np.concatenate([TRAIN, TRAIN[[3]]])  # row 20 is a copy of row 3
    pq.write_table(table(train, np.zeros(21, dtype=int)), folder / "train.parquet")
    for seed in range(5):
        sets = reader(folder, retain={"of": "train", "count": 18}, forget={"of": "train", "ids": [3, 5]}, seed=seed)
        found = sets.given("retain")
        assert found is not None
        assert sorted(found.index) == [at for at in range(20) if at not in (3, 5)]


def test_a_draw_leaves_out_records_of_another_file_too(folder: Path) -> None:
    found = reader(folder, retain={"of": "train", "count": 18}).given("retain")
    assert not {3.0, 5.0} & set(numbers(found))


def test_a_draw_is_fixed_by_the_seed(folder: Path) -> None:
    draws = [
        numbers(reader(folder, retain={"of": "train", "count": 6}, seed=seed).given("retain")) for seed in (0, 0, 1)
    ]
    assert draws[0] == draws[1] != draws[2]
    assert len(set(draws[0])) == 6
    assert draws[0] == sorted(draws[0])


def test_another_request_draws_the_same_rows_but_for_what_it_forgets(folder: Path) -> None:
    retain = {"of": "train", "count": 8}
    first, second = (
        set(numbers(reader(folder, retain=retain, forget={"of": "train", "ids": ids}).given("retain")))
        for ids in ([3, 5], [3, 5, 7])
    )
    assert len(first & second) >= 7


def test_a_draw_of_too_many(folder: Path) -> None:
    with pytest.raises(InputError, match="retain: 19 rows are asked for, but 18 are there besides those to forget"):
        reader(folder, retain={"of": "train", "count": 19}).given("retain")


def test_a_forget_set_may_be_drawn(folder: Path) -> None:
    assert len(numbers(reader(folder, forget={"of": "train", "count": 4}).given("forget"))) == 4


def test_sets_of_sets(folder: Path) -> None:
    data = {"retain": {"of": "test", "ids": [1]}, "test": {"of": "train", "ids": [7, 8]}}
    found = reader(folder, **data).given("retain")
    assert found is not None
    assert (numbers(found), found.home, found.index.tolist()) == ([8], "train", [8])


FUNCTIONS = """
import numpy as np
from forsaken.data.records import Records

def arrays(count=3): return np.ones((count, 3), dtype=np.float32), np.arange(count)
def records(): return Records(np.array(["a", "b"], dtype=object))
def nothing(): return None
def ragged(): return [[1.0], [2.0, 3.0]]
def empty(): return np.ones((0, 3))
def holes(): return np.full((2, 3), np.nan)
def quoting(): raise ValueError("the diary of Ann")
"""


def test_functions(folder: Path) -> None:
    (folder / "own.py").write_text(FUNCTIONS)
    with user_code(folder):
        found = reader(folder, forget={"python": "own:arrays", "arguments": {"count": 4}, "ids": [3, 1]}).given(
            "forget"
        )
        assert found is not None
        assert isinstance(found.content, Samples)
        assert found.content.labels.tolist() == [3, 1]  # type: ignore[union-attr]
        assert found.path is None
        texts = reader(folder, forget={"python": "own:records"}).given("forget")
        assert texts is not None
        assert isinstance(texts.content, Records)
        assert texts.content.kind == "text"


@pytest.mark.parametrize("name", ["nothing", "ragged", "empty", "holes"])
@pytest.mark.parametrize("part", ["forget", "reference"])
def test_functions_that_return_something_else(folder: Path, part: str, name: str) -> None:
    (folder / "own.py").write_text(FUNCTIONS)
    with user_code(folder), pytest.raises(ForsakenError, match=part):
        reader(folder, **{part: {"python": f"own:{name}"}}).given(part)


@pytest.mark.parametrize("part", ["forget", "train", "retain", "test", "reference"])
def test_no_error_over_a_set_is_quoted(folder: Path, part: str) -> None:
    (folder / "own.py").write_text(FUNCTIONS)
    with user_code(folder), pytest.raises(SettingsError, match=r"ValueError at own\.py") as found:
        reader(folder, **{part: {"python": "own:quoting"}}).given(part)
    assert "the diary of Ann" not in str(found.value)


def test_without_looks_at_numbers_and_at_content(folder: Path) -> None:
    sets = reader(folder)
    train, forget = sets.given("train"), sets.given("forget")
    assert train is not None
    assert forget is not None
    left = train.without([forget])
    assert numbers(left) == [at for at in range(20) if at not in (3, 5)]
    assert train.without([train]) is None
    part = train.take(np.array([1, 2]))
    assert numbers(train.without([part, forget])) == [at for at in range(20) if at not in (1, 2, 3, 5)]


def test_what_can_be_compared() -> None:
    texts = Records(np.array(["a"], dtype=object))
    small, large = (Records(np.zeros((2, width), dtype=np.float32)) for width in (3, 4))
    samples = small.samples()
    assert comparable(small, small)
    assert comparable(samples, samples)
    assert not comparable(small, large)
    assert not comparable(small, texts)
    assert not comparable(small, samples)
    assert not comparable(samples, large.samples())


def test_a_misspelt_id_is_not_called_a_feature(folder: Path) -> None:
    (folder / "train.csv").write_text("patient,age,label\np1,3,0\np2,4,1\n", encoding="utf-8")
    with pytest.raises(DataError, match="has no column 'person', which the job file names"):
        reader(folder, train="train.csv", id="person").given("train")


def test_what_we_say_of_returned_inputs_is_shown_and_a_library_s_words_are_not() -> None:
    with pytest.raises(SettingsError, match="prepare returned what cannot be used: forget is of type NoneType"):
        call(Samples.read, "prepare", None, "forget", secret=True)
    with pytest.raises(SettingsError, match="NaN"):
        call(Samples.read, "prepare", np.array([[1.0], [np.nan]]), "forget", secret=True)
    with pytest.raises(SettingsError) as caught:
        call(Samples.read, "prepare", [[1.0], [1.0, "Mrs Smith"]], "forget", secret=True)
    assert "Mrs Smith" not in str(caught.value)
