"""`forsaken unlearn job.toml`: read what a job names, unlearn, judge, clean, certify."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from forsaken._files import copy_path, draft_of, write_atomically
from forsaken._keys import (
    key_warning,
    new_record_key,
    read_public_key,
    read_record_key,
    read_signing_key,
    write_record_key,
)
from forsaken._random import Purpose, generator
from forsaken.auditing.alarms import told_if_moved
from forsaken.auditing.judgement import Judgement, Posteriors, compare, correct, judge
from forsaken.data.record_hashes import record_hashes
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import ForsakenError, ModelError, NotHeldOutError, OutputError, SettingsError
from forsaken.jobs.after import extension_of, stop_returned
from forsaken.jobs.certificate import FILE as CERTIFICATE
from forsaken.jobs.certificate import (
    BothWeights,
    Certificate,
    ReadAs,
    Weights,
    extend,
    file_hash,
    find_previous,
    make_certificate,
)
from forsaken.jobs.cleaning import clean
from forsaken.jobs.code import UserModel
from forsaken.jobs.configuration import Job, by_curvature, by_references, method_of, target_of, trains_again
from forsaken.jobs.disclosure import pooled, without_records
from forsaken.jobs.formats import Format, load_model
from forsaken.jobs.output import ARRAYS, MASK, RECORD_KEY, REFERENCES_KEY, RESULT, check_there, weights_name
from forsaken.jobs.references import (
    Table,
    hand_on,
    key_place,
    table_for,
    training_of,
    training_problems,
    when_it_pays,
    without_table,
)
from forsaken.jobs.rows import Reader
from forsaken.jobs.sets import JobSets, prepared_for, prepared_rows, read_sets
from forsaken.jobs.stays import forgotten_by_removal, measured_again, what_stays, without_vocabulary
from forsaken.models.logits import Forward, as_module, posteriors
from forsaken.models.train import Training
from forsaken.models.weights import changes, drift, same_state
from forsaken.oracles.shadow import ShadowOracle, top_posteriors
from forsaken.progress import step
from forsaken.provenance import provenance
from forsaken.references.curvature import ROWS, Curvature, needs_single_rows
from forsaken.references.table import References
from forsaken.result import (
    ChainRequest,
    Cleaning,
    Counts,
    LayerChange,
    OracleQuality,
    RequestFacts,
    Result,
    SampleTable,
    TargetClaim,
)
from forsaken.types import Array, Progress, Tick, silent
from forsaken.unlearning.base import Unlearned
from forsaken.unlearning.forsaken.method import GAUSS_NEWTON, SMALL
from forsaken.unlearning.forsaken.parameters import choose
from forsaken.unlearning.forsaken.targets import BY_REFERENCES, claim_of
from forsaken.unlearning.stops import stop_accuracy_loss, stop_unknown_answers
from forsaken.verdict import ACCURACY_LOSS, LEAST_RECORDS, YARDSTICKS, Evidence, decide

STAGE = "judge"
JUDGED = ("forget", "kept", "test", "reference")  # the sets whose posteriors models are judged by
STEPS = 3 * len(JUDGED)  # of the model before, the model after and a retrained one
_MODEL = UserModel("it was to forget", memory="in [method] give a batch_size, a smaller history, or fewer parameters")


_REMEDY = "run forsaken audit --profile full, or give [references], or [oracle] retrained"  # of a verdict
_UNLIKE = 0.9  # AUC of telling references from retrained models, from which on they are no yardstick
_HARDLY = 0.5  # of the distance to the targets: a method that leaves more of it has hardly moved the samples


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job with everything that it names read: the model, the sets, the oracle and the table of references."""

    job: Job
    loaded: Format
    sets: JobSets
    oracle: ShadowOracle | None
    table: Table | None

    @property
    def test_labels(self) -> Array | None:
        """The true classes of the test samples, where they are known."""
        test = self.sets.test
        return None if test is None or test.labels is None else test.labels.numpy()


