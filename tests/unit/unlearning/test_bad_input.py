"""Bad input through the public calls: refused with words that help, and nothing is changed."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Problem
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import forsaken
from forsaken.data.nest import leaves
from forsaken.data.samples import Samples
from forsaken.errors import (
    EmptyError,
    ForsakenError,
    InputError,
    ModelError,
    NonFiniteError,
    NothingForgottenError,
    OverlapError,
    SettingsError,
    UnknownNameError,
)

NAN, INF = math.nan, math.inf
Arguments = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A call that must be refused: what differs from a good call, the error, and words its message must have."""

    name: str
    change: Callable[[Problem], Arguments]
    error: type[ForsakenError]
    words: tuple[str, ...]


class Items(Dataset[object]):
    def __init__(self, count: int, item: Callable[[int], object]) -> None:
        self.count, self.item = count, item

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> object:
        return self.item(at)


class Through(nn.Module):
    """The problem's network with something done to its logits."""

    def __init__(self, network: nn.Module, act: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.network, self.act = copy.deepcopy(network), act

    def forward(self, inputs: Tensor) -> object:
        return self.act(self.network(inputs))


def arguments(case: Case, problem: Problem) -> Arguments:
    good = {
        "model": copy.deepcopy(problem.model),
        "forget": problem.forget[0],
        "reference": problem.reference,
        "retain": problem.retain[0],
    }
    return good | case.change(problem)


def with_value(rows: Tensor, at: tuple[int, int], value: float) -> Tensor:
    rows = rows.clone()
    rows[at] = value
    return rows


def altered(model: nn.Module, act: Callable[[Any], object]) -> nn.Module:
    twin = copy.deepcopy(model)
    with torch.no_grad():
        act(twin)
    return twin


def empty_cases() -> list[Case]:
    nothing = torch.empty(0, 20)
    kinds: dict[str, Callable[[], object]] = {
        "tensor": lambda: nothing,
        "array": nothing.numpy,
        "list": list,
        "dataset": lambda: TensorDataset(nothing),
        "subset": lambda: Subset(TensorDataset(torch.ones(3, 20)), []),
        "loader": lambda: DataLoader(TensorDataset(nothing)),
        "dict": dict,
        "dict of empty": lambda: {"x": nothing},
        "tuple": tuple,
        "pair of empty": lambda: (nothing, torch.empty(0, dtype=torch.long)),
    }
    return [
        Case(f"{name} is an empty {kind}", lambda _, n=name, m=make: {n: m()}, EmptyError, (name, "empty", "give"))
        for name in ("forget", "reference", "retain")
        for kind, make in kinds.items()
    ]


VALUES = [
    Case("forget missing", lambda p: {"forget": None}, InputError, ("forget", "None", "expected")),
    Case("forget text", lambda p: {"forget": "mine"}, InputError, ("forget", "type str", "expected")),
    Case(
        "NaN in forget",
        lambda p: {"forget": with_value(p.forget[0], (3, 2), NAN)},
        InputError,
        ("forget", "NaN", "1 of 20", "sample 3", "drop"),
    ),
    Case(
        "infinity in reference",
        lambda p: {"reference": with_value(p.reference, (7, 0), INF)},
        InputError,
        ("reference", "infinite", "1 of 100", "sample 7"),
    ),
    Case(
        "minus infinity in retain, as array",
        lambda p: {"retain": with_value(p.retain[0], (5, 1), -INF).numpy()},
        InputError,
        ("retain", "infinite", "sample 5"),
    ),
    Case(
        "NaN in a dataset",  # the sample is counted over the set, not over the batch it was read in
        lambda p: {"forget": DataLoader(TensorDataset(with_value(p.forget[0], (13, 2), NAN)), batch_size=4)},
        InputError,
        ("forget", "NaN", "sample 13"),
    ),
    Case(
        "NaN behind odd strides",
        lambda p: {"forget": with_value(torch.ones(6, 5), (0, 2), NAN).view(6, 5, 1).expand(6, 5, 4).transpose(0, 2)},
        InputError,
        ("forget", "NaN"),
    ),
    Case(
        "NaN weights",
        lambda p: {"model": altered(p.model, lambda m: m[2].weight[1, 1].fill_(NAN))},
        InputError,
        ("2.weight", "NaN", "checkpoint"),
    ),
    Case(
        "infinite weights",
        lambda p: {"model": altered(p.model, lambda m: m[0].bias[3].fill_(INF))},
        InputError,
        ("0.bias", "infinite"),
    ),
    Case(
        "weights so large that logits overflow",
        lambda p: {"model": altered(p.model, lambda m: m[4].weight.fill_(3e38))},
        NonFiniteError,
        ("logits", "infinite", "weights"),
    ),
    Case(
        "a model that divides by zero",
        lambda p: {"model": Through(p.model, lambda z: z / 0)},
        NonFiniteError,
        ("logits", "NaN"),
    ),
    Case("sparse tensor", lambda p: {"forget": p.forget[0].to_sparse()}, InputError, ("forget", "sparse")),
    Case("meta tensor", lambda p: {"forget": p.forget[0].to("meta")}, InputError, ("forget", "meta")),
    Case("complex tensor", lambda p: {"forget": p.forget[0].cfloat()}, InputError, ("forget", "complex64", "expected")),
    Case(
        "complex array",
        lambda p: {"forget": p.forget[0].cfloat().numpy()},
        InputError,
        ("forget", "complex64", "expected"),
    ),
    Case(
        "complex sparse matrix",
        lambda p: {"forget": sparse.csr_matrix(p.forget[0].cfloat().numpy())},
        InputError,
        ("forget", "complex64", "expected"),
    ),
    Case("ragged list", lambda p: {"retain": [[1.0], [1.0, 2.0]]}, InputError, ("retain", "one array")),
    Case("list of tensors", lambda p: {"forget": list(p.forget[0])}, InputError, ("forget", "list of Tensor", "stack")),
    Case("objects", lambda p: {"forget": np.array([None, {}])}, InputError, ("forget", "object", "expected numbers")),
    Case(
        "dataset of ragged items",
        lambda p: {"forget": Items(3, lambda at: torch.ones(at + 1))},
        InputError,
        ("forget", "size"),
    ),
    Case("dataset of None", lambda p: {"forget": Items(3, lambda at: None)}, InputError, ("forget", "None")),
    Case(
        "dataset of dictionaries that disagree",
        lambda p: {"forget": Items(3, lambda at: {f"x{at}": torch.ones(2)})},
        InputError,
        ("forget", "x0"),
    ),
]

OVERLAPS = [
    Case(
        "reference overlaps",
        lambda p: {"reference": torch.cat([p.reference[:5], p.forget[0][2:4]])},
        OverlapError,
        ("2 of 7 reference", "reference sample 5", "forget sample 2", "leave them out"),
    ),
    Case(
        "retain overlaps",
        lambda p: {"retain": torch.cat([p.forget[0][19:], p.retain[0]])},
        OverlapError,
        ("1 of 21 retain", "retain sample 0", "forget sample 19", "leave them out"),
    ),
    Case(
        "retain is forget",
        lambda p: {"retain": p.forget},
        OverlapError,
        ("20 of 20 retain",),
    ),
]

SHAPES = [
    Case(
        "reference of another width",
        lambda p: {"reference": p.reference[:, :7]},
        InputError,
        ("forget", "(20,)", "reference", "(7,)", "same model"),
    ),
    Case(
        "retain with an axis more",
        lambda p: {"retain": p.retain[0].view(20, 4, 5)},
        InputError,
        ("retain", "(4, 5)", "(20,)"),
    ),
    Case(
        "a nest beside a tensor",
        lambda p: {"reference": {"x": p.reference}},
        InputError,
        ("reference", "'x'", "(20,)"),
    ),
    Case(
        "a width that the model cannot take",
        lambda p: {"forget": p.forget[0][:, :7], "reference": p.reference[:, :7], "retain": None},
        ForsakenError,
        ("(7,)", "model"),
    ),
    Case(
        "integers for a model of floats",
        lambda p: {"forget": p.forget[0].long(), "reference": p.reference.long() + 50, "retain": None},
        ForsakenError,
        ("int64", "model"),
    ),
    Case(
        "integers in retain alone",
        lambda p: {"retain": p.retain[0].long() + 50},
        ForsakenError,
        ("int64",),
    ),
    Case(
        "a dictionary for a model that takes a tensor",
        lambda p: {"forget": {"x": p.forget[0]}, "reference": {"x": p.reference}, "retain": None},
        ForsakenError,
        ("x", "forward="),
    ),
    Case(
        "three inputs for a model that takes one",
        lambda p: {"forget": (p.forget[0],) * 3, "reference": (p.reference,) * 3, "retain": None},
        ForsakenError,
        ("forward=",),
    ),
    Case(
        "word numbers that the embedding does not have",
        lambda p: {
            "model": nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 3)),
            "forget": torch.tensor([[1, 99]]),
            "reference": torch.tensor([[1, 2], [3, 4]]),
            "retain": None,
        },
        ForsakenError,
        ("out of range", "model"),
    ),
    Case(
        "inputs of one nest with different counts",
        lambda p: {"forget": ({"a": p.forget[0], "b": p.forget[0][:3]}, None)},
        InputError,
        ("forget", "[3, 20]", "disagree"),
    ),
    Case(
        "two inputs read as a pair",
        lambda p: {"forget": (p.forget[0], p.forget[0])},
        InputError,
        ("labels of forget", "(20, 20)", "((a, b), None)"),
    ),
]


