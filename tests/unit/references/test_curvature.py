"""The curvature: against loops over samples and classes, and without a row as if that row had never been there."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from reference_case import KEY, drawn, hebb
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

import forsaken
from forsaken import Curvature, References
from forsaken.errors import InputError, ModelError, SettingsError
from forsaken.models.weights import fingerprint
from forsaken.references import curvature as place
from forsaken.references.curvature import Moment, needs_single_rows

CLASSES = 3
SIGNS = np.array(list(itertools.product((-1.0, 1.0), repeat=CLASSES)))
CENTRE = torch.eye(CLASSES, dtype=torch.float64) - 1 / CLASSES

Named = dict[str, Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def built(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return make().double()


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dense = nn.Embedding(11, 4), nn.Linear(4, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.dense(self.embedding(tokens).tanh().mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.cell, self.norm, self.dense = kind(4, 5, batch_first=True), nn.LayerNorm(5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(self.norm(self.cell(x)[0][:, -1]))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.look, self.dense = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, CLASSES)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(self.scale * self.look(x, x, x)[0].mean(1))


class Twice(nn.Module):
    """A layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.dense = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(self.again(self.again(x).tanh()).tanh())


class ByKeyword(nn.Module):
    """Layers take their input by its name as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(input=self.first(x).relu())


def linear() -> nn.Module:
    return nn.Linear(4, CLASSES)


def layered() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def sequences() -> nn.Module:
    conv = nn.Conv1d(2, 3, 3, stride=2, padding=2, dilation=2)
    return nn.Sequential(conv, nn.Tanh(), nn.Conv1d(3, 2, 2, bias=False), nn.Flatten(), nn.Linear(6, CLASSES))


def pictures() -> nn.Module:
    conv = nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2))
    return nn.Sequential(conv, nn.Tanh(), nn.Conv2d(3, 2, 2), nn.Flatten(), nn.Linear(2 * 2 * 5, CLASSES))


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    model[2].weight = model[0].weight
    return model


FACTORED: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear": (linear, normal(6, 4)),
    "layered": (layered, normal(6, 4)),
    "places": (lambda: nn.Sequential(layered(), nn.Flatten(), nn.Linear(9, CLASSES)), normal(6, 3, 4)),
    "sequences": (sequences, normal(5, 2, 7)),
    "pictures": (pictures, normal(4, 2, 5, 4)),
    "words": (Words, torch.randint(11, (6, 5), generator=torch.Generator().manual_seed(0))),
}
BY_GRADIENT: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "lstm": (Recurrent, normal(24, 3, 4)),
    "gru": (lambda: Recurrent(nn.GRU), normal(24, 3, 4)),
    "attention": (Attention, normal(24, 3, 4)),
    "tied": (tied, normal(24, 4)),
}


# --- by hand ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def every_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight copies of a row see every vector of signs once, so that the mean of v vᵀ is the identity."""
    monkeypatch.setattr(place, "_signs", lambda hashes, _: np.tile(SIGNS, (len(hashes) // len(SIGNS), 1)))


def copies(rows: Tensor) -> Tensor:
    return rows.repeat_interleave(len(SIGNS), 0)


def vectors(layer: nn.Module, given: Tensor, output: Tensor) -> list[Tensor]:
    """What a layer multiplies with its weight for one sample, cut out of its input place by place."""
    if isinstance(layer, nn.Linear):
        return list(given.reshape(-1, given.shape[-1]))
    sides = [side for width in reversed(layer.padding) for side in (width, width)]
    padded = nn.functional.pad(given[0], sides)
    found = []
    for at in itertools.product(*map(range, output.shape[2:])):
        cuts = [
            slice(step * stride, step * stride + dilation * (size - 1) + 1, dilation)
            for step, stride, dilation, size in zip(at, layer.stride, layer.dilation, layer.kernel_size, strict=True)
        ]
        found.append(padded[(slice(None), *cuts)].reshape(-1))
    return found


def by_hand(model: nn.Module, layer: nn.Module, rows: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return A, G and what A's sum was divided by, sample by sample, place by place and class by class."""
    calls: list[tuple[Tensor, Tensor]] = []
    handle = layer.register_forward_hook(lambda _, given, output: calls.append((given[0], output)))
    A: Any = 0
    G: Any = 0
    total = 0.0
    for row in rows:
        calls.clear()
        logits = model(row[None])[0]
        for given, output in calls:
            met: Any = 0
            for logit in logits - logits.mean():
                (gradient,) = torch.autograd.grad(logit, output, retain_graph=True)
                flat = gradient[0].flatten(1).T if isinstance(layer, nn.Conv1d | nn.Conv2d) else gradient[0]
                flat = flat.reshape(-1, flat.shape[-1])
                met = met + flat.square().sum(1)
                G = G + sum(torch.outer(g, g) for g in flat)
            for weight, each in zip(met, vectors(layer, given.detach(), output), strict=True):
                a = each if layer.bias is None else torch.cat([each, each.new_ones(1)])
                A, total = A + weight * torch.outer(a, a), total + float(weight)
    handle.remove()
    return A / total, G / len(rows), total


def test_of_one_linear_layer_it_is_the_gauss_newton_matrix_itself(every_sign: None) -> None:
    model, rows = built(linear), normal(7, 4)
    found = Curvature.fit(model, copies(rows))
    own = found.factors["weight"]
    ones = torch.cat([rows, torch.ones(7, 1)], 1)
    A, G = own.inputs.matrix / own.divisor, own.outputs.matrix / found.rows
    torch.testing.assert_close(A, ones.T @ ones / 7)
    torch.testing.assert_close(G, CENTRE)

    def logits(weight: Tensor, row: Tensor) -> Tensor:
        said = weight[:, :-1] @ row + weight[:, -1]
        return said - said.mean()

    weight = torch.cat([model.weight, model.bias[:, None]], 1).detach()
    jacobians = [torch.func.jacrev(logits)(weight, row).reshape(CLASSES, -1) for row in rows]
    torch.testing.assert_close(torch.kron(G, A), sum(each.T @ each for each in jacobians) / 7)
    assert (own.bias, found.rows) == ("bias", 56)


@pytest.mark.parametrize("name", ["layered", "places", "sequences", "pictures"])
def test_both_sides_of_every_layer(every_sign: None, name: str) -> None:
    make, rows = FACTORED[name]
    model = built(make)
    found = Curvature.fit(model, copies(rows), batch_size=16)
    layers = {f"{at}.weight": layer for at, layer in model.named_modules() if hasattr(layer, "weight")}
    assert set(found.factors) == set(layers)
    assert not found.diagonals
    for weight, layer in layers.items():
        A, G, total = by_hand(model, layer, rows)
        own = found.factors[weight]
        assert own.count == own.divisor == pytest.approx(total * len(SIGNS))
        assert (own.bias is None) == (layer.bias is None)
        torch.testing.assert_close(own.inputs.matrix / own.divisor, A)
        torch.testing.assert_close(own.outputs.matrix / found.rows, G)
        torch.testing.assert_close(own.inputs.diagonal, own.inputs.matrix.diagonal())
    assert found.names == {name for name, _ in model.named_parameters()}


def test_an_embedding_weighs_its_tokens(every_sign: None) -> None:
    make, tokens = FACTORED["words"]
    model = built(make)
    found = Curvature.fit(model, copies(tokens))
    own = found.factors["embedding.weight"]
    assert own.transposed
    assert own.bias is own.inputs.matrix is own.inputs.sketch is None
    weights, outer = torch.zeros(11, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)
    for row in tokens:
        seen = model.embedding(row).detach().requires_grad_()
        said = model.dense(seen.tanh().mean(0))
        for logit in said - said.mean():
            (gradient,) = torch.autograd.grad(logit, seen, retain_graph=True)
            outer += gradient.T @ gradient
            for token, each in zip(row.tolist(), gradient, strict=True):
                weights[token] += each.square().sum()
    torch.testing.assert_close(own.inputs.diagonal, weights * 8)
    assert own.count == pytest.approx(float(weights.sum()) * 8)
    torch.testing.assert_close(own.outputs.matrix / found.rows, outer / len(tokens))


def test_the_layers_of_gpt_2_are_linear_ones_with_their_weights_transposed() -> None:
    plain = built(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES)))
    turned = copy.deepcopy(plain)
    for at in (0, 2):
        turned[at] = Conv1D(plain[at].out_features, plain[at].in_features).double()
        turned[at].load_state_dict({"weight": plain[at].weight.T, "bias": plain[at].bias})
    rows = normal(40, 4)
    found = {model: Curvature.fit(model, rows) for model in (plain, turned)}
    for name, own in found[turned].factors.items():
        assert own.transposed
        torch.testing.assert_close(own.inputs.matrix, found[plain].factors[name].inputs.matrix)
        torch.testing.assert_close(own.outputs.matrix, found[plain].factors[name].outputs.matrix)
        assert own.bias == found[plain].factors[name].bias
    told = Curvature.from_tensors(*found[turned].to_tensors())
    one, other = (
        forsaken.unlearn(model, rows[:3], targets=normal(3, CLASSES, seed=1), curvature=curvature).model
        for model, curvature in ((plain, found[plain]), (turned, told))
    )
    torch.testing.assert_close(one(rows), other(rows))


def test_inputs_that_meet_no_gradient_say_nothing(every_sign: None) -> None:
    """Behind a maximum over places one place alone is seen, and at a dead unit none is."""
    model = built(
        lambda: nn.Sequential(nn.Conv1d(1, 1, 1, bias=False), nn.AdaptiveMaxPool1d(1), nn.Flatten(), linear())
    )
    model[0].weight.data.fill_(2.0)
    model[3] = nn.Linear(1, CLASSES).double()
    rows = normal(6, 1, 9)
    own = Curvature.fit(model, copies(rows)).factors["0.weight"]
    assert float(own.inputs.matrix / own.divisor) == pytest.approx(float(rows.amax(2).square().mean()))
    dead = built(layered)
    dead[1] = nn.ReLU()
    dead[0].bias.data.fill_(-100.0)
    own = Curvature.fit(dead, copies(normal(6, 4))).factors["0.weight"]
    assert (own.count, own.divisor) == (0, 1)
    assert not own.inputs.matrix.any()


def test_a_layer_that_is_called_twice_sums_both_calls(every_sign: None) -> None:
    model, rows = built(Twice), normal(5, 4)
    own = Curvature.fit(model, copies(rows)).factors["again.weight"]
    A, G, total = by_hand(model, model.again, rows)
    assert own.count == pytest.approx(8 * total)
    torch.testing.assert_close(own.inputs.matrix / own.count, A)
    torch.testing.assert_close(own.outputs.matrix / 40, G)


def test_layers_may_be_called_by_keyword() -> None:
    model, rows = built(ByKeyword), normal(5, 4)
    plain = nn.Sequential(model.first, nn.ReLU(), model.last)
    found, other = Curvature.fit(model, rows), Curvature.fit(plain, rows)
    torch.testing.assert_close(found.factors["last.weight"].inputs.matrix, other.factors["2.weight"].inputs.matrix)


# --- weights that belong to no factored layer ------------------------------------------------------------------------


def of_gradients(model: nn.Module, rows: Tensor) -> dict[str, list[Tensor]]:
    """Return each row's gradient of the centred first logit less the second, by parameter."""
    named = dict(model.named_parameters())
    found: dict[str, list[Tensor]] = {name: [] for name in named}
    for row in rows:
        said = model(row[None])[0]
        gradients = torch.autograd.grad(said[0] - said[1], list(named.values()), allow_unused=True)
        for name, gradient in zip(named, gradients, strict=True):
            found[name].append(gradient)
    return found


@pytest.mark.parametrize(
    ("name", "factors", "diagonals"),
    [
        ("lstm", {"cell.weight_ih_l0", "cell.weight_hh_l0"}, {"cell.bias_ih_l0", "cell.bias_hh_l0"}),
        ("gru", {"cell.weight_ih_l0", "cell.weight_hh_l0"}, {"cell.bias_ih_l0", "cell.bias_hh_l0"}),
        (
            "attention",
            {"look.in_proj_weight", "look.out_proj.weight"},
            {"look.in_proj_bias", "look.out_proj.bias", "scale"},
        ),
        ("tied", {"0.weight"}, {"0.bias", "2.bias"}),
    ],
)
def test_weights_that_are_known_by_their_gradients(
    monkeypatch: pytest.MonkeyPatch, name: str, factors: set[str], diagonals: set[str]
) -> None:
    monkeypatch.setattr(place, "_signs", lambda hashes, _: np.tile([1.0, -1.0, 0.0], (len(hashes), 1)))
    make, rows = BY_GRADIENT[name]
    model = built(make).eval()
    found = Curvature.fit(model, rows, batch_size=1)
    last = "4.weight" if name == "tied" else "dense.weight"
    assert set(found.factors) == factors | {last}, "norm layers have none"
    assert set(found.diagonals) == diagonals
    gradients = of_gradients(model, rows)
    for weight in factors:
        own = found.factors[weight]
        assert own.count == 0
        torch.testing.assert_close(own.inputs.matrix, sum(g.T @ g for g in gradients[weight]))
        torch.testing.assert_close(own.outputs.matrix, sum(g @ g.T for g in gradients[weight]))
        assert own.divisor == pytest.approx(float(own.inputs.matrix.trace())), "A has trace one"
    for bias in diagonals:
        torch.testing.assert_close(found.diagonals[bias], sum(g.square() for g in gradients[bias]))
    assert not any("norm" in each for each in found.names)


def test_convolutions_of_other_kinds_are_known_by_their_gradients() -> None:
    for conv in (
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"),
        nn.ConvTranspose2d(2, 2, 3),
    ):
        model = nn.Sequential(conv, nn.Flatten(), nn.LazyLinear(CLASSES)).double()
        rows = normal(4, 2, 5, 5)
        model(rows)
        found = Curvature.fit(model, rows)
        assert found.factors["0.weight"].count == 0
        assert set(found.diagonals) == {"0.bias"}


def test_frozen_and_norm_weights_have_none() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, CLASSES))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    found = Curvature.fit(model, normal(6, 4))
    assert found.names == {"2.weight", "4.weight", "4.bias"}
    assert found.factors["2.weight"].bias is None
    assert len(found.factors["2.weight"].inputs.diagonal) == 5


