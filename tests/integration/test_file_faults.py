"""A fault at every file operation: nothing is lost, nothing half-written is accepted, and a second run completes.

Each verb is run once without a fault, which counts its operations. Then it is run with a fault at one of them
(`file_faults`), its folder is looked at as it is, and it is run again. By default a few operations of each verb are
tried; with ``-m slow`` many more, with a failure and with a death. The counts are printed
(``pytest -s``), and added up in the file that FORSAKEN_FAULT_COUNTS names.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from file_faults import FAULTS
from job_folders import RECIPE, SHADOW, Ended, Nursery, digests, forsaken, write_job, write_world

from forsaken._files import write_atomically
from forsaken.auditing.result import Audit
from forsaken.cli.exits import Exit
from forsaken.provenance import provenance
from forsaken.references.table import References

# The page takes a second, and is one file like the others.
FIRST = """
import sys
sys.path.insert(0, {tests!r})
import forsaken.report.page
from forsaken._files import write_atomically
forsaken.report.page.write_report = lambda folder, *_: write_atomically(folder / "report.html", b"page")
"""
ARM = """
import file_faults
file_faults.arm({root!r}, {log!r}, {at}, {fault!r})
"""
RESULT = {
    "certificate.json",
    "cleaned.parquet",
    "model.safetensors",
    "posteriors.npz",
    "records.key",
    "report.html",
    "result.json",
}
TABLE, SECRET = "references.safetensors", "references.safetensors.key"
UNFINISHED = f".{TABLE}.unfinished"
TESTS = str(Path(__file__).parents[1])
STOPPED = {"error": 2, "full": 2, "kill": -signal.SIGKILL, "power": -signal.SIGKILL}
FEW = 6  # operations of each verb that are tried by default


@dataclass
class Verb:
    """A command, the folder it starts from, and what must hold.

    Attributes
    ----------
    words : the command.
    start : makes the folder that it is run in; it is copied for each run.
    check : raises unless nothing is lost and nothing half-written would be accepted in a folder as it is, after a run
        that ended as told, with the names of what it had renamed.
    done : whether the folder holds what the command makes, all of it.
    again : what a second run may end with where the first had done its work before the fault.
    """

    words: tuple[str, ...]
    start: Callable[[Path], None]
    check: Callable[[Path, Path, Ended, list[str]], None]
    done: Callable[[Path], bool]
    again: tuple[int, ...] = (0,)
    codes: tuple[int, ...] = (0,)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def contents(folder: Path) -> set[str]:
    """The SHA-256 of every file below a folder, hidden ones too."""
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def whole(folder: Path) -> bool:
    """Whether a folder holds a result, whose certificate is about its weights and whose key is one."""
    if not names(folder) >= RESULT or len((folder / "records.key").read_bytes().strip()) != 64:
        return False
    weights = folder / "model.safetensors"
    told = forsaken("verify", folder / "certificate.json", "--weights", weights, "--any-signer", "--json")
    json.loads((folder / "result.json").read_bytes())
    return told.code == Exit.NOT_SHOWN  # no check failed, and the job says too little to show more


# --- unlearn ---------------------------------------------------------------------------------------------------------


def new_job(folder: Path) -> None:
    write_job(write_world(folder), method={"iterations": 2})


def check_unlearn(before: Path, after: Path, ended: Ended, renamed: list[str]) -> None:
    assert digests(after, "forgotten") == digests(before, "forgotten"), "what a job reads is as it was"
    found = after / "forgotten"
    assert whole(found) or "certificate.json" not in names(found), "a certificate came before its result"


def unlearned(folder: Path) -> bool:
    found = folder / "forgotten"
    return whole(found) and names(found) - {"earlier"} == RESULT


def check_force(before: Path, after: Path, ended: Ended, renamed: list[str]) -> None:
    check_unlearn(before, after, ended, renamed)
    old, new, there = before / "forgotten", after / "forgotten", contents(after / "forgotten")
    for name in ("certificate.json", "records.key"):
        assert hashlib.sha256((old / name).read_bytes()).hexdigest() in there, f"the earlier {name} is lost"
    replaced = whole(new) and digests(new, "earlier") != digests(old)
    assert replaced or set(digests(old).values()) <= there, "the earlier result went before the new one was there"
    if ended.code == 2 and not replaced and not (new / ".unfinished.json").exists():
        assert digests(new, "earlier") == digests(old), "a run that fails leaves the earlier result as it was"


def forced(folder: Path) -> bool:
    """Whether the result is whole, and the earlier certificate can still be checked, with its key."""
    old = folder.parent / "before"
    (place,) = [
        each
        for each in (folder / "forgotten" / "earlier").iterdir()
        if (each / "certificate.json").read_bytes() == (old / "forgotten" / "certificate.json").read_bytes()
    ]
    words = ("--weights", old / "forgotten" / "model.safetensors", "--records", folder / "forget.parquet")
    key = ("--record-key", place / "records.key")
    told = forsaken("verify", place / "certificate.json", *words, *key, "--any-signer", "--json")
    assert told.code == Exit.NOT_SHOWN, told.out
    return unlearned(folder)


# --- references ------------------------------------------------------------------------------------------------------


def new_table(folder: Path) -> None:
    write_job(write_world(folder), references={"folds": 3}, audit={"recipe": RECIPE})


def table_whole(folder: Path) -> bool:
    if not (folder / TABLE).exists():
        return False
    assert len(References.load(folder / TABLE)) == 132, "with the key that lies beside it"
    return True


def check_fit(before: Path, after: Path, ended: Ended, renamed: list[str]) -> None:
    ours = (TABLE, SECRET, UNFINISHED)
    drafts = [name for name in names(after) if name.endswith(".draft")]
    assert digests(after, *ours, *drafts) == digests(before, *ours)
    if (after / SECRET).exists():
        assert len((after / SECRET).read_bytes().strip()) == 64, "a key that is cut off"
    if not table_whole(after):
        finished = [name for name in renamed if name.startswith("fold-")]
        assert set(finished) <= names(after / UNFINISHED), "finished folds went before the table was there"


def check_new_fit(before: Path, after: Path, ended: Ended, renamed: list[str]) -> None:
    check_fit(before, after, ended, renamed)
    assert table_whole(after), "a table that is replaced is there all the time"
    assert (after / SECRET).read_bytes() == (before / SECRET).read_bytes()


def fitted(folder: Path) -> bool:
    return table_whole(folder)


# --- audit -----------------------------------------------------------------------------------------------------------


def check_audit(before: Path, after: Path, ended: Ended, renamed: list[str]) -> None:
    old, new = digests(before / "forgotten"), digests(after / "forgotten", "audit-models")
    own = {"audit-full.json", "report.html"}
    assert {name: new.get(name) for name in old if name not in own} == {
        name: known for name, known in old.items() if name not in own
    }, "an audit changes nothing of the run"
    if (after / "forgotten" / "audit-full.json").exists():
        Audit.read(after / "forgotten" / "audit-full.json")
    for path in (after / "forgotten").glob("audit-models/**/[!.]*.npz"):
        # A seal comes before the arrays.
        with np.load(io.BytesIO(path.read_bytes()[32:]), allow_pickle=False) as file:
            assert all(np.isfinite(file[name]).all() for name in file.files)


def audited(folder: Path) -> bool:
    found = folder / "forgotten"
    return names(found) - {"earlier"} == RESULT | {"audit-full.json", "audit-models"} and not list(found.rglob(".*"))


# --- datasets --------------------------------------------------------------------------------------------------------

LINES = [f"{at % 2} {'good' if at % 2 else 'poor'}-{at * 7919}" for at in range(12_000)]
CONTENT = "\n".join(LINES).encode() + b"\n"
DATASET = """
import dataclasses, os
import pyarrow as pa
from forsaken.bench.datasets.registry import DATASETS, Archive, Dataset
os.environ["FORSAKEN_DATA"], os.environ["NO_PROXY"] = {data!r}, "127.0.0.1"
def parse(files, progress):
    lines = [line.split() for line in files["toy.txt"].read_text().splitlines()]
    table = pa.table({{"text": [text for _, text in lines], "label": pa.array([int(n) for n, _ in lines], pa.int8())}})
    return {{"toy_train": table.slice(0, 10_000), "toy_test": table.slice(10_000)}}