def label_cases() -> list[Case]:
    kinds: dict[str, tuple[object, tuple[str, ...]]] = {
        "negative": (torch.full((20,), -1), ("20 of 20 labels", "4 classes", "0 to 3")),
        "too large": (torch.arange(20) % 5, ("4 of 20 labels", "4 classes", "0 to 3")),
        "too few": (torch.zeros(5, dtype=torch.long), ("20 samples", "5 labels")),
        "one-hot": (torch.eye(4)[torch.arange(20) % 4], ("(20, 4)", "argmax")),
        "floats": (torch.zeros(20), ("float32", "class numbers")),
        "bfloat16": (torch.zeros(20, dtype=torch.bfloat16), ("bfloat16", "class numbers")),
        "text": (["cat"] * 20, ("<U3", "class numbers")),
        "None in a list": ([None] * 20, ("object", "class numbers")),
        "ragged": ([[0], [0, 1]], ("labels",)),
        "sparse": (torch.zeros(20).to_sparse(), ("labels",)),
        "a single number": (3, ("()", "(20,)")),
    }
    return [
        Case(
            f"labels of {name}: {kind}",
            lambda p, n=name, y=labels: {n: ((p.forget if n == "forget" else p.retain)[0], y)},
            InputError,
            (name, *words),
        )
        for name in ("forget", "retain")
        for kind, (labels, words) in kinds.items()
    ]


