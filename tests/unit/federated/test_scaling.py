"""The arithmetic of uploads against servers written out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forsaken.errors import InputError, SettingsError
from forsaken.federated.scaling import Ledger, Terms, check_alike, norm, plus, within

MU = torch.tensor([0.5, -2.0, 4.0])
OTHERS = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-4.0, 0.0, 1.0])]


def moved(update: torch.Tensor) -> torch.Tensor:
    return torch.zeros(3) - update


@pytest.mark.parametrize(
    ("terms", "samples", "expected"),
    [
        (Terms(0, "sum", divisor=600, rate=0.5), 200, 600 / 0.5),  # (n/η)
        (Terms(0, "mean", divisor=3, rate=0.5), 200, 3 / 0.5),  # (m/η)
        (Terms(0, "weighted-mean", divisor=600, rate=0.5), 200, 600 / (200 * 0.5)),  # n/(n_0 η)
    ],
)
def test_the_upload_moves_the_weights_by_the_mask(terms: Terms, samples: int, expected: float) -> None:
    factor = terms.factor(Ledger().gradient(1.0, terms), samples)
    assert factor == pytest.approx(expected)
    weight = samples if terms.rule == "weighted-mean" else 1
    with_mask = moved(terms.rate / terms.divisor * (sum(OTHERS) * weight + weight * factor * MU))
    without = moved(terms.rate / terms.divisor * sum(OTHERS) * weight)
    assert torch.allclose(with_mask, without - MU, atol=1e-6)


def test_the_paper_s_scaling_is_right_for_a_single_client_alone() -> None:
    """n_0·μ/η moves the weights by n_0/n of the mask where a client holds n_0 of n samples."""
    eta, own, n = 0.1, 100, 1000
    assert eta / n * (own / eta) == pytest.approx(0.1)
    assert Terms(0, "sum", divisor=n, rate=eta).factor(1 / eta, own) == pytest.approx(n / eta)


def test_a_client_that_drops_out_changes_nothing_for_the_mask() -> None:
    terms = Terms(0, "mean", divisor=3, rate=0.5)
    factor = terms.factor(1 / terms.rate, 10)
    for there in ([], OTHERS[:1], OTHERS):
        shift = moved(terms.rate / terms.divisor * (sum(there, torch.zeros(3)) + factor * MU))
        plain = moved(terms.rate / terms.divisor * sum(there, torch.zeros(3)))
        assert torch.allclose(shift - plain, -MU, atol=1e-6)


def served(uploads: list[float], terms: Terms) -> list[float]:
    """The share of a mask in the weights after every update, of a server with momentum written out by hand."""
    velocity = weight = 0.0
    found = []
    for upload in uploads:
        velocity = terms.momentum * velocity + upload
        weight += terms.rate * velocity
        found.append(weight)
    return found


def test_momentum_without_a_cancelling_upload_applies_the_mask_again_and_again() -> None:
    terms = Terms(0, "mean", divisor=1, rate=0.5, momentum=0.9)
    assert served([1 / 0.5, *[0.0] * 400], terms)[-1] == pytest.approx(1 / (1 - 0.9))


def test_the_cancelling_upload_is_minus_rho_times_the_first() -> None:
    terms = Terms(0, "mean", divisor=4, rate=0.5, momentum=0.9)
    first = Ledger().gradient(1.0, terms)
    ledger = Ledger().after(first, terms)
    assert ledger.gradient(0.0, terms) == pytest.approx(-0.9 * first)
    assert served([first, ledger.gradient(0.0, terms), 0.0, 0.0], terms) == pytest.approx([1.0] * 4)
    assert not ledger.settled(terms)
    assert ledger.after(ledger.gradient(0.0, terms), terms).settled(terms)


@given(
    momentum=st.floats(0, 0.95),
    rate=st.floats(0.05, 2),
    missed=st.lists(st.integers(0, 6), min_size=3, max_size=3),
)
def test_a_client_that_misses_rounds_puts_right_what_momentum_did_meanwhile(
    momentum: float, rate: float, missed: list[int]
) -> None:
    terms, ledger, uploads = Terms(0, "mean", divisor=2, rate=rate, momentum=momentum), Ledger(), []
    for gap in (*missed, 0):
        gradient = ledger.gradient(1 - ledger.applied, terms)
        ledger = ledger.after(gradient, terms)
        uploads.append(gradient)
        uploads += [0.0] * gap
        ledger = ledger.at(len(uploads), terms)
        assert ledger.applied == pytest.approx(served(uploads, terms)[-1], abs=1e-9)
        assert ledger.step == len(uploads)
    uploads.append(ledger.gradient(1 - ledger.applied, terms))
    assert served(uploads, terms)[-1] == pytest.approx(1.0, abs=1e-9)


def test_a_ledger_far_behind_is_brought_forward_at_once() -> None:
    terms = Terms(0, "mean", divisor=2, rate=1.0)
    assert Ledger(0.3, 0.3, 1).at(10**9, terms) == Ledger(0.3, 0.0, 10**9)


@given(st.floats(-50, 50), st.floats(0.1, 20))
def test_an_upload_stays_within_the_announced_bound(factor: float, bound: float) -> None:
    start, mask = {"a": torch.tensor([0.05, 0.0])}, {"a": torch.tensor([1.0, 3.0])}
    found = within(start, mask, factor, bound)
    assert norm(plus(start, mask, found)) <= bound * 1.0001
    assert abs(found) <= abs(factor)
    assert found * factor >= 0
    if abs(found) < abs(factor):
        assert norm(plus(start, mask, found)) == pytest.approx(bound, rel=1e-4)


def test_a_start_out_of_bounds_takes_no_mask() -> None:
    vector = {"a": torch.tensor([3.0])}
    assert within(vector, vector, 1.0, 2.0) == 0.0
    assert within(vector, vector, 1.0, math.inf) == 1.0


@pytest.mark.parametrize(
    "wrong", [{"divisor": 0}, {"rate": -1.0}, {"momentum": 1.0}, {"rule": "median"}, {"cover": 0.1, "momentum": 0.5}]
)
def test_wrong_terms_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        Terms(**{"step": 0, "rule": "mean", "divisor": 2.0, "rate": 1.0, **wrong})  # type: ignore[arg-type]


def test_another_network_is_told_by_parameter_and_shape() -> None:
    with pytest.raises(InputError, match=r"w of shape \(3,\), expected \(2,\)"):
        check_alike({"w": torch.zeros(3)}, {"w": torch.zeros(2)}, "the upload")
    with pytest.raises(InputError, match="other parameters than this model"):
        check_alike({"v": torch.zeros(2)}, {"w": torch.zeros(2)}, "the upload")
