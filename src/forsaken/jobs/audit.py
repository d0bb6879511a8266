"""`forsaken audit job.toml`: from the job file and the folder of its run to `forsaken.audit`, and its file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forsaken._keys import read_record_key
from forsaken.auditing.audit import SHADOWS, audit
from forsaken.auditing.held_out import HeldOut
from forsaken.auditing.result import PROFILES, Audit, Profile
from forsaken.auditing.words import cost_of
from forsaken.data.duplicates import content_keys
from forsaken.data.nest import leaves
from forsaken.data.record_hashes import record_hashes
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import ForsakenError, InputError, OutputError, SettingsError, UnknownNameError
from forsaken.jobs.certificate import Certificate, file_hash, settings_hash
from forsaken.jobs.code import UserModel, inherited
from forsaken.jobs.configuration import LEAST, MOST, Job, by_curvature, by_references, method_of, target_of
from forsaken.jobs.disclosure import audit_without_records
from forsaken.jobs.formats import EstimatorFile, Format, load_model
from forsaken.jobs.output import (
    AUDIT_MODELS,
    AUDITS,
    CERTIFICATE,
    RESULT,
    check_there,
    is_half_moved,
    record_key_of,
    weights_name,
)
from forsaken.jobs.references import Refit, seconds_a_training, training_of, training_problems
from forsaken.jobs.rows import NONMEMBERS, Reader, Rows
from forsaken.jobs.run import not_learnt, oracle_of, retrained_of
from forsaken.jobs.seal import seal_key, sealed
from forsaken.jobs.sets import JobSets, prepared_for, prepared_rows, read_sets
from forsaken.metrics import FEW
from forsaken.models.logits import LinearModel, posteriors
from forsaken.models.train import Training
from forsaken.oracles.shadow import ShadowOracle
from forsaken.references.fitting import CUSTOM
from forsaken.references.rows import units
from forsaken.result import Result
from forsaken.types import Array, Progress, Tick, silent
from forsaken.unlearning.forsaken.method import GAUSS_NEWTON

_SAME = 0.02  # by which a mean confidence may differ between machines
_QUICK = 'profile = "quick" works'
_STANDARD = 'profile = "standard" works'
_MODEL = UserModel("it was audited", memory="train fewer models, or use a GPU")
_SETS = ("forget", "kept", "retain", "test", "reference", "nonmembers")

# What to do in a job file about an error or a warning of `forsaken.audit`, by the argument that the error is about.
_REMEDIES = {
    "forget": "give the labels of [data] forget",
    "kept": "give all of the training data with labels in [data] train",
    "retain": "give [data] retain with labels",
    "test": "give [data] test with labels",
    "nonmembers": "give [audit] nonmembers with labels, or more [data] test samples",
    "training": "give [audit] recipe",
    "models": "set [audit] models",
    "oracle": "name an [oracle] whose shadow model is of the same task",
    "retrained": "name a retrained model in [oracle] retrained, or use the profile full, which trains some",
    "profile": "use the profile standard",
}

NOT_COUNTED: dict[Profile, str] = {
    "quick": "reading, judging and the page",
    "standard": "reading, the white-box oracle, relearning and the page",
    "full": "reading, the measuring of each model, the attacks and the page",
}


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """An audit that can be made, as far as the job file and the run's own files say.

    Attributes
    ----------
    job : Job
        The job whose run is audited.
    folder : Path
        The run's folder.
    profile : str
        "quick", "standard" or "full".
    models : int
        How many reference models or originals are trained; 0 for "quick".
    certificate : Certificate
        Of the run; the weights before and after are those that it names.
    """

    job: Job
    folder: Path
    profile: Profile
    models: int
    certificate: Certificate

    @property
    def references(self) -> int:
        """How many reference models the originals of a full audit need at most; 0 where the run used no table."""
        stated = self.certificate.references
        if self.profile != "full" or stated is None or not by_references(self.job):
            return 0
        return self.models * stated.folds

    @property
    def trainings(self) -> int:
        """How many models are trained; at most so many where the run used a table of references."""
        return self.models if self.profile != "full" else 3 * self.models + self.references

    @property
    def unlearnings(self) -> int:
        """How many models are made to forget."""
        return self.models if self.profile == "full" else 0


@dataclass(frozen=True, slots=True)
class JobAudit:
    """What an audit of a run is made of.

    Attributes
    ----------
    loaded : Format
        The model before, and how its format prepares records.
    before : Module or estimator
        The model before, for samples as the model after takes them.
    after : Module or estimator
        The model that is said to have forgotten.
    sets : JobSets
        The data, with all of the training data.
    oracle, retrained
        The judge of membership and the retrained model, where the job names them.
    training : Training, Refit or None
        How models like these are trained; None where the profile trains none.
    warnings : list of str
        What makes the audit weaker than it looks.
    """

    loaded: Format
    before: Any
    after: Any
    sets: JobSets
    oracle: ShadowOracle | None
    retrained: Any
    training: Training | Refit | None
    warnings: list[str]


def plan_audit(job: Job, folder: Path, *, profile: str | None = None, models: int | None = None) -> AuditPlan:
    """Check that a job's run in `folder` can be audited; everything that the job lacks is raised at once.

    `profile` and `models` replace those of [audit].
    """
    wanted = job.audit.profile if profile is None else profile
    chosen = next((each for each in PROFILES if each == wanted), None)
    if chosen is None:
        raise UnknownNameError("profile", wanted, PROFILES)
    count = job.audit.models if models is None else models
    if problems := list(_problems(job, chosen, count)):
        raise SettingsError.of(f'{job.path}: the profile "{chosen}" cannot be run as the job stands', problems)
    certificate = _certificate(job, folder)
    if chosen == "full" and (folder / AUDIT_MODELS).is_symlink():
        raise OutputError(
            f"{folder / AUDIT_MODELS} is a link, expected a folder: what is measured of the models stays in the run's "
            "own folder; remove the link"
        )
    usual = {"quick": 0, "standard": SHADOWS, "full": FEW}[chosen]
    return AuditPlan(job, folder, chosen, usual if count is None or chosen == "quick" else count, certificate)


def audit_job(plan: AuditPlan, progress: Progress = silent, *, engine: str = "local") -> Audit:
    """Audit a run, and write what was found into its folder, one file a profile. No other file of the run is changed.

    A weaker audit therefore never replaces a stronger one.
    """
    read = read_inputs(plan, progress)
    job, sets = plan.job, read.sets
    place = record_key_of(job, plan.folder)
    secret = seal_key(read_record_key(place), plan.certificate) if place.is_file() else None
    held_out = held_out_of(job, plan.certificate, sets) if plan.profile == "full" else None
    try:
        with inherited(job.folder), _MODEL:
            found = audit(
                read.before,
                read.after,
                sets.forget,
                profile=plan.profile,
                kept=sets.kept,
                retain=sets.retain,
                test=sets.test,
                reference=sets.reference,
                nonmembers=sets.nonmembers,
                retrained=read.retrained,
                oracle=read.oracle,
                training=read.training,
                method=method_of(job),
                references=held_out,
                curvature=_went_by_curvature(job, plan.folder),
                neighbours=None if job.audit.neighbours == "none" else job.audit.neighbours,
                models=plan.models or None,
                folder=None if secret is None else plan.folder / AUDIT_MODELS,
                secret=secret,
                engine=engine,
                forward=read.loaded.forward,
                seed=job.method.seed,
                progress=progress,
                remedies=_REMEDIES,
            )
    except ForsakenError as error:
        if error.field not in _REMEDIES:
            raise
        raise error.with_remedy(_REMEDIES[error.field]) from error
    ties = {
        "weights_sha256": plan.certificate.weights.new.sha256,
        "certificate_sha256": plan.certificate.sha256,
        "notes": sets.notes,
    }
    more = {"warnings": (*found.warnings, *read.warnings), "settings": {**found.settings, **ties}}
    found = found.model_copy(update=more)
    if not job.output.per_record:
        found = audit_without_records(found, len(sets.forget))
    if secret is not None:
        found = sealed(found, secret)
    found.write(plan.folder / AUDITS[plan.profile])
    return found


def _went_by_curvature(job: Job, folder: Path) -> bool:
    """Return whether a run without references went by a curvature: as its result says or, without one, the job."""
    try:
        facts = Result.read(folder / RESULT).facts
    except OutputError:
        return by_curvature(job)
    return job.references is None and facts.get("optimiser") == GAUSS_NEWTON


def audit_cost(plan: AuditPlan, progress: Progress = silent) -> dict[str, Any]:
    """Read everything, train for some steps, and return what an audit would cost. Nothing is written."""
    read = read_inputs(plan, progress)
    training = plan.trainings * (0.0 if read.training is None else _one_training(read, progress))
    unlearning = plan.unlearnings * plan.certificate.seconds.unlearning
    references = f"at most {plan.references}" if plan.references else ""
    return {
        "profile": plan.profile,
        "told": cost_of(plan.profile, plan.trainings - plan.references, references),
        "models": plan.models,
        "trainings": plan.trainings,
        "references": plan.references,
        "unlearnings": plan.unlearnings,
        "training_seconds": training,
        "unlearning_seconds": unlearning,
        "seconds": training + unlearning,
        "not_counted": NOT_COUNTED[plan.profile],
        "counts": {name: None if (part := read.sets.get(name)) is None else len(part) for name in _SETS},
        "notes": [*read.sets.notes, *read.warnings],
    }


# --- what must be there ----------------------------------------------------------------------------------------------


def _problems(job: Job, profile: Profile, models: int | None) -> Iterator[SettingsError]:
    """Yield what a job lacks for a profile."""
    if models is not None and not LEAST <= models <= MOST:
        yield SettingsError(field="models", value=models, expected=f"a whole number from {LEAST} to {MOST}")
    elif models is not None and profile == "standard" and models % 2:
        expected = "an even number: each sample is learnt by one half of the reference models"
        yield SettingsError(field="models", value=models, expected=expected)
    if profile == "quick":
        return
    yield from training_problems(job, _QUICK)
    if job.data.test is None:
        expected = "labelled samples that the model was not trained on"
        yield SettingsError("[data] test is missing", field="test", expected=expected)
    if target_of(job) == "corrected":
        yield SettingsError(
            '[method] target is "corrected", so the forget samples come with their true labels, and this profile '
            "compares by those that were learnt",
            field="target",
            remedy=_QUICK,
        )


def _certificate(job: Job, folder: Path) -> Certificate:
    """Return the certificate of the run in a folder; the weights and the method must be those that it names."""
    if not (folder / CERTIFICATE).is_file():
        killed = " (a run was killed while its files were moved)" if is_half_moved(folder) else ""
        raise OutputError(
            f"there is no finished run in {folder}{killed}; run forsaken unlearn {job.path} first, or name the folder "
            "of its run with --out"
        )
    certificate = Certificate.read(folder / CERTIFICATE)
    stated = certificate.weights
    for path, known, when in (
        (folder / weights_name(job), stated.new, "after"),
        (job.resolve(job.model.weights), stated.old, "before"),
    ):
        found = file_hash(path)
        if found != known.sha256:
            raise OutputError(
                f"{path} is not what the run's certificate calls the weights {when} forgetting: its SHA-256 is "
                f"{found}, expected {known.sha256}; restore the file, or run forsaken unlearn {job.path} again"
            )
    settings = {"name": job.method.name, **method_of(job).settings}
    if settings_hash(settings) != certificate.settings.sha256:
        raise SettingsError(
            f"[method] of {job.path} is not what the run in {folder} was made with, so an audit would be about "
            "something else; restore the job file, or run forsaken unlearn again"
        )
    return certificate


# --- what is read ----------------------------------------------------------------------------------------------------


def read_inputs(plan: AuditPlan, progress: Progress = silent) -> JobAudit:
    """Read what a planned audit needs: both models, all data, and for a profile that trains every label."""
    job, certificate, trains = plan.job, plan.certificate, plan.profile != "quick"
    check_there(job, references=False)  # the run advised to delete the table of references
    progress(Tick("read", 0, 1))
    loaded = load_model(job)
    new = load_model(job, plan.folder / weights_name(job))
    after = new.model
    # What can be observed is what the new pipeline answers: its vocabulary may be smaller than the old one's.
    sets = read_sets(job, new, Reader(job, progress), audit=True)
    asked = prepared_rows(job, loaded, sets.rows["forget"])
    answers = posteriors(loaded.model, Samples(asked.inputs), forward=loaded.forward)
    warnings = _check_forgotten(job, plan.folder, certificate, sets, answers)
    corrected = target_of(job) == "corrected"
    strange = "" if corrected else not_learnt(sets.forget, answers)
    if strange:
        used = "attacks go by the labels that were learnt" if trains else "the verdict leaves them out"
        warnings.append(f"{strange}; {used}: give the labels that were learnt")
    if trains:
        _check_labels(sets)
    elif strange or corrected:
        sets = replace(sets, forget=Samples(sets.forget.inputs))  # these labels are not the ones that were learnt
    if certificate.settings.job_sha256 not in _hashes_of(job, plan.folder):
        warnings.append(
            "the job file has changed since the run: where the seed, the references or the retain samples are others, "
            "the audit is not quite about what was done; run forsaken unlearn again to be sure"
        )
    if trains and _prepared_by_fitted_steps(job, loaded, sets):
        warnings.append(
            "only the classifier is fitted anew: the pipeline's steps before it, which the forgotten samples helped to "
            "fit, are the same in every model"
        )
    retrained = _retrained(job, loaded, sets, warnings)
    training = training_of(job, loaded) if trains else None
    oracle = oracle_of(job, sets, loaded)
    progress(Tick("read", 1, 1))
    return JobAudit(loaded, _before(job, loaded, sets), after, sets, oracle, retrained, training, warnings)


def _hashes_of(job: Job, folder: Path) -> set[str]:
    """Return the hash of a job, and of the job with the stops that its run overrode, as unlearn --allow does."""
    told = job.to_dict()
    found = {settings_hash(told)}
    with suppress(OutputError, KeyError, TypeError):  # without a result, or with a damaged one, only the former counts
        allow = (Result.read(folder / RESULT).job or {})["output"]["allow"]
        found.add(settings_hash(told | {"output": told["output"] | {"allow": allow}}))
    return found


class _OldClassifier(LinearModel):
    """A pipeline's classifier that takes samples as a later pipeline prepares them, and answers as its own would.

    `known` has the samples that the two prepare in different ways: the own ones, by the bytes of the other ones.
    """

    def __init__(self, estimator: Any, known: dict[bytes, torch.Tensor]) -> None:
        super().__init__(estimator)
        self.known = known
        # Equal weights do not make it the later model, which lacks vocabulary entries.
        self.register_buffer("own_pipeline", torch.ones(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the decision values that the own pipeline would give the records of these samples."""
        rows = zip(inputs, inputs.cpu().numpy(), strict=True)
        own = [self.known.get(row.tobytes(), sample).to(inputs.device) for sample, row in rows]
        return super().forward(torch.stack(own))

    def __deepcopy__(self, memo: dict[int, Any]) -> _OldClassifier:
        twin = _OldClassifier(self.estimator, self.known)
        twin.load_state_dict(self.state_dict())
        memo[id(self)] = twin
        return twin


