"""Every format of models: a whole job, weights that the library itself can load, and files that do not fit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import skops.io
import torch
import transformers
from job_folders import (
    CLASSES,
    TOPICS,
    WIDTH,
    build,
    digests,
    forsaken,
    program,
    rezip,
    run,
    unzip,
    world,
    write_bert,
    write_job,
    write_texts,
    write_world,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from torch import Tensor, nn

from forsaken.errors import DataNotFoundError, ForsakenError, ModelError, SettingsError
from forsaken.models.weights import drift

UNIFORM = {"target": "uniform", "iterations": 15}
FORGET, TEST = world().sets["forget"][0], world().sets["test"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_world(tmp_path / "job")


def confidence(model: nn.Module, inputs: Any = FORGET) -> float:
    with torch.no_grad():
        return float(model.eval()(torch.from_numpy(inputs)).softmax(1).max(1).values.mean())


def loaded(state: dict[str, Tensor]) -> nn.Module:
    model = build()
    model.load_state_dict(state)
    return model


def done(folder: Path, **changes: Any) -> dict[str, Any]:
    """Run a job, and see that it forgot and that nothing of the caller's was touched."""
    before = digests(folder)
    job = write_job(folder, **changes)
    found = run(job)
    after = digests(folder, "forgotten")
    assert {name: after[name] for name in before if name != job.name} == {
        name: digest for name, digest in before.items() if name != job.name
    }
    assert found["forget_confidence"]["after"] < found["forget_confidence"]["before"] - 0.01
    return found  # type: ignore[no-any-return]


# --- factory and tensors ---------------------------------------------------------------------------------------------


def test_safetensors(folder: Path) -> None:
    found = done(folder)
    path = folder / "forgotten" / "model.safetensors"
    model = loaded(safetensors.torch.load_file(path))
    assert confidence(model) == pytest.approx(found["forget_confidence"]["after"])
    assert confidence(loaded(world().states["model"])) == pytest.approx(found["forget_confidence"]["before"])
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"trained by": "the tests"}
    assert found["stopped"] in ("iterations", "converged")


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".PTH"])
def test_a_plain_state_dict(folder: Path, suffix: str) -> None:
    name = f"model{suffix}"
    torch.save(world().states["model"], folder / name)
    found = done(folder, model={"weights": name})
    state = torch.load(folder / "forgotten" / name, weights_only=True)
    assert confidence(loaded(state)) == pytest.approx(found["forget_confidence"]["after"])


def test_weights_through_a_link_keep_the_name_of_the_link(folder: Path) -> None:
    (folder / "blobs").mkdir()
    (folder / "model.safetensors").rename(folder / "blobs" / "3f2a")
    (folder / "model.safetensors").symlink_to("blobs/3f2a")
    done(folder)
    assert not (folder / "forgotten" / "model.safetensors").is_symlink()
    assert (folder / "blobs" / "3f2a").is_file()


TIED = """
from torch import nn
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 4)
        self.b.weight = self.a.weight
    def forward(self, x):
        return self.head(self.b(self.a(x).relu()).relu())
def net(): return Tied()
"""


@pytest.mark.parametrize("copies", [True, False], ids=["both names", "one name"])
def test_tied_weights(folder: Path, copies: bool) -> None:
    (folder / "model.py").write_text(TIED)
    space: dict[str, Any] = {}
    exec(TIED, space)
    torch.manual_seed(0)
    state = {name: tensor.clone() for name, tensor in space["net"]().state_dict().items()}
    if not copies:
        del state["b.weight"]
    safetensors.torch.save_file(state, folder / "model.safetensors")
    run(write_job(folder, method=UNIFORM | {"iterations": 3}, output={"allow": ["other-inputs"]}))  # untrained
    new = safetensors.torch.load_file(folder / "forgotten" / "model.safetensors")
    assert set(new) == set(state)
    assert not torch.equal(new["a.weight"], state["a.weight"])
    if copies:
        assert torch.equal(new["a.weight"], new["b.weight"])


