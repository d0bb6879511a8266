"""A node's own store of erasure requests: one SQLite file, in which every change of state is one transaction.

A request goes filed → uploaded → confirmed → checked. "Uploaded" is written before the upload leaves the node, under a
random token that travels with it; the server announces which tokens its weights hold. So a node that is killed before,
during or after a round knows in its next round whether its upload counted. A request whose samples come back is filed
again. Rows of a request leave the training the moment it is filed.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import safetensors.torch

from forsaken._files import make_folder
from forsaken.errors import DataNotFoundError, InputError, OutputError
from forsaken.federated.scaling import Ledger, Vector

FILE = "requests.sqlite"
FILED, UPLOADED, CONFIRMED, CHECKED = "filed", "uploaded", "confirmed", "checked"
_FORMAT = "1"
_WAIT = 30  # seconds that one process waits for another one's transaction
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS requests (
    id INTEGER PRIMARY KEY, state TEXT NOT NULL, attempt INTEGER NOT NULL, problem TEXT NOT NULL,
    distance REAL, mask BLOB, applied REAL NOT NULL, velocity REAL NOT NULL, step INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, request INTEGER NOT NULL REFERENCES requests (id));
CREATE TABLE IF NOT EXISTS uploads (
    token TEXT PRIMARY KEY, request INTEGER NOT NULL REFERENCES requests (id),
    step INTEGER NOT NULL, gradient REAL NOT NULL, open INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, request INTEGER NOT NULL REFERENCES requests (id), time TEXT NOT NULL, what TEXT NOT NULL
);
INSERT OR IGNORE INTO facts VALUES ('format', '{_FORMAT}');
COMMIT;
"""  # noqa: S608 (a constant of this file)


