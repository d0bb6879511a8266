"""What an audit of a run is made of: both models, all of the data, and how models like these are trained."""

from __future__ import annotations

import json
import warnings as python_warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from forsaken._keys import read_record_key
from forsaken.auditing.case import Train
from forsaken.data.nest import leaves
from forsaken.data.record_hashes import record_hashes
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import InputError
from forsaken.jobs.certificate import Certificate, settings_hash
from forsaken.jobs.code import call, find
from forsaken.jobs.files import RECORD_KEY, RESULT, check_there, weights_name
from forsaken.jobs.formats import EstimatorFile, Format, load_model
from forsaken.jobs.judge import oracle_of
from forsaken.jobs.method import target_of
from forsaken.jobs.rows import STRANGERS, Reader
from forsaken.jobs.sets import Sets, prepared_for, read_sets
from forsaken.jobs.settings import Job
from forsaken.models.logits import posteriors
from forsaken.models.train import Training
from forsaken.oracles.shadow import ShadowOracle
from forsaken.recipe import Recipe
from forsaken.types import Array, Progress, Tick, silent

_SAME = 0.02  # by which a confidence may differ between machines


@dataclass(frozen=True, slots=True)
class Evidence:
    """A run's two models, the data, who judges, and how to train others, for one audit.

    Attributes
    ----------
    loaded : Format
        The model before.
    after : Module or estimator
        The model that is said to have forgotten.
    sets : Sets
        The data, with all of the training data.
    oracle, retrained
        Who judges membership, and the yardstick, where the job names them.
    training : Training, callable or None
        How models like these are trained; None where none are.
    warnings : list of str
        What makes the audit weaker than it looks.
    """

    loaded: Format
    after: Any
    sets: Sets
    oracle: ShadowOracle | None
    retrained: Any
    training: Training | Train | None
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class Refit:
    """Fits estimators like one that is there; labels are numbers in the order of its classes."""

    estimator: Any

    def __call__(self, samples: Samples, seed: int) -> Any:
        """Return a new estimator that has learnt the samples."""
        if samples.labels is None or not isinstance(samples.inputs, Tensor):
            raise InputError("an estimator learns from one matrix of inputs with labels; give the training data so")
        known = np.asarray(self.estimator.classes_)
        twin = clone(self.estimator)
        if "random_state" in twin.get_params():
            twin.set_params(random_state=seed)
        with python_warnings.catch_warnings():
            # The user's own estimator stopped there too, and the warning would come once a model.
            python_warnings.simplefilter("ignore", ConvergenceWarning)
            twin.fit(samples.inputs.numpy(), known[samples.labels.numpy()])
        if not np.array_equal(twin.classes_, known):
            raise InputError(
                f"models of the audit learn {len(twin.classes_)} of the {len(known)} classes, since the others are "
                "only among the samples to forget; an audit that trains needs every class in the rest, use quick"
            )
        return twin


def is_corrected(job: Job) -> bool:
    """Return whether the forget samples of a job come with their true labels, and not with those that were learnt."""
    return target_of(job) == "corrected"


def read_evidence(
    job: Job, folder: Path, certificate: Certificate, *, trains: bool, progress: Progress = silent
) -> Evidence:
    """Read what an audit of the run in `folder` needs; for one that `trains` models, with every label."""
    check_there(job, references=False)  # who used up a table of references was told to delete it
    progress(Tick("read", 0, 1))
    loaded = load_model(job)
    after = load_model(job, folder / weights_name(job)).model
    sets = read_sets(job, loaded, Reader(job, progress), audit=True)
    answers = posteriors(loaded.model, Samples(sets.forget.inputs), forward=loaded.forward)
    warnings = _check_forgotten(job, folder, certificate, sets, answers)
    if trains:
        _check_labels(sets)
    elif is_corrected(job):
        sets = replace(sets, forget=Samples(sets.forget.inputs))  # these labels are not the ones that were learnt
    warnings += _doubts(job, certificate, loaded, sets, trains)
    warnings += _odd_labels(sets, answers)
    retrained = _retrained(job, sets, warnings)
    training = training_of(job, loaded) if trains else None
    oracle = oracle_of(job, sets, loaded)
    progress(Tick("read", 1, 1))
    return Evidence(loaded, after, sets, oracle, retrained, training, warnings)


