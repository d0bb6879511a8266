"""Reasons to stop a request before anything is changed or written. Each can be overridden by its name (`allow`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, get_args

import numpy as np
import torch

from forsaken.data.nest import leaves, shape_of
from forsaken.data.samples import Samples
from forsaken.errors import InputError, StoppedError, UnknownNameError
from forsaken.types import Array
from forsaken.verdict import ACCURACY_LOSS

Stop = Literal["accuracy-loss", "unknown-records", "unknown-labels", "other-inputs"]
STOPS: tuple[Stop, ...] = get_args(Stop)
_FEW = 20  # samples, of which an accuracy says too little
_SCALE = 32.0  # by which the sizes of two sets of inputs may differ: pictures from 0 to 255 and from 0 to 1 do by 255


def checked_stops(allow: object) -> tuple[str, ...]:
    """Return the names of the stops that are overridden; an unknown one is an error."""
    names = (allow,) if isinstance(allow, str) else tuple(allow) if isinstance(allow, Collection) else (allow,)
    for name in names:
        if name not in STOPS:
            raise UnknownNameError("stop to allow", name, STOPS)
    return names


def override(stop: Stop) -> str:
    """Return how a user goes on all the same."""
    return f'to go on all the same, allow "{stop}" (--allow, [output] allow, or allow= in Python)'


def stop_strange_inputs(forget: Samples, others: Mapping[str, Samples], allow: Collection[str] = ()) -> None:
    """Raise an `InputError` if the samples to forget are not of the layout, the dtype or the scale of other samples.

    Parameters
    ----------
    forget : Samples
        What is to be forgotten.
    others : mapping of str to Samples
        Inputs as the model takes them, by the name of their set; the training data's come first.
    allow : collection of str
        Overridden stops.
    """
    if "other-inputs" in allow:
        return
    for name, part in others.items():
        ours, theirs = shape_of(forget.inputs), shape_of(part.inputs)
        if isinstance(ours, tuple) and isinstance(theirs, tuple) and ours != theirs and _same_sides(ours, theirs):
            raise InputError(
                f"a forget sample has shape {ours}, but a {name} sample {theirs}: the same sides in another order",
                field="forget",
                expected="one layout for all, such as channels first",
                remedy="permute the axes of the forget samples (arrays of uint8 are read as pictures: height, width, "
                "channels)",
            )
        if ours != theirs:
            continue  # `Sets` has the error
        for one, two in zip(leaves(forget.inputs), leaves(part.inputs), strict=True):
            if one.is_floating_point() and two.is_floating_point():
                _stop_other_scale(_size(one), _size(two), name)


def _same_sides(ours: tuple[object, ...], theirs: tuple[object, ...]) -> bool:
    plain = all(isinstance(side, int) for side in (*ours, *theirs))
    return plain and sorted(map(str, ours)) == sorted(map(str, theirs))


def _size(leaf: torch.Tensor) -> float:
    return float(leaf.double().square().mean().sqrt())


def _stop_other_scale(ours: float, theirs: float, name: str) -> None:
    if not ours or not theirs or 1 / _SCALE <= ours / theirs <= _SCALE:
        return
    times = ours / theirs if ours > theirs else theirs / ours
    raise InputError(
        f"the inputs of the forget samples are {times:.0f} times as {'large' if ours > theirs else 'small'} as those "
        f"of the {name} samples (root mean square {ours:.3g} and {theirs:.3g})",
        field="forget",
        expected="inputs prepared as in the training, such as pictures from 0 to 1 and not from 0 to 255",
        remedy=f"prepare both alike; {override('other-inputs')}",
    )


def stop_unknown_answers(right: Array, labels: Array, name: str, allow: Collection[str] = ()) -> None:
    """Raise an `InputError` if the model before answers training samples no better than by their most frequent label.

    Fewer than twenty samples are too few to tell.

    Parameters
    ----------
    right : bool array
        Whether the model before answers each sample with its label.
    labels : int array
        These labels.
    name : str
        What the samples are.
    allow : collection of str
        Overridden stops.
    """
    share = float(np.bincount(labels).max() / len(labels))
    if "other-inputs" in allow or len(right) < _FEW or float(right.mean()) > share or share == 1:
        return
    raise InputError(
        f"the model before answers {right.mean():.0%} of {len(right)} {name} with their labels, no more than by naming "
        f"the most frequent one always ({share:.0%})",
        field="train",
        expected="inputs and labels as in the training",
        remedy="check the range of the inputs (0 to 1, or 0 to 255), their layout (channels first or last), and how "
        f"labels are numbered; {override('other-inputs')}",
    )


def stop_accuracy_loss(before: Array, after: Array, name: str, allow: Collection[str] = ()) -> None:
    """Raise a `StoppedError` if the accuracy falls by more than 2 points, and by more than chance explains.

    Of the fall one standard error is taken off: of 50 samples, two that are lost say little.

    Parameters
    ----------
    before, after : bool arrays
        Whether each model answers each sample rightly.
    name : str
        What the samples are.
    allow : collection of str
        Overridden stops.

    Examples
    --------
    >>> stop_accuracy_loss(np.ones(100, bool), np.arange(100) < 98, "test samples")
    >>> stop_accuracy_loss(np.ones(100, bool), np.arange(100) < 90, "test samples")
    Traceback (most recent call last):
    ...
    forsaken.errors.StoppedError: the accuracy on 100 test samples would fall by 10.0 points, from 1.000 to 0.900, ...
    """
    fell = float(before.mean() - after.mean())
    error = float(np.count_nonzero(before != after)) ** 0.5 / len(before)
    if "accuracy-loss" in allow or fell - error <= ACCURACY_LOSS:
        return
    raise StoppedError(
        f"the accuracy on {len(before)} {name} would fall by {100 * fell:.1f} points, from {before.mean():.3f} to "
        f"{after.mean():.3f}, so nothing was written",
        field="accuracy-loss",
        value=fell,
        expected=f"at most {100 * ACCURACY_LOSS:g} points",
        remedy="give more reference and retain samples, or a table of references with a curvature, check that inputs "
        f"are prepared as in the training, or retrain; {override('accuracy-loss')}",
    )