@dataclass(frozen=True, slots=True)
class OutOfFold:
    """What models that never saw the forgotten samples answer, by a table of references.

    Attributes
    ----------
    posteriors : array, shape (samples, classes)
        One row a forgotten sample.
    spread : float or None
        See `References.spread`.
    claimed : bool
        Whether some of the answers were handed in.
    worth : float or None
        See `References.worth_now`.
    """

    posteriors: Array
    spread: float | None
    claimed: bool
    worth: float | None = None

    @classmethod
    def of(cls, references: References, forget: Samples) -> OutOfFold | None:
        """Look the samples up; None where some are not in the table."""
        try:
            logits = references.logits(Samples(forget.inputs))
        except NotHeldOutError:
            return None
        claimed = references.claimed_among(Samples(forget.inputs)) > 0
        return cls(logits.double().softmax(1).numpy(), references.spread, claimed, references.worth_now)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run wrote: its result, its certificate, and where the new weights are."""

    result: Result
    certificate: Certificate
    weights: Path


def prepare_job(job: Job, progress: Progress = silent) -> Prepared:
    """Read everything that a job names."""
    with step(progress, "read the model"):
        loaded = load_model(job)
    with step(progress, "read the data"):
        sets = read_sets(job, loaded, Reader(job, progress))
    table = None if job.references is None else table_for(job, loaded, len(sets.classes))
    return Prepared(job, loaded, sets, oracle_of(job, sets, loaded), table)


def oracle_of(job: Job, sets: JobSets, loaded: Format) -> ShadowOracle | None:
    """Return the oracle that the job names: read from its file, or fitted on its shadow model."""
    settings = job.oracle
    if settings is None or (settings.file is None and settings.weights is None):
        return None
    if settings.file is not None:
        oracle = ShadowOracle.load(job.resolve(settings.file))
    else:
        shadow = load_model(job, job.resolve(str(settings.weights)))
        parts = prepared_for(job, shadow, sets)
        oracle = ShadowOracle.fit(
            shadow.model,
            members=Samples(parts["shadow_members"].inputs),
            nonmembers=Samples(parts["shadow_nonmembers"].inputs),
            forward=loaded.forward,
            seed=job.method.seed,
        )
    if oracle.classes != len(sets.classes):
        raise SettingsError(
            f"the oracle's shadow model had {oracle.classes} classes, the model has {len(sets.classes)}; fit an oracle "
            "on a shadow of this model"
        )
    return oracle


def unlearn_prepared(ready: Prepared, progress: Progress = silent, **changed: Any) -> Unlearned[Any]:
    """Run the job's method, with `changed` settings."""
    job, sets = ready.job, ready.sets
    if ready.table is not None and by_references(job):
        ready.table.check_held(job, sets.forget)
    # What to do in a job file about an error of a method, by the argument that the error is about.
    remedies = {
        "reference": f"name some in [data] reference; forsaken unlearn {job.path} --dry-run says what can serve",
        "curvature": "name all training data in [data] train, or add [references] and run: forsaken references fit "
        f"{job.path}"
        if job.references is None
        else "name the table of references that lies beside these weights, or measure the curvature anew with: "
        + extension_of(job),
    }
    try:
        with _MODEL:
            start = time.perf_counter()
            curvature, notes = _curvature(ready, progress)
            measured = time.perf_counter() - start
            found = method_of(job, **changed)(
                ready.loaded.model,
                sets.forget,
                sets.reference,
                sets.retain,
                references=None if ready.table is None else ready.table.table,
                curvature=curvature,
                training=_training(ready),
                forward=ready.loaded.forward,
                seed=job.method.seed,
                progress=progress,
            )
            details = replace(found.details, notes=(*notes, *found.details.notes))
            return replace(found, seconds=found.seconds + measured * (curvature is not None), details=details)
    except ForsakenError as error:
        if error.field not in remedies or not error.remedy:
            raise
        raise error.with_remedy(remedies[error.field]) from error


