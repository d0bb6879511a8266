"""The contract of every method in the table."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import forsaken
from forsaken import METHODS, Unlearner
from forsaken.bench.networks import mlp
from forsaken.data.samples import Samples
from forsaken.errors import EmptyError, InputError, NonFiniteError
from forsaken.models.train import Training, train
from forsaken.recipe import Recipe
from forsaken.unlearning.bad_teacher import BadTeacher
from forsaken.unlearning.base import UpfrontUnlearner
from forsaken.unlearning.ct import Ct
from forsaken.unlearning.do_nothing import DoNothing
from forsaken.unlearning.fine_tune import FineTune
from forsaken.unlearning.gradient_ascent import GradientAscent
from forsaken.unlearning.l1_sparse import L1Sparse
from forsaken.unlearning.msg import Msg
from forsaken.unlearning.neggrad_plus import NegGradPlus
from forsaken.unlearning.oracle_matching import OracleMatching
from forsaken.unlearning.retrain import Retrain
from forsaken.unlearning.salun import SalUn
from forsaken.unlearning.scrub import Scrub
from forsaken.unlearning.sisa.dp_sgd import SisaDpSgd
from forsaken.unlearning.sisa.method import Sisa
from forsaken.unlearning.sisa.noise import SisaDp
from forsaken.unlearning.smu import Smu
from forsaken.unlearning.ssd import Ssd


@dataclass(frozen=True)
class Row:
    """A method of the table with settings under which it forgets the small problem."""

    name: str
    kind: type[Unlearner]
    settings: dict[str, Any]
    pictures: bool = False  # the problem of the network with convolutions
    trains: bool = False  # it trains again, perhaps up front: the whole of the training data, and how to train
    true_labels: bool = False  # the forget samples come with true labels, other than those that were learnt


def row(
    name: str,
    kind: type[Unlearner],
    *,
    pictures: bool = False,
    trains: bool = False,
    true_labels: bool = False,
    **settings: Any,
) -> Row:
    return Row(name, kind, settings, pictures, trains, true_labels)


FORSAKEN = METHODS["forsaken"]
# A row a method: its table name and settings. A method missing here fails `test_every_method_has_a_row`.
ROWS: dict[str, Row] = {
    "forsaken": row("forsaken", FORSAKEN),
    "forsaken, lbfgs": row("forsaken", FORSAKEN, optimiser="lbfgs", distance="kl", penalty=1e-4),
    "forsaken, uniform": row("forsaken", FORSAKEN, target="uniform"),
    "forsaken, corrected": row("forsaken", FORSAKEN, target="corrected", true_labels=True),
    "do-nothing": row("do-nothing", DoNothing),
    "fine-tune": row("fine-tune", FineTune, learning_rate=0.1, epochs=60, weight_decay=0.03),
    "gradient-ascent": row("gradient-ascent", GradientAscent, learning_rate=0.5, epochs=20),
    "neggrad-plus": row("neggrad-plus", NegGradPlus, learning_rate=0.3, epochs=40, alpha=0.5),
    "l1-sparse": row("l1-sparse", L1Sparse, gamma=0.02, epochs=100),
    "salun": row("salun", SalUn),
    "scrub": row("scrub", Scrub, pictures=True, learning_rate=0.3),
    "ssd": row("ssd", Ssd, alpha=1.5),
    "bad-teacher": row("bad-teacher", BadTeacher),
    "msg": row("msg", Msg, pictures=True, share=0.8),
    "ct": row("ct", Ct, pictures=True),
    "oracle-matching": row("oracle-matching", OracleMatching, learning_rate=3e-3, epochs=13),
    "oracle-matching, convolutions": row("oracle-matching", OracleMatching, pictures=True, learning_rate=3e-3),
    "retrain": row("retrain", Retrain, trains=True),
    "smu": row("smu", Smu, trains=True),
    "sisa": row("sisa", Sisa, trains=True, shards=2, slices=2),
    # so little noise that the strangers are learnt by heart, or there would be nothing to forget
    "sisa-dp": row("sisa-dp", SisaDp, trains=True, shards=2, slices=2, sensitivity="assumed", epsilon=200.0),
    "sisa-dp-sgd": row("sisa-dp-sgd", SisaDpSgd, trains=True, shards=1, slices=2, epsilon=200.0),
    "neggrad-plus, convolutions": row(
        "neggrad-plus", NegGradPlus, pictures=True, learning_rate=0.1, epochs=20, alpha=0.8
    ),
    "ssd, convolutions": row("ssd", Ssd, pictures=True, alpha=1.5),
    "bad-teacher, convolutions": row("bad-teacher", BadTeacher, pictures=True, epochs=20),
}


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(64, 4),
    )


TRAINING = Training(lambda: mlp((20, 64, 32, 4)), Recipe(150, 32, 3e-3))  # that of the shared problem
READIED: dict[str, nn.Module] = {}


def wants_labels(method: Unlearner, name: str) -> bool:
    return any(need.startswith(name) and "with labels" in need for need in method.about.needs)


@pytest.fixture(scope="session")
def picture_problem() -> Any:
    """Four noisy patterns of 8 x 8 pixels; strangers of noise alone, randomly labelled, learnt by heart."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 1, 8, 8, generator=draw)

    def patterns(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(4, (count,), generator=draw)
        return centres[labels] + 0.5 * torch.randn(count, 1, 8, 8, generator=draw), labels

    kept = patterns(120)
    forget = 1.5 * torch.randn(20, 1, 8, 8, generator=draw), torch.randint(4, (20,), generator=draw)
    samples = Samples(torch.cat([kept[0], forget[0]]), torch.cat([kept[1], forget[1]]))
    model = train(convolution, samples, Recipe(80, 32, 1e-2), seed=0)
    reference = 1.5 * torch.randn(40, 1, 8, 8, generator=draw)
    return SimpleNamespace(model=model, forget=forget, reference=reference, retain=(kept[0][:33], kept[1][:33]))


@pytest.fixture(params=ROWS)
def chosen(request) -> Row:
    return ROWS[request.param]


@pytest.fixture
def method(chosen) -> Unlearner:
    return chosen.kind(**chosen.settings)


@pytest.fixture
def task(chosen, request) -> Any:
    """The problem of the row, with the labels that it wants."""
    found = request.getfixturevalue("picture_problem" if chosen.pictures else "problem")
    x, y = found.forget
    given = (y + 1) % 4 if chosen.true_labels else y
    sets = {"forget": (x, given), "learnt": y, "reference": found.reference}
    if not chosen.trains:
        return SimpleNamespace(model=found.model, retain=found.retain, training=None, **sets)
    model = found.model
    if issubclass(chosen.kind, UpfrontUnlearner):
        if chosen.name not in READIED:
            data = Samples(torch.cat([found.kept[0], x]), torch.cat([found.kept[1], y]))
            folder = request.getfixturevalue("tmp_path_factory").mktemp(chosen.name)
            method = request.getfixturevalue("method")
            READIED[chosen.name] = method.prepare(
                TRAINING, data, seed=0, folder=folder, watched=torch.arange(200, 220)
            ).model
        model = READIED[chosen.name]
    return SimpleNamespace(model=model, retain=found.kept, training=TRAINING, **sets)


def labelled_references(task) -> tuple[torch.Tensor, torch.Tensor]:
    # true labels of strangers: what the model makes of them, so that "corrected" has rows to aim at
    return task.reference, task.model(task.reference).argmax(1)


def call(method: Unlearner, task, **more: Any) -> Any:
    data = {
        "forget": task.forget,
        "reference": labelled_references(task),
        "retain": task.retain,
        "training": task.training,
    }
    if "references" in method.about.needs:  # logits of models that never saw the samples: they know nothing of them
        data["targets"] = torch.zeros(len(task.forget[0]), 4)
    return method(task.model, **(data | more))


def test_every_method_has_a_row() -> None:
    assert set(METHODS) <= {row.name for row in ROWS.values()}
    for row in ROWS.values():
        assert METHODS.get(row.name, row.kind) is row.kind


def test_caller_s_model_is_untouched(method: Unlearner, task) -> None:
    before = copy.deepcopy(task.model.state_dict())
    modes = [module.training for module in task.model.modules()]
    result = call(method, task)
    assert result.model is not task.model
    for name, value in task.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert modes == [module.training for module in task.model.modules()]
    shared = {p.data_ptr() for p in task.model.parameters()} & {p.data_ptr() for p in result.model.parameters()}
    assert not shared, "the new model shares no memory with the old one"


def test_deterministic_by_seed_and_leaves_global_randomness_alone(method: Unlearner, task) -> None:
    state = torch.random.get_rng_state()
    first, second = call(method, task, seed=5), call(method, task, seed=5)
    assert torch.equal(torch.random.get_rng_state(), state)
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_weights_move(method: Unlearner, task) -> None:
    result = call(method, task)
    moved = any(not torch.equal(a, b) for a, b in zip(task.model.parameters(), result.model.parameters(), strict=True))
    assert moved == method.changes_weights
    assert all(bool(torch.isfinite(p).all()) for p in result.model.parameters())


def test_forgets(method: Unlearner, task) -> None:
    result = call(method, task)
    x = task.forget[0]
    before, after = (m(x).softmax(1)[torch.arange(20), task.learnt].mean() for m in (task.model, result.model))
    assert before > 0.9
    if not method.changes_weights:
        assert after == before
        return
    assert after < before - 0.1, "less sure of the labels that were learnt"


def test_empty_forget_set_is_an_error(method: Unlearner, task) -> None:
    with pytest.raises(EmptyError, match="forget is empty"):
        call(method, task, forget=task.forget[0][:0])


class Broken(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) / 0.0


def test_non_finite_loss_is_an_error(method: Unlearner, task, tmp_path) -> None:
    if not method.changes_weights:
        pytest.skip("it asks the model nothing")
    if task.training is not None:
        training = Training(lambda: Broken(mlp((20, 4))), Recipe(1, 32, 1e-3))
        if isinstance(method, UpfrontUnlearner):
            data, watched = Samples(*task.retain), torch.arange(20)
            with pytest.raises(NonFiniteError):
                method.prepare(training, data, seed=0, folder=tmp_path, watched=watched)
        else:
            with pytest.raises(NonFiniteError):
                method(Broken(mlp((20, 4))), task.forget, None, task.retain, training=training)
        return
    with pytest.raises(NonFiniteError):
        method(Broken(copy.deepcopy(task.model)), task.forget, task.reference, task.retain)


def test_diverging_run_is_an_error(method: Unlearner, task) -> None:
    if "learning_rate" not in method.settings:
        pytest.skip("it takes no steps of a size that is chosen")
    with pytest.raises(NonFiniteError, match=r"lower learning_rate.* 1e\+30"):
        call(replace(method, learning_rate=1e30), task)  # type: ignore[type-var]


@pytest.mark.parametrize("name", ["forget", "retain"])
def test_missing_labels_are_told(method: Unlearner, task, name: str) -> None:
    if not wants_labels(method, name):
        call(method, task, **({name: getattr(task, name)[0]} if method.settings.get("target") != "corrected" else {}))
        return
    with pytest.raises(InputError, match=rf"{name} has no labels; give {name}=\(inputs, labels\)"):
        call(method, task, **{name: getattr(task, name)[0]})


@pytest.mark.parametrize("name", ["forget", "retain"])
def test_labels_of_no_class_are_told_without_their_value(method: Unlearner, task, name: str) -> None:
    if not wants_labels(method, name):
        pytest.skip("it reads no such labels")
    x, y = getattr(task, name)
    wrong = torch.where(torch.arange(len(y)) == 3, 97, y)
    with pytest.raises(InputError, match=f"1 of {len(y)} labels of {name} are out of range, .* 4 classes") as told:
        call(method, task, **{name: (x, wrong)})
    assert "97" not in str(told.value)


def test_missing_retain_samples_are_told(method: Unlearner, task) -> None:
    if not any(need.startswith("retain") for need in method.about.needs):
        call(method, task, retain=None)
        return
    with pytest.raises(InputError, match=r"retain.*; give .*retain="):
        call(method, task, retain=None)


def test_result_says_how(method: Unlearner, task) -> None:
    result = call(method, task)
    assert result.method == repr(method)
    assert result.stopped in {"iterations", "converged", "calibrated", "tolerance", "line-search", "not-memorised"}
    assert [step.iteration for step in result.history] == list(range(1, result.iterations + 1))
    assert result.evaluations >= result.iterations
    assert result.seconds > 0


def test_progress_is_told(method: Unlearner, task) -> None:
    ticks: list[forsaken.Tick] = []
    call(method, task, progress=ticks.append)
    assert ticks
    assert all(0 < tick.done <= tick.total for tick in ticks)


def test_cancelling_changes_nothing(method: Unlearner, task) -> None:
    class Cancelled(Exception):  # noqa: N818 (no error)
        pass

    def cancel(tick: forsaken.Tick) -> None:
        raise Cancelled(tick.stage)

    before, state = copy.deepcopy(task.model.state_dict()), torch.random.get_rng_state()
    with pytest.raises(Cancelled):
        call(method, task, progress=cancel)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not task.model.training
    for name, value in task.model.state_dict().items():
        assert torch.equal(value, before[name]), name