def _check_forgotten(job: Job, folder: Path, certificate: Certificate, sets: Sets, answers: Array) -> list[str]:
    """Make sure that the forget set is the one of the certificate; where its key is away, return a warning.

    The hashes tell for sure. Without the key there is only what the run noted of the old model's answers.
    """
    stated, rows = certificate.records, sets.rows["forget"]
    named = job.output.record_key
    key = folder / RECORD_KEY if named is None else job.resolve(named)
    known = key.is_file()
    same = len(rows) == stated.count
    if same and known:
        same = sorted(record_hashes(rows.content, read_record_key(key))) == sorted(stated.hmac_sha256)
    elif same:
        same = _answered_alike(folder / RESULT, answers)
    if not same:
        raise InputError(
            f"the {len(rows)} records to forget are not the {stated.count} of the run's certificate; restore the data "
            f"and the key, or run forsaken unlearn {job.path} again"
        )
    if known:
        return []
    return [
        f"the record key {key} is not there, so that only the number of the records and the old model's answers to "
        "them were compared with the run's, not the records themselves; put the key back and audit again to be sure"
    ]


def _answered_alike(path: Path, answers: Array) -> bool:
    """Return whether the old model's answers are those that a run noted; True where it noted none that can be read."""
    try:
        noted = json.loads(path.read_bytes())["samples"]
        classes, sure = np.array(noted["class_before"]), np.array(noted["confidence_before"], dtype=float)
        given = np.bincount(answers.argmax(1), minlength=answers.shape[1])
        return np.array_equal(np.bincount(classes, minlength=answers.shape[1]), given) and np.allclose(
            np.sort(sure), np.sort(answers.max(1)), rtol=0, atol=_SAME
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return True  # whoever reads the file for the page tells what is wrong with it


def _odd_labels(sets: Sets, answers: Array) -> list[str]:
    """Return a warning where the old model gives few records to forget the labels that stand beside them."""
    if sets.forget.labels is None:
        return []
    right = int((answers.argmax(1) == sets.forget.labels.numpy()).sum())
    if 2 * right >= len(answers):
        return []
    return [
        f"the model before answers only {right} of the {len(answers)} records to forget with the labels that are given "
        "for them; attacks go by the labels that were learnt, so check that these are they"
    ]


def _check_labels(sets: Sets) -> None:
    parts = {"forget": sets.forget, "train": sets.kept, "test": sets.test, STRANGERS: sets.strangers}
    wrong = [name for name, part in parts.items() if part is not None and part.labels is None]
    lines = [f"{name} has no labels, or some that are none of the model's classes" for name in wrong]
    if sets.kept is None:
        lines.append("train holds nothing besides the forget and the retain samples")
    if lines:
        listed = "".join(f"\n  - {line}" for line in lines)
        raise InputError(f"models cannot be trained and compared on these data; give the labels that were used{listed}")


def _doubts(job: Job, certificate: Certificate, loaded: Format, sets: Sets, trains: bool) -> list[str]:
    found = []
    if settings_hash(job.to_dict()) != certificate.settings.job_sha256:
        found.append(
            "the job file has changed since the run: where the seed, the references or the retain samples are others, "
            "the audit is not quite about what was done; run forsaken unlearn again to be sure"
        )
    content = sets.rows["forget"].content
    if trains and isinstance(loaded, EstimatorFile) and isinstance(content, Records):
        given = content.content.reshape(len(content), -1)
        plain = content.kind != "text" and all(np.array_equal(given, leaf) for leaf in leaves(sets.forget.inputs))
        if not plain and job.data.prepare is None:
            found.append(
                "only the classifier is fitted anew: the pipeline's steps before it, which the forgotten samples "
                "helped to fit, are the same in every model"
            )
    return found


def _retrained(job: Job, sets: Sets, warnings: list[str]) -> Any:
    if job.oracle is None or job.oracle.retrained is None:
        return None
    other = load_model(job, job.resolve(job.oracle.retrained))
    own, ours = (leaves(each.forget.inputs) for each in (prepared_for(job, other, sets), sets))
    if len(own) == len(ours) and all(torch.equal(one, two) for one, two in zip(own, ours, strict=True)):
        return other.model
    warnings.append(
        "[oracle] retrained prepares the records in a way of its own, so that it cannot stand beside the audit's "
        "numbers; the run's own table has it"
    )
    return None


def training_of(job: Job, loaded: Format) -> Training | Refit | None:
    """Return how models like the job's are trained; None where nothing says so."""
    if isinstance(loaded, EstimatorFile):
        return Refit(loaded.model)
    if job.audit.recipe is None or job.model.factory is None:
        return None
    factory = find(job.model.factory, "[model] factory")
    make = partial(call, factory, "[model] factory", **job.model.arguments)
    return Training(make, Recipe(**job.audit.recipe.model_dump()), job.model.device)
