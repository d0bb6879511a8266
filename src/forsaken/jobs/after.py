"""`--after FOLDER`: the same job as the next request, on what the request before it left in its output folder."""

from __future__ import annotations

import csv
from pathlib import Path

from forsaken.errors import OutputError, SettingsError
from forsaken.jobs.certificate import Certificate, file_hash
from forsaken.jobs.configuration import Job, Source
from forsaken.jobs.output import CERTIFICATE, REFERENCES, ROWS, weights_name

_AGAIN = "restore the folder as that request wrote it, or start anew from weights that you trust, without --after"


def job_after(job: Job, folder: Path) -> Job:
    """Return the job as the request that follows the one in `folder`.

    The weights, the cleaned training data, the table of references and the chain are those of the folder, which must
    be as its certificate says. The results go to the job's own output folder with the number of the request behind its
    name, such as forgotten-2.
    """
    if not (folder / CERTIFICATE).is_file():
        raise OutputError(
            f"--after is {folder}, which holds no {CERTIFICATE}",
            expected="the output folder of the request before this one",
        )
    certificate = Certificate.read(folder / CERTIFICATE)
    weights = folder / certificate.weights.new.name
    if weights.name != weights_name(job):
        raise SettingsError(
            f"the request in {folder} wrote {weights.name}, but [model] weights is {job.model.weights}",
            expected="the job file of the same model",
        )
    if job.chain.previous is not None:
        raise SettingsError("[chain] previous and --after both name the request before", remedy="leave one of them out")
    _check(weights, certificate.weights.new.sha256)
    number = len(certificate.chain.links) + 1
    changed = {
        "model": job.model.model_copy(update={"weights": _text(job, weights)}),
        "data": job.data.model_copy(update={"train": _train(job, folder, certificate)}),
        "chain": job.chain.model_copy(update={"previous": _text(job, folder / CERTIFICATE)}),
        "output": job.output.model_copy(update={"folder": f"{job.output.folder.rstrip('/')}-{number}"}),
    }
    if (table := _table(job, folder, certificate)) is not None and job.references is not None:
        changed["references"] = job.references.model_copy(update={"file": _text(job, table)})
    return job.model_copy(update=changed)


def _check(path: Path, stated: str) -> None:
    found = file_hash(path)
    if found != stated:
        raise OutputError(
            f"{path} is not the file that the certificate beside it speaks of: its SHA-256 is {found}",
            expected=stated,
            remedy=_AGAIN,
        )


def _text(job: Job, path: Path) -> str:
    """Return a path as a job file names it: relative to the job file where it can be, so that results name no home."""
    place, home = path.resolve(), job.folder.resolve()
    return str(place.relative_to(home) if place.is_relative_to(home) else place)


def _train(job: Job, folder: Path, certificate: Certificate) -> Source | None:
    """Return the training data without what the request before took out of them."""
    train = job.data.train
    if train is None:
        return None
    cleaned = next((name for name in certificate.files if name.startswith("cleaned.")), None)
    if cleaned is None:
        _check_deleted(job, train, folder, certificate)
        return train
    _check(folder / cleaned, certificate.files[cleaned])
    for (table, name), source in job.sources.items():
        numbered = source.ids is not None and (job.data.id is None or cleaned.endswith(".npz"))
        if numbered and "train" in _trail(job, source):
            raise SettingsError(
                f"[{table}] {name} names rows of train by their numbers, which have changed since rows left: "
                f"{folder / cleaned} counts anew",
                remedy='name a column of ids in [data] id, or give the records as a file such as "forget.csv"',
            )
    return Source(path=_text(job, folder / cleaned))


def _trail(job: Job, source: Source) -> list[str]:
    """Return the sets that one is taken from, one after the other."""
    found: list[str] = []
    while source.of is not None:
        found.append(source.of)
        source = job.data.sets[source.of]
    return found


def _check_deleted(job: Job, train: Source, folder: Path, certificate: Certificate) -> None:
    """Raise an error if pictures that the request before took out are still in the training folder."""
    place = None if train.path is None else job.resolve(train.path)
    if place is None or not place.is_dir() or ROWS not in certificate.files:
        return
    _check(folder / ROWS, certificate.files[ROWS])
    with (folder / ROWS).open(encoding="utf-8", newline="") as lines:
        files = [line[1] for line in list(csv.reader(lines))[1:]]
    left = [name for name in files if (place / name).is_file()]
    if left:
        raise OutputError(
            f"{len(left)} of the {len(files)} pictures that the request before made the model forget are still in "
            f"{place}, so this request would treat them as kept",
            remedy=f"delete them: {folder / ROWS} lists their files",
        )


def _table(job: Job, folder: Path, certificate: Certificate) -> Path | None:
    """Return the table of references of the folder; the job and the folder must both have one, or none."""
    stated = certificate.files.get(REFERENCES)
    if stated is None and job.references is not None:
        raise SettingsError(
            f"{job.path} has a table [references], but the request in {folder} wrote none",
            remedy="leave [references] out, or make a table for the weights in that folder: name them in a job file "
            "of their own, and run forsaken references fit",
        )
    if stated is not None and job.references is None:
        raise SettingsError(
            f"the request in {folder} went by a table of references, but {job.path} has no [references]",
            remedy="add [references] as in the job file of that request",
        )
    if stated is None:
        return None
    _check(folder / REFERENCES, stated)
    return folder / REFERENCES