@dataclass(frozen=True, slots=True)
class Erasure:
    """One request as the store holds it.

    Attributes
    ----------
    id, attempt : int
        Its number, and how often it was filed.
    state : str
        filed, uploaded, confirmed or checked.
    rows : tuple of int
        The node's rows that are to be forgotten.
    problem : str
        Why the node could not do it in its last round; empty where it could.
    distance : float or None
        How far the samples were from their references (mean square) when the node first set about to forget them.
    ledger : Ledger
        How much of its mask the server's weights hold.
    """

    id: int
    state: str
    attempt: int
    rows: tuple[int, ...]
    problem: str
    distance: float | None
    ledger: Ledger

    def to_dict(self) -> dict[str, Any]:
        """Return what an operator wants to see, JSON-ready."""
        told = {"request": self.id, "state": self.state, "attempt": self.attempt, "rows": len(self.rows)}
        return told | {"applied": round(self.ledger.applied, 6), "problem": self.problem}


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload of which the node does not know yet whether it counted."""

    token: str
    request: int
    step: int
    gradient: float


class Requests:
    """The requests of one node, in `folder`.

    Parameters
    ----------
    folder : Path
        The node's folder. It is made, with the store, unless `existing`.
    existing : bool
        Whether a folder without a store is an error, as it is for an operator who names a folder.
    """

    def __init__(self, folder: Path, *, existing: bool = False) -> None:
        path = folder / FILE
        if existing and not (path.is_file() and path.stat().st_size):
            raise DataNotFoundError(
                f"{folder} has no store of a node",
                field="node",
                remedy="name the folder of a node that has taken part in a round",
            )
        make_folder(folder, 0o700)
        self._path = path
        with self._told(), self._connected() as base:
            if not base.execute("SELECT name FROM sqlite_master WHERE name = 'events'").fetchone():
                base.executescript(_SCHEMA)
            known = base.execute("SELECT value FROM facts WHERE name = 'format'").fetchone()[0]
        path.chmod(0o600)
        if known != _FORMAT:
            raise OutputError(f"{path} has format {known}", expected=_FORMAT, remedy="use the version that wrote it")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise OutputError(
                f"the store {self._path} cannot be used ({error})", remedy="restore the file from a backup"
            ) from error

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        base = sqlite3.connect(self._path, timeout=_WAIT, isolation_level=None)
        try:
            # FULL flushes at every commit. Deleted masks are overwritten: a mask can restore what was forgotten.
            base.executescript("PRAGMA synchronous = FULL; PRAGMA secure_delete = ON; PRAGMA foreign_keys = ON;")
            yield base
        finally:
            base.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Give a connection whose changes are all there after the block, or none of them."""
        with self._told(), self._connected() as base:
            base.execute("BEGIN IMMEDIATE")
            try:
                yield base
                base.execute("COMMIT")
            finally:
                if base.in_transaction:
                    base.execute("ROLLBACK")

    # --- the operator ------------------------------------------------------------------------------------------------

    def file(self, rows: Sequence[int]) -> Erasure:
        """File a request to forget rows of this node; it is done in the node's next round.

        Rows that the node does not have, that another request names already, or that have no reference are refused,
        and nothing is filed.
        """
        wanted = sorted(set(rows))
        if not wanted:
            raise InputError("rows is empty", field="rows", expected="row numbers of this node, such as 0-9,12")
        with self._transaction() as base:
            count, without = self._data(base)
            if foreign := [row for row in wanted if not 0 <= row < count]:
                raise InputError(
                    f"this node has no row {_listed(foreign)}", field="rows", expected=f"rows from 0 to {count - 1}"
                )
            known = dict(base.execute("SELECT number, request FROM rows"))
            if taken := [row for row in wanted if row in known]:
                raise InputError(
                    f"row {_listed(taken)} is already in request {known[taken[0]]}",
                    field="rows",
                    remedy="leave it out; forsaken federated status shows how far that request is",
                )
            if bare := sorted(set(wanted) & without):
                raise InputError(
                    f"row {_listed(bare)} has no reference: what a model that never saw it says of it",
                    field="references",
                    remedy="fit references for this node's rows (see docs/guide/federated.md), and start a round",
                )
            fields = "state, attempt, problem, applied, velocity, step"
            cursor = base.execute(f"INSERT INTO requests ({fields}) VALUES (?, 1, '', 0, 0, 0)", (FILED,))  # noqa: S608 (names alone)
            number = int(cursor.lastrowid or 0)
            base.executemany("INSERT INTO rows VALUES (?, ?)", [(row, number) for row in wanted])
            _note(base, number, f"filed: {len(wanted)} rows")
        return self.get(number)

    def get(self, number: int) -> Erasure:
        """Return one request."""
        return next(each for each in self.all() if each.id == number)

    def all(self) -> list[Erasure]:
        """Return every request, oldest first."""
        with self._told(), self._connected() as base:
            fields = "id, state, attempt, problem, distance, applied, velocity, step"
            found = base.execute(f"SELECT {fields} FROM requests ORDER BY id").fetchall()  # noqa: S608 (names alone)
            rows: dict[int, list[int]] = {each[0]: [] for each in found}
            for row, number in base.execute("SELECT number, request FROM rows ORDER BY number"):
                rows[number].append(row)
        return [
            Erasure(number, state, attempt, tuple(rows[number]), problem, distance, Ledger(*ledger))
            for number, state, attempt, problem, distance, *ledger in found
        ]

    def events(self, number: int) -> list[tuple[str, str]]:
        """Return what happened to a request: times and words."""
        with self._told(), self._connected() as base:
            return base.execute("SELECT time, what FROM events WHERE request = ? ORDER BY id", (number,)).fetchall()

    # --- the node ----------------------------------------------------------------------------------------------------

    def register(self, count: int, without_reference: Sequence[int]) -> None:
        """Note how many rows the node has and which of them have no reference, so that `file` can say so."""
        told = {"count": count, "without_reference": [int(row) for row in without_reference]}
        if self.fact("data") != told:
            self.remember("data", told)

    def remember(self, name: str, value: object) -> None:
        """Keep a fact of the node, JSON-ready, under a name."""
        with self._transaction() as base:
            base.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))

    def fact(self, name: str) -> Any:
        """Return a fact of the node, or None."""
        with self._told(), self._connected() as base:
            found = base.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if found is None else json.loads(found[0])

    def mask(self, number: int) -> Vector | None:
        """Return the mask of a request, while it is being applied."""
        with self._told(), self._connected() as base:
            found = base.execute("SELECT mask FROM requests WHERE id = ?", (number,)).fetchone()
        return None if found is None or found[0] is None else safetensors.torch.load(found[0])

    def open_upload(self) -> Upload | None:
        """Return the upload of which it is not known whether it counted."""
        with self._told(), self._connected() as base:
            found = base.execute("SELECT token, request, step, gradient FROM uploads WHERE open = 1").fetchone()
        return None if found is None else Upload(*found)

    def begin(self, number: int, mask: Vector, distance: float) -> None:
        """Keep the mask of a request, and how far its samples were from their references before."""
        with self._transaction() as base:
            base.execute("UPDATE requests SET distance = COALESCE(distance, ?) WHERE id = ?", (distance, number))
            _set(base, number, mask=safetensors.torch.save(mask))

    def uploaded(self, upload: Upload, ledger: Ledger) -> None:
        """Note an upload that is about to leave, with the ledger before it."""
        with self._transaction() as base:
            base.execute("INSERT INTO uploads VALUES (?, ?, ?, ?, 1)", (*_fields(upload),))
            _set(base, upload.request, state=UPLOADED, problem="", **_of(ledger))
            _note(base, upload.request, f"uploaded in round {upload.step + 1}")

    def settle(self, upload: Upload, ledger: Ledger, *, counted: bool) -> None:
        """Note whether an upload counted, with the ledger of its request now."""
        with self._transaction() as base:
            base.execute("UPDATE uploads SET open = 0 WHERE token = ?", (upload.token,))
            _set(base, upload.request, **_of(ledger))
            _note(base, upload.request, f"round {upload.step + 1} {'counted it' if counted else 'did not count it'}")

    def advance(self, number: int, ledger: Ledger) -> None:
        """Note the ledger of a request at a later step."""
        with self._transaction() as base:
            _set(base, number, **_of(ledger))

    def confirm(self, number: int, ledger: Ledger, why: str) -> None:
        """Note that the server's weights hold the mask of a request, and delete the mask."""
        with self._transaction() as base:
            base.execute("UPDATE uploads SET open = 0 WHERE request = ?", (number,))
            _set(base, number, state=CONFIRMED, mask=None, **_of(ledger))
            _note(base, number, f"confirmed: {why}")

    def check(self, number: int, why: str) -> None:
        """Note that the samples of a request are forgotten."""
        with self._transaction() as base:
            _set(base, number, state=CHECKED, problem="", mask=None)
            _note(base, number, f"checked: {why}")

    def refile(self, number: int, why: str) -> None:
        """File a request again."""
        with self._transaction() as base:
            base.execute("UPDATE requests SET attempt = attempt + 1 WHERE id = ?", (number,))
            base.execute("UPDATE uploads SET open = 0 WHERE request = ?", (number,))
            _set(base, number, state=FILED, mask=None, **_of(Ledger()))
            _note(base, number, f"filed again: {why}")

    def fail(self, number: int, problem: str) -> None:
        """Note why a request could not be done in this round; it stays as it is."""
        with self._transaction() as base:
            before = base.execute("SELECT problem FROM requests WHERE id = ?", (number,)).fetchone()[0]
            _set(base, number, problem=problem)
            if problem != before:
                _note(base, number, f"not done: {problem}")

    @staticmethod
    def _data(base: sqlite3.Connection) -> tuple[int, set[int]]:
        found = base.execute("SELECT value FROM facts WHERE name = 'data'").fetchone()
        if found is None:
            raise InputError(
                "this node has not told yet which rows it has", field="node", remedy="file the request after one round"
            )
        told = json.loads(found[0])
        return int(told["count"]), set(told["without_reference"])


def _fields(upload: Upload) -> tuple[str, int, int, float]:
    return upload.token, upload.request, upload.step, upload.gradient


def _of(ledger: Ledger) -> dict[str, object]:
    return {"applied": ledger.applied, "velocity": ledger.velocity, "step": ledger.step}


def _set(base: sqlite3.Connection, number: int, **values: object) -> None:
    names = ", ".join(f"{name} = ?" for name in values)
    base.execute(f"UPDATE requests SET {names} WHERE id = ?", (*values.values(), number))  # noqa: S608 (names of this file)


def _note(base: sqlite3.Connection, number: int, what: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    base.execute("INSERT INTO events (request, time, what) VALUES (?, ?, ?)", (number, now, what))


def _listed(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows[:8])) + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