def _before(job: Job, loaded: Format, sets: JobSets) -> Any:
    """Return the model before, for sets that the new pipeline prepared: the old one may know more words."""
    if not isinstance(loaded, EstimatorFile) or loaded.pipeline is None:
        return loaded.model
    known, dtype = {}, LinearModel(loaded.model).weight.dtype
    own, parts = prepared_for(job, loaded, sets), sets.parts
    for name in sorted(parts, key=lambda name: name == "forget"):  # where two records become one, forgotten ones count
        later, earlier = (leaves(each[name].inputs)[0].to(dtype).numpy() for each in (parts, own))
        for row in np.flatnonzero((later != earlier).any(1)):
            known[later[row].tobytes()] = torch.from_numpy(earlier[row])
    return _OldClassifier(loaded.model, known) if known else loaded.model


def _check_forgotten(job: Job, folder: Path, certificate: Certificate, sets: JobSets, answers: Array) -> list[str]:
    """Raise an error unless the forget set is the certificate's; return a warning where that is not sure.

    The keyed hashes are proof. Without the key, the old model's answers are compared with those in result.json.
    """
    stated, rows = certificate.records, sets.rows["forget"]
    key = record_key_of(job, folder)
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
        f"the record key {key} is not there, so only the number of the records and the old model's answers to "
        "them were compared with the run's, not the records themselves; the audit is not sealed either, and nothing is "
        "kept of the models that it trained; put the key back and audit again to be sure"
    ]


