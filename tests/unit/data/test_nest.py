"""Nests: what is done to a tensor is done to every tensor of a nest, whatever holds it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forsaken.data.nest import Nest, concatenate, leaves, length, map_nest, row_keys, shape_of

A = torch.arange(6.0).view(3, 2)
B = torch.tensor([10, 20, 30])
C = torch.tensor([True, False, True])


def nest() -> Nest:
    return {"a": A, "rest": (B, {"c": C})}


def test_map_keeps_the_structure() -> None:
    doubled = map_nest(lambda leaf: leaf.double() * 2, nest())
    assert isinstance(doubled, dict)
    assert list(doubled) == ["a", "rest"]
    assert isinstance(doubled["rest"], tuple)
    assert torch.equal(doubled["a"], 2 * A.double())
    assert torch.equal(doubled["rest"][0], 2 * B.double())
    assert torch.equal(doubled["rest"][1]["c"], 2 * C.double())


def test_map_leaves_the_original_alone() -> None:
    original = nest()
    map_nest(lambda leaf: leaf[:1], original)
    assert length(original) == 3


def test_leaves_and_map_go_the_same_way() -> None:
    seen: list[Tensor] = []
    map_nest(lambda leaf: seen.append(leaf) or leaf, nest())  # type: ignore[func-returns-value]
    assert [id(leaf) for leaf in seen] == [id(leaf) for leaf in leaves(nest())]
    assert len(seen) == 3


def test_a_tensor_is_its_only_leaf() -> None:
    assert leaves(A) == [A]
    assert length(A) == 3


def test_shape_is_that_of_one_sample() -> None:
    assert shape_of(nest()) == {"a": (2,), "rest": ((), {"c": ()})}
    assert shape_of(A) != shape_of((A,))
    assert shape_of({"a": A}) != shape_of({"b": A})


def test_concatenate_joins_rows() -> None:
    part = map_nest(lambda leaf: leaf[1:], nest())
    joined = concatenate([nest(), part])
    assert length(joined) == 5
    assert torch.equal(joined["a"], torch.cat([A, A[1:]]))  # type: ignore[call-overload,index]
    assert torch.equal(joined["rest"][1]["c"], torch.cat([C, C[1:]]))  # type: ignore[call-overload,index]


def test_concatenate_joins_by_name_not_by_order() -> None:
    joined = concatenate([{"a": A, "b": -A}, {"b": -A, "a": A}])
    assert torch.equal(joined["a"], torch.cat([A, A]))  # type: ignore[call-overload,index]
    assert torch.equal(joined["b"], torch.cat([-A, -A]))  # type: ignore[call-overload,index]


def test_concatenate_refuses_another_number_of_tensors() -> None:
    with pytest.raises(ValueError, match="argument"):
        concatenate([(A, A), (A,)])


# row_keys: equal keys, equal samples


def test_keys_are_equal_where_samples_are() -> None:
    rows = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [1.0, 2.5]])
    first, swapped, again, other = row_keys(rows)
    assert first == again
    assert len({first, swapped, other}) == 3


def test_every_tensor_counts() -> None:
    same, changed = row_keys((torch.ones(2, 2), torch.tensor([0, 1])))
    assert same != changed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_negative_zero_is_zero(dtype: torch.dtype) -> None:
    minus, plus, one = row_keys(torch.tensor([[-0.0, 5.0], [0.0, 5.0], [1.0, 5.0]], dtype=dtype))
    assert minus == plus
    assert one != plus


def test_bfloat16_tells_neighbours_apart() -> None:
    rows = torch.tensor([[1.0], [1.0078125], [1.0]], dtype=torch.bfloat16)
    keys = row_keys(rows)
    assert keys[0] == keys[2]
    assert keys[0] != keys[1]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_whole_numbers(dtype: torch.dtype) -> None:
    keys = row_keys(torch.tensor([[0, 1], [1, 0], [0, 1]]).to(dtype))
    assert keys[0] == keys[2]
    assert keys[0] != keys[1]


def test_large_whole_numbers_are_not_rounded() -> None:
    assert len(set(row_keys(torch.tensor([2**53, 2**53 + 1])))) == 2


def test_keys_do_not_depend_on_the_order_of_a_dictionary() -> None:
    assert row_keys({"a": A, "b": -A}) == row_keys({"b": -A, "a": A})
    assert row_keys({"a": A, "b": -A}) != row_keys({"a": -A, "b": A})


def test_strides_play_no_role() -> None:
    block = torch.arange(24.0).view(2, 3, 4)
    assert row_keys(block.transpose(0, 2)) == row_keys(block.transpose(0, 2).contiguous())


def test_keys_of_tensors_with_gradients() -> None:
    assert row_keys(A.clone().requires_grad_(True)) == row_keys(A)


values = st.lists(st.lists(st.floats(-2, 2, width=16), min_size=2, max_size=2), min_size=1, max_size=6)


@settings(deadline=None, database=None, derandomize=True)
@given(rows=values)
def test_keys_agree_with_comparing_row_by_row(rows: list[list[float]]) -> None:
    keys = row_keys(torch.tensor(rows))
    assert [[a == b for b in keys] for a in keys] == [[a == b for b in rows] for a in rows]


def test_keys_of_many_rows_are_those_of_each_row() -> None:
    rows = (torch.randn(2500, 3).round().mul(-0.0), torch.arange(5000).view(2, 2500).T)
    assert row_keys(rows) == [key for at in range(2500) for key in row_keys(tuple(part[at : at + 1] for part in rows))]