def test_a_model_without_any_such_weight_is_told() -> None:
    with pytest.raises(ModelError, match="no trainable weight outside of its norm layers"):
        Curvature.fit(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3).requires_grad_(False)).double(), normal(6, 4))


# --- without rows ----------------------------------------------------------------------------------------------------


def close(one: Curvature, other: Curvature) -> None:
    (left, about), (right, told) = one.to_tensors(), other.to_tensors()
    assert set(left) == set(right)
    for name, part in left.items():
        torch.testing.assert_close(part, right[name], atol=1e-9, rtol=1e-9, msg=name)
    assert set(one.factors) == set(other.factors)
    for name, each in one.factors.items():
        assert each.count == pytest.approx(other.factors[name].count, rel=1e-9)
        assert (each.bias, each.transposed) == (other.factors[name].bias, other.factors[name].transposed)
    assert {**about, "weights": "", "factors": ""} == {**told, "weights": "", "factors": ""}


@pytest.mark.parametrize("sketched", [False, True])
@pytest.mark.parametrize("name", FACTORED)
def test_without_rows_it_is_that_of_the_others(monkeypatch: pytest.MonkeyPatch, name: str, sketched: bool) -> None:
    if sketched:
        monkeypatch.setattr(place, "DENSE", 3)
        monkeypatch.setattr(place, "RANK", 2)
    make, few = FACTORED[name]
    rows = torch.cat([few, few.flip(1)])
    model, after = built(make), built(make, seed=1)
    whole = Curvature.fit(model, rows)
    assert sketched == any(each.inputs.sketch is not None for each in whole.factors.values())
    before = copy.deepcopy(whole.to_tensors())
    left = whole.without(model, after, rows[2:5])
    close(left, Curvature.fit(model, torch.cat([rows[:2], rows[5:]])))
    assert left.weights == fingerprint(after)
    left.check(after)
    with pytest.raises(InputError, match="other weights"):
        left.check(model)
    now = whole.to_tensors()
    assert now[1] == before[1]
    assert all(torch.equal(now[0][name], part) for name, part in before[0].items()), "the old one is as it was"