def _curvature(ready: Prepared, progress: Progress) -> tuple[Curvature | None, list[str]]:
    """Measure the curvature of the model on some of its training data, for a method that goes by it without a table.

    None where the job goes by samples, and, with a note, where a curvature would serve the model no better or cannot be
    measured in a short time.
    """
    job, loaded = ready.job, ready.loaded
    if not by_curvature(job):
        return None, []
    rows, method = ready.sets.rows["train"], method_of(job)
    free = choose(as_module(loaded.model), getattr(method, "parameters", None))
    asked = getattr(method, "optimiser", None) == GAUSS_NEWTON
    why = "the model has few weights for what it has learnt"
    if asked or sum(weight.numel() for weight in free.values()) >= SMALL * len(rows) * len(ready.sets.classes):
        draw = generator(job.method.seed, Purpose.JOB_CURVED_ROWS)
        drawn = np.sort(draw.permutation(len(rows))[:ROWS])
        samples = Samples(prepared_rows(job, loaded, rows.take(drawn)).inputs)
        why = "it would take a pass for each row"
        try:
            if asked or not needs_single_rows(loaded.model, samples, forward=loaded.forward):
                found = Curvature.fit(loaded.model, samples, forward=loaded.forward, progress=progress)
                # `share` tells how much the model has learnt; here these rows are a sample already.
                return replace(found, share=found.share * len(drawn) / len(rows)), []
        except (ModelError, RuntimeError):  # its text may show what a user's own code says of a record
            why = "none can be measured of this model"
    return None, [f"the curvature of the training data was not measured ({why}): samples held the other answers"]


def _training(ready: Prepared) -> Training | None:
    """Return how the model was trained, for a method that trains it again; None for any other method."""
    job = ready.job
    if not trains_again(job):
        return None
    if problems := training_problems(job, "name another [method]"):
        raise SettingsError.of(str(job.path), problems)
    training = training_of(job, ready.loaded)
    return training if isinstance(training, Training) else None  # an estimator is fitted by its own fit


