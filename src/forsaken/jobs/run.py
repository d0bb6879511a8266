"""A job, from its file to its results: read, unlearn, judge, clean, certify."""

from __future__ import annotations

import io
import json
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forsaken._files import write_atomically
from forsaken._keys import key_warning, new_record_key, read_record_key, read_signing_key, write_record_key
from forsaken.data.record_hashes import record_hashes
from forsaken.data.records import Records
from forsaken.errors import ForsakenError, OutputError, SettingsError
from forsaken.jobs.certificate import FILE as CERTIFICATE
from forsaken.jobs.certificate import (
    Certificate,
    Chain,
    Link,
    ReferenceTable,
    Weights,
    extend,
    find_previous,
    make_certificate,
)
from forsaken.jobs.cleaning import clean
from forsaken.jobs.code import UserModel
from forsaken.jobs.configuration import Job, by_references, method_of
from forsaken.jobs.formats import Format, load_model
from forsaken.jobs.judge import STAGE, Views, doubts, look, numbers, oracle_of
from forsaken.jobs.output import ARRAYS, KIND, MASK, RECORD_KEY, RESULT, SCHEMA, check_there, weights_name
from forsaken.jobs.references import HandedOn, Table, hand_on, key_place, table_for
from forsaken.jobs.rows import Reader
from forsaken.jobs.sets import JobSets, prepared_for, read_sets
from forsaken.jobs.summary import layers, sample_table
from forsaken.models.logits import as_module
from forsaken.models.weights import drift, fingerprint
from forsaken.oracles.shadow import ShadowOracle
from forsaken.provenance import provenance
from forsaken.types import Progress, Tick, silent
from forsaken.unlearning.base import Unlearned
from forsaken.unlearning.forsaken.claims import claim_of

_MODEL = UserModel("it was to forget", memory="in [method] give a batch_size, a smaller history, or fewer parameters")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job with everything that it names read: the model, the sets, the oracle and the table of references."""

    job: Job
    loaded: Format
    sets: JobSets
    oracle: ShadowOracle | None
    table: Table | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run wrote, and its result as it stands in the file."""

    result: dict[str, Any]
    certificate: Certificate
    weights: Path


def prepare_job(job: Job, progress: Progress = silent) -> Prepared:
    """Read everything that a job names."""
    check_there(job)
    progress(Tick("read the model", 0, 1))
    loaded = load_model(job)
    progress(Tick("read the model", 1, 1))
    progress(Tick("read the data", 0, 1))
    sets = read_sets(job, loaded, Reader(job, progress))
    progress(Tick("read the data", 1, 1))
    table = None if job.references is None else table_for(job, loaded, len(sets.classes))
    return Prepared(job, loaded, sets, oracle_of(job, sets, loaded), table)


def unlearn_prepared(ready: Prepared, progress: Progress = silent, **changes: Any) -> Unlearned[Any]:
    """Run the job's method, with `changes` to its settings."""
    job, sets = ready.job, ready.sets
    if ready.table is not None and by_references(job):
        ready.table.check_held(job, sets.forget)
    # What to do in a job file about an error of a method, by the argument that the error is about.
    remedies = {
        "reference": f"name some in [data] reference; forsaken unlearn {job.path} --dry-run says what can serve",
        "curvature": "name the table of references that lies beside these weights, or measure the curvature anew with: "
        f"forsaken references extend {job.path}",
    }
    try:
        with _MODEL:
            return method_of(job, **changes)(
                ready.loaded.model,
                sets.forget,
                sets.reference,
                sets.retain,
                references=None if ready.table is None else ready.table.table,
                forward=ready.loaded.forward,
                seed=job.method.seed,
                progress=progress,
            )
    except ForsakenError as error:
        if error.field not in remedies or not error.remedy:
            raise
        raise error.at(remedy=remedies[error.field]) from error