DATASETS["toy"] = Dataset("toy", title="Toy", kind="text", home="http://x/", cite="Nobody", terms="none", classes=2,
    archives=(Archive("http://127.0.0.1:{port}/toy.txt", "toy.txt", {checksum!r}, 0.2),), class_names=("a", "b"),
    parts={{"train": "toy_train", "test": "toy_test"}}, rows={{"train": 10_000, "test": 2_000}}, parse=parse)
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server that sends a file, or the rest of it."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            start = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
            rest = CONTENT[start:]
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            self.wfile.write(rest)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield int(server.server_address[1])
    server.shutdown()
    thread.join()
    server.server_close()


def check_get(before: Path, after: Path, ended: Ended, renamed: list[str]) -> None:
    for name, rows in (("toy_train", 10_000), ("toy_test", 2_000)):
        path = after / f"{name}.parquet"
        assert not path.exists() or pq.read_table(path).num_rows == rows
        assert path.exists() or not (before / path.name).exists(), "a file that is replaced is there all the time"
    original = after / "originals" / "toy.txt"
    assert not original.exists() or original.read_bytes() == CONTENT
    for note in (after / "normalised.json", after / "originals" / "checksums.json"):
        assert not note.exists() or json.loads(note.read_bytes())


def got(folder: Path) -> bool:
    noted = json.loads((folder / "normalised.json").read_bytes())
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.parquet")}
    assert noted == found, "every file that was written is noted"
    return set(found) == {"toy_train.parquet", "toy_test.parquet"} and not list(folder.rglob(".*.draft"))