def _answered_alike(path: Path, answers: Array) -> bool:
    """Return whether the old model is as sure of the records as a result.json says; True where it does not say."""
    try:
        noted = Result.read(path).forget_confidence
    except OutputError:
        return True  # the report, which reads the same file, says what is wrong with it
    return noted is None or abs(noted.before - float(answers.max(1).mean())) <= _SAME


def _check_labels(sets: JobSets) -> None:
    parts = {"forget": sets.forget, "train": sets.kept, "test": sets.test, NONMEMBERS: sets.nonmembers}
    wrong = [name for name, part in parts.items() if part is not None and part.labels is None]
    lines = [f"{name} has no labels, or some that are none of the model's classes" for name in wrong]
    if sets.kept is None:
        lines.append("train holds nothing besides the forget and the retain samples")
    if lines:
        listed = "".join(f"\n  - {line}" for line in lines)
        raise InputError(f"models cannot be trained and compared on these data; give the labels that were used{listed}")


def _prepared_by_fitted_steps(job: Job, loaded: Format, sets: JobSets) -> bool:
    """Return whether steps of a pipeline, which are not fitted anew, stand between the records and the classifier."""
    content = sets.rows["forget"].content
    if not isinstance(loaded, EstimatorFile) or not isinstance(content, Records) or job.data.prepare is not None:
        return False
    given = content.content.reshape(len(content), -1)
    return content.kind == "text" or not all(np.array_equal(given, leaf) for leaf in leaves(sets.forget.inputs))