def run_job(job: Job, folder: Path, progress: Progress = silent, *, key_file: Path | None = None) -> Outcome:
    """Run a job and write its results, all but the page, to the empty `folder`. See `forsaken.jobs.output`.

    The records are hashed with the key that the job names, or else with that of `key_file` (of an earlier run, whose
    certificate could not be checked without it), or else with a new one.
    """
    begun = time.perf_counter()
    check_there(job)
    old, goal = job.resolve(job.model.weights), folder / weights_name(job)
    key, warnings = _record_key(job, folder, key_file)
    signing = None if job.output.signing_key is None else read_signing_key(job.resolve(job.output.signing_key))
    previous, signer = request_before(job, signing)
    if previous is not None and signer is None:
        warnings.append(
            "nobody checked who signed the certificate of the request before, and this chain takes its drift and "
            "accuracy from there; give signing_key in [output], or the signer's public key in [chain] signers"
        )
    ready = prepare_job(job, progress)
    warnings += stop_returned(job, ready.sets.rows, previous)
    start = without_vocabulary(job, ready.loaded, ready.sets)
    smaller = replace(ready, loaded=start.loaded, sets=start.sets)
    unlearned = forgotten_by_removal(start, unlearn_prepared(smaller, progress))
    measured = 0 if unlearned.stopped == "not-memorised" else measured_again(job, start, unlearned.model)
    answers = _answers(ready, start.sets, unlearned.model, progress)
    stop_damage(ready, answers)
    _write_weights(smaller, unlearned, old, goal, unchanged=not start.removed)
    found = judge_prepared(ready, answers)
    held_out = None if ready.table is None else OutOfFold.of(ready.table.table, ready.sets.forget)
    warnings += doubts(ready, found)
    strange = "" if target_of(job) == "corrected" else not_learnt(ready.sets.forget, answers["before"]["forget"])
    if strange:
        warnings.append(f"{strange}; the verdict leaves them out: give the labels that were learnt")
    moved = drift(as_module(ready.loaded.model), as_module(unlearned.model))
    link = ChainRequest(
        number=1,
        time=provenance()["time"],
        forgotten=len(ready.sets.forget),
        drift=moved,
        accuracy_before=found.accuracy_before,
        accuracy_after=found.accuracy_after,
        certificate=None,
    )
    chain = extend(
        previous,
        link,
        signer=signer,
        max_drift=job.chain.max_drift,
        max_accuracy_loss=job.chain.max_accuracy_loss,
    )
    cleaned = clean(job, ready.sets.rows, folder, warnings, progress)
    done, stays = what_stays(job, start, measured)
    notes, stated = [*ready.sets.notes, *unlearned.notes, *done], None
    if ready.table is not None:
        handed_on = hand_on(ready.table, job, ready.loaded, ready.sets, unlearned.model, folder, progress)
        stated, notes, warnings = handed_on[0], notes + handed_on[1], warnings + handed_on[2]
        notes += when_it_pays(ready.table.table, unlearned.seconds) if by_references(job) else []
    hashes = record_hashes(ready.sets.rows["forget"].content, key)
    request, late = _request(job)
    warnings += [*late, *without_table(job)]
    result = build_result(
        ready.loaded.model,
        unlearned,
        found,
        answers,
        ready.oracle,
        method={"name": job.method.name, **method_of(job).settings},
        hashes=hashes,
        # The labels of "corrected" are the true ones, not those learnt.
        learnt=None if strange or target_of(job) == "corrected" else ready.sets.forget,
        test_labels=ready.test_labels,
        references=held_out,
        remedy=_REMEDY,
        removed=bool(start.removed),
        task=job.folder.resolve().name or "job",
        seed=job.method.seed,
        speedup=None,
        counts=_counts(ready.sets, found),
        classes=list(ready.sets.classes),
        oracle=_quality(ready.oracle, answers["before"]),
        chain=chain.summary(),
        cleaning=None if cleaned is None else Cleaning(**cleaned),
        request=request,
        facts={**unlearned.details.facts, "drift": moved},
        notes=notes,
        warnings=warnings,
        stays=stays,
        job=job.to_dict(),
    )
    public = without_records(result)  # what others are handed, whatever the folder keeps
    result = result if job.output.per_record else public
    write_posteriors(folder / ARRAYS, answers, per_record=job.output.per_record)
    result.write(folder / RESULT)
    kept = job.output.mask and unlearned.stopped != "not-memorised"
    if kept:
        unlearned.mask.save(folder / MASK)
    certificate = make_certificate(
        public,
        BothWeights(old=Weights.of(old, ready.loaded.name), new=Weights.of(goal, ready.loaded.name)),
        hashes,
        chain,
        read_as=_read_as(ready),
        total_seconds=time.perf_counter() - begun,
        mask_kept=kept,
        references=stated,
        files=_written(folder, goal),
    )
    if signing is not None:
        certificate = certificate.sign(signing)
    certificate.write(folder / CERTIFICATE)
    return Outcome(result, certificate, goal)


def request_before(job: Job, signing: Ed25519PrivateKey | None) -> tuple[Certificate | None, str | None]:
    """Return the certificate of the request before, if there was one, and the id of the known key that signed it."""
    named = None if job.chain.previous is None else job.resolve(job.chain.previous)
    anyone = job.chain.signers == "anyone"
    keys = [] if anyone else [read_public_key(job.resolve(text)) for text in job.chain.signers]
    keys += [] if signing is None else [signing.public_key()]
    previous = find_previous(job.resolve(job.model.weights), named, keys, anyone=anyone)
    return previous, None if previous is None else previous.signer(keys)


