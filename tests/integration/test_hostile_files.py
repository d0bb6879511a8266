"""Files that would run code, of every format: each is refused in words, and what it would have done is not done."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skops
import skops.io
import torch
from job_folders import (
    CLASSES,
    MARKER,
    Bomb,
    build,
    digests,
    forsaken,
    program,
    rezip,
    start,
    unzip,
    world,
    write_bert,
    write_job,
)
from job_folders import write_world as write
from sklearn.linear_model import LogisticRegression

from forsaken.errors import ModelError
from forsaken.jobs.formats import ProgramFile

ROOT = "archive/"
MODEL = ROOT + "models/model.json"
SAMPLES = ROOT + "data/sample_inputs/model.pt"
WEIGHTS = ROOT + "data/weights/model_weights_config.json"
CONSTANTS = ROOT + "data/constants/model_constants_config.json"


def refused(folder: Path, goal: Path, **changes: Any) -> str:
    """Run the job; it must fail in words, run nothing, write nothing and change nothing. Return the words."""
    job = write_job(folder, **changes)
    before = digests(folder)
    ended = forsaken("unlearn", job, "--json")
    assert not goal.exists(), "the code in the file ran"
    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert digests(folder) == before
    assert not (folder / "forgotten").exists()
    told = json.loads(ended.out)
    assert told["kind"].endswith("Error")
    return str(told["error"])


# --- pickles under every name ----------------------------------------------------------------------------------------


def torch_zip(bomb: Bomb) -> bytes:
    packed = io.BytesIO()
    torch.save({"0.weight": bomb}, packed)
    return packed.getvalue()


def torch_old(bomb: Bomb) -> bytes:
    packed = io.BytesIO()
    torch.save({"0.weight": bomb}, packed, _use_new_zipfile_serialization=False)
    return packed.getvalue()


def state_dict_with_a_stowaway(bomb: Bomb) -> bytes:
    packed = io.BytesIO()
    torch.save({**build().state_dict(), "hook": bomb}, packed)
    return packed.getvalue()


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".PT"])
@pytest.mark.parametrize("pack", [pickle.dumps, torch_zip, torch_old, state_dict_with_a_stowaway])
def test_a_pickle_as_a_state_dict(tmp_path: Path, suffix: str, pack: Callable[[Bomb], bytes]) -> None:
    folder, goal = write(tmp_path / "job"), tmp_path / "exploded"
    (folder / f"model{suffix}").write_bytes(pack(Bomb(goal)))
    words = refused(folder, goal, model={"weights": f"model{suffix}"})
    assert "could run code" in words
    assert "safetensors" in words


def test_a_pickle_as_safetensors(tmp_path: Path) -> None:
    folder, goal = write(tmp_path / "job"), tmp_path / "exploded"
    (folder / "model.safetensors").write_bytes(torch_zip(Bomb(goal)))
    assert "cannot be read as safetensors" in refused(folder, goal)


@pytest.mark.parametrize("suffix", [".pkl", ".pickle", ".joblib", ".bin", ".ckpt"])
def test_files_that_are_pickles_by_name(tmp_path: Path, suffix: str) -> None:
    folder, goal = write(tmp_path / "job"), tmp_path / "exploded"
    (folder / f"model{suffix}").write_bytes(pickle.dumps(Bomb(goal)))
    words = refused(folder, goal, model={"weights": f"model{suffix}"})
    assert "a pickle" in words
    assert "never opened" in words


def test_a_scripted_module_is_no_state_dict(tmp_path: Path) -> None:
    folder, goal = write(tmp_path / "job"), tmp_path / "exploded"
    torch.jit.trace(build(), torch.zeros(2, 12)).save(str(folder / "model.pt"))
    assert "model.pt" in refused(folder, goal, model={"weights": "model.pt"})


# --- scikit-learn ----------------------------------------------------------------------------------------------------

SKOPS = {"weights": "model.skops", "factory": None}


class Custom(LogisticRegression):  # type: ignore[misc]
    """A type that skops does not know."""


def test_a_pickle_as_skops(tmp_path: Path) -> None:
    folder, goal = write(tmp_path / "job"), tmp_path / "exploded"
    (folder / "model.skops").write_bytes(pickle.dumps(Bomb(goal)))
    assert "cannot be read as a skops file" in refused(folder, goal, model=SKOPS)


def test_an_untrusted_type_is_named_and_not_built(tmp_path: Path) -> None:
    folder, goal = write(tmp_path / "job"), tmp_path / "exploded"
    skops.io.dump(Custom().fit(*world().sets["test"]), folder / "model.skops")
    words = refused(folder, goal, model=SKOPS)
    assert "was not opened" in words
    assert "test_hostile_files.Custom" in words
    assert "trusted = [" in words


@pytest.mark.parametrize("module", ["builtins", "os", "subprocess", "posix"])
def test_a_function_in_a_skops_file_is_not_called(tmp_path: Path, module: str) -> None:
    """A schema that asks for a function with arguments, as the loaders for types and functions read it."""
    folder, goal = write(tmp_path / "job"), tmp_path / "exploded"
    name = {"builtins": "exec", "subprocess": "getoutput"}.get(module, "system")
    code = f"open({str(goal)!r}, 'w')" if module == "builtins" else f"touch {goal}"
    kinds = itertools.count(1)

    def part(kind: str, loader: str, content: Any, home: str = "builtins") -> dict[str, Any]:
        place = {"__class__": kind, "__module__": home, "__loader__": loader, "__id__": next(kinds)}
        return {**place, "content": content}

    text = part("str", "JsonNode", json.dumps(code))
    schema = part(name, "ReduceNode", part("dict", "DictNode", {}), module) | {
        "constructor": part(name, "FunctionNode", name, module),
        "reduce": {"args": part("tuple", "TupleNode", [text])},
        "protocol": 2,
        "_skops_version": skops.__version__,
    }
    (folder / "model.skops").write_bytes(rezip({"schema.json": json.dumps(schema).encode()}))
    assert "model.skops" in refused(folder, goal, model=SKOPS)


def test_a_pickled_array_in_a_skops_file_is_not_opened(tmp_path: Path) -> None:
    folder, goal = write(tmp_path / "job"), tmp_path / "exploded"
    skops.io.dump(LogisticRegression().fit(*world().sets["test"]), folder / "model.skops")
    members = unzip((folder / "model.skops").read_bytes())
    packed = io.BytesIO()
    np.save(packed, np.array([Bomb(goal)], dtype=object), allow_pickle=True)
    arrays = [name for name in members if name.endswith(".npy")]
    assert arrays
    (folder / "model.skops").write_bytes(rezip(members | dict.fromkeys(arrays, packed.getvalue())))
    assert "cannot be read as a skops file" in refused(folder, goal, model=SKOPS)


# --- data ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["forget", "reference", "retain", "train", "test"])
def test_objects_in_an_npz_file(tmp_path: Path, name: str) -> None:
    folder, goal = write(tmp_path / "job"), tmp_path / "exploded"
    np.savez(folder / "bad.npz", inputs=np.array([Bomb(goal)] * 3, dtype=object), labels=np.zeros(3, dtype=int))
    words = refused(folder, goal, data={name: "bad.npz"})
    assert "objects are refused" in words


def test_objects_in_the_labels_of_an_npz_file(tmp_path: Path) -> None:
    folder, goal = write(tmp_path / "job"), tmp_path / "exploded"
    inputs, _ = world().sets["forget"]
    np.savez(folder / "bad.npz", inputs=inputs, labels=np.array([Bomb(goal)] * len(inputs), dtype=object))
    assert "objects are refused" in refused(folder, goal, data={"forget": "bad.npz"})


def test_a_pickle_as_npz(tmp_path: Path) -> None:
    folder, goal = write(tmp_path / "job"), tmp_path / "exploded"
    (folder / "bad.npz").write_bytes(pickle.dumps(Bomb(goal)))
    assert "cannot be read as NPZ" in refused(folder, goal, data={"forget": "bad.npz"})


def test_a_pickle_as_an_oracle(tmp_path: Path) -> None:
    folder, goal = write(tmp_path / "job"), tmp_path / "exploded"
    (folder / "oracle.json").write_bytes(pickle.dumps(Bomb(goal)))
    assert "not an oracle" in refused(folder, goal, oracle={"file": "oracle.json"})


TREES = """
import json, os, sys
from forsaken.errors import OracleError
from forsaken.oracles.shadow import ShadowOracle
import numpy as np
draw = np.random.default_rng(0)
parts = [draw.dirichlet(np.full(4, size), 60) for size in (0.2, 1.0)]
ShadowOracle.fit_posteriors(*parts).save("oracle.json")
changes = {"left_children": [10**8, -5, 0, 10**4], "right_children": [10**8, -5, 0], "split_indices": [10**6, 3, -1]}
for key, values in changes.items():
    for value in values:
        content = json.load(open("oracle.json"))
        tree = content["trees"]["learner"]["gradient_booster"]["model"]["trees"][0]
        tree[key] = [value] * len(tree[key])
        json.dump(content, open("odd.json", "w"))
        child = os.fork()
        if child == 0:
            try:
                ShadowOracle.load("odd.json").score_posteriors(parts[0])
            except OracleError:
                os._exit(7)
            os._exit(0)
        print(key, value, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_an_oracle_whose_trees_lead_out_of_memory(tmp_path: Path) -> None:
    """The library that reads trees trusts them: a child outside the tree ends the process."""
    process = start(folder=tmp_path, code=TREES)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    ends = {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in out.splitlines()}
    assert len(ends) == 10
    assert set(ends.values()) == {7}, ends


def test_a_pickled_type_in_a_parquet_file(tmp_path: Path) -> None:
    """Old versions of Arrow opened the pickle that describes a column's type."""
    folder, goal = write(tmp_path / "job"), tmp_path / "exploded"
    kind = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": pickle.dumps(Bomb(goal))}
    field = pa.field("f0", pa.float32(), metadata=kind)
    rest = [pa.field(f"f{at}", pa.float32()) for at in range(1, 12)]
    columns = [pa.array(world().sets["reference"][0][:, at]) for at in range(12)]
    pq.write_table(pa.Table.from_arrays(columns, schema=pa.schema([field, *rest])), folder / "odd.parquet")
    ended = forsaken("unlearn", write_job(folder, data={"reference": "odd.parquet"}), "--dry-run")
    assert not goal.exists(), "the code in the file ran"
    assert ended.code in (0, 2)


# --- a Hugging Face folder -------------------------------------------------------------------------------------------


def folder_with(folder: Path, config: dict[str, Any] | None = None, **files: bytes) -> dict[str, Any]:
    home = folder / "bert"
    home.mkdir()
    usual = {"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 9}
    (home / "config.json").write_text(json.dumps(usual | {"intermediate_size": 8} | (config or {})))
    for name, content in files.items():
        (home / name.replace("__", ".")).write_bytes(content)
    return {"weights": "bert", "factory": None}


def test_a_hugging_face_folder_with_nothing_but_a_pickle(tmp_path: Path) -> None:
    folder, goal = write(tmp_path / "job"), tmp_path / "exploded"
    model = folder_with(folder, pytorch_model__bin=torch_zip(Bomb(goal)))
    words = refused(folder, goal, model=model)
    assert "holds no .safetensors file" in words
    assert "can carry code" in words


def test_an_index_of_safetensors_that_leads_to_a_pickle(tmp_path: Path) -> None:
    folder, goal = write(tmp_path / "job"), tmp_path / "exploded"
    index = {"metadata": {"total_size": 1}, "weight_map": {"bert.embeddings.word_embeddings.weight": "evil.bin"}}
    model = folder_with(
        folder, evil__bin=torch_zip(Bomb(goal)), **{"model.safetensors.index.json": json.dumps(index).encode()}
    )
    assert "bert" in refused(folder, goal, model=model)


@pytest.mark.parametrize("place", ["config.json", "tokenizer_config.json"])
def test_code_that_a_folder_brings_along_is_not_run(tmp_path: Path, place: str) -> None:
    folder, goal = tmp_path / "job", tmp_path / "exploded"
    job = write_bert(folder)
    path = folder / "bert" / place
    names = dict.fromkeys(("AutoConfig", "AutoModelForSequenceClassification"), "evil.Evil")
    auto = {"auto_map": names | {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, "tokenizer_class": "Evil"}
    path.write_text(json.dumps(json.loads(path.read_bytes()) | auto))
    (folder / "bert" / "evil.py").write_text(f"open({str(goal)!r}, 'w')\nclass Evil: pass\n")
    ended = forsaken("unlearn", job, "--dry-run", "--json")
    assert not goal.exists(), "the code in the folder ran"
    assert ended.code == 2 or place != "config.json"
    assert "Traceback" not in ended.err
    if ended.code == 2:
        assert "bert" in ended.json["error"]


# --- exported programs -----------------------------------------------------------------------------------------------

Members = dict[str, bytes]
Attack = Callable[[Members, dict[str, Any], Path], None]
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    ATTACKS[function.__name__.removeprefix("by_")] = function
    return function


def node(target: str, *inputs: tuple[str, dict[str, Any], int], outputs: list[Any] | None = None) -> dict[str, Any]:
    given = [{"name": name, "arg": value, "kind": kind} for name, value, kind in inputs]
    rest = {"metadata": {}, "is_hop_single_tensor_return": None, "name": None}
    return {"target": target, "inputs": given, "outputs": outputs or [], **rest}


def writing(goal: Path) -> str:
    return f"open({str(goal)!r}, 'w')"


def constant(members: Members, name: str, content: bytes, **changes: Any) -> None:
    meta = json.loads(members[WEIGHTS])["config"]["0.bias"]["tensor_meta"]
    entry = {"path_name": name, "is_param": False, "use_pickle": False, "tensor_meta": meta} | changes
    members[CONSTANTS] = json.dumps({"config": {"c": entry}}).encode()
    members[f"{ROOT}data/constants/{name}"] = content + b"\0" * (-len(content) % 4)


@attack
def by_pickled_weights(members: Members, program: dict[str, Any], goal: Path) -> None:
    config = json.loads(members[WEIGHTS])
    config["config"]["0.weight"]["use_pickle"] = True
    members[WEIGHTS] = json.dumps(config).encode()
    members[ROOT + "data/weights/weight_0"] = torch_zip(Bomb(goal))


@attack
def by_weights_pickled_a_little(members: Members, program: dict[str, Any], goal: Path) -> None:
    config = json.loads(members[WEIGHTS])
    config["config"]["0.weight"]["use_pickle"] = 1
    members[WEIGHTS] = json.dumps(config).encode()
    members[ROOT + "data/weights/weight_0"] = torch_zip(Bomb(goal))


@attack
def by_pickled_constants(members: Members, program: dict[str, Any], goal: Path) -> None:
    constant(members, "tensor_0", torch_zip(Bomb(goal)), use_pickle=True)


@attack
def by_opaque_object(members: Members, program: dict[str, Any], goal: Path) -> None:
    constant(members, "opaque_obj_0", pickle.dumps(Bomb(goal)))


@attack
def by_opaque_object_that_is_called_a_version(members: Members, program: dict[str, Any], goal: Path) -> None:
    constant(members, "opaque_obj_version", pickle.dumps(Bomb(goal)))


@attack
def by_opaque_object_in_a_folder_of_tensors(members: Members, program: dict[str, Any], goal: Path) -> None:
    constant(members, "opaque_obj_/constants/tensor_0", pickle.dumps(Bomb(goal)))


@attack
def by_opaque_object_that_is_called_json(members: Members, program: dict[str, Any], goal: Path) -> None:
    constant(members, "opaque_obj_0.json", pickle.dumps(Bomb(goal)))


@attack
def by_opaque_object_that_is_called_a_sample(members: Members, program: dict[str, Any], goal: Path) -> None:
    constant(members, "opaque_obj_0.pt", pickle.dumps(Bomb(goal)))


@attack
def by_opaque_object_that_ends_in_a_new_line(members: Members, program: dict[str, Any], goal: Path) -> None:
    constant(members, "opaque_obj_/weights/weight_0\n", pickle.dumps(Bomb(goal)))


@attack
def by_scripted_object(members: Members, program: dict[str, Any], goal: Path) -> None:
    constant(members, "custom_obj_version", torch_zip(Bomb(goal)))


@attack
def by_sample_inputs(members: Members, program: dict[str, Any], goal: Path) -> None:
    members[SAMPLES] = torch_zip(Bomb(goal))


@attack
def by_old_sample_inputs(members: Members, program: dict[str, Any], goal: Path) -> None:
    members[SAMPLES] = torch_old(Bomb(goal))


@attack
def by_weights_of_the_old_format(members: Members, program: dict[str, Any], goal: Path) -> None:
    members[ROOT + "data/weights/model.pt"] = torch_zip(Bomb(goal))


@attack
def by_constants_of_the_old_format(members: Members, program: dict[str, Any], goal: Path) -> None:
    members[ROOT + "data/constants/model.pt"] = torch_zip(Bomb(goal))


@attack
def by_size(members: Members, program: dict[str, Any], goal: Path) -> None:
    evil = {"as_expr": {"expr_str": writing(goal), "hint": None}}
    program["graph_module"]["graph"]["tensor_values"]["input"]["sizes"][0] = evil


@attack
def by_size_of_a_symbol(members: Members, program: dict[str, Any], goal: Path) -> None:
    evil = {"as_expr": {"expr_str": f"Symbol('s0' if {writing(goal)} else '')", "hint": None}}
    program["graph_module"]["graph"]["sym_int_values"]["s"] = evil


@attack
def by_size_in_the_weights(members: Members, program: dict[str, Any], goal: Path) -> None:
    config = json.loads(members[WEIGHTS])
    evil = {"as_expr": {"expr_str": writing(goal), "hint": None}}
    config["config"]["0.weight"]["tensor_meta"]["sizes"][0] = evil
    members[WEIGHTS] = json.dumps(config).encode()


@attack
def by_second_program_under_the_name_of_weights(members: Members, program: dict[str, Any], goal: Path) -> None:
    second = copy.deepcopy(program)
    by_size(members, second, goal)
    name = "x/weights/weight_00000"
    members[f"{ROOT}models/{name}"] = json.dumps(second).encode()
    add_second(members, name[: -len(".json")])


@attack
def by_second_program_under_the_name_of_a_version(members: Members, program: dict[str, Any], goal: Path) -> None:
    second = copy.deepcopy(program)
    by_size(members, second, goal)
    members[ROOT + "models/my_version"] = json.dumps(second).encode()
    add_second(members, "my_version"[: -len(".json")])


@attack
def by_second_program(members: Members, program: dict[str, Any], goal: Path) -> None:
    second = copy.deepcopy(program)
    by_size(members, second, goal)
    members[ROOT + "models/other.json"] = json.dumps(second).encode()
    add_second(members, "other")


def add_second(members: Members, name: str) -> None:
    members[f"{ROOT}data/sample_inputs/{name}.pt"] = b""
    members[f"{ROOT}data/weights/{name}_weights_config.json"] = members[WEIGHTS]
    members[f"{ROOT}data/constants/{name}_constants_config.json"] = members[CONSTANTS]


@attack
def by_operation(members: Members, program: dict[str, Any], goal: Path) -> None:
    add_node(program, node("torch.os.system", ("", {"as_string": f"touch {goal}"}, 1)))


@attack
def by_operation_of_another_library(members: Members, program: dict[str, Any], goal: Path) -> None:
    add_node(program, node("torch.ops.load_library", ("", {"as_string": str(goal)}, 1)))


@attack
def by_attribute_of_an_operation(members: Members, program: dict[str, Any], goal: Path) -> None:
    add_node(program, node("torch.ops.aten.__class__.mro"))


@attack
def by_operation_as_an_argument(members: Members, program: dict[str, Any], goal: Path) -> None:
    add_node(program, node("torch.ops.aten._dir.append", ("", {"as_string": f"touch {goal}"}, 1)))
    add_node(program, node("torch.ops.aten._dir.sort", ("key", {"as_operator": "torch.os.system"}, 2)), 1)


@attack
def by_operation_that_writes(members: Members, program: dict[str, Any], goal: Path) -> None:
    item = ("item", {"as_tensor": {"name": "input"}}, 1)
    add_node(program, node("torch.ops.aten.save.default", item, ("filename", {"as_string": str(goal)}, 1)))


@attack
def by_operation_that_reads(members: Members, program: dict[str, Any], goal: Path) -> None:
    name = ("filename", {"as_string": str(goal)}, 1)
    add_node(program, node("torch.ops.aten.from_file.default", name, ("shared", {"as_bool": True}, 1)))


@attack
def by_extension(members: Members, program: dict[str, Any], goal: Path) -> None:
    add_node(program, node("#evil:operation"))


def add_node(program: dict[str, Any], added: dict[str, Any], at: int = 0) -> None:
    program["graph_module"]["graph"]["nodes"].insert(at, added)
    program["verifiers"] = []  # or torch itself would refuse some of them


@attack
def by_name_of_an_argument(members: Members, program: dict[str, Any], goal: Path) -> None:
    signature(program)["forward_arg_names"] = [f"a={writing(goal)}):\n    '''#"]


@attack
def by_key_of_an_argument(members: Members, program: dict[str, Any], goal: Path) -> None:
    leaf = {"type": None, "context": None, "children_spec": []}
    empty = {"type": "builtins.tuple", "context": "null", "children_spec": []}
    name = f"a={writing(goal)}):\n    '''#"
    named = {"type": "builtins.dict", "context": json.dumps([name]), "children_spec": [leaf]}
    both = {"type": "builtins.tuple", "context": "null", "children_spec": [empty, named]}
    signature(program).update(in_spec=json.dumps([1, both]), forward_arg_names=[])
    members[SAMPLES] = b""


@attack
def by_type_of_an_argument(members: Members, program: dict[str, Any], goal: Path) -> None:
    deep = {"type": "collections.defaultdict", "context": "{}", "children_spec": []}
    signature(program)["out_spec"] = json.dumps([1, deep])


def signature(program: dict[str, Any]) -> dict[str, Any]:
    return program["graph_module"]["module_call_graph"][0]["signature"]  # type: ignore[no-any-return]


@attack
def by_name_of_a_parameter(members: Members, program: dict[str, Any], goal: Path) -> None:
    evil = f'w", {writing(goal)}), ("'
    for spec in program["graph_module"]["signature"]["input_specs"]:
        if spec.get("parameter", {}).get("parameter_name") == "0.weight":
            spec["parameter"]["parameter_name"] = evil
    config = json.loads(members[WEIGHTS])
    config["config"][evil] = config["config"].pop("0.weight")
    members[WEIGHTS] = json.dumps(config).encode()


@attack
def by_name_of_a_node(members: Members, program: dict[str, Any], goal: Path) -> None:
    text = json.dumps(program).replace('"relu"', json.dumps(f"relu = {writing(goal)}; x"))
    program.clear()
    program.update(json.loads(text))


@attack
def by_name_of_a_size(members: Members, program: dict[str, Any], goal: Path) -> None:
    graph = program["graph_module"]["graph"]
    evil = f"z=0\n{writing(goal)}\ndef f():\n    x"
    size = node(
        "torch.ops.aten.sym_size.int",
        ("self", {"as_tensor": {"name": "input"}}, 1),
        ("dim", {"as_int": 0}, 1),
        outputs=[{"as_sym_int": {"as_name": evil}}],
    )
    graph["nodes"].insert(0, size | {"name": "sym_size"})
    graph["sym_int_values"][evil] = graph["tensor_values"]["input"]["sizes"][0]


@attack
def by_name_of_an_object(members: Members, program: dict[str, Any], goal: Path) -> None:
    custom = {"arg": {"name": "o", "class_fqn": "os.system"}, "custom_obj_name": "o"}
    program["graph_module"]["signature"]["input_specs"].append({"custom_obj": custom})


@attack
def by_compiled_library(members: Members, program: dict[str, Any], goal: Path) -> None:
    members[ROOT + "data/aotinductor/model/model.so"] = b"\x7fELF"
    members[ROOT + "data/aotinductor/model/model_metadata.json"] = b'{"AOTI_DEVICE_KEY": "cpu"}'


@attack
def by_notes_beside_a_compiled_library(members: Members, program: dict[str, Any], goal: Path) -> None:
    members[ROOT + "data/aotinductor/model/model_metadata.json"] = b'{"AOTI_DEVICE_KEY": "cpu"}'


@attack
def by_extra_file(members: Members, program: dict[str, Any], goal: Path) -> None:
    members[ROOT + "extra/run_me.py"] = writing(goal).encode()


@attack
def by_path_that_leads_out(members: Members, program: dict[str, Any], goal: Path) -> None:
    members[f"{ROOT}../../{goal.name}"] = b"x"


@attack
def by_archive_in_the_archive(members: Members, program: dict[str, Any], goal: Path) -> None:
    members[ROOT + "models/inner.pt2"] = program_bytes()


@attack
def by_other_root(members: Members, program: dict[str, Any], goal: Path) -> None:
    for name in list(members):
        members[name.replace("archive/", "ARCHIVE/", 1)] = members[name]
    members["ARCHIVE/data/constants/opaque_obj_0"] = pickle.dumps(Bomb(goal))


@attack
def by_torch_2_7_archive(members: Members, program: dict[str, Any], goal: Path) -> None:
    """The format before: torch falls back to it when the new one cannot be read."""
    del members[ROOT + "archive_format"]
    members["version"] = b"8.20"
    members["serialized_exported_program.json"] = json.dumps(program).encode()
    for name in ("state_dict", "constants", "example_inputs"):
        members[f"serialized_{name}.pt"] = torch_zip(Bomb(goal))


def program_bytes() -> bytes:
    return program()


def hostile(name: str, goal: Path) -> bytes:
    members = unzip(program())
    read = json.loads(members[MODEL])
    ATTACKS[name](members, read, goal)
    members[MODEL] = json.dumps(read).encode()
    return rezip(members)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_program_that_would_run_code(tmp_path: Path, name: str) -> None:
    goal, path = tmp_path / "exploded", tmp_path / "model.pt2"
    path.write_bytes(hostile(name, goal))
    with pytest.raises(ModelError, match=r"model\.pt2") as found:
        ProgramFile(path).model(torch.zeros(5, 12))
    assert not goal.exists(), "the code in the file ran"
    assert "could run code" in str(found.value) or "cannot be read as an exported program" in str(found.value)


def test_the_reason_of_a_refusal_reaches_the_user(tmp_path: Path) -> None:
    folder, goal = write(tmp_path / "job"), tmp_path / "exploded"
    (folder / "model.pt2").write_bytes(hostile("pickled_weights", goal))
    words = refused(folder, goal, model={"weights": "model.pt2", "factory": None})
    assert "was not opened, since opening it could run code" in words


def test_a_plain_program_is_opened(tmp_path: Path) -> None:
    """Otherwise the tests above would show nothing."""
    path = tmp_path / "model.pt2"
    path.write_bytes(rezip(unzip(program())))
    assert ProgramFile(path).model(torch.zeros(7, 12)).shape == (7, CLASSES)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("member", [MODEL, SAMPLES, CONSTANTS])
def test_a_member_that_is_there_twice(tmp_path: Path, member: str, first: bool) -> None:
    """Readers differ in which of two they take."""
    goal, path = tmp_path / "exploded", tmp_path / "model.pt2"
    members = unzip(program())
    evil = dict(members)
    read = json.loads(members[MODEL])
    by_size(evil, read, goal)
    evil[MODEL] = json.dumps(read).encode()
    by_sample_inputs(evil, read, goal)
    constant(evil, "tensor_0", torch_zip(Bomb(goal)), use_pickle=True)
    double = [(member, evil[member])]
    both = double + list(members.items()) if first else list(members.items()) + double
    path.write_bytes(rezip(both))
    with pytest.raises(ModelError, match=r"model\.pt2"):
        ProgramFile(path).model(torch.zeros(5, 12))
    assert not goal.exists()


def test_members_that_differ_by_case_only(tmp_path: Path) -> None:
    """torch finds a member whatever the case of its name."""
    goal, path = tmp_path / "exploded", tmp_path / "model.pt2"
    members = unzip(program())
    read = json.loads(members[MODEL])
    by_size(members, read, goal)
    path.write_bytes(rezip([(MODEL.replace("model.json", "MODEL.json"), json.dumps(read).encode()), *members.items()]))
    with pytest.raises(ModelError, match=r"model\.pt2"):
        ProgramFile(path).model(torch.zeros(5, 12))
    assert not goal.exists()


def test_an_archive_behind_another_one(tmp_path: Path) -> None:
    """What comes before an archive is passed over by one reader and may be read by another."""
    goal, path = tmp_path / "exploded", tmp_path / "model.pt2"
    path.write_bytes(hostile("opaque_object_that_is_called_a_version", goal) + program())
    with contextlib.suppress(ModelError):
        ProgramFile(path).model(torch.zeros(5, 12))
    assert not goal.exists()


def test_a_member_that_says_another_name_in_front(tmp_path: Path) -> None:
    """Every member has its name twice, in the directory and in front of its content."""
    goal, path = tmp_path / "exploded", tmp_path / "model.pt2"
    members = unzip(program())
    content = rezip(members | {ROOT + "data/constants/tensor_9": pickle.dumps(Bomb(goal))})
    at = content.index(b"constants/tensor_9")
    path.write_bytes(content[:at] + b"constants/opaque_9" + content[at + len(b"constants/tensor_9") :])
    with zipfile.ZipFile(path) as archive, pytest.raises(zipfile.BadZipFile):
        archive.read(ROOT + "data/constants/tensor_9")
    with contextlib.suppress(ModelError):
        ProgramFile(path).model(torch.zeros(5, 12))
    assert not goal.exists()


def test_a_size_that_takes_for_ever_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    members = unzip(program())
    read = json.loads(members[MODEL])
    evil = {"as_expr": {"expr_str": "9**9**9**9", "hint": None}}
    read["graph_module"]["graph"]["tensor_values"]["input"]["sizes"][0] = evil
    path.write_bytes(rezip(members | {MODEL: json.dumps(read).encode()}))
    with pytest.raises(ModelError, match=r"could run code|cannot be read"):
        ProgramFile(path)


# --- what nobody may read --------------------------------------------------------------------------------------------

SOURCE = f"""
import numpy as np
from model import net


def load():
    raise ValueError("cannot parse {MARKER}")


def prepare(records):
    raise RuntimeError(f"bad row {{records.content[0]}}")


def forward(model, inputs):
    raise ValueError(f"bad row {{inputs.tolist()}}")


def odd_forward(model, inputs):
    raise ZeroDivisionError(f"bad row {{inputs.tolist()}}")


def loud_forward(model, inputs):
    print(inputs.tolist())
    return model(inputs)
"""


def failing(folder: Path, **changes: Any) -> str:
    (folder / "mine.py").write_text(SOURCE)
    ended = forsaken("unlearn", write_job(folder, **changes), "--json")
    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert not (folder / "forgotten").exists()
    return ended.out + ended.err


@pytest.mark.parametrize(
    "data",
    [
        {"forget": {"python": "mine:load"}},
        {"train": {"python": "mine:load"}, "forget": {"of": "train", "ids": [1]}},
        {"prepare": "mine:prepare"},
    ],
    ids=["forget", "train", "prepare"],
)
def test_what_a_function_of_the_user_says_of_a_record_is_not_shown(tmp_path: Path, data: dict[str, Any]) -> None:
    told = failing(write(tmp_path / "job"), data=data)
    assert MARKER not in told
    assert "7.65" not in told
    assert "mine" in told


@pytest.mark.parametrize("name", ["forward", "odd_forward"])
def test_what_a_forward_says_of_a_record_is_not_shown(tmp_path: Path, name: str) -> None:
    told = failing(write(tmp_path / "job"), model={"forward": f"mine:{name}"})
    assert "7.65" not in told


def test_a_bad_cell_of_a_forget_file_is_not_quoted(tmp_path: Path) -> None:
    folder = write(tmp_path / "job")
    header = ",".join([*(f"f{at}" for at in range(12)), "label"])
    row = ",".join([str(0.5)] * 12)
    for cells in (f"{header}\n{row},1\n{MARKER},{row[4:]},1\n", f"{header}\n{row},1\n{row},1,{MARKER}\n"):
        (folder / "forget.csv").write_text(cells)
        told = failing(folder, data={"forget": "forget.csv"})
        assert MARKER not in told
        assert "forget.csv" in told


@pytest.mark.parametrize("label", [123456789, 77])
def test_a_label_of_a_record_is_not_quoted(tmp_path: Path, label: int) -> None:
    """Whoever names the wrong column has an id where a label should be."""
    folder = write(tmp_path / "job")
    inputs, labels = world().sets["forget"]
    np.savez(folder / "forget.npz", inputs=inputs, labels=np.where(np.arange(len(labels)) == 3, label, labels))
    ended = forsaken("unlearn", write_job(folder, data={"forget": "forget.npz", "train": None}))
    assert ended.code == 2
    assert str(label) not in ended.out + ended.err.replace(str(folder), "")


def test_ids_are_not_quoted(tmp_path: Path) -> None:
    folder = write(tmp_path / "job")
    (folder / "ids.txt").write_text(f"1000\n{MARKER}\n")
    told = failing(folder, data={"id": "id", "forget": {"of": "train", "ids": "ids.txt"}})
    assert MARKER not in told
    assert "1 of 2 ids" in told
