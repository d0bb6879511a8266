"""The last step of forgetting: the records leave the training data, and copies that stay there are told of."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forsaken._files import write_atomically
from forsaken.data.duplicates import Duplicates, find_duplicates
from forsaken.jobs import cleaning
from forsaken.jobs.files import COPIES
from forsaken.jobs.rows import Rows, comparable
from forsaken.types import Array, Progress

if TYPE_CHECKING:
    from forsaken.jobs.run import Prepared


def clean(ready: Prepared, folder: Path, warnings: list[str], progress: Progress) -> dict[str, Any] | None:
    """Take the forgotten records out of the training data, and look for copies of them that stay there."""
    job, rows = ready.job, ready.sets.rows
    train, forget = rows.get("train"), rows["forget"]
    if train is None:
        warnings.append(
            "the forgotten records must leave the training data too, or the next training brings them back; with train "
            "= in [data] this is done here"
        )
        return None
    if not comparable(forget.content, train.content):
        warnings.append(
            "the forget records and the training data are of different kinds, so neither were they found there nor "
            "copies of them; give both in the same way, or name the rows by their ids"
        )
        return None
    gone = _places(forget, train)
    absent = int(forget.apart_from([train]).sum())
    if absent:
        warnings.append(
            f"{absent} of {len(forget)} forget records were not found in the training data; are these the data, in the "
            "same form, that the model was trained on?"
        )
    copies = find_duplicates(forget.content, train.content, skip=gone.tolist(), progress=progress)
    if copies.exact or copies.near:
        _write_copies(copies, train, folder)
        warnings.append(
            f"copies of forgotten records stay in the training data ({len(copies.exact)} exact, {len(copies.near)} "
            f"near; listed in {COPIES}): while they are there, the model may still know what was to be forgotten"
        )
    file = None
    if job.output.cleaned != "none" and len(gone):
        # Of a part of a file only the row numbers are written: the rest of the file was not read.
        source = job.data.train
        whole = source is not None and source.path is not None and source.ids is None and source.count is None
        file = cleaning.write_cleaned(
            train.path if whole else None,
            train.index[gone],
            folder,
            mode=job.output.cleaned,
            ids=train.ids if whole else None,
            note=warnings.append,
        ).name
    found = {"rows": len(gone), "exact": len(copies.exact), "near": len(copies.near), "not_found": absent}
    return found | {"file": file}


def _write_copies(copies: Duplicates, train: Rows, folder: Path) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "id", "forget_row", "similarity"])
    for pair in sorted((*copies.exact, *copies.near), key=lambda pair: pair.train):
        row = int(train.index[pair.train])
        own = row if train.ids is None else train.ids[pair.train]
        writer.writerow([row, own, pair.forget, f"{pair.similarity:.3f}"])
    write_atomically(folder / COPIES, text.getvalue().encode())


def _places(forget: Rows, train: Rows) -> Array:
    """Return where in the training data the forget records are: by row number, or else by content."""
    if forget.home == train.home:
        return np.flatnonzero(np.isin(train.index, forget.index))
    return cleaning.rows_of(forget.content, train.content)