def _retrained(job: Job, loaded: Format, sets: JobSets, warnings: list[str]) -> Any:
    other = retrained_of(job, loaded)
    if other is None:
        return None
    own, ours = (leaves(each.inputs) for each in (prepared_for(job, other, sets)["forget"], sets.forget))
    if len(own) == len(ours) and all(torch.equal(one, two) for one, two in zip(own, ours, strict=True)):
        return other.model
    warnings.append(
        "[oracle] retrained is a pipeline that prepares the records by steps of its own, so the audit cannot compare "
        "its numbers with that model; the table of the run shows them"
    )
    return None


def held_out_of(job: Job, certificate: Certificate, sets: JobSets) -> HeldOut | None:
    """Return how reference models like those of the run's table are made; None where the run used no table.

    The table itself is not needed, since the run advised to delete it: the certificate says how its folds were drawn,
    and the groups are a column of the training data.
    """
    stated = certificate.references
    if stated is None or not by_references(job):
        return None
    if stated.by == "claim" or stated.view == CUSTOM:
        how = "were handed in" if stated.by == "claim" else "have views that were made by a function"
        raise SettingsError(
            f"the references of this run {how}, so nobody here knows how to make others like them for the models "
            f"of this profile; {_STANDARD}"
        )
    views = stated.views or 0
    if stated.by == "row":
        return HeldOut(stated.folds, "row", views=views, view=stated.view)
    train, name = sets.rows["train"], None if job.references is None else job.references.group
    if name is None or not isinstance(train.content, Records) or name not in train.content.columns:
        raise InputError(
            "the folds of this run's references were drawn by group, and [references] group names no column of [data] "
            "train; name the one that they were drawn by"
        )
    parts = [sets.rows[part] for part in ("kept", "retain", "forget") if part in sets.rows]
    groups = tuple(group for part in parts for group in _groups(part, train, name))
    return HeldOut(stated.folds, "group", groups, views, stated.view)