NEEDS = [
    Case(
        "corrected without labels",
        lambda p: {"target": "corrected"},
        InputError,
        ('"corrected"', "labels", "forget=(inputs, labels)"),
    ),
    Case(
        "corrected without labels of references",
        lambda p: {"target": "corrected", "forget": p.forget},
        InputError,
        ('"corrected"', "labels", "reference=(inputs, labels)"),
    ),
    Case(
        "corrected without references",
        lambda p: {"target": "corrected", "forget": p.forget, "reference": None},
        SettingsError,
        ('"corrected"', "reference="),
    ),
    Case(
        "importance of the loss without labels",
        lambda p: {"importance": "loss"},
        InputError,
        ('"loss"', "labels", "retain=(inputs, labels)", 'importance="logits"'),
    ),
    Case(
        "importance of the loss without retain",
        lambda p: {"importance": "loss", "retain": None},
        InputError,
        ('"loss"', "labels", "retain=(inputs, labels)"),
    ),
    Case(
        "class means without references",
        lambda p: {"reference": None},
        SettingsError,
        ('"class-mean"', "reference=", "targets=", '"uniform"'),
    ),
    Case(
        "a share of an infinite penalty",
        lambda p: {"weights": "importance-raw", "penalty_share": 0.5},
        SettingsError,
        ("penalty_share", "λ_max", "infinite", "penalty="),
    ),
]


def target_cases() -> list[Case]:
    kinds: dict[str, tuple[object, tuple[str, ...]]] = {
        "a class too few": (torch.zeros(20, 3), ("(20, 3)", "(20, 4)")),
        "a row too few": (torch.zeros(19, 4), ("(19, 4)", "(20, 4)")),
        "an axis too many": (torch.zeros(20, 4, 1), ("(20, 4, 1)", "(20, 4)")),
        "one column for four classes": (torch.zeros(20), ("(20, 1)", "(20, 4)")),
        "a number": (1.0, ("()", "(20, 4)")),
        "NaN": (torch.full((20, 4), NAN), ("NaN", "clamp")),
        "log 0": (torch.zeros(20, 4).log(), ("infinite", "clamp")),
        "complex": (torch.zeros(20, 4, dtype=torch.cfloat), ("complex64",)),
        "text": ("uniform", ("type str", "expected")),
        "ragged": ([[1.0], [1.0, 2.0]], ("expected",)),
        "objects": (np.array([None] * 20), ("expected",)),
        "a dictionary": ({"a": 1}, ("expected",)),
    }
    return [
        Case(f"targets: {kind}", lambda _, t=value: {"targets": t}, InputError, ("targets", *words))
        for kind, (value, words) in kinds.items()
    ]


