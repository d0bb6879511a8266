"""Jobs, data and weights changed at random: always a result or an error in words, and never half a result."""

from __future__ import annotations

import copy
import functools
import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import skops.io
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from job_folders import WIDTH, program, run, table, tables, toml, world, write_world
from PIL import Image
from sklearn.linear_model import LogisticRegression

from forsaken.errors import ForsakenError

BOUNDED = settings(
    deadline=None, derandomize=True, max_examples=60, database=None, suppress_health_check=list(HealthCheck)
)
FEW = settings(BOUNDED, max_examples=25)
WHOLE = {"certificate.json", "model.safetensors", "posteriors.npz", "result.json"}


@functools.cache
def _home() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fuzzed-")  # removed when the tests end


@functools.cache
def template() -> Path:
    folder = write_world(Path(_home().name) / "job")
    (folder / "ids.txt").write_text("\n".join(map(str, range(120, 132))))
    (folder / "own.py").write_text(
        "import numpy as np\ndef load(count=3): return np.ones((count, 12), dtype=np.float32)\n"
        "def prepare(records): return records.samples().inputs\ndef forward(model, inputs): return model(inputs)\n"
        "def flat(records): return records.samples().inputs.float().flatten(1)\n"
    )
    return folder


@contextmanager
def folder() -> Iterator[Path]:
    """A copy of a job folder, removed after the block."""
    with tempfile.TemporaryDirectory(prefix="fuzzed-") as place:
        yield Path(shutil.copytree(template(), Path(place) / "job"))


def tried(home: Path, job: dict[str, dict[str, Any]]) -> bool:
    """Run a job, and return whether it succeeded. Any error but ours fails the test; so does half a result."""
    path = home / "forsaken.toml"
    path.write_text(toml(job))
    out = Path(tempfile.mkdtemp(dir=home.parent)) / "out"
    try:
        run(path, out=out)
    except ForsakenError as error:
        assert not out.exists() or not list(out.iterdir()), "half a result"
        return bool(not str(error).strip() and pytest.fail("an error without words"))
    assert {path.name for path in out.iterdir()} >= {"certificate.json", "posteriors.npz", "result.json"}
    return True


# --- job files -------------------------------------------------------------------------------------------------------

VALUES: list[Any] = [
    "", "x", ".", "..", "/", "~", "~nobody", "train", "forget", "model.safetensors", "train.parquet", "forget.parquet",
    "ids.txt", "model:net", "own:load", "own:prepare", "own:forward", "os:getcwd", "builtins:exec", "json:loads",
    "none:x", "label", "id", "f0", "uniform", "corrected", "class-mean", "rows", "dataset", "cuda", "é\u2028",
    "a" * 300,
    0, 1, -1, 2, 50, 10**6, 2**63 - 1, 0.0, -0.5, 1e308, 1e-300, True, False,
    [], [0], [1, 2, 3], ["a"], [120, 121], [1, 1], [-1], [[1]], {},
    {"of": "train", "count": 5}, {"of": "train", "count": 10**6}, {"of": "train", "ids": [120, 121]},
    {"of": "train", "ids": "ids.txt"}, {"of": "test", "count": 20}, {"of": "reference"}, {"of": "forget"},
    {"path": "train.parquet", "count": 30}, {"python": "own:load"}, {"python": "own:load", "arguments": {"count": 0}},
    {"python": "own:load", "arguments": {"size": 1}}, {"path": "test.parquet", "ids": [0, 1]},
]  # fmt: skip
KEYS = [
    ("model", key) for key in ("weights", "factory", "arguments", "forward", "device", "trusted")
] + [
    ("data", key)
    for key in ("forget", "reference", "retain", "train", "test", "prepare", "label", "id", "size")
] + [
    ("method", key)
    for key in ("name", "seed", "target", "distance", "penalty", "penalty_share", "weights", "power", "anchor",
                "anchor_references", "importance", "optimiser", "iterations", "history", "stop", "parameters",
                "batch_size")
] + [
    ("oracle", key) for key in ("file", "weights", "members", "nonmembers", "retrained")
] + [
    ("chain", key) for key in ("previous", "max_drift", "max_accuracy_loss")
] + [
    ("output", key) for key in ("folder", "mask", "cleaned", "record_key", "signing_key")
]  # fmt: skip


