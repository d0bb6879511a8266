"""From posteriors and two models to the numbers of a saved result. Nothing here shows what a record holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forsaken.errors import InputError
from forsaken.models.logits import as_module
from forsaken.models.weights import changes
from forsaken.types import Array


def by_class(labels: Array, before: Array, after: Array, classes: int) -> dict[str, list[Any]] | None:
    """Return the accuracy of each class before and after; None where there is no labelled sample.

    Parameters
    ----------
    labels : int array, shape (n,)
        True classes.
    before, after : array, shape (n, classes)
        Posteriors (or logits) of the same samples.
    classes : int
        How many there are. A class without a sample has the accuracy None.
    """
    _same_rows("by_class", labels=labels, before=before, after=after)
    if not len(labels):
        return None
    support = [int(np.sum(labels == number)) for number in range(classes)]
    return {"support": support, "before": _shares(labels, before, classes), "after": _shares(labels, after, classes)}


def layers(before: object, after: object) -> list[dict[str, Any]]:
    """Return how many entries of each trainable parameter differ between two models, in the model's order."""
    found = changes(as_module(before), as_module(after))
    return [{"name": name, "changed": changed, "total": total} for name, (changed, total) in found.items()]


def sample_table(
    before: Array,
    after: Array,
    score: str,
    score_before: Array,
    score_after: Array,
    hashes: Sequence[str] | None = None,
    rows: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return one entry a forgotten sample: classes, confidences and scores before and after.

    Parameters
    ----------
    before, after : array, shape (n, classes)
        Posteriors.
    score : str
        What the scores are: "oracle" (probability of membership) or "confidence" (largest posterior).
    score_before, score_after : array, shape (n,)
        Higher means member.
    hashes : list of str, optional
        A keyed hash of each record; the first 12 digits are kept.
    rows : list of int, optional
        The rows of the forget set; 0, 1, ... by default.
    """
    numbers = range(len(before)) if rows is None else rows
    parts = {
        "before": before,
        "after": after,
        "score_before": score_before,
        "score_after": score_after,
        "rows": numbers,
    }
    _same_rows("sample_table", **parts, **({} if hashes is None else {"hashes": hashes}))
    if score not in ("oracle", "confidence"):
        raise InputError(f"score is {score!r}, expected 'oracle' or 'confidence'")
    return {
        "score": score,
        "row": [int(row) for row in numbers],
        "hash": None if hashes is None else [text[:12] for text in hashes],
        "class_before": before.argmax(1).tolist(),
        "class_after": after.argmax(1).tolist(),
        "confidence_before": before.max(1).tolist(),
        "confidence_after": after.max(1).tolist(),
        "score_before": np.asarray(score_before, dtype=np.float64).tolist(),
        "score_after": np.asarray(score_after, dtype=np.float64).tolist(),
    }


def _shares(labels: Array, posterior: Array, classes: int) -> list[float | None]:
    right = posterior.argmax(1) == labels
    inside = [labels == number for number in range(classes)]
    return [float(right[rows].mean()) if rows.any() else None for rows in inside]


def _same_rows(what: str, **parts: Any) -> None:
    found = {name: len(part) for name, part in parts.items()}
    if len(set(found.values())) > 1:
        sizes = ", ".join(f"{name} {size}" for name, size in found.items())
        raise InputError(
            f"{what}: the arrays have different numbers of rows ({sizes}), expected the same samples in all"
        )
