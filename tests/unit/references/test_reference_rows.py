"""Rows are recognised by a keyed hash of their content, and nothing that belongs together is ever split over folds."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from reference_case import KEY
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from sklearn.model_selection import GroupKFold

from forsaken import References
from forsaken.data.samples import Samples
from forsaken.errors import InputError, SettingsError
from forsaken.references.rows import as_keys, assign_folds, checked_key, group_hashes, row_hashes, units


def hashed(inputs: Any, key: bytes = KEY) -> list[bytes]:
    return as_keys(row_hashes(Samples.read(inputs, "x", labels=False), key))


def grouped(groups: Any, key: bytes = KEY) -> list[bytes]:
    return as_keys(group_hashes(groups, key))


def test_a_hash_by_hand() -> None:
    row = np.array([1.5, -2.0], dtype="<f4")
    shape = np.array([1, 2], dtype="<u8").tobytes()
    message = b"samples\0float32\0" + shape + row.tobytes()
    assert hashed(row[None]) == [hmac.new(KEY, message, hashlib.sha256).digest()]
    assert grouped(["Ännchen"]) == [hmac.new(KEY, b"group\0" + "Ännchen".encode(), hashlib.sha256).digest()]


def test_another_key_another_hash() -> None:
    x = torch.randn(20, 3)
    assert not set(hashed(x)) & set(hashed(x, bytes(32)))
    assert not set(grouped(list("abc"))) & set(grouped(list("abc"), bytes(32)))
    assert len(set(hashed(x))) == 20


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_floats_of_any_width_hash_alike(kind: torch.dtype) -> None:
    x = torch.tensor([[1.0, -0.5], [0.25, 3.0]])
    assert hashed(x.to(kind)) == hashed(x) == hashed(x.numpy()) == hashed(x.numpy().astype(">f8"))


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32])
def test_whole_numbers_of_any_width_hash_alike(kind: torch.dtype) -> None:
    x = torch.tensor([[1, 2], [0, 7]])
    assert hashed(x.to(kind)) == hashed(x)
    assert hashed(x.float()) != hashed(x), "the documentation says so"


def test_minus_zero_is_zero() -> None:
    assert hashed(torch.tensor([[-0.0, 1.0]])) == hashed(torch.tensor([[0.0, 1.0]]))
    assert hashed(torch.tensor([[-0.0]], dtype=torch.float64)) == hashed(torch.tensor([[0.0]]))


def test_a_difference_of_one_bit_is_one() -> None:
    x = torch.tensor([[1.0, 2.0]])
    assert hashed(x) != hashed(torch.nextafter(x, torch.tensor(9.0)))


def test_the_shape_of_a_sample_counts() -> None:
    x = torch.arange(12.0)
    assert hashed(x.reshape(2, 6)) != hashed(x.reshape(2, 2, 3))
    assert hashed(x.reshape(2, 2, 3)) != hashed(x.reshape(2, 3, 2))


def test_nests() -> None:
    words, mask = torch.arange(6).reshape(2, 3), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    there = {"mask": mask, "words": words}
    assert hashed(there) == hashed({"words": words, "mask": mask}) == hashed({**there, "labels": [0, 1]})
    assert hashed(((words, mask), None)) != hashed(((mask, words), None))
    other = {"mask": mask, "words": words + torch.tensor([[0, 0, 0], [0, 0, 1]])}
    assert [a == b for a, b in zip(hashed(there), hashed(other), strict=True)] == [True, False]


def test_labels_play_no_part() -> None:
    x = torch.randn(3, 2)
    assert hashed((x, [0, 1, 2])) == hashed((x, [2, 2, 2])) == hashed(x)


def test_groups_of_any_container() -> None:
    assert (
        grouped([3, 1]) == grouped(np.array([3, 1], dtype=np.uint8)) == grouped(torch.tensor([3, 1])) == grouped((3, 1))
    )
    assert grouped(["a", "b"]) == grouped(np.array(["a", "b"])) == grouped(iter("ab"))
    assert grouped([b"a"]) == grouped(np.array([b"a"]))
    assert grouped([1]) == grouped(["1"]) == grouped([b"1"]), "a column may be read as any of them"


def test_a_name_with_half_a_character() -> None:
    assert len(set(grouped(["\ud800", "a"]))) == 2


@pytest.mark.parametrize(
    ("groups", "kind"),
    [
        ([1, True], "bool"),
        (np.array([1.0, 2.0]), "float"),
        ([1, float("nan")], "float"),
        (["a", None], "NoneType"),
        (np.zeros((2, 2), dtype=int), "ndarray"),
        (torch.zeros((2, 2), dtype=torch.long), "Tensor"),
        (torch.zeros(2), "float"),
        (["a", ("Ingrid", 3)], "tuple"),
    ],
)
def test_what_names_no_group(groups: Any, kind: str) -> None:
    with pytest.raises(InputError, match=rf"of row \d is of type {kind}, expected a name or a whole number") as caught:
        grouped(groups)
    assert "Ingrid" not in str(caught.value)


@pytest.mark.parametrize("groups", [7, "Ingrid", b"Ingrid", None])
def test_what_are_no_groups(groups: Any) -> None:
    with pytest.raises(InputError, match="expected a list with the group of each row") as caught:
        grouped(groups)
    assert "Ingrid" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "words"), [(b"", "0 bytes"), (bytes(31), "31 bytes"), ("secret", "of type str"), (7, "of type int")]
)
def test_what_is_no_key(key: Any, words: str) -> None:
    for make in (checked_key, lambda key: References.claimed(torch.eye(2), torch.eye(2), key=key)):
        with pytest.raises(SettingsError, match=f"key is {words}, expected 32 random bytes") as caught:
            make(key)
        assert "secret" not in str(caught.value)


def test_a_key_by_default_is_new() -> None:
    assert len(checked_key(None)) == 32
    assert checked_key(None) != checked_key(None)
    assert checked_key(KEY) is KEY


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
    found = assign_folds(content, groups, folds=folds, seed=seed)
    for one in np.unique(own):
        assert len(set(found[own == one])) == 1
    counts = np.bincount(found, minlength=folds)
    assert len(counts) == folds
    assert counts.min() > 0
    assert counts.max() - counts.min() <= sizes.max()
    theirs = [len(held) for _, held in GroupKFold(folds).split(rows, groups=own)]
    assert sorted(counts) == sorted(theirs)
    assert np.array_equal(found, assign_folds(content, groups, folds=folds, seed=seed))


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
        found = assign_folds(content, groups, folds=2, seed=seed)
        assert len(set(found[:5])) == 1
        assert sorted(np.bincount(found)) == [5, 5]


@pytest.mark.parametrize(("count", "folds"), [(8, 4), (9, 4), (11, 4), (2, 2), (100, 7)])
def test_folds_by_row_differ_by_one_row_at_most(count: int, folds: int) -> None:
    sizes = np.bincount(assign_folds(range(count), None, folds=folds, seed=3))
    assert len(sizes) == folds
    assert sizes.max() - sizes.min() <= 1


def test_the_seed_decides() -> None:
    deals = [assign_folds(range(40), None, folds=4, seed=seed).tolist() for seed in range(5)]
    assert len({tuple(each) for each in deals}) == 5


def test_neither_the_order_nor_the_neighbourhood_decides() -> None:
    """Rows that come one after the other are not dealt one after the other: data are often sorted."""
    found = np.array([assign_folds(range(40), None, folds=4, seed=seed) for seed in range(300)])
    shares = (found == 0).mean(0)
    assert abs(shares - 0.25).max() < 0.1
    together = (found[:, 1:] == found[:, :-1]).mean()
    assert abs(together - 9 / 39) < 0.03


@pytest.mark.parametrize("folds", [1, 0, -4, True, 2.0, "4", None])
def test_folds_that_are_none(folds: object) -> None:
    with pytest.raises(SettingsError, match="expected a whole number >= 2"):
        assign_folds(range(9), None, folds=folds, seed=0)  # type: ignore[arg-type]


def test_too_little_to_deal() -> None:
    with pytest.raises(InputError, match="there are 2 rows that differ, too few for 3 folds"):
        assign_folds(["a", "b", "a"], None, folds=3, seed=0)
    with pytest.raises(InputError, match="there are 1 groups that share no row"):
        assign_folds(["a", "b", "b"], ["g", "g", "h"], folds=2, seed=0)
    with pytest.raises(InputError, match="the group of 2 rows, but there are 3; give one a row"):
        assign_folds(["a", "b", "c"], ["g", "h"], folds=2, seed=0)