MODELS = [
    Case("no model", lambda p: {"model": "resnet"}, ModelError, ("str", "torch.nn.Module")),
    Case(
        "all frozen",
        lambda p: {"model": copy.deepcopy(p.model).requires_grad_(False)},
        ModelError,
        ("no trainable parameter", "6", "requires_grad"),
    ),
    Case(
        "no parameter at all",
        lambda p: {"model": nn.Identity()},
        ModelError,
        ("no trainable parameter", "0"),
    ),
    Case(
        "bfloat16", lambda p: {"model": copy.deepcopy(p.model).bfloat16()}, ModelError, ("bfloat16", "CPU", ".float()")
    ),
    Case("float16", lambda p: {"model": copy.deepcopy(p.model).half()}, ModelError, ("float16", "CPU", ".float()")),
    Case(
        "weights on the meta device",
        lambda p: {"model": copy.deepcopy(p.model).to("meta")},
        ModelError,
        ("meta", "load"),
    ),
    Case(
        "batch-norm without running statistics",
        lambda p: {"model": nn.Sequential(copy.deepcopy(p.model), nn.BatchNorm1d(4, track_running_stats=False))},
        ModelError,
        ("1", "batch-norm", "running statistics", "track_running_stats=True"),
    ),
    Case(
        "output is a tuple",
        lambda p: {"model": Through(p.model, lambda z: (z, z))},
        ModelError,
        ("tuple", "tensor of logits", "forward="),
    ),
    Case(
        "output is a dictionary",
        lambda p: {"model": Through(p.model, lambda z: {"scores": z})},
        ModelError,
        ("dict", "tensor of logits", "forward="),
    ),
    Case(
        "output has three axes",
        lambda p: {"model": Through(p.model, lambda z: z[:, None])},
        ModelError,
        ("(20, 1, 4)", "(samples, classes)", "forward="),
    ),
    Case(
        "output is class numbers",
        lambda p: {"model": Through(p.model, lambda z: z.argmax(1))},
        ModelError,
        ("int64", "logits", "forward="),
    ),
    Case(
        "output has fewer rows",
        lambda p: {"model": Through(p.model, lambda z: z[1:])},
        ModelError,
        ("19 rows", "20 samples"),
    ),
    Case(
        "output is cut off from the weights",
        lambda p: {"model": Through(p.model, lambda z: z.detach())},
        ForsakenError,
        ("gradient",),
    ),
    Case("forward is no function", lambda p: {"forward": 3}, ForsakenError, ("forward", "3", "function")),
    Case(
        "forward gives no logits",
        lambda p: {"forward": lambda model, inputs: [model(inputs)]},
        ModelError,
        ("list", "tensor of logits"),
    ),
    Case(
        "an estimator without gradients",
        lambda p: {"model": DecisionTreeClassifier()},
        ModelError,
        ("DecisionTreeClassifier", "LogisticRegression"),
    ),
    Case(
        "an estimator that was not fitted",
        lambda p: {"model": LogisticRegression()},
        ForsakenError,
        ("LogisticRegression", "not fitted", "fit"),
    ),
]

SETTINGS = [
    Case("unknown method", lambda p: {"method": "forsakn"}, UnknownNameError, ("'forsakn'", "did you mean 'forsaken'")),
    Case("method is a list", lambda p: {"method": ["forsaken"]}, ForsakenError, ("method", "['forsaken']", "known")),
    Case("unknown setting", lambda p: {"penalti": 1}, UnknownNameError, ("'penalti'", "did you mean 'penalty'")),
    Case("wrong setting", lambda p: {"penalty": -3.0}, SettingsError, ("penalty is -3.0", ">= 0")),
    Case(
        "parameters that do not exist",
        lambda p: {"parameters": "layer4.*"},
        SettingsError,
        ("'layer4.*'", "names no parameter", "0.weight"),
    ),
    Case(
        "one pattern of two that matches nothing",
        lambda p: {"parameters": ["0.*", "head.*"]},
        SettingsError,
        ("'head.*'", "names no parameter", "4.bias"),
    ),
    Case(
        "parameters that are all frozen",
        lambda p: {"parameters": "0.*", "model": altered(p.model, lambda m: m[0].requires_grad_(False))},
        SettingsError,
        ("'0.*'", "frozen", "2.weight"),
    ),
    Case("no parameters", lambda p: {"parameters": []}, SettingsError, ("parameters", "empty", "leave it out")),
    Case("an empty name", lambda p: {"parameters": ""}, SettingsError, ("parameters=''", "0.weight")),
    Case("parameters is a number", lambda p: {"parameters": 3}, SettingsError, ("parameters", "3", "expected")),
    Case("parameters holds a number", lambda p: {"parameters": [3]}, SettingsError, ("parameters", "3", "expected")),
    Case(
        "a predicate that chooses nothing",
        lambda p: {"parameters": lambda name, parameter: False},
        SettingsError,
        ("chose none", "0.weight", "at least one"),
    ),
    *[
        Case(f"seed {seed!r}", lambda _, s=seed: {"seed": s}, SettingsError, (f"seed is {seed!r}", "whole number"))
        for seed in (-1, 2**32, 1.0, "1", None, True, [1])
    ],
    Case(
        "a penalty above λ_max",
        lambda p: {"penalty": 1e6},
        NothingForgottenError,
        ("λ is 1e+06", "λ_max is ", "below"),
    ),
    Case(
        "a penalty above λ_max, as a share",
        lambda p: {"penalty_share": 1.5},
        NothingForgottenError,
        ("λ is ", "λ_max is ", "below"),
    ),
]