def answers_of(
    model: object, parts: Mapping[str, Samples], forward: Forward | None, progress: Progress, done: int
) -> dict[str, Array]:
    """Return a model's posteriors on every set that models are judged by; `done` steps of the bar are done already."""
    found = {}
    for name in JUDGED:
        if name in parts:
            found[name] = posteriors(model, Samples(parts[name].inputs), forward=forward)
            done += 1
            progress(Tick(STAGE, done, STEPS))
    return found


def judge_prepared(ready: Prepared, answers: Mapping[str, Mapping[str, Array]]) -> Judgement:
    """Return the numbers of a run from the posteriors of its models."""
    labels = ready.sets.forget.labels
    return judge(
        answers["before"],
        answers["after"],
        answers.get("retrained"),
        oracle=ready.oracle,
        test_labels=ready.test_labels,
        forget_labels=None if labels is None else labels.numpy(),
    )


def stop_damage(ready: Prepared, answers: Mapping[str, Posteriors]) -> None:
    """Stop where the model before does not know its own training data, or the accuracy falls too far.

    Without a model after in `answers`, as in a dry run, only the former is looked at.
    """
    allow = ready.job.output.allow
    for name, what in (("kept", "training samples"), ("test", "test samples")):
        part = ready.sets.get(name)
        if part is None or part.labels is None:
            continue
        labels = part.labels.numpy()
        right = {model: correct(answers[model][name], labels) for model in ("before", "after") if model in answers}
        if name == "kept":
            stop_unknown_answers(right["before"], labels, what, allow)
        if "after" in right:
            stop_accuracy_loss(right["before"], right["after"], what, allow)


def not_learnt(forget: Samples, before: Array) -> str:
    """Return a sentence where the model before gives fewer than half of the forget samples their labels; else nothing.

    `before` are the posteriors of the model before.
    """
    if forget.labels is None:
        return ""
    right = int(correct(before, forget.labels.numpy()).sum())
    if 2 * right >= len(before):
        return ""
    return (
        f"the model before gives only {right} of the {len(before)} records to forget the labels that stand there, so "
        "that these are hardly the labels it was trained with"
    )


def doubts(ready: Prepared, found: Judgement) -> list[str]:
    """Return a warning where the test accuracy suggests that labels or inputs are not as they were in training."""
    truth = ready.test_labels
    if truth is None or found.accuracy_before is None:
        return []
    share = float(np.bincount(truth).max() / len(truth))
    if found.accuracy_before > share:
        return []
    return [
        f"the test accuracy before is {found.accuracy_before:.3f}, no better than naming the most frequent class "
        f"({share:.3f}): are the labels numbered, and the inputs prepared, as in the training?"
    ]