@BOUNDED
@given(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), min_size=1, max_size=3))
@example([(("data", "retain"), "forget.parquet")])
@example([(("data", "reference"), "forget.parquet")])
@example([(("data", "train"), "forget.parquet")])
@example([(("data", "forget"), "train.parquet")])
@example([(("data", "forget"), "test.parquet"), (("data", "test"), "forget.parquet")])
@example([(("data", "label"), "id")])
@example([(("data", "label"), "f0")])
@example([(("data", "id"), "f0"), (("data", "forget"), {"of": "train", "ids": ["a"]})])
@example([(("method", "batch_size"), 1)])
@example([(("method", "target"), "corrected")])
@example([(("method", "anchor"), 1e308)])
@example([(("method", "penalty"), 1e308)])
@example([(("method", "power"), 1e308)])
@example([(("model", "factory"), "builtins:exec")])
@example([(("model", "forward"), "json:loads")])
@example([(("data", "prepare"), "os:getcwd")])
@example([(("data", "forget"), {"python": "own:load"}), (("data", "prepare"), "own:prepare")])
def test_jobs_with_other_values(changes: list[tuple[tuple[str, str], Any]]) -> None:
    job = tables(method={"iterations": 2})
    for (name, key), value in changes:
        if key == "iterations" and isinstance(value, int) and value > 50:
            continue  # right, but it would take for ever
        job.setdefault(name, {})[key] = value
    with folder() as home:
        tried(home, job)


# --- data ------------------------------------------------------------------------------------------------------------

NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 1e30, -1e30, 1e-40, 3.4e38, float("nan"), float("inf"), -float("inf")])
PARTS = st.sampled_from(["forget", "reference", "retain", "train", "test"])
DTYPES = st.sampled_from(["float16", "float32", "float64", "int8", "uint8", "int64", "bool", "complex64", "U3", "S2"])


@FEW
@given(PARTS, NUMBERS, DTYPES, st.sampled_from([(0, 12), (1, 12), (5, 12), (5, 3), (5,), (), (5, 12, 1), (5, 2, 2, 3)]))
@example("forget", float("nan"), "float32", (5, 12))
@example("forget", 1e30, "float64", (5, 12))
@example("reference", 0.0, "uint8", (5, 2, 2, 3))
@example("test", 1.0, "U3", (5, 12))
def test_arrays_of_any_kind(part: str, number: float, dtype: str, shape: tuple[int, ...]) -> None:
    with np.errstate(all="ignore"), folder() as home:
        inputs = np.full(shape, number).astype(dtype)
        if inputs.ndim > 1 and inputs.dtype.kind in "fi":
            inputs[..., 0] = np.arange(len(inputs)).reshape(-1, *[1] * (inputs.ndim - 2))
        labels = np.arange(shape[0] if shape else 1) % 3
        np.savez(home / "odd.npz", inputs=inputs, labels=labels)
        tried(home, tables(data={part: "odd.npz"}, method={"iterations": 2}))


LABELS = st.sampled_from([
    [0] * 12, [3] * 12, [4] * 12, [-1] * 12, [10**9] * 12, list("abcdabcdabcd"), ["only"] * 12, [None] * 12, [0.5] * 12,
    [True, False] * 6, [0, 1, 2, 3] * 3, ["0", "1", "2", "3"] * 3, [""] * 12,
])  # fmt: skip


@FEW
@given(PARTS, LABELS)
def test_labels_of_any_kind(part: str, labels: list[Any]) -> None:
    with folder() as home:
        given_ = table(world().sets["members"][0][-12:]).append_column("label", pa.array(labels))
        pq.write_table(given_, home / "odd.parquet")
        tried(home, tables(data={part: "odd.parquet"}, method={"iterations": 2}))


CELLS = st.sampled_from(
    ["", "nan", "inf", "-inf", "1e999", "0x1", "x", '"', '"a\nb"', "1;2", "é", "\0", "1,2", "1_000", "NULL"]
)


@FEW
@given(PARTS, CELLS, st.sampled_from(["utf-8", "utf-16", "latin-1", "utf-8-sig"]), st.integers(0, 13))
@example("forget", "é", "latin-1", 3)
@example("forget", "x", "utf-8", 0)
def test_tables_of_text_with_odd_cells(part: str, cell: str, encoding: str, at: int) -> None:
    rows = [[str(value) for value in row] + ["1"] for row in world().sets["members"][0][-6:].tolist()]
    if at < len(rows[0]):
        rows[3][at] = cell
    header = [*(f"f{number}" for number in range(WIDTH)), "label" if at != 13 else cell]
    text = "\n".join(",".join(row) for row in [header, *rows])
    with folder() as home:
        (home / "odd.csv").write_bytes(text.encode(encoding, "replace"))
        tried(home, tables(data={part: "odd.csv"}, method={"iterations": 2}))