CASES = [
    *empty_cases(),
    *VALUES,
    *OVERLAPS,
    *SHAPES,
    *label_cases(),
    *NEEDS,
    *target_cases(),
    *MODELS,
    *SETTINGS,
]
every_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@every_case
def test_refused_with_words_that_help(case: Case, problem: Problem) -> None:
    with pytest.raises(case.error) as caught:
        forsaken.unlearn(**arguments(case, problem))
    missing = [word for word in case.words if word not in str(caught.value)]
    assert not missing, f"{missing} not in: {caught.value}"


def bits(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def weights_and_modes(model: nn.Module) -> object:
    state = {name: "meta" if value.is_meta else bits(value) for name, value in model.state_dict().items()}
    flags = [(name, p.requires_grad) for name, p in model.named_parameters()]
    return state, flags, [(name, module.training) for name, module in model.named_modules()]


def picture(model: object) -> object:
    """Everything of a model that a call could change."""
    if not isinstance(model, nn.Module):
        return repr(getattr(model, "__dict__", model))
    gradients = [None if p.grad is None else bits(p.grad) for p in model.parameters()]
    return weights_and_modes(model), gradients


def generators() -> tuple[bytes, str, object]:
    return bits(torch.get_rng_state()), repr(np.random.get_state()), random.getstate()  # noqa: NPY002


@every_case
def test_a_refused_call_changes_nothing(case: Case, problem: Problem) -> None:
    given_over = arguments(case, problem)
    model = given_over["model"]
    if isinstance(model, nn.Module):
        model.train()
        for child in list(model.children())[:1]:
            child.eval()
        last = list(model.parameters())[-1:]
        if len(list(model.parameters())) > 1:
            last[0].requires_grad_(False)
    data = [problem.forget[0], problem.forget[1], problem.reference, *problem.retain]
    before = picture(model), generators(), [bits(part) for part in data]
    with pytest.raises(Exception):  # noqa: B017, PT011 (which error, and its words, is the test above)
        forsaken.unlearn(**given_over)
    assert (picture(model), generators(), [bits(part) for part in data]) == before


def test_lazy_weights_are_refused(problem: Problem) -> None:
    with pytest.raises(ModelError, match=r"(?s)initiali[sz]ed"):
        forsaken.unlearn(nn.LazyLinear(4), problem.forget[0], problem.reference)


def test_labels_of_an_estimator_are_its_class_names(problem: Problem) -> None:
    names = np.array(["ant", "bee", "cow", "dog"])
    inputs, labels = problem.kept
    estimator = LogisticRegression(max_iter=300).fit(inputs.numpy(), names[labels.numpy()])
    before = estimator.coef_.tobytes()
    with pytest.raises(InputError, match=r"20 of 20 labels of forget .* model knows \(ant"):
        forsaken.unlearn(estimator, (problem.forget[0].numpy(), ["elk"] * 20), problem.reference.numpy())
    with pytest.raises(ForsakenError, match=r"\(7,\)"):
        forsaken.unlearn(estimator, problem.forget[0].numpy()[:, :7], problem.reference.numpy()[:, :7])
    assert estimator.coef_.tobytes() == before


# overlaps: which rows, and in which precision


@pytest.mark.parametrize("name", ["reference", "retain"])
@pytest.mark.parametrize("shared", [[0], [3, 4, 11], [20]])
def test_overlap_lists_the_rows_to_leave_out(problem: Problem, name: str, shared: list[int]) -> None:
    others = problem.reference[:21].clone()
    others[shared] = problem.forget[0][: len(shared)]
    sets = {"reference": problem.reference, name: others}
    with pytest.raises(OverlapError, match=rf"{len(shared)} of 21 {name}") as caught:
        forsaken.unlearn(problem.model, problem.forget[0], **sets)
    assert caught.value.rows == tuple(shared)
    kept = [at for at in range(21) if at not in caught.value.rows]
    sets[name] = others[kept]  # the remedy that the message names
    assert forsaken.unlearn(problem.model, problem.forget[0], **sets, iterations=2).iterations == 2


@pytest.mark.parametrize("ours", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("theirs", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_overlap_does_not_depend_on_the_dtype(problem: Problem, ours: torch.dtype, theirs: torch.dtype) -> None:
    exact = problem.forget[0].bfloat16()  # values that every dtype holds
    others = torch.cat([problem.retain[0].to(theirs), exact[[4, 9]].to(theirs)])
    with pytest.raises(OverlapError) as caught:
        forsaken.unlearn(problem.model, exact.to(ours), problem.reference, others)
    assert caught.value.rows == (20, 21)


@pytest.mark.parametrize(("ours", "theirs"), [(torch.float64, torch.float32), (torch.float32, torch.float64)])
def test_overlap_is_what_the_model_cannot_tell_apart(problem: Problem, ours: torch.dtype, theirs: torch.dtype) -> None:
    # The same table once as float64 and once rounded: a float32 model is handed the very same numbers.
    finer = problem.forget[0].double() * (1 + 1e-11)
    assert not torch.equal(finer, finer.float().double())
    with pytest.raises(OverlapError) as caught:
        forsaken.unlearn(problem.model, finer.to(ours), problem.reference, finer[5:7].to(theirs))
    assert caught.value.rows == (0, 1)


def test_overlap_of_dictionaries_in_another_order(problem: Problem) -> None:
    a, b = problem.forget[0], problem.forget[0] + 1
    reference = {"a": problem.reference, "b": problem.reference + 1}
    with pytest.raises(OverlapError) as caught:
        forsaken.unlearn(
            problem.model,
            {"a": a, "b": b},
            reference,
            {"b": b[3:5], "a": a[3:5]},
            forward=lambda model, inputs: model(inputs["a"]),
        )
    assert caught.value.rows == (0, 1)


def test_fractions_are_not_taken_for_the_whole_numbers_below_them(problem: Problem) -> None:
    whole = problem.forget[0].round().long()
    with pytest.raises(ForsakenError) as caught:
        forsaken.unlearn(problem.model, whole, whole.float() + 0.25 * whole.float().sign())
    assert not isinstance(caught.value, OverlapError)  # integers cannot be fed to this model, and that is the problem


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (torch.tensor([[256, 1]]), torch.tensor([[0, 1]], dtype=torch.uint8)),
        (torch.tensor([[5, 7]]), torch.ones(1, 2) > 0),
    ],
    ids=["uint8", "bool"],
)
def test_whole_numbers_are_not_wrapped_into_a_narrower_kind(ours: Tensor, theirs: Tensor) -> None:
    torch.manual_seed(0)
    words = nn.Sequential(nn.Embedding(300, 4), nn.Flatten(), nn.Linear(8, 3))
    result = forsaken.unlearn(
        words, ours, retain=theirs, target="uniform", forward=lambda model, inputs: model(inputs.long()), iterations=2
    )
    assert len(result.mask) > 0


def test_negative_zero_is_zero(problem: Problem) -> None:
    forget = problem.forget[0].clone()
    forget[2] = 0.0
    with pytest.raises(OverlapError) as caught:
        forsaken.unlearn(problem.model, forget, problem.reference, torch.full((1, 20), -0.0))
    assert caught.value.rows == (0,)


# settings


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("target", "uniforn", ("'uniforn'", "did you mean 'uniform'")),
        ("distance", "logit", ("'logit'", "did you mean 'logits'")),
        ("weights", "important", ("'important'", "did you mean 'importance'")),
        ("importance", "los", ("'los'", "did you mean 'loss'")),
        ("optimiser", "adam", ("'adam'", "known: auto, gauss-newton, lbfgs, owlqn")),
        ("stop", "calibrate", ("'calibrate'", "did you mean 'calibrated'")),
        ("stop", None, ("None", "known")),
        ("target", ["uniform"], ("['uniform']", "known")),
        ("distance", np.array(["kl", "logits"]), ("distance", "known")),
        *[
            (name, value, (f"{name} is {value!r}", "number >= 0"))
            for name in ("penalty", "power", "anchor", "penalty_share", "tolerance")
            for value in (-1e-9, NAN, INF, "1", True, [1.0])
        ],
        ("penalty", None, ("penalty is None", "number >= 0")),
        pytest.param("penalty", 10**400, ("penalty", "number >= 0"), id="penalty-huge"),
        *[
            (name, value, (f"{name} is {value!r}", f"whole number >= {least}"))
            for name, least in (
                ("iterations", 1),
                ("history", 1),
                ("batch_size", 1),
                ("anchor_references", 0),
                ("rounds", 1),
                ("steps", 1),
                ("views", 0),
            )
            for value in (least - 1, 1.5, 2.0, "3", True, [1])
        ],
        ("iterations", None, ("iterations is None", "whole number >= 1")),
        *[
            (name, value, (f"{name} is {value!r}", "number >= 1e-06"))
            for name in ("damping", "floor")
            for value in (0, -1.0, NAN, "1", True)
        ],
        *[
            ("frozen_prefix", value, (f"frozen_prefix is {value!r}", "from 0 to 0.9"))
            for value in (1, 0.91, -1e-9, NAN, "1", True)
        ],
    ],
)
def test_each_setting_out_of_range(setting: str, value: object, words: tuple[str, ...], problem: Problem) -> None:
    with pytest.raises(SettingsError) as caught:
        forsaken.Forsaken(**{setting: value})
    assert "1 problem\n" in str(caught.value)
    assert all(word in str(caught.value) for word in words), caught.value
    with pytest.raises(SettingsError, match=setting):
        forsaken.unlearn(problem.model, problem.forget[0], problem.reference, **{setting: value})


