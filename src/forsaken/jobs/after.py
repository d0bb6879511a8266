"""`--after FOLDER`: the same job as the next request, on what the request before it left in its output folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from forsaken._keys import read_record_key
from forsaken.data.record_hashes import record_hashes
from forsaken.errors import InputError, OutputError, SettingsError
from forsaken.jobs.certificate import Certificate, file_hash
from forsaken.jobs.configuration import Job, Source
from forsaken.jobs.output import CERTIFICATE, RECORD_KEY, REFERENCES, ROWS, weights_name
from forsaken.jobs.rows import Rows
from forsaken.jobs.verify import earlier

_AGAIN = "restore the folder as that request wrote it, or start anew from weights that you trust, without --after"
_ROWS_NAMED = 10


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
    longer = extended_table(folder, certificate)
    return longer if longer.is_file() else folder / REFERENCES


def extended_table(folder: Path, certificate: Certificate) -> Path:
    """Return where the table of the request in `folder` goes when rows are added to it: beside the folder.

    The certificate states the table in the folder as it is. The name has some digits of the certificate, so that no
    other request's table is taken for it.
    """
    return folder.resolve().parent / f"references-{certificate.sha256[:12]}.safetensors"


def extension_of(job: Job) -> str:
    """Return the command that adds rows to the table of references of a job."""
    words, table = f"forsaken references extend {job.path}", job.references
    place = None if table is None else job.resolve(table.file).resolve()
    named = None if place is None else place.parent / CERTIFICATE
    if job.chain.previous is not None:
        named = job.resolve(job.chain.previous).resolve()
    if place is None or named is None or not named.is_file():
        return words
    certificate = Certificate.read(named)
    mine = REFERENCES in certificate.files and place in (
        named.parent / REFERENCES,
        extended_table(named.parent, certificate),
    )
    return f"{words} --after {job.folder / _text(job, named.parent)}" if mine else words


def stop_returned(job: Job, rows: Mapping[str, Rows], previous: Certificate | None) -> list[str]:
    """Raise an error if rows that this request keeps are records that an earlier request of its chain forgot.

    Records are compared by their keyed hashes. Returns warnings: that this could not be done, or that copies of
    forgotten records stayed in the cleaned data, as the request before said.
    """
    if previous is None:
        return []
    folder = job.resolve(job.chain.previous or job.model.weights).resolve().parent
    requests = [(folder, previous), *earlier(previous, (), folder)]
    known = {found: len(one.chain.links) for _, one in requests for found in one.records.hmac_sha256}
    keys = set(_keys(job, [place for place, _ in requests]))
    absent = len(previous.chain.links) - len(requests)
    warnings = []
    if absent or not keys:
        lack = "the record key" if not keys else "1 certificate" if absent == 1 else f"{absent} certificates"
        warnings.append(
            f"it could not be checked whether [data] holds records that earlier requests made the model forget, since "
            f"{lack} of the chain was not found beside {folder}: a row that is among the kept ones is learnt again"
        )
    for name in ("train", "retain"):
        kept = rows[name].without([rows["forget"]]) if name in rows else None
        if kept is None:
            continue
        found = np.zeros(len(kept), dtype=np.int64)  # which request forgot each row; 0 for none
        for key in keys:
            found = np.maximum(found, [known.get(each, 0) for each in record_hashes(kept.content, key)])
        if not found.any():
            continue
        count, at = int((found > 0).sum()), kept.index[found > 0].tolist()
        which = ", ".join(map(str, at[:_ROWS_NAMED])) + (", ..." if len(at) > _ROWS_NAMED else "")
        whose = ", ".join(map(str, sorted({*found.tolist()} - {0})))
        told = f"{count} of the {len(rows[name])} rows of {name} are records that request {whose} of this chain made "
        told += f"the model forget (rows {which} of {kept.home}, counted from 0)"
        path = rows["train"].path if name == "train" or kept.home == "train" else None
        if path is not None and path.is_file() and previous.files.get(path.name) == file_hash(path):
            warnings.append(
                f"{told}: copies of them stayed in {path}, and the model may learn them again; where they are the same "
                "people's, forget them too"
            )
            continue
        listed = f"; {folder / ROWS} lists those of the request before" if ROWS in previous.files else ""
        raise InputError(
            f"{told}, so this request would treat them as kept",
            field=name,
            remedy=f"take them out of the data that {name} is read from, or name the cleaned data there{listed}",
        )
    return warnings


def _keys(job: Job, folders: list[Path]) -> Iterator[bytes]:
    """Yield the keys of the hashes of records: that which the job names, and those beside the certificates."""
    named = [] if job.output.record_key is None else [job.resolve(job.output.record_key)]
    for path in (*named, *(folder / RECORD_KEY for folder in folders)):
        if path.is_file():
            yield read_record_key(path)
