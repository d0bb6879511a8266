"""Folds: nothing that belongs together is ever split, and no fold is much larger than another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from sklearn.model_selection import GroupKFold

from forsaken.errors import InputError, SettingsError
from forsaken.references.rows import deal, units

ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), min_size=2, max_size=40)


def components(content: list[int], groups: list[int] | None) -> np.ndarray:
    """The same units from a graph whose nodes are rows, contents and groups."""
    n = len(content)
    edges = [(row, n + value) for row, value in enumerate(content)]
    if groups is not None:
        edges += [(row, n + 100 + value) for row, value in enumerate(groups)]
    one, two = zip(*edges, strict=True)
    size = n + 200
    return connected_components(coo_matrix((np.ones(len(edges)), (one, two)), (size, size)), directed=False)[1][:n]


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(rows=ROWS, grouped=st.booleans(), folds=st.integers(2, 6), seed=st.integers(0, 2**32 - 1))
@example(rows=[(0, 0), (1, 0), (1, 1), (2, 1), (3, 5)], grouped=True, folds=2, seed=0)
def test_what_belongs_together_is_never_split(
    rows: list[tuple[int, int]], grouped: bool, folds: int, seed: int
) -> None:
    content = [row[0] for row in rows]
    groups = [row[1] for row in rows] if grouped else None
    own = components(content, groups)
    sizes = np.unique(own, return_counts=True)[1]
    assume(len(sizes) >= folds)
    found = deal(content, groups, folds=folds, seed=seed)
    for one in np.unique(own):
        assert len(set(found[own == one])) == 1
    counts = np.bincount(found, minlength=folds)
    assert len(counts) == folds
    assert counts.min() > 0
    assert counts.max() - counts.min() <= sizes.max()
    theirs = [len(held) for _, held in GroupKFold(folds).split(rows, groups=own)]
    assert sorted(counts) == sorted(theirs)
    assert np.array_equal(found, deal(content, groups, folds=folds, seed=seed))


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(rows=ROWS)
def test_units_are_the_components_of_the_graph(rows: list[tuple[int, int]]) -> None:
    content, groups = map(list, zip(*rows, strict=True))
    ours, theirs = units(content, groups), components(content, groups)
    assert np.array_equal(np.equal.outer(ours, ours), np.equal.outer(theirs, theirs))


def test_a_chain_of_copies_and_groups_holds_together() -> None:
    """Anna has a and b, Bert has a copy of b and c, Carl has a copy of c."""
    content = ["a", "b", "b", "c", "c", "d", "e", "f", "g", "h"]
    groups = ["Anna", "Anna", "Bert", "Bert", "Carl", *"vwxyz"]
    for seed in range(8):
        found = deal(content, groups, folds=2, seed=seed)
        assert len(set(found[:5])) == 1
        assert sorted(np.bincount(found)) == [5, 5]


@pytest.mark.parametrize(("count", "folds"), [(8, 4), (9, 4), (11, 4), (2, 2), (100, 7)])
def test_folds_by_row_differ_by_one_row_at_most(count: int, folds: int) -> None:
    sizes = np.bincount(deal(range(count), None, folds=folds, seed=3))
    assert len(sizes) == folds
    assert sizes.max() - sizes.min() <= 1


def test_the_seed_decides() -> None:
    deals = [deal(range(40), None, folds=4, seed=seed).tolist() for seed in range(5)]
    assert len({tuple(each) for each in deals}) == 5


def test_neither_the_order_nor_the_neighbourhood_decides() -> None:
    """Rows that come one after the other are not dealt one after the other: data are often sorted."""
    found = np.array([deal(range(40), None, folds=4, seed=seed) for seed in range(300)])
    shares = (found == 0).mean(0)
    assert abs(shares - 0.25).max() < 0.1
    together = (found[:, 1:] == found[:, :-1]).mean()
    assert abs(together - 9 / 39) < 0.03


@pytest.mark.parametrize("folds", [1, 0, -4, True, 2.0, "4", None])
def test_folds_that_are_none(folds: object) -> None:
    with pytest.raises(SettingsError, match="expected a whole number >= 2"):
        deal(range(9), None, folds=folds, seed=0)  # type: ignore[arg-type]


def test_too_little_to_deal() -> None:
    with pytest.raises(InputError, match="there are 2 rows that differ, too few for 3 folds"):
        deal(["a", "b", "a"], None, folds=3, seed=0)
    with pytest.raises(InputError, match="there are 1 groups that share no row"):
        deal(["a", "b", "b"], ["g", "g", "h"], folds=2, seed=0)
    with pytest.raises(InputError, match="the group of 2 rows, but there are 3; give one a row"):
        deal(["a", "b", "c"], ["g", "h"], folds=2, seed=0)
