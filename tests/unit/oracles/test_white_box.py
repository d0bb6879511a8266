"""The white-box oracle: the sign of its score, whom it can judge, files without surprises."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.svm import LinearSVC
from torch import Tensor, nn

import forsaken
from forsaken import WhiteBoxOracle
from forsaken.bench.networks import TextConvolutions, mlp, small_convolutions
from forsaken.data.samples import Samples
from forsaken.errors import EmptyError, InputError, OracleError, OutputError, SettingsError
from forsaken.models.train import train
from forsaken.recipe import Recipe

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Trained:
    """A network trained on random labels for too long; known and judged members and non-members."""

    model: nn.Module
    members: Pair
    nonmembers: Pair
    judged_members: Pair
    judged_nonmembers: Pair

    def truth(self, oracle: WhiteBoxOracle) -> float:
        scores = [oracle.score(self.model, part) for part in (self.judged_members, self.judged_nonmembers)]
        return float(roc_auc_score(np.repeat([1, 0], [len(part) for part in scores]), np.concatenate(scores)))


def over_trained(
    build: Callable[[], nn.Module], draw_inputs: Callable[[torch.Generator], Tensor], seed: int = 1, epochs: int = 40
) -> Trained:
    draw = torch.Generator().manual_seed(seed)
    inputs = draw_inputs(draw)
    half = len(inputs) // 2
    labels = torch.randint(4, (len(inputs),), generator=draw)
    model = train(build, Samples(inputs[:half], labels[:half]), Recipe(epochs, 40, 1e-2), seed=seed)
    quarters = [(inputs[at::2], labels[at::2]) for at in (0, 1)]
    inside, outside = ([(x[part], y[part]) for x, y in quarters] for part in (slice(half // 2), slice(half // 2, None)))
    return Trained(model, inside[0], outside[0], inside[1], outside[1])


def dense(seed: int = 1) -> Trained:
    return over_trained(lambda: mlp((12, 64, 4)), lambda draw: torch.randn(400, 12, generator=draw), seed)


def convolutions() -> Trained:
    return over_trained(
        lambda: small_convolutions(classes=4, channels=(8, 8)), lambda draw: torch.randn(240, 1, 8, 8, generator=draw)
    )


def words() -> Trained:
    return over_trained(
        lambda: TextConvolutions(50, classes=4, dimensions=8, channels=16),
        lambda draw: torch.randint(1, 50, (240, 12), generator=draw),
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.out = nn.Embedding(50, 16), nn.LSTM(16, 24, batch_first=True), nn.Linear(24, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.lstm(self.words(tokens))[0][:, -1])
        return logits


def recurrent() -> Trained:
    return over_trained(Recurrent, lambda draw: torch.randint(50, (240, 6), generator=draw))


def fitted(trained: Trained, **settings: Any) -> WhiteBoxOracle:
    return WhiteBoxOracle.fit(trained.model, members=trained.members, nonmembers=trained.nonmembers, **settings)


@pytest.fixture(scope="module")
def trained() -> Trained:
    return dense()


@pytest.fixture(scope="module")
def oracle(trained: Trained) -> WhiteBoxOracle:
    return fitted(trained)


# what it is for


@pytest.mark.parametrize("case", [dense, convolutions, words, recurrent], ids=lambda case: case.__name__)
def test_an_over_trained_model_gives_it_an_edge(case: Callable[[], Trained]) -> None:
    found = case()
    assert found.truth(fitted(found)) > 0.8


@pytest.mark.parametrize(
    "kind", [LogisticRegression(C=100.0), LinearSVC(C=10.0, max_iter=20_000)], ids=["logistic", "svm"]
)
@pytest.mark.parametrize("classes", [2, 3])
def test_linear_estimators_with_class_names(kind: Any, classes: int) -> None:
    draw = np.random.default_rng(0)
    inputs, labels = draw.normal(size=(320, 120)), draw.choice(np.array(["ash", "birch", "cedar"][:classes]), size=320)
    model = kind.fit(inputs[:160], labels[:160])
    pairs = [(inputs[part], labels[part]) for part in (slice(80), slice(80, 160), slice(160, 240), slice(240, 320))]
    found = WhiteBoxOracle.fit(model, members=pairs[0], nonmembers=pairs[2])
    inside, outside = found.score(model, pairs[1]), found.score(model, pairs[3])
    assert roc_auc_score(np.repeat([1, 0], 80), np.concatenate([inside, outside])) > 0.7
    with pytest.raises(forsaken.errors.ModelError, match=r"last 2 .* calls 1 .*use layers=1"):
        WhiteBoxOracle.fit(model, members=pairs[0], nonmembers=pairs[2], layers=2)


def test_two_layers_and_predicted_labels_work_too(trained: Trained) -> None:
    assert trained.truth(fitted(trained, layers=2)) > 0.8
    blind = fitted(trained, labels="predicted")
    other = (trained.judged_members[0], (trained.judged_members[1] + 1) % 4)
    assert np.array_equal(blind.score(trained.model, other), blind.score(trained.model, other[0]))
    assert trained.truth(blind) > 0.5


def test_the_label_matters(oracle: WhiteBoxOracle, trained: Trained) -> None:
    inputs, labels = trained.judged_members
    right, wrong = (oracle.score(trained.model, (inputs, part)).mean() for part in (labels, (labels + 1) % 4))
    assert wrong < right - 0.3


def test_it_knows_no_order_of_units(oracle: WhiteBoxOracle, trained: Trained) -> None:
    twin: Any = copy.deepcopy(trained.model)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for weight in (twin[0].weight, twin[0].bias):
            weight.copy_(weight[order].clone())
        twin[2].weight.copy_(twin[2].weight[:, order].clone())
    was, now = (oracle.score(model, trained.judged_members) for model in (trained.model, twin))
    assert np.allclose(was, now, atol=1e-4)


def test_it_judges_another_training(oracle: WhiteBoxOracle) -> None:
    assert dense(seed=2).truth(oracle) > 0.8


def test_scores_verdicts_codes_and_report_agree(oracle: WhiteBoxOracle, trained: Trained) -> None:
    scores = oracle.score(trained.model, trained.judged_members)
    verdicts = oracle.is_member(trained.model, trained.judged_members)
    assert scores.dtype == np.float64
    assert scores.shape == (100,)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert verdicts.dtype == np.bool_
    assert np.array_equal(verdicts, scores > 0.5)
    codes = oracle.encode(trained.model, trained.judged_members)
    assert codes.shape == (100, 10)
    assert ((codes >= 0) & (codes <= 1)).all()
    report = oracle.evaluate(trained.model, members=trained.judged_members, nonmembers=trained.judged_nonmembers)
    others = oracle.is_member(trained.model, trained.judged_nonmembers)
    assert (report.members, report.nonmembers) == (100, 100)
    assert report.balanced_accuracy == pytest.approx((verdicts.mean() + 1 - others.mean()) / 2)


def test_both_sets_weigh_the_same_whatever_their_sizes(trained: Trained) -> None:
    few = WhiteBoxOracle.fit(
        trained.model, members=trained.members, nonmembers=tuple(part[:20] for part in trained.nonmembers)
    )
    report = few.evaluate(trained.model, members=trained.judged_members, nonmembers=trained.judged_nonmembers)
    assert report.balanced_accuracy > 0.7


# what it leaves alone


def test_the_caller_s_model_is_untouched(trained: Trained) -> None:
    model = copy.deepcopy(trained.model).train()
    model[1].eval()  # type: ignore[index]
    model[0].weight.grad = torch.ones_like(model[0].weight)  # type: ignore[index]
    model[2].requires_grad_(False)  # type: ignore[index]
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    found = WhiteBoxOracle.fit(model, members=trained.members, nonmembers=trained.nonmembers, layers=2)
    found.score(model, trained.members)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model] == [True, False, True]  # type: ignore[attr-defined]
    assert [weight.requires_grad for weight in model.parameters()] == [True, True, False, False]
    assert bool((model[0].weight.grad == 1).all())  # type: ignore[index]
    assert all(weight.grad is None for weight in list(model.parameters())[1:])
    assert not any(module._forward_hooks for module in model.modules())


def test_hooks_are_taken_off_after_an_error(trained: Trained) -> None:
    def cut(model: nn.Module, inputs: Tensor) -> Tensor:
        return model(inputs).detach()

    with pytest.raises(forsaken.errors.ModelError, match="cut off"):
        fitted(trained, forward=cut)
    assert not any(module._forward_hooks for module in trained.model.modules())


def test_the_seed_decides_all(oracle: WhiteBoxOracle, trained: Trained) -> None:
    again, other = fitted(trained), fitted(trained, seed=3)
    first, second, third = (one.score(trained.model, trained.judged_members) for one in (oracle, again, other))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, third)


def test_how_a_model_is_called_is_the_caller_s_affair(oracle: WhiteBoxOracle, trained: Trained) -> None:
    def call(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        return model(inputs["x"])

    named = ({"x": trained.judged_members[0]}, trained.judged_members[1])
    scores = oracle.score(trained.model, named, forward=call)
    assert np.array_equal(scores, oracle.score(trained.model, trained.judged_members))


def test_every_epoch_is_told(trained: Trained) -> None:
    ticks: list[forsaken.Tick] = []
    fitted(trained, progress=ticks.append)
    assert [tick.done for tick in ticks] == list(range(1, len(ticks) + 1))
    assert {tick.stage for tick in ticks} == {"fit the white-box oracle"}


# what it cannot judge


def test_samples_without_labels(oracle: WhiteBoxOracle, trained: Trained) -> None:
    with pytest.raises(InputError, match=r'members has no labels.*\(inputs, labels\).*labels="predicted"'):
        WhiteBoxOracle.fit(trained.model, members=trained.members[0], nonmembers=trained.nonmembers)
    with pytest.raises(InputError, match="samples has no labels"):
        oracle.score(trained.model, trained.members[0])


def test_labels_out_of_range(oracle: WhiteBoxOracle, trained: Trained) -> None:
    inputs, labels = trained.members
    with pytest.raises(InputError, match=r"100 of 100 labels of samples are out of range.*from 0 to 3"):
        oracle.score(trained.model, (inputs, labels + 4))


@pytest.mark.parametrize("count", [0, 9])
def test_too_few_samples(count: int, trained: Trained) -> None:
    few = tuple(part[:count] for part in trained.members)
    with pytest.raises((OracleError, EmptyError), match=r"9 members, expected 10 or more|members is empty"):
        WhiteBoxOracle.fit(trained.model, members=few, nonmembers=trained.nonmembers)


def test_bad_settings_are_told_together(trained: Trained) -> None:
    with pytest.raises(SettingsError, match=r"2 problems(?s:.*)layers is 3(?s:.*)did you mean 'predicted'"):
        fitted(trained, layers=3, labels="predict")
    with pytest.raises(SettingsError, match=r"seed is -1"):
        fitted(trained, seed=-1)
    with pytest.raises(SettingsError, match=r"device 'abacus' cannot be used"):
        fitted(trained, device="abacus")


def test_a_model_of_another_shape(oracle: WhiteBoxOracle, trained: Trained) -> None:
    with pytest.raises(OracleError, match=r"\[4, 65\].*\[4, 33\].*fit an oracle on a model of this shape"):
        oracle.score(mlp((12, 32, 4)), trained.members)


def test_a_model_that_cannot_take_the_samples(oracle: WhiteBoxOracle, trained: Trained) -> None:
    with pytest.raises(forsaken.errors.ModelError, match=r"\(7,\)"):
        oracle.score(trained.model, (trained.members[0][:, :7], trained.members[1]))


def test_a_model_without_layers_to_look_at(trained: Trained) -> None:
    with pytest.raises(forsaken.errors.ModelError, match=r"calls 0 .*black-box oracle"):
        WhiteBoxOracle.fit(nn.Flatten(), members=trained.members, nonmembers=trained.nonmembers)


# files


def test_files_come_back_as_they_were(oracle: WhiteBoxOracle, trained: Trained, tmp_path: Path) -> None:
    path = oracle.save(tmp_path / "oracle")
    loaded = WhiteBoxOracle.load(path)
    assert (loaded.layers, loaded.labels) == (1, "given")
    scores = [one.score(trained.model, trained.judged_members) for one in (oracle, loaded)]
    assert np.array_equal(*scores)
    first, again = contents(path), contents(loaded.save(tmp_path / "again"))
    assert first[0] == again[0]
    assert all(torch.equal(value, again[1][name]) for name, value in first[1].items())


def contents(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    with safetensors.safe_open(str(path), framework="pt") as file:
        return file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)


def altered(path: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], object]) -> Path:
    header, state = contents(path)
    about = json.loads(header["oracle"])
    change(about, state)
    path.write_bytes(safetensors.torch.save(state, metadata=header | {"oracle": json.dumps(about)}))
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda about, state: about.pop("shapes"),
        lambda about, state: about.update(layers=2),
        lambda about, state: about.update(labels="none"),
        lambda about, state: about["shapes"]["vectors"].__setitem__(0, 10**12),
        lambda about, state: about["shapes"].update(gradients=["wide"]),
        lambda about, state: state.pop("verdict.bias"),
        lambda about, state: state["verdict.bias"].fill_(float("nan")),
        lambda about, state: state.update({"verdict.bias": state["verdict.bias"].double()}),
    ],
    ids=["no shapes", "layers", "labels", "too wide", "words", "no weights", "not finite", "dtype"],
)
def test_damaged_files(change: Callable[..., object], oracle: WhiteBoxOracle, tmp_path: Path) -> None:
    path = altered(oracle.save(tmp_path / "oracle"), change)
    with pytest.raises(OracleError, match=r"oracle is damaged.*fit the oracle again"):
        WhiteBoxOracle.load(path)


def test_files_that_are_no_oracle(oracle: WhiteBoxOracle, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"", b"\x80\x04\x95", b"{}"):
        path.write_bytes(content)
        with pytest.raises(OracleError, match=r"cannot read .*file as a white-box oracle"):
            WhiteBoxOracle.load(path)
    with pytest.raises(OracleError, match=r"cannot read .*nowhere"):
        WhiteBoxOracle.load(tmp_path / "nowhere")
    path.write_bytes(safetensors.torch.save({"a": torch.zeros(1)}))
    with pytest.raises(OracleError, match="is not a white-box oracle"):
        WhiteBoxOracle.load(path)
    path.write_bytes(safetensors.torch.save({"a": torch.zeros(1)}, {"format": "forsaken.white-box-oracle"}))
    with pytest.raises(OracleError, match=r"version None, this package reads '1'"):
        WhiteBoxOracle.load(path)
    with pytest.raises(OutputError, match="folder"):
        oracle.save(tmp_path / "missing" / "oracle")


def test_the_file_holds_no_samples(oracle: WhiteBoxOracle, trained: Trained, tmp_path: Path) -> None:
    content = oracle.save(tmp_path / "oracle").read_bytes()
    assert trained.members[0].numpy().tobytes()[:16] not in content


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu(trained: Trained, tmp_path: Path) -> None:
    model = copy.deepcopy(trained.model).cuda()
    found, again = (
        WhiteBoxOracle.fit(model, members=trained.members, nonmembers=trained.nonmembers, layers=2, device="cuda")
        for _ in range(2)
    )
    scores = found.score(model, trained.judged_members)
    assert np.array_equal(scores, again.score(model, trained.judged_members))
    on_cpu = WhiteBoxOracle.load(found.save(tmp_path / "oracle"))
    assert np.allclose(scores, on_cpu.score(trained.model, trained.judged_members), atol=1e-3)
