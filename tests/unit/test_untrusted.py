"""Files that a stranger may have written: every bound holds, and what is refused is told in words."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import skops.io
import torch
from job_folders import build, finished, forsaken, program, rezip, run, unzip, world, write_bert, write_job, write_world
from sklearn.linear_model import LogisticRegression

from forsaken import ShadowOracle, _untrusted
from forsaken._untrusted import UnreadableError, check_zip, memory_bound, parse_json, read_at_most, read_npz
from forsaken.bench.datasets.store import recorded
from forsaken.data.readers import read_records
from forsaken.errors import DataError, ForsakenError, ModelError, OracleError, OutputError
from forsaken.jobs import archive
from forsaken.jobs.cleaning import write_cleaned
from forsaken.jobs.formats import EstimatorFile, HuggingFaceFolder, ProgramFile, TensorFile
from forsaken.references.table import References
from forsaken.result import Result
from forsaken.unlearning.forsaken.mask import Mask

DEEP = "[" * 5000 + "]" * 5000


# --- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (DEEP, "nested too deeply"),
        ('{"a":' * 70 + "1" + "}" * 70, "nested too deeply"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"\xff\xfe\x00", "not UTF-8|not JSON"),
        ("9" * 5000, "number"),
        ("{", "not JSON"),
    ],
)
def test_json_is_refused_in_words(text: str | bytes, words: str) -> None:
    with pytest.raises(UnreadableError, match=words):
        parse_json(text)


def test_json_of_64_levels_is_read() -> None:
    assert parse_json("[" * 64 + "]" * 64)


def read_config(path: Path) -> object:
    (path.parent / "model.safetensors").touch()
    return HuggingFaceFolder(path.rename(path.with_name("config.json")).parent)


@pytest.mark.parametrize("read", [ShadowOracle.load, recorded, Result.read, read_config])
@pytest.mark.parametrize("content", [DEEP.encode(), b'{"a": "\xff"}', b"9" * 5000], ids=["deep", "not UTF-8", "digits"])
def test_readers_of_json_raise_our_errors(tmp_path: Path, read: Callable[[Path], object], content: bytes) -> None:
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(ForsakenError, match="json"):
        read(tmp_path / "file.json")


def test_a_mask_with_deep_settings_is_refused(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    run(write_job(folder, output={"mask": True}))
    about, tensors = _untrusted.read_safetensors(folder / "forgotten" / "mask.safetensors")
    (tmp_path / "deep").write_bytes(safetensors.torch.save(tensors, metadata={**about, "settings": DEEP}))
    with pytest.raises(ForsakenError, match="nested too deeply"):
        Mask.load(tmp_path / "deep")


def test_large_files_and_pipes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 11)
    with pytest.raises(UnreadableError, match="more than 10 bytes"):
        read_at_most(tmp_path / "large", 10)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no plain file"):
        read_at_most(tmp_path / "pipe", 10)


# --- archives that expand --------------------------------------------------------------------------------------------

BOUND = 2**20


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the machine's memory is one MiB."""
    monkeypatch.setattr(_untrusted, "memory_bound", lambda: BOUND)