@pytest.mark.parametrize(
    "setting",
    ["penalty", "power", "anchor", "penalty_share", "anchor_references", "tolerance", "frozen_prefix", "views"],
)
def test_zero_is_in_range(setting: str) -> None:
    assert forsaken.Forsaken(**{setting: 0}).settings[setting] == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"penalty": 0.5, "penalty_share": 0.1}, ("penalty is 0.5", "penalty_share=None")),
        ({"optimiser": "gauss-newton", "distance": "kl"}, ('optimiser="gauss-newton"', 'distance="logits", not "kl"')),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError) as caught:
        forsaken.Forsaken(**settings)
    assert all(word in str(caught.value) for word in words), caught.value


def test_all_wrong_settings_are_reported_together(problem: Problem) -> None:
    wrong: dict[str, Any] = {
        "target": "x",
        "distance": "x",
        "weights": "x",
        "importance": "x",
        "optimiser": "x",
        "stop": "x",
        "penalty": -1,
        "penalty_share": -1,
        "power": -1,
        "anchor": -1,
        "anchor_references": -1,
        "iterations": 0,
        "history": 0,
        "batch_size": 0,
    }
    with pytest.raises(SettingsError) as caught:
        forsaken.unlearn(problem.model, problem.forget[0], problem.reference, **wrong)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith(f"{len(wrong) + 1} problems"), "and penalty beside its share"
    assert all(any(name in line for line in lines[1:]) for name in wrong)
    assert len(lines) == 2 + len(wrong)


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(SettingsError, match=r'stop="calibrated" needs reference samples .*target="uniform" has none'):
        forsaken.Forsaken(target="uniform", stop="calibrated")