def build_result(
    before: object,
    unlearned: Unlearned[Any],
    found: Judgement,
    answers: Mapping[str, Mapping[str, Array]],
    scorer: ShadowOracle | None,
    *,
    method: Mapping[str, Any],
    hashes: list[str] | None = None,
    learnt: Samples | None = None,
    test_labels: Array | None = None,
    references: OutOfFold | None = None,
    remedy: str = YARDSTICKS,
    removed: bool = False,
    counts: Counts,
    **others: Any,
) -> Result:
    """Build the result of a request, in a job or in the demonstration.

    Parameters
    ----------
    before : Module or estimator
        The model before the request.
    unlearned, found : Unlearned, Judgement
        What the method did, and the numbers it is judged by.
    answers : mapping of str to mapping
        Posteriors by model ("before", "after") and set.
    scorer : ShadowOracle or None
        Scores the forgotten samples one by one; without it their scores are the largest posteriors.
    method : mapping
        The name and the settings of the method.
    hashes : list of str, optional
        A keyed hash of each forgotten record; the result has the first 12 digits.
    learnt : Samples, optional
        The forgotten samples with the labels that were learnt; None where their labels are not those.
    test_labels : int array, optional
        The true classes of the test samples.
    references : OutOfFold, optional
        The yardstick of the verdict where `answers` has no retrained model.
    remedy : str
        What the verdict advises where there is no yardstick.
    removed : bool
        Whether entries left a vocabulary before the method began: the model is another one, whatever the method did.
    counts : Counts
        All but `memorised_after`, which is counted here.
    **others
        The fields of `Result` that only the caller knows.
    """
    old, new = answers["before"]["forget"], answers["after"]["forget"]
    score = (lambda rows: rows.max(1)) if scorer is None else scorer.score_posteriors
    changed = changes(as_module(before), as_module(unlearned.model))
    return Result(
        **{name: value for name, value in found if name in Result.model_fields},
        seconds=unlearned.seconds,
        mask_density=unlearned.density,
        iterations=unlearned.iterations,
        evaluations=unlearned.evaluations,
        stopped=unlearned.stopped,
        layers=[LayerChange(name=name, changed=count, total=total) for name, (count, total) in changed.items()],
        samples=SampleTable(
            score="confidence" if scorer is None else "oracle",
            row=list(range(len(old))),
            hash=None if hashes is None else [text[:12] for text in hashes],
            class_before=old.argmax(1).tolist(),
            class_after=new.argmax(1).tolist(),
            confidence_before=old.max(1).tolist(),
            confidence_after=new.max(1).tolist(),
            score_before=score(old).tolist(),
            score_after=score(new).tolist(),
        ),
        counts=counts.model_copy(
            update={"memorised_after": None if scorer is None else int((score(new) > scorer.threshold).sum())}
        ),
        target=TargetClaim(**asdict(claim_of(method["name"], unlearned.details.facts))),
        settings=dict(method),
        history=list(unlearned.history),
        provenance=provenance(),
        verdict=decide(
            evidence_of(
                unlearned,
                found,
                answers,
                scorer,
                method=str(method["name"]),
                learnt=learnt,
                test_labels=test_labels,
                references=references,
                remedy=remedy,
                removed=removed,
            )
        ),
        **others,
    )


def evidence_of(
    unlearned: Unlearned[Any],
    found: Judgement,
    answers: Mapping[str, Posteriors],
    oracle: ShadowOracle | None,
    *,
    method: str,
    learnt: Samples | None,
    test_labels: Array | None,
    references: OutOfFold | None,
    remedy: str = YARDSTICKS,
    removed: bool = False,
) -> Evidence:
    """Return what the verdict on a run rests on; the parameters are those of `build_result`."""
    facts, apart, count = unlearned.details.facts, found.separation, len(answers["after"]["forget"])
    labels = None if learnt is None or learnt.labels is None else learnt.labels.numpy()
    usual: list[Posteriors] = []
    spread, yardstick, doubt = None, "", ""
    if "retrained" in answers:
        usual, yardstick = [answers["retrained"]], "a retrained model"
    elif references is not None:
        usual, spread = [{"forget": references.posteriors}], references.spread
        yardstick = "reference models that never saw the samples"
        if references.claimed:
            doubt = "The references were handed in, so nothing here proves that their models never saw the samples."
        elif references.worth is not None and references.worth >= _UNLIKE:
            doubt = (
                "An attack would tell these reference models themselves from retrained ones with an AUC of about "
                f"{references.worth:.2f}, so answering like them shows little: were they trained as the model was?"
            )
        else:
            doubt = _accuracy_fell(answers, test_labels)
    moved = ""
    if apart is not None and apart.against == "reference" and facts.get("target") not in BY_REFERENCES:
        moved = told_if_moved(apart.before, apart.after, apart.retrained, count, apart.n)
    unchanged = f"The method {method} changed no weight, so the model remembers as much as before."
    return Evidence(
        compare(
            answers["before"],
            answers["after"],
            usual,
            oracle=oracle,
            forget_labels=labels,
            test_labels=test_labels,
            spread=spread,
        ),
        yardstick=yardstick,
        unchanged="" if unlearned.density or removed else unchanged,
        moved_away=moved,
        own=_own_measure(unlearned, count, removed=removed and not unlearned.density),
        doubt=doubt,
        remedy=remedy,
        records=count,
    )