def test_the_same_rows_in_two_sets_are_refused() -> None:
    for part in ("retain", "reference"):
        with folder() as home:
            inputs, labels = (
                np.concatenate(pair) for pair in zip(world().sets["test"], world().sets["forget"], strict=True)
            )
            pq.write_table(table(inputs, labels), home / "mixed.parquet")
            assert not tried(home, tables(data={part: "mixed.parquet"}))


# --- damaged files ---------------------------------------------------------------------------------------------------


@functools.cache
def files() -> dict[str, tuple[bytes, dict[str, dict[str, Any]]]]:
    """The content of a small file of every format, and the change of a job that reads it."""
    inputs, labels = world().sets["members"]
    few = table(inputs[-8:], labels[-8:])
    found: dict[str, tuple[bytes, dict[str, Any]]] = {}

    def add(name: str, content: bytes, **changes: Any) -> None:
        found[name] = (content, changes)

    packed = io.BytesIO()
    pq.write_table(few, packed)
    add("odd.parquet", packed.getvalue(), data={"reference": "odd.parquet"})
    packed = io.BytesIO()
    np.savez(packed, inputs=inputs[-8:], labels=labels[-8:])
    add("odd.npz", packed.getvalue(), data={"reference": "odd.npz"})
    packed = io.BytesIO()
    np.savez_compressed(packed, inputs=inputs[-8:], labels=labels[-8:])
    add("packed.npz", packed.getvalue(), data={"reference": "packed.npz"})
    packed = io.BytesIO()
    pa.csv.write_csv(few, packed)
    add("odd.csv", packed.getvalue(), data={"reference": "odd.csv"})
    packed = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(256, size=(2, 2, 3), dtype=np.uint8)).save(packed, "PNG")
    one = packed.getvalue()
    packed = io.BytesIO()
    pq.write_table(pa.table({"image": [one] * 3}), packed)
    alone = {"forget": "pictures", "train": None, "test": None, "reference": None, "prepare": "own:flat"}
    add("odd.png", one, data=alone)
    add("pictures.parquet", packed.getvalue(), data={"reference": "pictures.parquet"})

    state = world().states["model"]
    add("odd.safetensors", safetensors.torch.save(state), model={"weights": "odd.safetensors"})
    packed = io.BytesIO()
    torch.save(state, packed)
    add("odd.pt", packed.getvalue(), model={"weights": "odd.pt"})
    packed = io.BytesIO()
    torch.save(state, packed, _use_new_zipfile_serialization=False)
    add("old.pt", packed.getvalue(), model={"weights": "old.pt"})
    add("odd.pt2", program(), model={"weights": "odd.pt2", "factory": None})
    estimator = LogisticRegression(max_iter=500).fit(inputs, labels)
    add("odd.skops", skops.io.dumps(estimator), model={"weights": "odd.skops", "factory": None})
    return found


def read_damaged(name: str, content: bytes) -> bool:
    _, changes = files()[name]
    changes = copy.deepcopy(changes) | {"method": {"iterations": 1, "target": "uniform"}}
    with folder() as home:
        place = home / name
        if name == "odd.png":
            place = home / "pictures" / "any" / name
            place.parent.mkdir(parents=True)
        place.write_bytes(content)
        return tried(home, tables(**changes))


NAMES = ["odd.parquet", "odd.npz", "packed.npz", "odd.csv", "odd.png", "pictures.parquet", "odd.safetensors", "odd.pt",
         "old.pt", "odd.pt2", "odd.skops"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_read_when_they_are_whole(name: str) -> None:
    """Or damage would show nothing."""
    assert read_damaged(name, files()[name][0]) or name == "pictures.parquet"  # pictures beside rows of numbers


@pytest.mark.parametrize("name", NAMES)
@settings(BOUNDED, max_examples=12)
@given(share=st.floats(0, 1, exclude_max=True))
def test_files_that_end_too_soon(name: str, share: float) -> None:
    content = files()[name][0]
    read_damaged(name, content[: int(share * len(content))])


@pytest.mark.parametrize("name", NAMES)
@settings(BOUNDED, max_examples=20)
@given(changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4))
def test_files_with_flipped_bits(name: str, changes: list[tuple[float, int]]) -> None:
    content = bytearray(files()[name][0])
    for share, flip in changes:
        content[int(share * len(content))] ^= flip
    read_damaged(name, bytes(content))


@pytest.mark.parametrize("name", NAMES)
@settings(BOUNDED, max_examples=4)
@given(content=st.binary(max_size=64))
def test_files_of_any_bytes(name: str, content: bytes) -> None:
    read_damaged(name, content)
