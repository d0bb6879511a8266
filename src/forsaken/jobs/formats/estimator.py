"""A scikit-learn classifier, or a pipeline that ends in one, saved with skops."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline

from forsaken.data.records import Records
from forsaken.errors import InputError, ModelError
from forsaken.jobs.formats.base import Checkpoint, Format
from forsaken.models.logits import LinearModel

SKOPS = (".skops",)


class EstimatorFile(Format):
    """An estimator; of a pipeline the last step is unlearned, and the steps before it prepare the records."""

    name = "skops"

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._whole = _read(checkpoint.weights, checkpoint.trusted)
        try:
            self._take_apart(checkpoint.weights)
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
            if isinstance(error, ModelError):
                raise
            raise ModelError(
                f"{checkpoint.weights} holds an estimator whose parts do not fit together; save the fitted one again"
            ) from error

    def _take_apart(self, path: Path) -> None:
        pipeline = isinstance(self._whole, Pipeline)
        if pipeline and len(self._whole) == 0:
            raise ModelError(f"{path} holds an empty pipeline; save the fitted one")
        self._steps = self._whole[:-1] if pipeline and len(self._whole) > 1 else None
        self.model = self._whole[-1] if pipeline else self._whole
        if not isinstance(self.model, BaseEstimator):
            raise ModelError(f"{path} holds a {type(self.model).__name__}, expected a fitted scikit-learn classifier")
        weight = LinearModel(self.model).weight  # says what is wrong with an estimator that cannot be unlearned
        self.classes = np.asarray(self.model.classes_)
        if self.classes.shape != (max(2, len(weight)),):
            raise ValueError("classes")

    def write(self, model: Any, goal: Path) -> None:
        """Write the estimator, in its pipeline where it came in one."""
        import skops.io  # noqa: PLC0415 (slow to import, and only this format needs it)

        whole = model
        if isinstance(self._whole, Pipeline):
            whole = copy.copy(self._whole)
            whole.steps = [*self._whole.steps[:-1], (self._whole.steps[-1][0], model)]
        skops.io.dump(whole, goal)

    def prepare(self, parts: Sequence[Records]) -> list[Any] | None:
        """Return what the pipeline's earlier steps make of the records."""
        return [self._transformed(records) for records in parts]

    def _transformed(self, records: Records) -> Any:
        content = records.content
        given = content.tolist() if records.kind == "text" else content.reshape(len(records), -1)
        if self._steps is None:
            return None if records.kind == "text" else given
        try:
            return self._steps.transform(given)
        except (ValueError, TypeError, AttributeError) as error:
            # the type alone: scikit-learn's own text may quote a value
            raise InputError(
                f"the pipeline's steps cannot transform {records.kind} records of shape {content.shape[1:]} "
                f"({type(error).__name__}); give the data that it was fitted on"
            ) from None


def _read(path: Path, trusted: tuple[str, ...]) -> Any:
    import skops.io  # noqa: PLC0415

    try:
        unknown = [name for name in skops.io.get_untrusted_types(file=path) if name not in trusted]
    except Exception as error:  # a hostile or damaged file may raise anything
        raise _damaged(path, error) from error
    if unknown:
        names = ", ".join(repr(name) for name in unknown[:5])
        raise ModelError(
            f"{path} holds types that skops does not trust, so it was not opened: {names}; where you trust them, name "
            f"them in the job file: trusted = [{names}]"
        )
    try:
        return skops.io.load(path, trusted=list(trusted))
    except Exception as error:  # a damaged file may raise anything
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ModelError:
    return ModelError(
        f"{path} cannot be read as a skops file ({type(error).__name__}); expected one that "
        "skops.io.dump(estimator, path) wrote with a scikit-learn of this version: is it complete?"
    )