def _accuracy_fell(answers: Mapping[str, Posteriors], labels: Array | None) -> str:
    """Return that the test accuracy fell further than allowed or than chance explains, as a sentence, or nothing."""
    if labels is None or "test" not in answers["after"]:
        return ""
    before, after = (float(correct(answers[model]["test"], labels).mean()) for model in ("before", "after"))
    lost, chance = before - after, 1.96 * (before * (1 - before) / len(labels)) ** 0.5
    if lost <= max(ACCURACY_LOSS, chance):
        return ""
    return (
        f"The test accuracy fell by {100 * lost:.1f} points, and no retrained model tells whether forgetting these "
        "samples has to cost as much."
    )


def _own_measure(unlearned: Unlearned[Any], records: int, *, removed: bool) -> str:
    """Return how far a method came by its own measure, as a sentence; empty where it has none.

    Of few records no number is told. `removed`: vocabulary entries left the model, and nothing was left to do.
    """
    facts = unlearned.details.facts
    before, after, bound = (facts.get(name) for name in ("distance_before", "distance_after", "calibrated"))
    if not before or after is None:
        return ""
    if unlearned.stopped == "not-memorised" or removed:
        once = "Once their vocabulary entries were gone, the" if removed else "By the method's own measure the"
        measure = " by the method's own measure" if removed else ""
        near = "" if bound is None else f", that of samples never trained on {bound:.2g}"
        where = f": the distance to their targets is {before:.2g}{near}" if records >= LEAST_RECORDS else ""
        return f"{once} samples are not memorised{measure}{where}."
    hardly = "hardly came nearer" if after > _HARDLY * before else "came nearer"
    left = f": {after / before:.0%} of the distance is left" if records >= LEAST_RECORDS else ""
    return f"The samples {hardly} to the method's own targets{left}."


def write_posteriors(path: Path, answers: Mapping[str, Mapping[str, Array]], *, per_record: bool) -> None:
    """Write what the report draws of the posteriors, by model and set.

    With `per_record` these are the largest posteriors of each sample, and else only what a histogram shows of them.
    """
    arrays = {}
    for name, view in answers.items():
        for part, rows in view.items():
            values = top_posteriors(rows) if per_record else pooled(rows.max(1))
            if values is not None:
                arrays[f"{name}_{part}"] = values.reshape(len(values), -1)
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)  # type: ignore[arg-type]
    write_atomically(path, packed.getvalue())


def _record_key(job: Job, folder: Path, earlier: Path | None) -> tuple[bytes, list[str]]:
    """Return the key for the hashes of records, written to `folder` unless the job names one, and warnings."""
    named = None if job.output.record_key is None else job.resolve(job.output.record_key)
    if job.references is not None:
        named = key_place(job)  # one key, so that hashes in the certificate and in the table can be compared
    warning = None if named is None else key_warning(named)
    known = named or earlier
    key = new_record_key() if known is None else read_record_key(known)
    if job.output.record_key is None:
        write_record_key(folder / RECORD_KEY, key)
    return key, [] if warning is None else [warning]


def _write_weights(ready: Prepared, unlearned: Unlearned[Any], old: Path, goal: Path, *, unchanged: bool) -> None:
    """Write the new weights, and read them again: the file must hold the model that is judged.

    Equal weights are a copy of the file, where what stands around them is `unchanged`.
    """
    if unchanged and same_state(as_module(unlearned.model), as_module(ready.loaded.model)):
        copy_path(old, goal)
        return
    try:
        with draft_of(goal) as draft:
            ready.loaded.write(unlearned.model, draft)
    except ForsakenError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise OutputError(f"the new weights cannot be written ({type(error).__name__}: {error})") from error
    again = load_model(ready.job, goal)
    if not same_state(as_module(again.model), as_module(unlearned.model)):
        raise OutputError(
            "the new weights differ from the model's when they are read again, so nothing was kept; does the factory "
            "change the weights after they are loaded?"
        )