def test_without_rows_of_which_only_some_were_drawn() -> None:
    model, rows = built(layered), normal(80, 4)
    whole = Curvature.fit(model, rows, rows=40)
    assert whole.share == 0.5
    assert 20 < whole.rows < 60
    left = whole.without(model, model, rows[:20])
    close(left, Curvature.fit(model, rows[20:], rows=30))
    assert 0 < left.rows < whole.rows


def test_without_a_row_that_was_passed_for_want_of_others() -> None:
    """So few rows are asked for that none is drawn: the one that is passed all the same can be taken out again."""
    model = built(linear)
    for seed in range(30):
        rows = normal(20, 4, seed=seed)
        whole = Curvature.fit(model, rows, rows=1)
        assert whole.rows >= 1
        left = whole.without(model, model, rows)
        assert left.rows == 0
        assert left.factors["weight"].count == pytest.approx(0, abs=1e-9)
        assert float(left.factors["weight"].inputs.diagonal.abs().max()) < 1e-9


@pytest.mark.parametrize("name", BY_GRADIENT)
def test_without_rows_no_square_is_negative(name: str) -> None:
    make, rows = BY_GRADIENT[name]
    model = built(make)
    left = Curvature.fit(model, rows).without(model, model, rows[[1, 6, 10, 11, 17]])
    for squares in left.diagonals.values():
        assert float(squares.min()) >= -1e-12
    for own in left.factors.values():
        for side in (own.inputs, own.outputs):
            values = torch.linalg.eigvalsh(side.matrix)
            assert float(values.min()) >= -1e-9 * float(values.max())


