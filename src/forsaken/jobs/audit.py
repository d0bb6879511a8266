"""The audit of a job's run: from the job file and the run's folder to `forsaken.audit`, and its result on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from forsaken._files import write_atomically
from forsaken.auditing.call import REFERENCES, audit
from forsaken.auditing.result import PROFILES, Audit, Profile
from forsaken.errors import ForsakenError, InputError, ModelError, OutputError, SettingsError, UnknownNameError
from forsaken.jobs.certificate import Certificate, file_hash, settings_hash
from forsaken.jobs.code import inherited
from forsaken.jobs.evidence import Evidence, is_corrected, read_evidence
from forsaken.jobs.files import AUDIT, AUDIT_MODELS, CERTIFICATE, weights_name
from forsaken.jobs.formats import PROGRAM, SKOPS
from forsaken.jobs.method import by_references, method_of
from forsaken.jobs.remedies import in_job_words
from forsaken.jobs.repeating import held_out_of
from forsaken.jobs.settings import LEAST, MOST, Job
from forsaken.metrics import FEW
from forsaken.models.logits import told
from forsaken.types import Progress, silent

_RECIPE = "recipe = { epochs = 20, batch_size = 64, learning_rate = 1e-3 }"


@dataclass(frozen=True, slots=True)
class Plan:
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
        How many references or originals are trained; 0 for "quick".
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
        """How many references the originals of a full audit need at most; 0 where the run went by none."""
        stated = self.certificate.references
        return (
            0 if self.profile != "full" or stated is None or not by_references(self.job) else self.models * stated.folds
        )

    @property
    def trainings(self) -> int:
        """How many models are trained; where the run went by references, at most."""
        return self.models if self.profile != "full" else 3 * self.models + self.references

    @property
    def unlearnings(self) -> int:
        """How many models are made to forget."""
        return self.models if self.profile == "full" else 0


def plan_audit(job: Job, folder: Path, *, profile: str | None = None, models: int | None = None) -> Plan:
    """Check that a job's run in `folder` can be audited; what the job lacks for it is told at once.

    `profile` and `models` stand in for those of [audit].
    """
    wanted = job.audit.profile if profile is None else profile
    chosen = next((each for each in PROFILES if each == wanted), None)
    if chosen is None:
        raise UnknownNameError("profile", wanted, PROFILES)
    count = job.audit.models if models is None else models
    problems = list(_problems(job, chosen, count))
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise SettingsError(f'{job.path}: the profile "{chosen}" cannot be run as the job stands{listed}')
    certificate = _certificate(job, folder)
    if chosen == "full" and (folder / AUDIT_MODELS).is_symlink():
        raise OutputError(
            f"{folder / AUDIT_MODELS} is a link, expected a folder: what is measured of the models stays in the run's "
            "own folder; remove the link"
        )
    usual = {"quick": 0, "standard": REFERENCES, "full": FEW}[chosen]
    return Plan(job, folder, chosen, usual if count is None or chosen == "quick" else count, certificate)


def audit_job(plan: Plan, progress: Progress = silent, *, engine: str = "local") -> Audit:
    """Audit a run, and write audit.json into its folder. Of the run's own files none is touched."""
    read = evidence_of(plan, progress)
    job, sets = plan.job, read.sets
    held_out = held_out_of(job, plan.certificate, sets) if plan.profile == "full" else None
    try:
        with inherited(job.folder):
            found = audit(
                read.loaded.model,
                read.after,
                sets.forget,
                profile=plan.profile,
                kept=sets.kept,
                retain=sets.retain,
                test=sets.test,
                reference=sets.reference,
                nonmembers=sets.strangers,
                retrained=read.retrained,
                oracle=read.oracle,
                training=read.training,
                method=method_of(job),
                references=held_out,
                models=plan.models or None,
                folder=plan.folder / AUDIT_MODELS,
                engine=engine,
                forward=read.loaded.forward,
                seed=job.method.seed,
                progress=progress,
            )
    except ForsakenError as error:
        told_so = in_job_words(str(error))
        if type(error) not in (InputError, SettingsError) or told_so == str(error):
            raise
        raise type(error)(told_so) from error
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ModelError("there is not enough memory for the audit; train fewer models, or use a GPU") from error
    except Exception as error:  # the model is the user's, and may raise anything
        raise ModelError(f"the model failed while it was audited: {told(error)}") from error
    ties = {
        "weights_sha256": plan.certificate.weights.new.sha256,
        "certificate_sha256": plan.certificate.sha256,
        "notes": sets.notes,
    }
    warnings = (*map(in_job_words, found.warnings), *read.warnings)
    found = replace(found, warnings=warnings, settings={**found.settings, **ties})
    write_atomically(plan.folder / AUDIT, found.to_json().encode() + b"\n")
    return found


def evidence_of(plan: Plan, progress: Progress) -> Evidence:
    """Read what a planned audit needs."""
    return read_evidence(plan.job, plan.folder, plan.certificate, trains=plan.profile != "quick", progress=progress)


def _problems(job: Job, profile: Profile, models: int | None) -> Iterator[str]:
    """Yield what a job lacks for a profile that trains models."""
    if models is not None and (isinstance(models, bool) or not LEAST <= models <= MOST):
        yield f"models is {models!r}, expected a whole number from {LEAST} to {MOST}"
    elif models is not None and profile == "standard" and models % 2:
        yield f"models is {models}, expected an even number: each sample is learnt by one half of the reference models"
    if profile == "quick":
        return
    weights = job.resolve(job.model.weights)
    if weights.is_dir() or weights.suffix.lower() in PROGRAM:
        what = "the folder of a Hugging Face model" if weights.is_dir() else "a .pt2 program"
        yield (
            f"[model] weights is {what}, and nothing in it says how to train another from the start, which this "
            'profile does; profile = "quick" works'
        )
    elif weights.suffix.lower() not in SKOPS and job.audit.recipe is None:
        yield f"[audit] recipe is missing, expected how the model was trained, such as {_RECIPE}"
    if job.data.train is None:
        yield "[data] train is missing, expected all of the training data: models are trained on it anew"
    if job.data.test is None:
        yield "[data] test is missing, expected labelled samples that the model was not trained on"
    if is_corrected(job):
        yield (
            '[method] target is "corrected", so that the forget samples come with their true labels, and this profile '
            'compares by those that were learnt; profile = "quick" works'
        )


def _certificate(job: Job, folder: Path) -> Certificate:
    """Return the certificate of the run in a folder, whose weights must be the ones that it names."""
    if not (folder / CERTIFICATE).is_file():
        raise OutputError(
            f"there is no finished run in {folder}; run forsaken unlearn {job.path} first, or name the folder of its "
            "run with --out"
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
            f"[method] of {job.path} is not what the run in {folder} was made with, so that an audit would be about "
            "something else; restore the job file, or run forsaken unlearn again"
        )
    return certificate