def squeezed(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def bomb_npz(path: Path) -> None:
    np.savez_compressed(path, inputs=np.zeros((BOUND // 4, 2), dtype=np.float32))


def bomb_parquet(path: Path) -> None:
    pq.write_table(pa.table({"f0": np.zeros(BOUND, dtype=np.float32)}), path)


def bomb_of_texts(path: Path) -> None:
    pq.write_table(pa.table({"text": ["x" * 1000] * 10_000}), path)  # one entry of a dictionary


def bomb_pt(path: Path) -> None:
    packed = io.BytesIO()
    torch.save(world().states["model"], packed)
    path.write_bytes(squeezed(unzip(packed.getvalue()) | {"archive/data/9": b"\0" * 2 * BOUND}))


def bomb_pt2(path: Path) -> None:
    members = unzip(program())
    name = next(name for name in members if name.endswith("weights/weight_0"))
    path.write_bytes(squeezed(members | {name: b"\0" * 2 * BOUND}))


def bomb_skops(path: Path) -> None:
    estimator = LogisticRegression().fit(*world().sets["test"])
    path.write_bytes(squeezed(unzip(skops.io.dumps(estimator)) | {"9.npy": b"\0" * 2 * BOUND}))


BOMBS: dict[str, tuple[Callable[[Path], None], Callable[[Path], object]]] = {
    "a.npz": (bomb_npz, read_records),
    "a.parquet": (bomb_parquet, read_records),
    "texts.parquet": (bomb_of_texts, read_records),
    "a.pt": (bomb_pt, lambda path: TensorFile(path, build, {})),
    "a.pt2": (bomb_pt2, ProgramFile),
    "a.skops": (bomb_skops, EstimatorFile),
}


@pytest.mark.usefixtures("bound")
@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_expands_beyond_memory_is_refused(tmp_path: Path, name: str) -> None:
    write, read = BOMBS[name]
    write(tmp_path / name)
    assert (tmp_path / name).stat().st_size < BOUND // 8
    with pytest.raises((DataError, ModelError), match=r"it expands to .* more than half of this machine's memory"):
        read(tmp_path / name)


def test_what_is_no_bomb_is_read_whatever_it_is(tmp_path: Path) -> None:
    (tmp_path / "no.zip").write_bytes(b"PK\x03\x04 no archive")
    check_zip(tmp_path / "no.zip")
    np.savez(tmp_path / "a.npz", inputs=np.ones((3, 2)), labels=[0, 1, 0], more=np.zeros(2))
    names, arrays = read_npz(tmp_path / "a.npz", ["inputs"])
    assert (sorted(names), list(arrays)) == (["inputs", "labels", "more"], ["inputs"])
    assert memory_bound() > 2**24


def test_an_array_that_claims_more_than_its_member_holds_is_not_made(tmp_path: Path) -> None:
    packed = io.BytesIO()
    np.lib.format.write_array_header_1_0(packed, {"descr": "<f4", "fortran_order": False, "shape": (10**15, 9)})
    (tmp_path / "a.npz").write_bytes(rezip({"inputs.npy": packed.getvalue() + b"\0" * 64}))
    with pytest.raises(DataError, match="cannot be read as NPZ"):
        read_records(tmp_path / "a.npz")


def test_a_parquet_file_without_rows_keeps_its_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"f0": pa.array([], pa.float32())}), tmp_path / "a.parquet")
    with pytest.raises(ForsakenError, match="no rows"):
        read_records(tmp_path / "a.parquet")


# --- tensors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.complex64, torch.uint16])
def test_tensors_of_odd_types_are_refused(tmp_path: Path, kind: torch.dtype) -> None:
    odd = {name: torch.zeros(part.shape, dtype=kind) for name, part in world().states["model"].items()}
    (tmp_path / "a.safetensors").write_bytes(safetensors.torch.save(odd))
    reads: list[Callable[[Path], object]] = [
        lambda path: TensorFile(path, build, {}),
        Mask.load,
        lambda path: References.load(path, key=bytes(32)),
    ]
    for read in reads:
        with pytest.raises(ForsakenError, match="it holds tensors of type"):
            read(tmp_path / "a.safetensors")


# --- oracles ---------------------------------------------------------------------------------------------------------

ORACLE = """
import json, os, sys
from forsaken.errors import OracleError
from forsaken.oracles.shadow import ShadowOracle
import numpy as np
parts = [np.random.default_rng(0).dirichlet(np.full(4, size), 60) for size in (0.2, 1.0)]
whole = ShadowOracle.fit_posteriors(*parts)
whole.save("oracle.json")
scores = whole.score_posteriors(parts[0])
numbers = [-1, -2, -5, 10**6, 2**31 - 2, 2**31 - 1, -2**31, 2**40, 1.5, None, True]
keys = ["parents", "left_children", "right_children", "split_indices", "default_left", "split_type"]
lists = ["categories", "categories_nodes", "categories_segments", "categories_sizes"]
for key in keys + lists + ["tree_info", "iteration_indptr", "num_nodes", "num_feature", "num_trees", "num_class"]:
    for value in numbers:
        content = json.load(open("oracle.json"))
        learner = content["trees"]["learner"]
        model = learner["gradient_booster"]["model"]
        tree = model["trees"][0]
        if key in keys:
            tree[key][2] = value
        elif key in lists:
            tree[key] = [value] * 9
        elif key in model:
            model[key] = [value] * len(model[key])
        elif key == "num_nodes":
            tree["tree_param"][key] = str(value)
        elif key == "num_trees":
            model["gbtree_model_param"][key] = str(value)
        else:
            learner["learner_model_param"][key] = str(value)
        json.dump(content, open("odd.json", "w"))
        child = os.fork()
        if child == 0:
            try:
                found = ShadowOracle.load("odd.json").score_posteriors(parts[0])
            except OracleError:
                os._exit(7)
            os._exit(8 if np.isfinite(found).all() else 9)
        print(key, value, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_no_index_of_an_oracle_leads_out_of_memory(tmp_path: Path) -> None:
    """XGBoost follows whatever it is given: a negative parent ended the process with a segmentation fault."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", ORACLE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    ends = {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in ended.stdout.splitlines()}
    assert len(ends) == 16 * 11
    assert set(ends.values()) == {7, 8}, {name: end for name, end in ends.items() if end not in (7, 8)}
    assert ends["left_children -5"] == ends["split_indices -1"] == 7


def test_an_oracle_scores_the_same_after_it_was_saved_and_loaded(tmp_path: Path) -> None:
    parts = [np.random.default_rng(1).dirichlet(np.full(4, size), 200) for size in (0.2, 1.0)]
    oracle = ShadowOracle.fit_posteriors(*parts)
    again = ShadowOracle.load(oracle.save(tmp_path / "a.json"))
    for part in parts:
        np.testing.assert_array_equal(oracle.score_posteriors(part), again.score_posteriors(part))
    assert again.save(tmp_path / "b.json").read_bytes() == (tmp_path / "a.json").read_bytes()


def test_a_tree_with_two_ways_to_one_node_is_refused(tmp_path: Path) -> None:
    parts = [np.random.default_rng(1).dirichlet(np.full(4, size), 200) for size in (0.2, 1.0)]
    content = json.loads(ShadowOracle.fit_posteriors(*parts).save(tmp_path / "a.json").read_bytes())
    tree = content["trees"]["learner"]["gradient_booster"]["model"]["trees"][0]
    tree["right_children"][0] = tree["left_children"][0]
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(OracleError, match="damaged"):
        ShadowOracle.load(tmp_path / "a.json")


# --- terminals and spreadsheets --------------------------------------------------------------------------------------

EVIL = "\x1b]0;owned\x07\x1b[2J[/red]\u202e\x9b"


def test_names_from_files_cannot_steer_the_terminal(tmp_path: Path) -> None:
    mask = Mask.load(_masked(tmp_path))
    evil = {f"{EVIL}{name}": part for name, part in mask.entries.items()}
    path = Mask(evil, mask.trainable, mask.base, mask.new, mask.settings).save(tmp_path / "evil")
    ended = forsaken("mask", "show", path)
    assert ended.code == 0
    assert "\\x1b" in ended.out
    assert "[/red]" in ended.out
    told = forsaken("mask", "show", tmp_path / EVIL)
    assert told.code == 2
    for text in (ended.out, told.err):
        assert not set(text) & set("\x1b\x07\x9b\u202e\r")


def test_a_message_cannot_steer_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "forsaken.toml").write_text(f'[model]\nweights = "a.safetensors"\n"{EVIL[2:8]}\u202e[/x]" = 1\n')
    ended = forsaken("unlearn", tmp_path / "forsaken.toml")
    assert ended.code == 2
    assert "[/x]" in ended.err
    assert "\u202e" not in ended.err