def test_without_rows_of_other_weights_is_refused() -> None:
    model, rows = built(linear), normal(6, 4)
    with pytest.raises(InputError, match="measured for other weights"):
        Curvature.fit(model, rows).without(built(linear, seed=1), model, rows[:1])


def test_a_table_that_forgets_hands_its_curvature_on() -> None:
    (x, y), after = drawn(24), nn.Linear(5, 3)
    train = hebb(x, y)
    target = train(range(24), None, 0)
    table = References.fit(train, (x, y), folds=2, key=KEY, model=target)
    table.forget(x[[3, 8]], before=target, after=after)
    left = [at for at in range(24) if at not in (3, 8)]
    assert table.curvature.weights == fingerprint(after)
    expected = Curvature.fit(target, x[left]).factors["weight"]
    torch.testing.assert_close(
        table.curvature.factors["weight"].inputs.matrix, expected.inputs.matrix, atol=1e-4, rtol=1e-5
    )
    assert table.about()["curvature_rows"] == 22
    assert table.forget(x[[4]]).curvature is None, "the row's share is in it, and nobody told which model it left"
    assert table.about()["curvature_rows"] is None


@pytest.mark.parametrize("asked", [[9], [9, 2, 17], [9, 9], [3, 3]])
def test_copies_leave_the_curvature_as_they_leave_the_table(asked: list[int]) -> None:
    x, y = drawn(24)
    x[9] = x[17] = x[2]
    train = hebb(x, y)
    target = train(range(24), None, 0)
    table = References.fit(train, (x, y), folds=2, key=KEY, model=target)
    table.forget(x[asked], before=target, after=target)
    gone = [3] if asked == [3, 3] else [2, 9, 17]
    expected = Curvature.fit(target, x[[at for at in range(24) if at not in gone]])
    assert len(table) == expected.rows == table.curvature.rows
    own, other = table.curvature.factors["weight"], expected.factors["weight"]
    torch.testing.assert_close(own.inputs.matrix, other.inputs.matrix, atol=1e-4, rtol=1e-5)