def in_precision(folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    state = {name: tensor.to(dtype) for name, tensor in world().states["model"].items()}
    safetensors.torch.save_file(state, folder / "model.safetensors")
    return state


def test_weights_of_double_precision_stay_so(folder: Path) -> None:
    state = in_precision(folder, torch.float64)
    done(folder, method=UNIFORM)
    new = safetensors.torch.load_file(folder / "forgotten" / "model.safetensors")
    assert {tensor.dtype for tensor in new.values()} == {torch.float64}
    assert confidence(loaded(new)) < confidence(loaded(state)) - 0.01


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_precision_are_written_as_such_or_refused_in_words(folder: Path, dtype: torch.dtype) -> None:
    in_precision(folder, dtype)
    try:
        done(folder, method=UNIFORM)
    except ModelError as error:
        told = str(error)
        assert "half precision" in told
        assert "float32" in told
        assert not (folder / "forgotten").exists()
    else:
        new = safetensors.torch.load_file(folder / "forgotten" / "model.safetensors")
        assert {tensor.dtype for tensor in new.values()} == {dtype}


def test_buffers_are_written_as_they_were(folder: Path) -> None:
    (folder / "model.py").write_text(
        "from torch import nn\n"
        "def net(): return nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))"
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    model(torch.from_numpy(world().sets["train"][0]))  # moves the statistics
    torch.save(model.state_dict(), folder / "model.pt")
    run(
        write_job(folder, model={"weights": "model.pt"}, method=UNIFORM, output={"allow": ["other-inputs"]})
    )  # untrained
    new = torch.load(folder / "forgotten" / "model.pt", weights_only=True)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(new[name], model.state_dict()[name])
    assert int(new["1.num_batches_tracked"]) == 1
    assert not torch.equal(new["3.weight"], model.state_dict()["3.weight"])


FACTORIES = {
    "missing": ("return nn.Sequential(nn.Linear(12, 32))", ["unknown to the model: 2.bias, 2.weight"]),
    "unexpected": (
        "return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4), nn.Linear(4, 4))",
        ["missing in the file: 3.weight, 3.bias"],
    ),
    "wrong shapes": (
        "return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))",
        ["0.bias has shape (32,)", "(8,)", "3 tensors differ"],
    ),
    "nothing": ("return None", ["returned NoneType, expected a torch.nn.Module"]),
    "a class": ("return nn.Linear", ["returned type, expected a torch.nn.Module"]),
    "raises": ("raise OSError('no such file')", ["factory failed with OSError at model.py", "no such file"]),
    "exits": ("import sys; sys.exit(0)", ["SystemExit"]),
    "on no device": ("return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4)).to('meta')", ["factory"]),
    "lazy": ("return nn.Sequential(nn.LazyLinear(32), nn.ReLU(), nn.Linear(32, 4))", ["factory"]),
    "takes arguments": ("return nn.Linear(12, missing)", ["NameError"]),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_that_do_not_fit(folder: Path, name: str) -> None:
    body, words = FACTORIES[name]
    (folder / "model.py").write_text(f"from torch import nn\ndef net():\n    {body}\n")
    with pytest.raises(ForsakenError) as found:
        run(write_job(folder))
    for word in words:
        assert word in str(found.value)
    assert not (folder / "forgotten").exists()


def test_arguments_reach_the_factory(folder: Path) -> None:
    found = done(folder, model={"arguments": {"width": 32, "classes": CLASSES}})
    assert found["job"]["model"]["arguments"] == {"width": 32, "classes": CLASSES}
    with pytest.raises(ModelError, match="has shape"):
        run(write_job(folder, model={"arguments": {"width": 16}}), out=folder / "other")


def test_more_than_a_state_dict(folder: Path) -> None:
    checkpoint = {"epoch": 3, "model": world().states["model"]}
    torch.save(checkpoint, folder / "model.pt")
    with pytest.raises(ModelError, match=r"'epoch', 'model'.*save the state dict by itself"):
        run(write_job(folder, model={"weights": "model.pt"}))
    for odd in ([torch.zeros(1)], {}, torch.zeros(2)):
        torch.save(odd, folder / "model.pt")
        with pytest.raises(ModelError, match="expected named tensors alone"):
            run(write_job(folder, model={"weights": "model.pt"}))


def test_weights_that_are_not_there(folder: Path) -> None:
    with pytest.raises(DataNotFoundError, match=r"other\.safetensors"):
        run(write_job(folder, model={"weights": "other.safetensors"}))


def test_a_factory_that_changes_the_weights_after_loading_is_found_out(folder: Path) -> None:
    (folder / "model.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Odd(nn.Sequential):\n"
        "    def load_state_dict(self, state, strict=True, assign=False):\n"
        "        found = super().load_state_dict(state, strict, assign)\n"
        "        with torch.no_grad(): self[0].weight += 1\n"
        "        return found\n"
        "def net(): return Odd(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))\n"
    )
    with pytest.raises(ForsakenError, match=r"differ.*when they are read again|factory"):
        run(write_job(folder))
    assert not (folder / "forgotten").exists()


# --- exported programs -----------------------------------------------------------------------------------------------


def test_an_exported_program(folder: Path) -> None:
    (folder / "model.pt2").write_bytes(program())
    found = done(folder, model={"weights": "model.pt2", "factory": None})
    new = torch.export.load(folder / "forgotten" / "model.pt2")
    assert confidence_of(new.module()) == pytest.approx(found["forget_confidence"]["after"])
    assert set(new.state_dict) == set(world().states["model"])
    assert found["accuracy_before"] == run(write_job(folder), out=folder / "plain")["accuracy_before"]


def confidence_of(module: Any) -> float:
    with torch.no_grad():
        return float(module(torch.from_numpy(FORGET)).softmax(1).max(1).values.mean())


def test_a_program_that_forgot_can_forget_again(folder: Path) -> None:
    (folder / "model.pt2").write_bytes(program())
    given = {"weights": "model.pt2", "factory": None}
    run(write_job(folder, model=given))
    given |= {"weights": "forgotten/model.pt2"}
    again = run(write_job(folder, model=given, output={"folder": "again"}))
    assert len(again["chain"]["links"]) == 2


def test_a_program_for_five_samples(folder: Path) -> None:
    (folder / "model.pt2").write_bytes(program(batch=False))
    with pytest.raises(ModelError, match=r"takes batches of exactly 5 samples.*Dim\.DYNAMIC"):
        run(write_job(folder, model={"weights": "model.pt2", "factory": None}))


class Wide(nn.Module):
    """Convolution, normalisation, attention and texts as settings: what ordinary programs hold."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv1d(1, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8 * WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        found = self.norm(self.convolution(inputs[:, None, :]))
        found = nn.functional.gelu(found, approximate="tanh").transpose(1, 2)
        found = torch.einsum("bij,kj->bik", self.attention(found), torch.eye(8))
        return self.head(found.flatten(1))  # type: ignore[no-any-return]


def test_a_program_of_many_operations(folder: Path) -> None:
    torch.manual_seed(0)
    shapes = ({0: torch.export.Dim("samples", min=1, max=5000)},)
    exported = torch.export.export(Wide().eval(), (torch.zeros(5, WIDTH),), dynamic_shapes=shapes)
    torch.export.save(exported, folder / "model.pt2")
    run(write_job(folder, model={"weights": "model.pt2", "factory": None}, method=UNIFORM | {"iterations": 2}))
    assert (folder / "forgotten" / "model.pt2").is_file()


@pytest.mark.parametrize(
    ("member", "content"),
    [
        ("archive/models/model.json", b"[]"),
        ("archive/models/model.json", b"{}"),
        ("archive/models/model.json", b'{"verifiers": [[]]}'),
        ("archive/models/model.json", b'{"verifiers": ["TRAINING"], "graph_module": 5}'),
        ("archive/models/model.json", b'{"verifiers": ["TRAINING"]}'),
        ("archive/models/model.json", b"[" * 5000),
        ("archive/models/model.json", b"\xff"),
        ("archive/data/weights/model_weights_config.json", b'{"config": [1]}'),
        ("archive/data/weights/model_weights_config.json", b'{"config": {"0.weight": 1}}'),
        ("archive/data/weights/model_weights_config.json", b'{"config": {"0.weight": {"path_name": 5}}}'),
        ("archive/data/weights/model_weights_config.json", b"5"),
        ("archive/data/weights/weight_0", b"short"),
        ("archive/data/sample_inputs/model.pt", b"no tensors"),
        ("archive/archive_version", b"9"),
        ("archive/byteorder", b"sideways"),
    ],
)
def test_programs_of_another_shape(folder: Path, member: str, content: bytes) -> None:
    (folder / "model.pt2").write_bytes(rezip(unzip(program()) | {member: content}))
    ended = forsaken("unlearn", write_job(folder, model={"weights": "model.pt2", "factory": None}), "--json")
    assert "Traceback" not in ended.err
    if ended.code == 0:  # torch does not look at every member
        assert member.endswith("byteorder")
        return
    assert ended.code == 2
    assert "model.pt2" in ended.json["error"]


@pytest.mark.parametrize("size", ["1" * 60 + "!", "(" * 60 + "!", "s0" * 40 + "!", "Add(" * 40 + "?"])
def test_a_size_that_is_hard_to_read_is_refused_at_once(folder: Path, size: str) -> None:
    members = unzip(program())
    read = json.loads(members["archive/models/model.json"])
    evil = {"as_expr": {"expr_str": size, "hint": None}}
    read["graph_module"]["graph"]["tensor_values"]["input"]["sizes"][0] = evil
    (folder / "model.pt2").write_bytes(rezip(members | {"archive/models/model.json": json.dumps(read).encode()}))
    with pytest.raises(ModelError, match="could run code"):
        run(write_job(folder, model={"weights": "model.pt2", "factory": None}))


# --- scikit-learn ----------------------------------------------------------------------------------------------------

SKOPS = {"weights": "model.skops", "factory": None}
ESTIMATORS = {
    "logistic": LogisticRegression(C=100, max_iter=3000),
    "vectors": LinearSVC(C=1, max_iter=20000, random_state=0),
    "scaled": make_pipeline(StandardScaler(), LogisticRegression(C=100, max_iter=3000)),
    "alone in a pipeline": make_pipeline(LogisticRegression(C=100, max_iter=3000)),
}


def surest(model: Any, inputs: Any) -> float:
    """Confidence by the classifier's own decision values, as a softmax."""
    values = np.asarray(model.decision_function(inputs))
    values = np.stack([-values / 2, values / 2], axis=1) if values.ndim == 1 else values
    powers = np.exp(values - values.max(1, keepdims=True))
    return float((powers.max(1) / powers.sum(1)).mean())


@pytest.mark.parametrize("name", ESTIMATORS)
def test_scikit_learn(folder: Path, name: str) -> None:
    model = ESTIMATORS[name].fit(*world().sets["train"])
    skops.io.dump(model, folder / "model.skops")
    found = done(folder, model=SKOPS, method=UNIFORM)
    new = skops.io.load(folder / "forgotten" / "model.skops", trusted=[])
    assert type(new) is type(model)
    assert surest(model, FORGET) == pytest.approx(found["forget_confidence"]["before"], abs=1e-5)
    assert surest(new, FORGET) == pytest.approx(found["forget_confidence"]["after"], abs=1e-5)
    assert found["accuracy_before"] == pytest.approx(model.score(*TEST))
    assert found["accuracy_after"] == pytest.approx(new.score(*TEST))


def test_texts_in_a_pipeline(tmp_path: Path) -> None:
    words, labels = write_texts(tmp_path)
    model = make_pipeline(TfidfVectorizer(), LogisticRegression(C=1000)).fit(words, labels)
    skops.io.dump(model, tmp_path / "model.skops")
    found = done(tmp_path, model=SKOPS, method=UNIFORM)
    new = skops.io.load(tmp_path / "forgotten" / "model.skops", trusted=[])
    assert surest(new, words[-6:]) == pytest.approx(found["forget_confidence"]["after"], abs=1e-5)
    assert new[0].vocabulary_ == model[0].vocabulary_
    assert found["accuracy_before"] == 1.0


def test_a_retrained_pipeline_prepares_by_its_own_steps(folder: Path) -> None:
    inputs, labels = world().sets["kept"]
    model = make_pipeline(StandardScaler(), LogisticRegression(C=100, max_iter=3000)).fit(*world().sets["train"])
    other = make_pipeline(StandardScaler(), LogisticRegression(max_iter=3000)).fit(inputs[:40] * 3 + 1, labels[:40])
    skops.io.dump(model, folder / "model.skops")
    skops.io.dump(other, folder / "other.skops")
    found = run(write_job(folder, model=SKOPS, oracle={"retrained": "other.skops"}, method=UNIFORM))
    assert found["forget_confidence"]["retrained"] == pytest.approx(surest(other, FORGET), abs=1e-5)
    assert found["retrain"]["accuracy"] == pytest.approx(other.score(*TEST))


def test_two_classes(folder: Path) -> None:
    for part in ("forget", "train", "test"):
        inputs, labels = world().sets[part]
        np.savez(folder / f"{part}.npz", inputs=inputs, labels=(labels > 1).astype(int))
    inputs, labels = world().sets["train"]
    model = LogisticRegression(C=100, max_iter=3000).fit(inputs, labels > 1)
    model.classes_ = np.array([0, 1])
    skops.io.dump(model, folder / "model.skops")
    data = {part: f"{part}.npz" for part in ("forget", "train", "test")}
    found = done(folder, model=SKOPS, data=data, method=UNIFORM, output={"allow": ["accuracy-loss"]})
    assert found["accuracy_before"] == model.score(TEST[0], (TEST[1] > 1).astype(int))
    assert len(found["classes"]) == 2


FITTED = LogisticRegression(max_iter=2000).fit(*world().sets["train"])


def changed(**attributes: Any) -> LogisticRegression:
    odd = LogisticRegression(max_iter=2000).fit(*world().sets["train"])
    for name, value in attributes.items():
        setattr(odd, name, value)
    return odd


ODD = {
    "not fitted": (LogisticRegression(), "not fitted"),
    "another estimator": (Ridge().fit(*TEST), "Ridge is not supported"),
    "no classifier at the end": (make_pipeline(StandardScaler()).fit(*TEST), "StandardScaler is not supported"),
    "steps that are not fitted": (Pipeline([("s", StandardScaler()), ("l", FITTED)]), "NotFittedError"),
    "an empty pipeline": (Pipeline([]), "empty pipeline"),
    "no steps": (Pipeline(None), "model.skops"),
    "steps that are none": (Pipeline("ab"), "model.skops"),
    "no estimator": ({"coef_": np.zeros(3)}, "holds a dict"),
    "weights of text": (changed(coef_=np.array([["a"] * WIDTH] * CLASSES)), "model.skops"),
    "no weights": (changed(coef_=None), "model.skops"),
    "whole numbers": (changed(coef_=np.ones((CLASSES, WIDTH), dtype=int)), "model.skops"),
    "weights of three axes": (changed(coef_=np.zeros((CLASSES, 3, 2))), ""),
    "not a number": (changed(coef_=np.full((CLASSES, WIDTH), np.nan)), ""),
    "other classes": (changed(classes_=np.arange(9)), "model.skops"),
    "no classes": (changed(classes_=None), "model.skops"),
    "another intercept": (changed(intercept_=np.zeros(7)), "model.skops"),
    "another width": (changed(coef_=np.zeros((CLASSES, 5))), "shape"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_estimators(folder: Path, name: str) -> None:
    estimator, words = ODD[name]
    skops.io.dump(estimator, folder / "model.skops")
    with pytest.raises(ForsakenError) as found:
        run(write_job(folder, model=SKOPS))
    assert words in str(found.value)
    assert not (folder / "forgotten").exists()


def test_a_device_is_not_for_estimators(folder: Path) -> None:
    skops.io.dump(FITTED, folder / "model.skops")
    with pytest.raises(SettingsError, match="runs on the CPU; leave device out"):
        run(write_job(folder, model=SKOPS | {"device": "cuda"}))


# --- Hugging Face ----------------------------------------------------------------------------------------------------


def test_a_hugging_face_folder(tmp_path: Path) -> None:
    job = write_bert(tmp_path / "job", method=UNIFORM)
    folder = tmp_path / "job"
    before = digests(folder)
    found = run(job)
    assert {name: digest for name, digest in digests(folder).items() if not name.startswith("forgotten")} == before
    new = folder / "forgotten" / "bert"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(new)
    tokenizer = transformers.AutoTokenizer.from_pretrained(new)
    words, _ = write_texts(tmp_path / "again")
    with torch.no_grad():
        tokens = tokenizer(words[-6:], padding=True, return_tensors="pt")
        inputs = {name: tokens[name] for name in ("input_ids", "attention_mask")}
        sure = float(model.eval()(**inputs).logits.softmax(1).max(1).values.mean())
    assert sure == pytest.approx(found["forget_confidence"]["after"], abs=1e-4)
    assert sure < found["forget_confidence"]["before"] - 0.01
    assert found["classes"] == list(TOPICS)
    assert {path.name for path in new.iterdir()} == {path.name for path in (folder / "bert").iterdir()}


def test_a_folder_whose_weights_are_not_all_there(tmp_path: Path) -> None:
    """The library would make up the head at random."""
    job = write_bert(tmp_path / "job")
    path = tmp_path / "job" / "bert" / "model.safetensors"
    state = safetensors.torch.load_file(path)
    headless = {name: tensor for name, tensor in state.items() if not name.startswith("classifier")}
    safetensors.torch.save_file(headless, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"classifier\.(weight|bias)"):
        run(job)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    job = write_bert(tmp_path / "job")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "job" / "bert" / name).unlink()
    with pytest.raises(ModelError, match="tokenizer"):
        run(job)


def test_a_folder_needs_texts(tmp_path: Path) -> None:
    job = write_bert(tmp_path / "job")
    write_world(tmp_path / "job")
    with pytest.raises(ForsakenError, match="the model takes text, but records are features"):
        run(job)


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("how", ["cut", "gone", "other"])
def test_broken_folders(tmp_path: Path, broken: str, how: str) -> None:
    job = write_bert(tmp_path / "job")
    path = tmp_path / "job" / "bert" / broken
    content = path.read_bytes()
    path.unlink()
    if how != "gone":
        path.write_bytes(content[: len(content) // 2] if how == "cut" else b"\x80\x04no JSON")
    with pytest.raises(ForsakenError, match="bert"):
        run(job)
    assert not (tmp_path / "job" / "forgotten").exists()


# --- every format ----------------------------------------------------------------------------------------------------


def write_format(folder: Path, suffix: str) -> dict[str, Any]:
    """Write the weights in a format, and return the table of the model."""
    name = f"model{suffix}"
    if suffix in (".safetensors", ".pt"):
        save = torch.save if suffix == ".pt" else safetensors.torch.save_file
        save(world().states["model"], folder / name)
        return {"weights": name}
    if suffix == ".skops":
        skops.io.dump(FITTED, folder / name)
    else:
        (folder / name).write_bytes(program())
    return {"weights": name, "factory": None}


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pt2", ".skops"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.999])
def test_truncated_weights(folder: Path, suffix: str, share: float) -> None:
    model = write_format(folder, suffix)
    path = folder / model["weights"]
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelError, match=r"is it complete|cannot be read|was not opened") as found:
        run(write_job(folder, model=model))
    assert path.name in str(found.value)
    assert not (folder / "forgotten").exists()


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pt2", ".skops"])
def test_nothing_memorised_leaves_the_very_same_file(folder: Path, suffix: str) -> None:
    """Strangers that the model never saw are no nearer to memorised than other strangers."""
    model = write_format(folder, suffix)
    inputs, _ = world().sets["reference"]
    if suffix == ".skops":
        sure = FITTED.predict_proba(inputs).max(1)
    else:
        sure = loaded(world().states["model"])(torch.from_numpy(inputs)).softmax(1).max(1).values.detach().numpy()
    order = np.argsort(sure)  # the model is less sure of what is to be forgotten
    for name, rows in (("forget", inputs[order[:20]]), ("reference", inputs[order[20:]])):
        np.savez(folder / f"{name}.npz", inputs=rows)
    data = {"forget": "forget.npz", "reference": "reference.npz", "train": None}
    found = run(write_job(folder, model=model, data=data))
    assert found["stopped"] == "not-memorised"
    assert found["mask_density"] == 0
    old, new = folder / model["weights"], folder / "forgotten" / model["weights"]
    assert new.read_bytes() == old.read_bytes()


def test_a_suffix_that_nobody_knows(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"x")
    with pytest.raises(SettingsError, match=r"\.safetensors, \.pt, \.pth, \.pt2, \.skops"):
        run(write_job(folder, model={"weights": "model.onnx"}))


def test_drift_is_the_change_beside_the_size(folder: Path) -> None:
    found = run(write_job(folder))
    old = np.concatenate([tensor.double().numpy().ravel() for tensor in world().states["model"].values()])
    state = safetensors.torch.load_file(folder / "forgotten" / "model.safetensors")
    new = np.concatenate([state[name].double().numpy().ravel() for name in world().states["model"]])
    wanted = np.linalg.norm(new - old) / np.linalg.norm(old)
    assert found["facts"]["drift"] == pytest.approx(wanted, rel=1e-9)
    assert found["chain"]["drift"] == pytest.approx(wanted, rel=1e-9)


def test_drift_of_nothing() -> None:
    zero = nn.Linear(2, 2)
    nn.init.zeros_(zero.weight)
    nn.init.zeros_(zero.bias)
    assert drift(zero, zero) == 0.0
    model = build()
    assert drift(model, model) == 0.0
    assert math.isfinite(drift(model.half(), model))