def test_the_error_names_the_largest_penalty_that_moves_anything(problem: Problem) -> None:
    call = (problem.model, problem.forget[0], problem.reference, problem.retain[0])
    facts = forsaken.unlearn(*call, iterations=1).details.facts
    with pytest.raises(NothingForgottenError) as caught:
        forsaken.unlearn(*call, penalty=1.01 * facts["penalty_max"])
    assert f"{facts['penalty_max']:.3g}" in str(caught.value)
    below = forsaken.unlearn(*call, penalty=0.9 * facts["penalty_max"], iterations=5)
    assert len(below.mask) > 0


def test_wrong_names_are_standard_errors_too(problem: Problem) -> None:
    with pytest.raises(ValueError, match="did you mean"):
        forsaken.unlearn(problem.model, problem.forget[0], problem.reference, iteration=3)


# an answer, not an error


def test_what_was_not_memorised_is_left_alone(problem: Problem) -> None:
    strangers = problem.reference
    result = forsaken.unlearn(problem.model, strangers[:20], strangers[20:], problem.retain)
    assert result.stopped == "not-memorised"
    assert weights_and_modes(result.model) == weights_and_modes(problem.model)
    assert result.model is not problem.model
    assert len(result.mask) == 0
    assert result.mask.density == 0
    assert result.iterations == 0
    assert result.mask.base == result.mask.new
    assert any("nothing was changed" in note and "does not show" in note for note in result.notes)


