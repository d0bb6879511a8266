"""What a run is judged by: the posteriors of three models, and the numbers made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from forsaken.auditing.verdict import judge, members
from forsaken.data.samples import Samples
from forsaken.errors import SettingsError
from forsaken.jobs.configuration import Job
from forsaken.jobs.formats import Format, load_model
from forsaken.jobs.sets import JobSets, prepared_for
from forsaken.jobs.summary import by_class
from forsaken.metrics import separation
from forsaken.models.logits import Forward, posteriors
from forsaken.oracles.base import OracleReport
from forsaken.oracles.shadow import ShadowOracle, top_posteriors
from forsaken.types import Array, Progress, Tick

PARTS = ("forget", "kept", "test", "reference")
STAGE = "judge"


@dataclass(frozen=True, slots=True)
class Views:
    """The posteriors of the models before and after, and of a retrained one where there is one, by set."""

    before: dict[str, Array]
    after: dict[str, Array]
    retrained: dict[str, Array] | None

    @property
    def named(self) -> dict[str, dict[str, Array]]:
        """The models that there are, by name."""
        found = {"before": self.before, "after": self.after}
        return found if self.retrained is None else found | {"retrained": self.retrained}

    def arrays(self) -> dict[str, Array]:
        """Return the largest posteriors of each sample, for the pictures."""
        return {
            f"{name}_{part}": top_posteriors(rows) for name, view in self.named.items() for part, rows in view.items()
        }


def look(
    model: object, parts: Mapping[str, Samples], forward: Forward | None, progress: Progress, done: int
) -> dict[str, Array]:
    """Return a model's posteriors on every set that is judged."""
    found = {}
    for name, samples in ((name, parts[name]) for name in PARTS if name in parts):
        found[name] = posteriors(model, Samples(samples.inputs), forward=forward)
        done += 1
        progress(Tick(STAGE, done, 3 * len(PARTS)))
    return found


def oracle_of(job: Job, sets: JobSets, loaded: Format) -> ShadowOracle | None:
    """Return the oracle that the job names: read from its file, or fitted on its shadow model."""
    settings = job.oracle
    if settings is None:
        return None
    if settings.file is not None:
        return ShadowOracle.load(job.resolve(settings.file))
    if settings.weights is None:
        return None
    shadow = load_model(job, job.resolve(settings.weights))
    own = prepared_for(job, shadow, sets)
    return ShadowOracle.fit(
        shadow.model,
        members=Samples(own["shadow_members"].inputs),
        nonmembers=Samples(own["shadow_nonmembers"].inputs),
        forward=loaded.forward,
        seed=job.method.seed,
    )


def numbers(views: Views, oracle: ShadowOracle | None, sets: JobSets) -> dict[str, Any]:
    """Return the result's numbers. What cannot be known is None, never a guess."""
    if oracle is not None and oracle.classes != views.before["forget"].shape[1]:
        raise SettingsError(
            f"the oracle's shadow model had {oracle.classes} classes, the model has "
            f"{views.before['forget'].shape[1]}; fit an oracle on a shadow of this model"
        )
    truth = _truth(sets)
    now = judge(oracle, views.before, views.after, truth)
    was = judge(oracle, views.before, views.before, truth)
    retrain = None
    if views.retrained is not None:
        found = judge(oracle, views.before, views.retrained, truth)
        retrain = {"fr": found.fr, "cfr": found.cfr, "accuracy": found.accuracy, "seconds": None}
    known = oracle is not None and {"kept", "test"} <= set(views.before)
    return {
        "fr": now.fr,
        "cfr": now.cfr,
        "accuracy_before": was.accuracy,
        "accuracy_after": now.accuracy,
        "forget_confidence": _each(views, lambda view: float(view["forget"].max(1).mean())),
        "forget_accuracy": _forget_accuracy(views, sets.forget),
        "separation": _separation(views),
        "retrain": retrain,
        "memorised_before": _members_of(oracle, views.before, "forget"),
        "kept_members_before": _members_of(oracle, views.before, "kept"),
        "by_class": None
        if truth is None
        else by_class(truth, views.before["test"], views.after["test"], views.before["test"].shape[1]),
        "oracle": _report(oracle, views.before).to_dict() if known and oracle is not None else None,
    }


def doubts(found: Mapping[str, Any], sets: JobSets) -> list[str]:
    """Return what looks wrong with the data themselves."""
    truth = _truth(sets)
    if truth is None or found["accuracy_before"] is None:
        return []
    share = float(np.bincount(truth).max() / len(truth))
    if found["accuracy_before"] > share:
        return []
    return [
        f"the test accuracy before is {found['accuracy_before']:.3f}, no better than naming the most frequent class "
        f"({share:.3f}): are the labels numbered, and the inputs prepared, as in the training?"
    ]


def _truth(sets: JobSets) -> Array | None:
    return None if sets.test is None or sets.test.labels is None else sets.test.labels.numpy()


def _members_of(oracle: ShadowOracle | None, view: Mapping[str, Array], part: str) -> int | None:
    return None if oracle is None or part not in view else int(members(oracle, view[part]).sum())


def _report(oracle: ShadowOracle, before: Mapping[str, Array]) -> OracleReport:
    return oracle.evaluate_posteriors(before["kept"], before["test"])


def _separation(views: Views) -> dict[str, Any] | None:
    """Compare with samples like the forgotten ones where there are any: others would be told apart anyway."""
    against = next((name for name in ("reference", "test") if name in views.before), None)
    if against is None:
        return None
    apart = _each(views, lambda view: separation(view["forget"].max(1), view[against].max(1)))
    spread = _each(views, lambda view: float(view["forget"].max(1).std()))
    others = float(views.after[against].max(1).std())
    return {"against": against, "n": len(views.before[against]), **apart, "spread": spread, "spread_of_others": others}


def _forget_accuracy(views: Views, forget: Samples) -> dict[str, float | None] | None:
    if forget.labels is None:
        return None
    labels = forget.labels.numpy()
    return _each(views, lambda view: float(np.mean(view["forget"].argmax(1) == labels)))


def _each(views: Views, quantity: Callable[[Mapping[str, Array]], float]) -> dict[str, float | None]:
    return {"retrained": None} | {name: quantity(view) for name, view in views.named.items()}
