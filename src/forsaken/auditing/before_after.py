"""Before and after: what an attacker learns who holds both models and asks which samples moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from forsaken._random import Purpose, generator
from forsaken.auditing.inputs import AuditInputs, some
from forsaken.auditing.measurements import BEFORE, RETRAINED, Matrices
from forsaken.auditing.result import Number
from forsaken.data.samples import Samples
from forsaken.metrics import bootstrap_interval, margins, separation
from forsaken.models.logits import predict_logits
from forsaken.types import Array

_COMPARED = 2000  # the most kept and test samples
_OTHERS = {"kept": "kept training samples", "test": "test samples"}
_SCORES = {
    "drop": "how far the margin fell",
    "change": "how far the margin moved",
    "logits": "how far the logits moved, without labels",
}
_NOTE = "of an attacker who holds the models before and after; retrained: the model before beside a retrained one"


def by_margin(change: Array) -> dict[str, Array]:
    """Return two scores of a change of margins, higher meaning forgotten: the fall, and the size of the change."""
    return {"drop": -change, "change": np.abs(change)}


def before_after(inputs: AuditInputs) -> list[Number]:
    """Return how well the change of the answers tells forgotten samples from kept ones and from test samples.

    With labels the change of the margin is used, both with its sign and without. Where labels are missing, it is the
    length of the change of the logits, of which the mean over the classes is taken off.
    """
    sets, draw = inputs.sets, generator(inputs.seed, Purpose.COMPARED_ROWS)
    parts = {name: some(part, _COMPARED, draw) for name in _OTHERS if (part := sets.get(name)) is not None}
    labelled = all(part.labels is not None for part in (sets.forget, *parts.values()))
    chosen = {"forget": sets.forget, **parts}

    def answers(model: object) -> dict[str, Tensor]:
        return {
            name: predict_logits(model, Samples(part.inputs), forward=inputs.forward).double()
            for name, part in chosen.items()
        }

    def scores(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, dict[str, Array]]:
        found = {}
        for name, part in chosen.items():
            one, two = old[name].numpy(), new[name].numpy()
            if labelled and part.labels is not None:
                labels = part.labels.numpy()
                found[name] = by_margin(margins(two, labels) - margins(one, labels))
            else:
                moved = two - one
                found[name] = {"logits": np.linalg.norm(moved - moved.mean(axis=1, keepdims=True), axis=1)}
        return found

    if not parts:
        return []
    before = answers(inputs.before)
    after, *retrained = (scores(before, answers(model)) for model in (inputs.after, *inputs.retrained))
    return [
        Number(
            name=f"before_after_{how}_{name}",
            label=f"before and after: forgotten against {_OTHERS[name]} by {_SCORES[how]}, AUC",
            value=separation(values, after[name][how]),
            direction="retrained",
            n=len(values) + len(parts[name]),
            unit="samples",
            interval=bootstrap_interval(separation, values, after[name][how], draws=400, seed=inputs.seed),
            retrained=_mean([separation(one["forget"][how], one[name][how]) for one in retrained]),
            before=0.5,
            note=_NOTE,
        )
        for name in parts
        for how, values in after["forget"].items()
    ]


def ensemble_before_after(matrices: Matrices, method: str, seed: int) -> list[Number]:
    """Return the same for an ensemble: each original beside itself after it forgot, and beside a retrained model."""
    found = []
    before = matrices.margins[BEFORE]
    for part, name in (("retain", "kept"), ("test", "test")):
        ours, usual = (_areas(before, matrices.margins[group], part) for group in (method, RETRAINED))
        for how, values in ours.items():
            found.append(
                Number(
                    name=f"ensemble_before_after_{how}_{name}",
                    label=f"before and after, mean of the ensemble: forgotten against {_OTHERS[name]} by "
                    f"{_SCORES[how]}, AUC",
                    value=float(values.mean()),
                    direction="retrained",
                    n=len(values),
                    unit="models",
                    interval=bootstrap_interval(lambda drawn: float(drawn.mean()), values, draws=400, seed=seed),
                    retrained=float(usual[how].mean()),
                    before=0.5,
                    note=_NOTE,
                )
            )
    return found


def _areas(before: Mapping[str, Array], after: Mapping[str, Array], part: str) -> dict[str, Array]:
    count = len(before["forget"])
    forgotten, others = (by_margin(after[each][:count] - before[each]) for each in ("forget", part))
    return {
        how: np.array([separation(one, two) for one, two in zip(values, others[how], strict=True)])
        for how, values in forgotten.items()
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