def test_targets_that_are_reached_already(problem: Problem) -> None:
    with torch.no_grad():
        logits = problem.model(problem.forget[0])
    result = forsaken.unlearn(problem.model, problem.forget[0], targets=logits + 3.0)  # a shift changes no posterior
    assert result.stopped == "not-memorised"
    assert weights_and_modes(result.model) == weights_and_modes(problem.model)


# whatever is handed over: Samples, or an error of ours

leaf = st.one_of(
    hnp.arrays(
        st.one_of(
            hnp.floating_dtypes(sizes=(16, 32, 64, 128), endianness="?"),
            hnp.integer_dtypes(endianness="?"),
            hnp.unsigned_integer_dtypes(),
            hnp.boolean_dtypes(),
            hnp.complex_number_dtypes(),
            hnp.datetime64_dtypes(),
            st.just(np.dtype("U3")),
            st.just(np.dtype("S2")),
        ),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    ),
    st.lists(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=2)), max_size=3),
    st.lists(st.lists(st.floats(width=32), max_size=3), max_size=3),
    st.builds(lambda values: np.array([*values, None], dtype=object)[:-1], st.lists(st.integers(), max_size=3)),
    st.builds(
        lambda shape, dtype: torch.zeros(shape, dtype=dtype),
        st.lists(st.integers(0, 3), max_size=3),
        st.sampled_from(
            [
                torch.float16,
                torch.bfloat16,
                torch.float32,
                torch.float64,
                torch.float8_e4m3fn,
                torch.int8,
                torch.uint16,
                torch.int64,
                torch.bool,
                torch.complex64,
            ]
        ),
    ),
    st.builds(lambda rows, columns: torch.zeros(rows, columns).to_sparse(), st.integers(0, 3), st.integers(0, 3)),
    st.builds(
        lambda rows, columns, dtype: sparse.csr_matrix((rows, columns), dtype=dtype),
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from([np.float32, np.uint16, np.bool_, np.complex64, np.longdouble]),
    ),
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.sets(st.integers(0, 3), max_size=3),
)
nests = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.tuples(inner),
        st.tuples(inner, inner),
        st.tuples(inner, inner, inner),
        st.dictionaries(st.sampled_from(["x", "y", "label", "labels", 0]), inner, max_size=3),
        st.lists(inner, max_size=3),
    ),
    max_leaves=5,
)


fuzz = settings(
    max_examples=400,
    deadline=None,
    database=None,
    derandomize=True,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)


@fuzz
@given(data=nests)
@example(data=[[torch.zeros((), dtype=torch.bfloat16)]])
@example(data=[[torch.zeros((), requires_grad=True)]])
@example(data=(np.ones((2, 2)), [[0], [0, 1]]))
@example(data=np.ones((2, 2), dtype=">f4"))
@example(data={"x": np.ones((2, 2)), "labels": torch.zeros(2, dtype=torch.bfloat16)})
def test_reading_gives_samples_or_an_error_of_ours(data: object) -> None:
    try:
        samples = Samples.read(data, "forget")
    except ForsakenError as error:
        assert "forget" in str(error)  # noqa: PT017 (a refusal is one of two right answers)
        return
    parts = leaves(samples.inputs)
    assert len(samples) > 0
    assert all(len(part) == len(samples) for part in parts)
    assert all(bool(torch.isfinite(part.double()).all()) for part in parts if part.is_floating_point())
    assert not any(part.is_complex() or part.is_sparse for part in parts)
    assert samples.labels is None or samples.labels.shape == (len(samples),)
    assert samples.labels is None or samples.labels.dtype == torch.long


items = st.one_of(
    st.integers(0, 3),
    st.floats(),
    st.text(max_size=2),
    st.none(),
    st.builds(torch.zeros, st.lists(st.integers(0, 2), max_size=2)),
    st.builds(lambda count: np.array([None] * count), st.integers(0, 2)),
)


@settings(fuzz, max_examples=150)
@given(rows=st.lists(st.one_of(items, st.tuples(items, items), st.dictionaries(st.text("xy", max_size=1), items))))
def test_datasets_give_samples_or_an_error_of_ours(rows: list[object]) -> None:
    try:
        samples = Samples.read(Items(len(rows), rows.__getitem__), "forget")
    except ForsakenError as error:
        assert "forget" in str(error)  # noqa: PT017 (a refusal is one of two right answers)
    else:
        assert len(samples) == len(rows)