def _masked(tmp_path: Path) -> Path:
    folder = write_world(tmp_path / "job")
    run(write_job(folder, output={"mask": True}))
    return folder / "forgotten" / "mask.safetensors"


def test_ids_cannot_be_formulas_in_a_list_for_people(tmp_path: Path) -> None:
    ids = ["=HYPERLINK(1)", "+cmd", "-cmd", "@sum", "\tx", "-12", "+3.5", "anna@home", "a=b"]
    path, _ = write_cleaned(None, range(len(ids)), tmp_path, mode="rows", ids=ids)
    cells = [line.split(",", 1)[1].strip('"') for line in path.read_text().splitlines()[1:]]
    assert cells == ["'=HYPERLINK(1)", "'+cmd", "'-cmd", "'@sum", "'\tx", "-12", "+3.5", "anna@home", "a=b"]


# --- little memory, folders that cannot be read, links ---------------------------------------------------------------


def test_too_little_memory_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = finished(tmp_path / "job")

    def starved(*_: object) -> Any:
        raise MemoryError

    monkeypatch.setattr("forsaken.report.page.render", starved)
    ended = forsaken("report", job.parent / "forgotten")
    assert (ended.code, "there is not enough memory" in ended.err) == (2, True)


ORDINARY = """
import ctypes
head, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc = ctypes.CDLL(None)
if libc.capget(head, data) == 0:  # root may write and read everything, unless it lays the right down
    data[0] &= ~0b1110
    data[1] &= ~0b1110
    libc.capset(head, data)
from forsaken.cli.main import main
main()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="rights of processes are Linux's")
@pytest.mark.parametrize(
    "words",
    [
        ("unlearn", "forsaken.toml", "--out", "new"),
        ("unlearn", "forsaken.toml", "--force"),
        ("unlearn", "hidden.toml"),
        ("report", "forgotten"),
        ("report", "forgotten", "--out", "page.html"),
        ("init", "new.toml"),
        ("keys", "new-record", "key"),
    ],
    ids=" ".join,
)
def test_folders_that_may_not_be_written_or_read(tmp_path: Path, words: tuple[str, ...]) -> None:
    folder = finished(tmp_path / "job").parent
    (folder / "pictures" / "a").mkdir(parents=True)
    write_job(folder, "hidden.toml", data={"forget": "pictures", "train": None})
    (folder / "pictures").chmod(0)
    (folder / "forgotten").chmod(0o555)
    folder.chmod(0o555)
    ended = subprocess.run(
        [sys.executable, "-c", ORDINARY, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    for place in (folder, folder / "forgotten", folder / "pictures"):
        place.chmod(0o755)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "ermission denied" in ended.stderr


def test_a_hugging_face_folder_is_not_copied_through_links(tmp_path: Path) -> None:
    write_bert(tmp_path / "job")
    folder = tmp_path / "job" / "bert"
    (tmp_path / "secret").write_text("of somebody else")
    (folder / "notes.txt").symlink_to(tmp_path / "secret")
    (folder / "own.txt").write_text("mine")
    read = HuggingFaceFolder(folder)
    read.write(read.model, tmp_path / "new")
    assert (tmp_path / "new" / "own.txt").read_text() == "mine"
    assert not (tmp_path / "new" / "notes.txt").exists()


def test_problems_of_a_damaged_result_are_in_our_own_words(tmp_path: Path) -> None:
    folder = finished(tmp_path / "job").parent / "forgotten"
    content = json.loads((folder / "result.json").read_bytes())
    (folder / "result.json").write_text(json.dumps(content | {"seconds": "1", "seed": None, "stopped": "tired"}))
    with pytest.raises(OutputError) as caught:
        Result.read(folder / "result.json")
    assert "seconds is of the wrong type" in str(caught.value)
    assert "should" not in str(caught.value)


def test_an_exported_program_may_compute_but_not_read_files() -> None:
    for name in ("add.Tensor", "linear.default", "softmax.int"):
        assert archive._is_operation(f"torch.ops.aten.{name}")
    for name in ("from_file.default", "from_file.out", "save.default", "no_such_operation.default"):
        assert not archive._is_operation(f"torch.ops.aten.{name}")
