"""The suspects of a job: training records whose label its table of references doubts, and a file to forget them by."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from forsaken._files import write_atomically
from forsaken.errors import InputError, OutputError
from forsaken.jobs.configuration import Job
from forsaken.jobs.formats import load_model
from forsaken.jobs.output import inputs_of
from forsaken.jobs.references import check_table, table_for
from forsaken.jobs.rows import Reader, Rows
from forsaken.jobs.sets import read_train
from forsaken.progress import step
from forsaken.references.suspects import rank_suspects
from forsaken.types import Array, Progress, silent

SHOWN = 20  # ranks that are told
DOUBTS = (0.5, 0.1, 0.01)  # posteriors of the label below which samples are counted


def find_suspects(
    job: Job, count: int | None = None, output: Path | None = None, *, force: bool = False, progress: Progress = silent
) -> dict[str, Any]:
    """Rank the training records by how unlike their label is to what the table of references says.

    With `count` the ids of so many, the most suspicious first, are written to `output`: one a line, as
    ``forget = { of = "train", ids = "suspects.txt" }`` of [data] reads them. Nothing but row numbers is returned.
    """
    check_table(job)
    if count is not None and output is not None:
        _check_output(job, output, force)
    with step(progress, "read the model"):
        loaded = load_model(job)
    with step(progress, "read the data"):
        samples, rows, classes = read_train(job, loaded, Reader(job, progress))
    if count is not None and not 1 <= count <= len(samples):
        raise InputError(
            f"count is {count:,}, expected 1 to {len(samples):,}, the number of training records", field="count"
        )
    found = rank_suspects(table_for(job, loaded, classes).table, samples)
    told: dict[str, Any] = {
        "records": len(samples),
        "doubted": {f"{posterior:g}": found.doubted(posterior) for posterior in DOUBTS},
        "first": [
            {"row": int(row), "score": round(float(score), 3), "posterior": round(float(own), 3)}
            for row, score, own in zip(found.rows[:SHOWN], found.scores[:SHOWN], found.posteriors[:SHOWN], strict=True)
        ],
    }
    if count is None or output is None:
        return told
    ids = _ids(rows, found.rows[:count])
    write_atomically(output, "".join(f"{one}\n" for one in ids).encode(), private=True, replace=force)
    return told | {"written": count, "file": str(output)}


def _check_output(job: Job, output: Path, force: bool) -> None:
    ids = {job.resolve(one.ids).resolve() for one in job.sources.values() if isinstance(one.ids, str)}
    if output.resolve() in {path.resolve() for path in inputs_of(job)} - ids:
        raise OutputError(f"{output} is a file that the job reads for something else; give another name")
    if output.is_dir():
        raise OutputError(f"{output} is a folder, expected the name of a file for the suspects; give another name")
    if os.path.lexists(output) and not force:
        raise OutputError(f"{output} is there already and is not overwritten; give another name, or use --force")


def _ids(rows: Rows, at: Array) -> list[str]:
    """Return what a job calls these rows: their ids, or their row numbers where they have none."""
    if rows.ids is None:
        return [str(one) for one in at]
    found = [str(one) for one in rows.ids[at]]
    if len({str(one) for one in rows.ids}) < len(rows):
        raise InputError(
            "some training records share an id, so a file of ids would name more records than the suspects",
            field="id",
            remedy="name a column without repetitions as id in [data], or leave id out and row numbers are used",
        )
    if any("\n" in one or "\r" in one or '"' in one or "," in one or one != one.strip() or not one for one in found):
        raise InputError(
            "some ids hold commas, quotes, line breaks or outer spaces, which a file with one id a line cannot hold",
            field="id",
            remedy="name another column as id in [data], or leave id out and row numbers are used",
        )
    return found