# --- the verbs and their faults --------------------------------------------------------------------------------------

JOB = "forsaken.toml"
MODULES = (
    "forsaken.jobs.audit",
    "forsaken.jobs.references",
    "forsaken.bench.datasets.download",
    "requests",
    "rich.progress",
    "pyarrow.parquet",
    "scipy.stats",
    "sklearn.linear_model",
    "xgboost",
    "torch._decomp.decompositions_for_jvp",
    "torch._inductor.fx_passes.dedupe_symint_uses",
    "torch._inductor.compiler_bisector",
)
PLAN: dict[str, Verb] = {
    "unlearn": Verb(("unlearn", JOB), new_job, check_unlearn, unlearned, again=(2,)),
    "unlearn --force": Verb(("unlearn", JOB, "--force"), new_job, check_force, forced),
    "references fit": Verb(("references", "fit", JOB), new_table, check_fit, fitted, again=(2,)),
    "references fit --force": Verb(("references", "fit", JOB, "--force"), new_table, check_new_fit, fitted),
    "audit": Verb(("audit", JOB, "--profile", "full", "--models", "4"), new_job, check_audit, audited, codes=(0, 4)),
    "datasets get": Verb(("datasets", "get", "toy"), Path.mkdir, check_get, got),
    "datasets get --force": Verb(("datasets", "get", "toy", "--force"), Path.mkdir, check_get, got),
}


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    made = Nursery(tmp_path_factory.mktemp("nursery") / "home", *MODULES)
    yield made
    made.close()


class Bench:
    """One verb: its folder before, and a run of it with a fault."""

    def __init__(self, name: str, nursery: Nursery, port: int, folder: Path) -> None:
        self.name, self.verb, self.nursery, self.port = name, PLAN[name], nursery, port
        self.folder, self.before = folder, folder / "before"
        self.verb.start(self.before)
        if name == "audit":
            write_job(self.before, oracle=SHADOW, audit={"recipe": RECIPE | {"epochs": 1}}, method={"iterations": 2})
        if name in ("audit", "unlearn --force"):
            assert self.run(self.before, words=("unlearn", JOB)).code == 0
        if name.endswith("--force") and name != "unlearn --force":
            assert self.run(self.before, words=self.verb.words[:-1]).code == 0
        work = self.fresh()
        ended = self.run(work, at=0)
        assert ended.code in self.verb.codes, ended.err
        self.kinds = [line.split(" ", 1)[0] for line in self.log.read_text().splitlines()]
        self.verb.check(self.before, work, ended, self.renamed(len(self.kinds) + 1))
        assert self.verb.done(work)

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    def fresh(self) -> Path:
        work = self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(self.before, work, ignore=shutil.ignore_patterns("__pycache__"))
        return work

    def run(self, folder: Path, at: int | None = None, fault: str = "error", words: tuple[str, ...] = ()) -> Ended:
        checksum = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
        first = FIRST.format(tests=TESTS)
        if "datasets" in self.name:
            first += DATASET.format(data=str(folder), port=self.port, checksum=checksum)
        if at is not None:
            first += ARM.format(root=str(folder), log=str(self.log), at=at, fault=fault)
        told = [folder / word if word == JOB else word for word in words or self.verb.words]
        return self.nursery.run(*told, first=first)

    def renamed(self, at: int) -> list[str]:
        """What had got its name before the fault at this line of the log; what tidies up comes after it."""
        lines = self.log.read_text().splitlines()[: at - 1]
        drafts = [Path(line.split(" ", 1)[1]).name for line in lines if line.startswith("rename ")]
        return [name[1:].rsplit(".", 2)[0] for name in drafts if name.endswith(".draft")]

    def try_at(self, at: int, fault: str) -> None:
        """Run with a fault, look, run again, look again."""
        work, verb = self.fresh(), self.verb
        ended = self.run(work, at=at, fault=fault)
        assert "Traceback" not in ended.err, ended.err
        assert ended.code in (STOPPED[fault], *verb.codes), ended.err
        assert fault in ("error", "full") or ended.code == -signal.SIGKILL, "the operations differ from run to run"
        verb.check(self.before, work, ended, self.renamed(at))
        second = self.run(work)
        assert second.code in (
            *verb.codes,
            *(verb.again if "already" in second.err or "holds the" in second.err else ()),
        )
        verb.check(self.before, work, second, [])
        assert verb.done(work)
        if second.code in verb.codes:
            assert {path.name for path in work.rglob(".*")} <= {".lock"}, "and nothing is left behind"