def _groups(part: Rows, train: Rows, name: str) -> list[Any]:
    """Return the group of each row of a set, known by its content; groups that share a row are one, as in the table.

    A row that is no training row any more is in the group that its own column tells, or else in one of its own.
    """
    column = _column(train, name)
    ours, theirs = content_keys(part.content, train.content)
    number = units(theirs, column).tolist()
    known, named = dict(zip(theirs, number, strict=True)), dict(zip(column, number, strict=True))
    alone: list[Any] = [("alone", part.name, at) for at in range(len(part))]
    own = _column(part, name) or alone
    return [known.get(key, named.get(each, each)) for key, each in zip(ours, own, strict=True)]


def _column(rows: Rows, name: str) -> list[str]:
    """Return a column as text: it may be read as numbers in one file and as names in another."""
    found = rows.content.columns.get(name) if isinstance(rows.content, Records) else None
    return [] if found is None else [str(each) for each in found.tolist()]


def _one_training(read: JobAudit, progress: Progress) -> float:
    """Return about how long the training of one model takes."""
    if read.sets.kept is None or read.training is None:
        return 0.0
    learnt = sum(len(part) for part in (read.sets.forget, read.sets.kept, read.sets.retain) if part is not None)
    return seconds_a_training(read.training, read.sets.kept, learnt, progress, forward=read.loaded.forward)