def run_job(job: Job, folder: Path, progress: Progress = silent, *, key_file: Path | None = None) -> Outcome:
    """Run a job and write its results, all but the page, to `folder`, which is empty. See `forsaken.jobs.output`.

    The records are hashed with the key that the job names, or else with that of `key_file` (of an earlier run, whose
    certificate could not be checked without it), or else with a new one.
    """
    start = time.perf_counter()
    if job.references is not None:
        check_there(job)  # before the key of the table, which is of no use without it
    old = job.resolve(job.model.weights)
    key, warnings = _record_key(job, folder, key_file)
    signing = None if job.output.signing_key is None else read_signing_key(job.resolve(job.output.signing_key))
    ready = prepare_job(job, progress)
    previous = find_previous(old, None if job.chain.previous is None else job.resolve(job.chain.previous))
    unlearned = unlearn_prepared(ready, progress)
    goal = folder / weights_name(job)
    _write_weights(ready, unlearned, old, goal)
    views = _views(ready, unlearned.model, progress)
    hashes = record_hashes(ready.sets.rows["forget"].content, key)
    found = numbers(views, ready.oracle, ready.sets)
    warnings += doubts(found, ready.sets)
    memorised, kept = found.pop("memorised_before"), found.pop("kept_members_before")
    moved = drift(as_module(ready.loaded.model), as_module(unlearned.model))
    link = Link(
        number=1,
        time=provenance()["time"],
        forgotten=len(ready.sets.forget),
        drift=moved,
        accuracy_before=found["accuracy_before"],
        accuracy_after=found["accuracy_after"],
        certificate=None,
    )
    limits = {"max_drift": job.chain.max_drift, "max_accuracy_loss": job.chain.max_accuracy_loss}
    chain = extend(previous, link, **limits)
    cleaned = clean(job, ready.sets.rows, folder, warnings, progress)
    handed_on = _handed_on(ready, unlearned.model, folder, progress)
    warnings += [] if handed_on is None else handed_on.warnings
    result = {
        "schema": SCHEMA,
        "kind": KIND,
        "task": job.folder.resolve().name or "job",
        "seed": job.method.seed,
        **found,
        **_details(ready, unlearned, views, hashes, [] if handed_on is None else handed_on.notes),
        "speedup": None,
        "counts": _counts(ready.sets) | {"memorised_before": memorised, "kept_members_before": kept},
        "chain": chain.to_dict(),
        "cleaning": cleaned,
        "warnings": warnings,
        "job": job.to_dict(),
        "provenance": provenance(),
    }
    result["facts"] = {**result["facts"], "drift": moved}
    _write_result(folder, result, views)
    changed = unlearned.stopped != "not-memorised"
    if job.output.mask and changed:
        unlearned.mask.save(folder / MASK)
    stated = None if handed_on is None else handed_on.stated
    took = time.perf_counter() - start
    certificate = _certificate(ready, unlearned, chain, hashes, result, (old, goal), took, stated)
    if signing is not None:
        certificate = certificate.sign(signing)
    certificate.write(folder / CERTIFICATE)
    return Outcome(result, certificate, goal)


def _record_key(job: Job, folder: Path, earlier: Path | None) -> tuple[bytes, list[str]]:
    named = None if job.output.record_key is None else job.resolve(job.output.record_key)
    if job.references is not None:
        named = key_place(job)  # one key, so that the hashes of the certificate go by the one of the table
    warning = None if named is None else key_warning(named)
    known = named or earlier
    key = new_record_key() if known is None else read_record_key(known)
    if job.output.record_key is None:
        write_record_key(folder / RECORD_KEY, key)
    return key, [] if warning is None else [warning]


def _write_weights(ready: Prepared, unlearned: Unlearned[Any], old: Path, goal: Path) -> None:
    """Write the new weights, and read them again: what is on the disk is what was judged."""
    if fingerprint(as_module(unlearned.model)) == fingerprint(as_module(ready.loaded.model)):
        (shutil.copytree if old.is_dir() else shutil.copyfile)(old, goal)
        return
    try:
        ready.loaded.write(unlearned.model, goal)
    except ForsakenError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise OutputError(f"the new weights cannot be written ({type(error).__name__}: {error})") from error
    again = load_model(ready.job, goal)
    if fingerprint(as_module(again.model)) != fingerprint(as_module(unlearned.model)):
        raise OutputError(
            "the new weights differ from the model's when they are read again, so nothing was kept; does the factory "
            "change the weights after they are loaded?"
        )