def note(name: str, kinds: list[str], tried: list[tuple[int, str]]) -> None:
    """Print how many faults were tried, and add them to the file that FORSAKEN_FAULT_COUNTS names."""
    faults = {fault: sum(each == fault for _, each in tried) for fault in FAULTS}
    print(name, len(kinds), faults)  # noqa: T201 (the record of a full run)
    if "FORSAKEN_FAULT_COUNTS" in os.environ:
        place = Path(os.environ["FORSAKEN_FAULT_COUNTS"])
        known = json.loads(place.read_bytes()) if place.exists() else {"verbs": {}}
        row = known["verbs"].setdefault(name, {"tried": dict.fromkeys(FAULTS, 0)})
        row |= {"operations": len(kinds), "kinds": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}}
        row["tried"] = {fault: row["tried"][fault] + faults[fault] for fault in FAULTS}
        rows = known["verbs"].values()
        known["command"] = f"FORSAKEN_FAULT_COUNTS=FILE pytest -m slow tests/integration/{Path(__file__).name}"
        known["operations"] = sum(row["operations"] for row in rows)
        known["faults"] = sum(sum(row["tried"].values()) for row in rows)
        known["provenance"] = provenance()
        write_atomically(place, json.dumps(known, indent=1).encode() + b"\n")


def try_all(bench: Bench, chosen: list[tuple[int, str]]) -> None:
    for at, fault in chosen:
        try:
            bench.try_at(at, fault)
        except AssertionError as error:
            where = bench.log.read_text().splitlines()[-1:]
            raise AssertionError(f"{bench.name}: {fault} at {at} of {len(bench.kinds)} ({where}): {error}") from error
    note(bench.name, bench.kinds, chosen)


@pytest.mark.parametrize("name", PLAN)
def test_a_fault_at_some_operations(name: str, nursery: Nursery, port: int, tmp_path: Path) -> None:
    bench = Bench(name, nursery, port, tmp_path)
    count = len(bench.kinds)
    places = [1 + round(at * (count - 1) / (FEW - 1)) for at in range(FEW)]
    try_all(bench, [(at, FAULTS[turn % len(FAULTS)]) for turn, at in enumerate(places)])


@pytest.mark.slow
@pytest.mark.parametrize("faults", [("error", "full"), ("kill", "power")], ids=["failure", "death"])
@pytest.mark.parametrize("name", PLAN)
def test_a_failure_and_a_death_at_many_operations(
    name: str, faults: tuple[str, str], nursery: Nursery, port: int, tmp_path: Path
) -> None:
    """Every ninth operation, so that this takes minutes; all of them where a record of the run is asked for."""
    bench = Bench(name, nursery, port, tmp_path)
    stride = 1 if "FORSAKEN_FAULT_COUNTS" in os.environ else 9
    try_all(bench, [(at, faults[at % 2]) for at in range(1, len(bench.kinds) + 1, stride)])
