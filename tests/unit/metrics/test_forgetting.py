"""FR and CFR against counts made one by one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from forsaken.errors import ForsakenError, InputError, UndefinedMetricError
from forsaken.metrics import catastrophic_forgetting_rate, forgetting_rate

Rate = Callable[[object, object], float]
both = pytest.mark.parametrize("rate", [forgetting_rate, catastrophic_forgetting_rate])
pairs = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40)
steady = settings(deadline=None, database=None, derandomize=True)


def count(verdicts: list[bool], wanted: bool) -> int:
    total = 0
    for verdict in verdicts:
        if verdict is wanted:
            total += 1
    return total


@steady
@given(pairs=pairs)
def test_forgetting_rate_is_the_papers_formula(pairs: list[tuple[bool, bool]]) -> None:
    before, after = [was for was, _ in pairs], [now for _, now in pairs]
    assume(any(before))
    expected = (count(after, False) - count(before, False)) / count(before, True)
    assert forgetting_rate(np.array(before), np.array(after)) == pytest.approx(expected, abs=1e-15)


@steady
@given(pairs=pairs)
def test_catastrophic_forgetting_rate_is_the_papers_formula(pairs: list[tuple[bool, bool]]) -> None:
    before, after = [was for was, _ in pairs], [now for _, now in pairs]
    assume(any(before))
    expected = (count(before, True) - count(after, True)) / count(before, True)
    assert catastrophic_forgetting_rate(np.array(before), np.array(after)) == pytest.approx(expected, abs=1e-15)


@steady
@given(pairs=pairs, seed=st.integers(0, 99))
def test_the_order_of_the_samples_plays_no_role(pairs: list[tuple[bool, bool]], seed: int) -> None:
    before, after = np.array(pairs).T
    assume(before.any())
    order = np.random.default_rng(seed).permutation(len(before))
    assert forgetting_rate(before[order], after[order]) == forgetting_rate(before, after)


def test_known_answers() -> None:
    before = np.arange(100) >= 10  # 90 members
    assert forgetting_rate(before, np.arange(100) >= 90) == pytest.approx(80 / 90)
    assert forgetting_rate(before, np.zeros(100, bool)) == 1.0
    assert forgetting_rate(before, before) == 0.0
    assert catastrophic_forgetting_rate(before, before) == 0.0
    assert catastrophic_forgetting_rate(before, np.arange(100) >= 55) == 0.5


def test_negative_rates_are_not_clipped() -> None:
    before, after = [True, False, False, False], [True, True, True, True]
    assert forgetting_rate(before, after) == -3.0
    assert catastrophic_forgetting_rate(before, after) == -3.0


@both
def test_the_direction(rate: Rate) -> None:
    # fewer members after than before: forgotten, so both rates rise above zero
    assert rate([True, True], [True, False]) == 0.5
    assert rate([True, False], [True, True]) == -1.0


@both
@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_anything_that_numpy_reads(rate: Rate, kind: Callable[[list[bool]], object]) -> None:
    found = rate(kind([True, True, True, True]), kind([True, False, True, True]))
    assert found == 0.25
    assert type(found) is float


@both
@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ([0.9, 0.1], [True, False], ("before", "float64", "boolean", "threshold")),
        ([True, False], [1, 0], ("after", "int64", "boolean", "threshold")),
        (["yes"], [True], ("before", "<U3", "boolean")),
        ([[True, False]], [[True, False]], ("before", "(1, 2)", "flat")),
        (True, True, ("before", "()", "flat")),
        ([True, False], [True], ("2", "1", "same samples")),
        ([[True], [True, False]], [True], ("before", "flat")),
        (None, [True], ("before", "object")),
    ],
    ids=["scores", "numbers", "text", "matrix", "single", "lengths", "ragged", "none"],
)
def test_what_is_no_verdict(rate: Rate, before: object, after: object, words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        rate(before, after)
    assert all(word in str(caught.value) for word in words), caught.value


@both
@pytest.mark.parametrize("size", [1, 5])
def test_nothing_memorised_before(rate: Rate, size: int) -> None:
    with pytest.raises(UndefinedMetricError, match=rf"none of the {size} .*undefined") as caught:
        rate([False] * size, [True] * size)
    assert isinstance(caught.value, ArithmeticError)


@both
def test_no_samples_at_all(rate: Rate) -> None:
    with pytest.raises(ForsakenError, match=r"\b0\b"):
        rate(np.zeros(0, bool), np.zeros(0, bool))