# --- moments ---------------------------------------------------------------------------------------------------------


def moment(rows: Tensor, *, diagonal: bool = False) -> Moment:
    found = Moment.zeros(rows.shape[1], rows, diagonal=diagonal)
    found.add(rows)
    return found


def damped(rows: Tensor, divisor: float, damping: float) -> Tensor:
    """Return S + λ s̄ I."""
    S = rows.T @ rows / divisor
    return S + damping * S.diagonal().mean() * torch.eye(len(S), dtype=S.dtype)


@pytest.mark.parametrize("columns", [None, [4, 0, 7, 9]])
def test_the_inverse_of_a_whole_matrix_and_of_a_part(columns: list[int] | None) -> None:
    rows, X = normal(30, 10), normal(3, 10 if columns is None else 4, seed=1)
    at = None if columns is None else torch.tensor(columns)
    whole = damped(rows, 30, 0.1)
    part = whole if at is None else whole[at][:, at]
    torch.testing.assert_close(moment(rows).inverse(30, 0.1, at)(X), X @ torch.linalg.inv(part))
    spread = (whole.diagonal() if at is None else whole.diagonal()[at])[None]
    torch.testing.assert_close(moment(rows, diagonal=True).inverse(30, 0.1, at)(X), X / spread)


@pytest.mark.parametrize("columns", [None, [4, 0, 7, 9]])
def test_a_sketch_as_wide_as_the_data_are_is_the_matrix(
    monkeypatch: pytest.MonkeyPatch, columns: list[int] | None
) -> None:
    monkeypatch.setattr(place, "DENSE", 4)
    monkeypatch.setattr(place, "RANK", 6)
    rows, X = normal(30, 4) @ normal(4, 10, seed=2), normal(3, 10 if columns is None else 4, seed=1)
    found = moment(rows)
    assert found.matrix is None
    assert found.sketch.shape == (10, 6)
    factor = found.factor()
    torch.testing.assert_close(factor @ factor.T, rows.T @ rows, atol=1e-6, rtol=1e-6)
    at = None if columns is None else torch.tensor(columns)
    whole = damped(rows, 30, 0.1)
    part = whole if at is None else whole[at][:, at]
    torch.testing.assert_close(found.inverse(30, 0.1, at)(X), X @ torch.linalg.inv(part), atol=1e-6, rtol=1e-5)
    again = found.inverse(30, 0.1, at, factor)
    torch.testing.assert_close(again(X), found.inverse(30, 0.1, at)(X))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_narrower_sketch_is_positive_and_keeps_the_diagonal(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(place, "DENSE", 4)
    monkeypatch.setattr(place, "RANK", 5)
    rows = (normal(60, 20) * torch.logspace(0, -3, 20)).to(dtype)
    inverse = moment(rows).inverse(60, 0.1)(torch.eye(20, dtype=dtype)).double()
    torch.testing.assert_close(inverse, inverse.T, atol=1e-3, rtol=1e-4)
    values = torch.linalg.eigvalsh((inverse + inverse.T) / 2)
    floor = 0.1 * float(rows.double().square().sum(0).mean()) / 60
    assert float(values.min()) > 0
    assert float(values.max()) < 1.001 / floor, "the damping bounds it"
    stands = torch.linalg.inv(inverse).diagonal()
    torch.testing.assert_close(stands, damped(rows.double(), 60, 0.1).diagonal(), atol=1e-4, rtol=1e-3)


def test_a_side_that_no_row_uses_costs_the_same_everywhere() -> None:
    X = normal(2, 5)
    for diagonal in (False, True):
        torch.testing.assert_close(moment(torch.zeros(3, 5, dtype=X.dtype), diagonal=diagonal).inverse(3, 0.1)(X), X)


def test_what_is_subtracted_is_gone() -> None:
    rows = normal(12, 5)
    found, other = moment(rows), moment(rows[4:])
    found.add(rows[:4], -1.0)
    torch.testing.assert_close(found.matrix, other.matrix)
    torch.testing.assert_close(found.diagonal, other.diagonal)


def test_sums_over_many_rows_need_more_than_half_precision() -> None:
    """In bfloat16 256 + 1 is 256, so that a count of tokens ends there; and no such matrix can be inverted."""
    for kind in (torch.bfloat16, torch.float16):
        for diagonal in (False, True):
            found = Moment.zeros(3, torch.zeros(1, dtype=kind), diagonal=diagonal)
            assert {part.dtype for part in found.parts() if part is not None} == {torch.float32}


def test_dividing_by_a_weight_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found, device = Curvature.fit(built(layered), normal(9, 4)), torch.device("cpu")
    first = found.divide_inputs("0.weight", 0.1, device), found.divide_outputs("0.weight", 0.1, device)
    monkeypatch.setattr(Moment, "inverse", lambda *_: pytest.fail("computed anew"))
    assert (found.divide_inputs("0.weight", 0.1, device), found.divide_outputs("0.weight", 0.1, device)) == first
    with pytest.raises(pytest.fail.Exception):
        found.divide_inputs("0.weight", 0.2, device)


# --- as tensors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sketched", [False, True])
@pytest.mark.parametrize("name", ["layered", "words", "lstm"])
def test_there_and_back(monkeypatch: pytest.MonkeyPatch, name: str, sketched: bool) -> None:
    if sketched:
        monkeypatch.setattr(place, "DENSE", 3)
        monkeypatch.setattr(place, "RANK", 2)
    make, rows = {**FACTORED, **BY_GRADIENT}[name]
    model = built(make)
    found = Curvature.fit(model, rows, rows=5)
    tensors, told = found.to_tensors()
    again = Curvature.from_tensors(tensors, told)
    both = again.to_tensors()
    assert both[1] == told
    assert set(both[0]) == set(tensors)
    assert all(torch.equal(both[0][key], part) for key, part in tensors.items())
    assert (again.rows, again.share, again.names) == (found.rows, found.share, found.names)
    assert again.bytes == found.bytes == sum(part.nbytes for part in tensors.values())
    again.check(model)


Damage = Callable[[Named, dict[str, Any]], object]


def not_finite(name: str) -> Damage:
    return lambda tensors, _: tensors.update({name: torch.full_like(tensors[name], math.nan)})


def cut(name: str) -> Damage:
    return lambda tensors, _: tensors.update({name: tensors[name][:-1]})


def says(key: str, value: object) -> Damage:
    return lambda _, told: told.update({key: value})


def of_a_factor(key: str, value: object) -> Damage:
    return lambda _, told: told["factors"]["dense.weight"].update({key: value})


DAMAGE: dict[str, Damage] = {
    "a tensor is gone": lambda tensors, _: tensors.pop("0.inputs.diagonal"),
    "a matrix is gone": lambda tensors, _: tensors.pop("2.inputs.matrix"),
    "a tensor too many": lambda tensors, _: tensors.update({"9.inputs.matrix": torch.eye(2)}),
    "a matrix is cut": cut("2.inputs.matrix"),
    "a diagonal is cut": cut("2.inputs.diagonal"),
    "a diagonal is a matrix": lambda tensors, _: tensors.update({"2.inputs.diagonal": torch.eye(6)}),
    "a matrix is not finite": not_finite("2.outputs.matrix"),
    "squares are not finite": not_finite("0.squares"),
    "squares are gone": lambda tensors, _: tensors.pop("1.squares"),
    "rows is no number": says("rows", "6"),
    "rows is negative": says("rows", -1),
    "no share": says("share", 0.0),
    "a share above one": says("share", 1.5),
    "share is no number": says("share", None),
    "weights is no text": says("weights", 7),
    "factors is a list": says("factors", []),
    "diagonals is a number": says("diagonals", 3),
    "nothing is told of a factor": lambda _, told: told["factors"].update({"dense.weight": None}),
    "a factor of no tensors": of_a_factor("at", 7),
    "count is no number": of_a_factor("count", None),
    "count is not finite": of_a_factor("count", math.nan),
    "count is negative": of_a_factor("count", -3.0),
    "a bias without a name": of_a_factor("bias", ["bias"]),
    "factors are gone": lambda _, told: told.pop("factors"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_told(damage: Damage) -> None:
    make, rows = BY_GRADIENT["lstm"]
    tensors, told = Curvature.fit(built(make), rows).to_tensors()
    Curvature.from_tensors(tensors, told)
    damage(tensors, told)
    with pytest.raises((ValueError, LookupError)):
        Curvature.from_tensors(tensors, told)


# --- what a user may get wrong, and what must stay as it is ----------------------------------------------------------


def test_another_models_curvature_is_refused_with_what_to_do() -> None:
    found = Curvature.fit(built(layered), normal(6, 4))
    found.check(built(layered))
    with pytest.raises(InputError, match=r"other weights.*forsaken\.Curvature\.fit\(model, data\)"):
        found.check(built(layered, seed=1))


@pytest.mark.parametrize("rows", [0, -1, 2.5, True, "10", None])
def test_rows_that_are_no_number(rows: object) -> None:
    with pytest.raises(SettingsError, match="rows is"):
        Curvature.fit(built(linear), normal(6, 4), rows=rows)


def test_what_is_no_model_or_no_data() -> None:
    with pytest.raises(ModelError, match="expected a torch"):
        Curvature.fit({"weight": normal(2, 2)}, normal(6, 4))
    with pytest.raises(InputError, match="NaN or infinite"):
        Curvature.fit(built(linear), torch.full((2, 4), math.nan))


class Noting(nn.Module):
    """Counts its calls in a buffer, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x


def test_the_model_and_the_programs_randomness_stay_as_they_are() -> None:
    make = lambda: nn.Sequential(  # noqa: E731
        nn.Linear(4, 5), nn.BatchNorm1d(5), Noting(), nn.Dropout(0.5), nn.Linear(5, 3)
    )
    model = built(make).train()
    model[4].eval()
    model[0].bias.requires_grad_(False)
    model(normal(8, 4)).sum().backward()
    rows = normal(40, 4, seed=1)
    state, given = torch.random.get_rng_state(), rows.clone()
    before = fingerprint(model), [p.grad.clone() for p in model.parameters() if p.grad is not None]
    modes = [module.training for module in model.modules()]
    flags = [p.requires_grad for p in model.parameters()]
    one, other = Curvature.fit(model, rows), Curvature.fit(model, rows)
    one.without(model, model, rows[:3])
    assert fingerprint(model) == before[0]
    assert all(
        torch.equal(p.grad, old)
        for p, old in zip([p for p in model.parameters() if p.grad is not None], before[1], strict=True)
    )
    assert [module.training for module in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == flags
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(rows, given)
    left, right = one.to_tensors(), other.to_tensors()
    assert left[1] == right[1]
    assert all(torch.equal(part, right[0][name]) for name, part in left[0].items()), "the same bits each time"


def test_neither_order_nor_batches_nor_labels_play_a_role() -> None:
    model, rows = built(layered), normal(30, 4)
    whole = Curvature.fit(model, rows)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    close(whole, Curvature.fit(model, rows[order]))
    close(whole, Curvature.fit(model, rows, batch_size=7))
    close(whole, Curvature.fit(model, (rows, torch.zeros(30, dtype=torch.long))))
    with torch.no_grad():
        close(whole, Curvature.fit(model, rows))


def test_it_tells_how_far_it_is() -> None:
    ticks: list[Any] = []
    found = Curvature.fit(built(layered), normal(30, 4), batch_size=8, progress=ticks.append)
    assert [(tick.stage, tick.done, tick.total) for tick in ticks] == [
        ("measure the curvature", done, 30) for done in (8, 16, 24, 30)
    ]
    assert repr(found) == "Curvature(4 parameters, 30 rows, 0.0 MiB)"


def test_models_that_are_called_in_another_way() -> None:
    model, rows = built(linear), normal(6, 4)
    plain = Curvature.fit(model, rows)
    close(plain, Curvature.fit(model, {"x": rows}, forward=lambda model, given: model(given["x"])))
    one = nn.Linear(4, 1).double()
    single = Curvature.fit(one, rows)
    assert single.factors["weight"].outputs.diagonal.shape == (1,), "a single column stands for two classes"


class Backbone(nn.Module):
    """A dense layer behind one that is called without gradients, as a frozen backbone is."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 7), nn.Linear(7, 3)

    def forward(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = self.first(rows).relu()
        return self.last(hidden)


def test_a_part_that_is_called_without_gradients_adds_nothing() -> None:
    torch.manual_seed(0)
    model, rows = Backbone(), torch.randn(30, 5)
    found = Curvature.fit(model, rows)
    assert (
        sum(float(part.abs().sum()) for part in found.factors["first.weight"].inputs.parts() if part is not None) == 0
    )
    assert sum(float(part.abs().sum()) for part in found.factors["last.weight"].inputs.parts() if part is not None) > 0
    assert needs_single_rows(nn.EmbeddingBag(9, 4, sparse=True), torch.arange(6).reshape(3, 2))
    assert not needs_single_rows(model, rows)


def test_gradients_that_come_sparse_are_added_like_others() -> None:
    torch.manual_seed(0)
    bags = torch.randint(9, (20, 3))
    dense = nn.EmbeddingBag(9, 4)
    sparse = nn.EmbeddingBag(9, 4, sparse=True)
    sparse.load_state_dict(dense.state_dict())
    one, two = (Curvature.fit(model, bags).factors["weight"] for model in (dense, sparse))
    for left, right in ((one.inputs, two.inputs), (one.outputs, two.outputs)):
        for first, second in zip(left.parts(), right.parts(), strict=True):
            assert (first is None and second is None) or torch.allclose(first, second)


@pytest.mark.parametrize("convolutions", [False, True])
def test_operations_in_place_after_a_layer_change_nothing(convolutions: bool) -> None:
    def network(in_place: bool) -> nn.Module:
        torch.manual_seed(1)
        if convolutions:
            first, second, rows = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), 64
        else:
            first, second, rows = nn.Linear(64, 16), nn.Linear(16, 16), 16
        relus = nn.ReLU(in_place), nn.ReLU(in_place)
        return nn.Sequential(first, relus[0], second, relus[1], nn.Flatten(), nn.Linear(rows, 3))

    x = torch.randn(40, 1, 8, 8) if convolutions else torch.randn(40, 64)
    plain, in_place = (Curvature.fit(network(each), x) for each in (False, True))
    for name, own in plain.factors.items():
        for side in ("inputs", "outputs"):
            assert torch.equal(getattr(own, side).matrix, getattr(in_place.factors[name], side).matrix)


@pytest.mark.parametrize("thawed", [False, True])
def test_rows_are_taken_out_of_every_sum_whatever_was_frozen_since(thawed: bool) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(20, 4)
    model[0].requires_grad_(not thawed)
    curvature = Curvature.fit(model, x)
    expected = curvature.without(model, model, x[:10])
    model[0].requires_grad_(thawed)
    found = curvature.without(model, model, x[:10])
    assert found.names == expected.names
    for name, own in expected.factors.items():
        assert torch.equal(own.inputs.matrix, found.factors[name].inputs.matrix)
        assert torch.equal(own.outputs.matrix, found.factors[name].outputs.matrix)