def _views(ready: Prepared, after: object, progress: Progress) -> Views:
    sets, forward = ready.sets, ready.loaded.forward
    first = look(ready.loaded.model, sets.parts, forward, progress, 0)
    second = look(after, sets.parts, forward, progress, 4)
    oracle = ready.job.oracle
    third = None
    if oracle is not None and oracle.retrained is not None:
        other = load_model(ready.job, ready.job.resolve(oracle.retrained))
        third = look(other.model, prepared_for(ready.job, other, sets), forward, progress, 8)
    progress(Tick(STAGE, 12, 12))
    if third is not None and third["forget"].shape != first["forget"].shape:
        raise SettingsError("[oracle] retrained has other classes than the model; name one trained like it")
    return Views(first, second, third)


def _handed_on(ready: Prepared, after: Any, folder: Path, progress: Progress) -> HandedOn | None:
    if ready.table is None:
        return None
    return hand_on(ready.table, ready.job, ready.loaded, ready.sets, after, folder, progress)


def _details(
    ready: Prepared, unlearned: Unlearned[Any], views: Views, hashes: list[str], notes: list[str]
) -> dict[str, Any]:
    job, sets = ready.job, ready.sets
    before, after = views.before["forget"], views.after["forget"]
    if ready.oracle is None:
        kind, scores = "confidence", (before.max(1), after.max(1))
    else:
        kind, scores = "oracle", (ready.oracle.score_posteriors(before), ready.oracle.score_posteriors(after))
    facts = dict(unlearned.details.facts)
    return {
        "seconds": unlearned.seconds,
        "mask_density": unlearned.density,
        "iterations": unlearned.iterations,
        "evaluations": unlearned.evaluations,
        "stopped": unlearned.stopped,
        "classes": list(sets.classes),
        "layers": layers(ready.loaded.model, unlearned.model),
        "samples": sample_table(before, after, kind, *scores, hashes=hashes),
        "target": claim_of(job.method.name, facts).to_dict(),
        "facts": facts,
        "notes": [*sets.notes, *unlearned.notes, *notes],
        "settings": {"name": job.method.name, **method_of(job).settings},
        "history": [asdict(step) for step in unlearned.history],
    }


def _counts(sets: JobSets) -> dict[str, int | None]:
    train = sets.rows.get("train")
    return {
        "forget": len(sets.forget),
        "reference": 0 if sets.reference is None else len(sets.reference),
        "retain": 0 if sets.retain is None else len(sets.retain),
        "train": None if train is None else len(train),
        "test": 0 if sets.test is None else len(sets.test),
        "kept_judged": 0 if sets.kept is None else len(sets.kept),
    }


def _write_result(folder: Path, result: dict[str, Any], views: Views) -> None:
    packed = io.BytesIO()
    np.savez_compressed(packed, **views.arrays())  # type: ignore[arg-type]
    write_atomically(folder / ARRAYS, packed.getvalue())
    write_atomically(folder / RESULT, json.dumps(result, indent=1, allow_nan=False).encode() + b"\n")


def _certificate(
    ready: Prepared,
    unlearned: Unlearned[Any],
    chain: Chain,
    hashes: list[str],
    result: dict[str, Any],
    weights: tuple[Path, Path],
    seconds: float,
    references: ReferenceTable | None,
) -> Certificate:
    job, forget = ready.job, ready.sets.rows["forget"]
    told = ("fr", "cfr", "accuracy_before", "accuracy_after", "forget_confidence", "separation", "retrain", "oracle")
    from_file = isinstance(forget.content, Records) and forget.path is not None
    read_as: dict[str, Any] = {"label": job.data.label, "id": job.data.id}
    read_as["size"] = None if job.data.size is None else list(job.data.size)
    if job.references is not None and job.references.group is not None:
        read_as["group"] = job.references.group
    return make_certificate(
        old=Weights.of(weights[0], ready.loaded.name),
        new=Weights.of(weights[1], ready.loaded.name),
        method=job.method.name,
        settings=result["settings"],
        job=job.to_dict(),
        hashes=hashes,
        read_as=read_as if from_file else None,
        target=result["target"] if unlearned.stopped != "not-memorised" else None,
        profile="confidence" if ready.oracle is None else "quick",
        numbers={name: result[name] for name in told} | {"counts": result["counts"]},
        unlearning_seconds=unlearned.seconds,
        total_seconds=seconds,
        stopped=unlearned.stopped,
        chain=chain.to_dict(),
        mask_kept=job.output.mask and unlearned.stopped != "not-memorised",
        references=references,
        time=result["chain"]["links"][-1]["time"],
    )