def _answers(ready: Prepared, taken: JobSets, after: object, progress: Progress) -> dict[str, dict[str, Array]]:
    """Return the posteriors of the model before, the model after and, where the job names one, a retrained model.

    `taken` are the sets as the model after takes them.
    """
    job, sets, forward = ready.job, ready.sets, ready.loaded.forward
    found = {
        "before": answers_of(ready.loaded.model, sets.parts, forward, progress, 0),
        "after": answers_of(after, taken.parts, forward, progress, len(JUDGED)),
    }
    other = retrained_of(job, ready.loaded)
    if other is not None:
        found["retrained"] = answers_of(other.model, prepared_for(job, other, sets), forward, progress, 2 * len(JUDGED))
        if found["retrained"]["forget"].shape != found["before"]["forget"].shape:
            raise SettingsError("[oracle] retrained has other classes than the model; name one trained like it")
    progress(Tick(STAGE, STEPS, STEPS))
    return found


def retrained_of(job: Job, loaded: Format) -> Format | None:
    """Return the retrained model that the job names, where it names one; it must not be the model itself."""
    if job.oracle is None or job.oracle.retrained is None:
        return None
    other = load_model(job, job.resolve(job.oracle.retrained))
    if same_state(as_module(other.model), as_module(loaded.model)):
        raise SettingsError(
            "[oracle] retrained holds the weights of the model that is to forget",
            field="retrained",
            expected="a model that was trained in the same way without the records to forget",
            remedy="name that one, or leave retrained out",
        )
    return other


def _request(job: Job) -> tuple[RequestFacts | None, list[str]]:
    """Return the case number and the day it is due, where the job tells them, and a warning if that day has passed."""
    case, due = job.request.case, job.request.due
    if case is None and due is None:
        return None, []
    found = RequestFacts(case=case, due=None if due is None else due.isoformat())
    late = 0 if due is None else (datetime.now(UTC).date() - due).days
    days = "1 day" if late == 1 else f"{late} days"
    return found, [f"the request was due on {due}, {days} before this run"] if late > 0 else []


def _written(folder: Path, weights: Path) -> dict[str, str]:
    """Return the SHA-256 by name of what lies in the folder beside the weights; keys and the mask are left out."""
    private = {weights.name, RECORD_KEY, REFERENCES_KEY, MASK}
    return {path.name: file_hash(path) for path in sorted(folder.iterdir()) if path.name not in private}


def _counts(sets: JobSets, found: Judgement) -> Counts:
    size = {name: len(part) for name, part in sets.parts.items()}
    return Counts(
        forget=size["forget"],
        memorised_before=found.memorised_before,
        reference=size.get("reference", 0),
        retain=size.get("retain", 0),
        train=len(sets.rows["train"]) if "train" in sets.rows else None,
        test=size.get("test", 0),
        kept_judged=size.get("kept", 0),
        kept_members_before=found.kept_members_before,
    )


def _quality(oracle: ShadowOracle | None, before: Mapping[str, Array]) -> OracleQuality | None:
    """Return how well the oracle tells kept training samples from test samples; None where one of them is missing."""
    if oracle is None or not {"kept", "test"} <= set(before):
        return None
    return OracleQuality.model_validate(oracle.evaluate_posteriors(before["kept"], before["test"]).to_dict())


def _read_as(ready: Prepared) -> ReadAs | None:
    """Return how the records to forget were read, so that others can read a file of records in the same way."""
    job, forget = ready.job, ready.sets.rows["forget"]
    if not isinstance(forget.content, Records) or forget.path is None:
        return None
    group = None if job.references is None else job.references.group
    found = ReadAs(label=job.data.label, id=job.data.id, size=job.data.size, group=group)
    fields = forget.content.fields
    return found.model_copy(update={"features": fields}) if fields else found
