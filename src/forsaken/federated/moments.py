"""Second moments of several nodes added up: a curvature over all rows, without any row leaving its node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from forsaken.federated.scaling import Vector
from forsaken.references.curvature import Curvature, Factors, Moment


def summed(parts: Sequence[Curvature], theta: Vector) -> Curvature | None:
    """Return the sum of curvatures of one model, or None where there is none. Those of another shape are left out.

    `theta` gives the parameters that may be among them. All sums of `Curvature` are sums over rows, so the sum over
    nodes is that over all of their rows.
    """
    fitting = [each for each in parts if each.names <= theta.keys() and each.names == parts[0].names]
    fitting = [each for each in fitting if _shapes(each) == _shapes(fitting[0])]
    if not fitting:
        return None
    first = fitting[0]
    factors = {name: _factors([each.factors[name] for each in fitting]) for name in first.factors}
    diagonals = {name: _total([each.diagonals[name] for each in fitting]) for name in first.diagonals}
    return Curvature(factors, diagonals, sum(each.rows for each in fitting), first.share, first.weights)


def _factors(parts: Sequence[Factors]) -> Factors:
    inputs, outputs = _moment([each.inputs for each in parts]), _moment([each.outputs for each in parts])
    return replace(parts[0], inputs=inputs, outputs=outputs, count=sum(each.count for each in parts))


def _moment(parts: Sequence[Moment]) -> Moment:
    columns = zip(*(each.parts() for each in parts), strict=True)
    return Moment(*(None if column[0] is None else _total(column) for column in columns))  # type: ignore[arg-type]


def _total(parts: Sequence[Tensor | None]) -> Tensor:
    total: Tensor = sum(part for part in parts if part is not None)  # type: ignore[assignment]
    return total


def _shapes(curvature: Curvature) -> dict[str, tuple[int, ...]]:
    return {name: tuple(part.shape) for name, part in curvature.to_tensors()[0].items()}
