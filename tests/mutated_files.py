"""Mutated files of every kind that a user hands over or that Forsaken reads back, and what the readers make of them.

    python tests/mutated_files.py --files 100000 --programs 500

Each file is a real one with some damage, drawn from a seed: bytes flipped, cut, doubled or put in; values of JSON
replaced; members of archives changed, with the checksums of the archive made right again. It is read by a process of
its own kind that may use one GiB more memory than it has when it begins, and ten seconds. A reader must accept the file
or refuse it with a `ForsakenError`; everything else (another error, a crash, no answer in time) is counted as a
failure, with the number of the file, from which it can be made again.
"""

from __future__ import annotations

import argparse
import base64
import copy
import functools
import io
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import safetensors.torch
import skops.io
import torch
from job_folders import SHADOW, _bert, build, program, rezip, run, table, tabled, unzip, world, write_job, write_world
from PIL import Image
from sklearn.linear_model import LogisticRegression

from forsaken import ShadowOracle, WhiteBoxOracle
from forsaken._keys import new_signing_key, read_public_key, read_record_key, read_signing_key, write_signing_keys
from forsaken.auditing.measurements import MeasurementCache
from forsaken.bench.datasets.store import recorded
from forsaken.data.pictures import decode_pictures
from forsaken.data.readers import read_records
from forsaken.errors import ForsakenError
from forsaken.jobs.certificate import Certificate
from forsaken.jobs.configuration import read_job
from forsaken.jobs.formats import EstimatorFile, HuggingFaceFolder, ProgramFile, TensorFile
from forsaken.jobs.rows import _read_ids
from forsaken.models.logits import posteriors
from forsaken.provenance import provenance
from forsaken.references.table import References
from forsaken.report.page import render
from forsaken.report.saved import read_run
from forsaken.unlearning.forsaken.mask import Mask

SECONDS, MEMORY = 10, 2**30
GOAL = Path(__file__).parents[1] / "benchmarks" / "results" / "fuzz.json"
_CHUNK = 500


@dataclass(frozen=True)
class Kind:
    """A kind of file: a whole one, the name that it is written under, how it is read, and its weight in a run."""

    content: bytes
    name: str
    read: Callable[[Path], object]
    weight: float = 1.0
    beside: dict[str, bytes] = field(default_factory=dict)


# --- whole files -----------------------------------------------------------------------------------------------------


@functools.cache
def kinds() -> dict[str, Kind]:
    """Every kind by name; the files are made by the package itself, on the small world of the job tests."""
    with tempfile.TemporaryDirectory() as place:
        return {**_data_kinds(), **_model_kinds(), **_own_kinds(Path(place))}


def _packed(write: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def _data_kinds() -> dict[str, Kind]:
    inputs, labels = (part[-8:] for part in world().sets["members"])
    few = table(inputs, labels)
    texts = pa.table({"text": ["one", "two, three", "four\nfive", "sechs"], "label": ["a", "b", "a", "b"]})
    pixels = Image.fromarray(np.random.default_rng(0).integers(256, size=(6, 5, 3), dtype=np.uint8))
    pictures = {kind: _packed(lambda file, kind=kind: pixels.save(file, kind)) for kind in _PICTURES}
    shown = pa.table({"image": [pictures["PNG"]] * 3, "label": [0, 1, 0]})
    found = {
        "csv": Kind(_packed(lambda file: pa.csv.write_csv(few, file)), "a.csv", read_records),
        "csv of texts": Kind(_packed(lambda file: pa.csv.write_csv(texts, file)), "a.csv", read_records),
        "parquet": Kind(_packed(lambda file: pq.write_table(few, file)), "a.parquet", read_records),
        "parquet of texts": Kind(_packed(lambda file: pq.write_table(texts, file)), "a.parquet", read_records),
        "parquet of pictures": Kind(_packed(lambda file: pq.write_table(shown, file)), "a.parquet", read_records),
        "npz": Kind(_packed(lambda file: np.savez(file, inputs=inputs, labels=labels)), "a.npz", read_records),
        "npz, compressed": Kind(
            _packed(lambda file: np.savez_compressed(file, inputs=inputs, labels=labels)), "a.npz", read_records
        ),
        "list of ids": Kind(b"id\n1000\n1001\n'x'\n\"a,b\",c\n", "a.txt", lambda path: _read_ids(path, "id", "forget")),
    }
    for kind, content in pictures.items():
        found[f"picture, {kind}"] = Kind(
            content, "a.img", lambda path: decode_pictures([path.read_bytes()], names=["a"], size=(4, 4)), 0.5
        )
    return found


_PICTURES = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")


def _model_kinds() -> dict[str, Kind]:
    state, (inputs, labels) = world().states["model"], world().sets["members"]

    def read_tensors(path: Path) -> object:
        return TensorFile(path, build, {})

    old = _packed(lambda file: torch.save(state, file, _use_new_zipfile_serialization=False))
    estimator = LogisticRegression(max_iter=500).fit(inputs, labels)
    return {
        "safetensors": Kind(safetensors.torch.save(state, metadata={"a": "b"}), "a.safetensors", read_tensors),
        "state dict": Kind(_packed(lambda file: torch.save(state, file)), "a.pt", read_tensors),
        "state dict, old form": Kind(old, "a.pt", read_tensors),
        "skops": Kind(skops.io.dumps(estimator), "a.skops", EstimatorFile, 0.5),
        "hugging face configuration": Kind(
            _bert()["config.json"], "config.json", lambda path: HuggingFaceFolder(path.parent), 0.05, _bert()
        ),
        "exported program": Kind(program(), "a.pt2", ProgramFile, 0.0),
    }


def _own_kinds(place: Path) -> dict[str, Kind]:
    folder = write_world(place / "job")
    signing, public = write_signing_keys(folder / "signing.pem", new_signing_key())
    job = write_job(folder, oracle=SHADOW, output={"mask": True, "signing_key": "signing.pem"})
    run(job)
    done = {path.name: path.read_bytes() for path in (folder / "forgotten").iterdir() if path.is_file()}
    model = build()
    model.load_state_dict(world().states["model"])
    rows = {name: posteriors(model, world().sets[name][0]) for name in ("train", "test")}
    oracle = ShadowOracle.fit_posteriors(rows["train"], rows["test"]).save(place / "oracle.json").read_bytes()
    white = WhiteBoxOracle.fit(
        model,
        members=tuple(map(torch.from_numpy, world().sets["train"])),
        nonmembers=tuple(map(torch.from_numpy, world().sets["test"])),
    )
    references = tabled(place / "tabled", keep_models=True).parent / "references.safetensors"
    key = read_record_key(references.with_name(references.name + ".key"))

    def read_mask(path: Path) -> object:
        mask = Mask.load(path)
        return [float(part.mu.abs().max()) for part in mask.entries.values() if part.mu.numel()], mask.apply(model)

    def read_page(path: Path) -> object:
        return render(read_run(path.parent))

    def measured(path: Path) -> object:
        cache = MeasurementCache(path.parents[1], {"before": {"before": "k" * 32}}, {"before": {"forget": (12,)}})
        return cache.read("before", 3)

    record = _packed(lambda file: np.savez_compressed(file, forget=np.zeros(12), **{"forget.top": np.zeros((12, 3))}))
    return {
        "job": Kind(job.read_bytes(), "forsaken.toml", read_job),
        "result": Kind(done["result.json"], "result.json", read_page, 0.1, done),
        "posteriors": Kind(done["posteriors.npz"], "posteriors.npz", lambda path: read_run(path.parent), 1.0, done),
        "certificate": Kind(done["certificate.json"], "certificate.json", Certificate.read, 2.0),
        "mask": Kind(done["mask.safetensors"], "mask.safetensors", read_mask),
        "oracle": Kind(oracle, "oracle.json", lambda path: ShadowOracle.load(path).score_posteriors(rows["test"]), 0.5),
        "white-box oracle": Kind(white.save(place / "white").read_bytes(), "oracle.safetensors", WhiteBoxOracle.load),
        "table of references": Kind(
            references.read_bytes(), "references.safetensors", lambda path: References.load(path, key=key, build=build)
        ),
        "audit cache": Kind(record, f"{'k' * 32}/3.npz", measured),
        "record key": Kind(done["records.key"], "records.key", read_record_key, 0.5),
        "signing key": Kind(signing.read_bytes(), "signing.pem", read_signing_key, 0.5),
        "public key": Kind(public.read_bytes(), "public.pem", read_public_key, 0.5),
        "checksums": Kind(json.dumps({"a.gz": f"sha256:{'0' * 64}"}).encode(), "checksums.json", recorded),
    }


# --- mutations -------------------------------------------------------------------------------------------------------

_NUMBERS = [0, 1, -1, -2, 2, 127, 255, 2**15, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1, 2**64, 10**30]
_VALUES: list[Any] = [
    *_NUMBERS, 0.5, -0.0, 1e308, -1e308, 1e-320, float("nan"), float("inf"), True, False, None, "", "a", "[/red]", "[x",
    "\x1b[31mred", "é", "\ud800", "\0", "../../x", "=1+1", "F8_E4M3", "U64", "torch.ops.aten.from_file.default",
    "9" * 5000, [], {}, [0], [[]], {"": 0}, [-1] * 50, [1e308] * 3, "x" * 70000,
]  # fmt: skip


def mutated(kind: str, number: int, seed: int = 0) -> bytes:
    """The damaged file of this kind and number; the same every time."""
    draw = random.Random(f"{seed}/{kind}/{number}")
    content = kinds()[kind].content
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        content = _structured(content, draw) if draw.random() < 0.6 else _scrambled(content, draw)
    return content


def _scrambled(content: bytes, draw: random.Random) -> bytes:
    content = content or draw.randbytes(8)
    at, size = draw.randrange(len(content)), draw.choice([1, 1, 2, 4, 8, 40])
    number = struct.pack(draw.choice(["<q", ">q", "<i", ">i"]), draw.choice([-1, 0, -(2**31), 2**31 - 1, 2**20]))
    flipped = bytearray(content)
    for _ in range(size):
        flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
    cut = content[:at]
    inserted = content[:at] + draw.randbytes(size) + content[at:]
    without = content[:at] + content[at + size :]
    repeated = content[:at] + content[at : at + size] * draw.choice([2, 3, 100]) + content[at + size :]
    replaced = content[:at] + number + content[at + len(number) :]
    return draw.choice([cut, inserted, without, repeated, replaced, bytes(flipped)])


def _structured(content: bytes, draw: random.Random) -> bytes:
    """Change something that the file's own form describes; scramble what has no form that is known here."""
    if content[:2] == b"PK":
        try:
            members = unzip(content)
        except Exception:  # noqa: BLE001 (the archive is damaged already)
            return _scrambled(content, draw)
        return _rezipped(members, draw) if members else content
    if content[:1] in (b"{", b"["):
        return _with_json(content, draw)
    if len(content) > 9 and content[8:9] == b"{" and struct.unpack("<Q", content[:8])[0] < len(content):
        size = struct.unpack("<Q", content[:8])[0]
        head = _with_json(content[8 : 8 + size], draw)
        return struct.pack("<Q", len(head)) + head + content[8 + size :]
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        return _scrambled(content, draw)
    at = draw.randrange(len(lines))
    words = lines[at].split(draw.choice([",", " ", "="]))
    words[draw.randrange(len(words))] = str(draw.choice(_VALUES))[:200]
    lines[at : at + 1] = draw.choice([[], [lines[at]] * 2, [",".join(words)], [" ".join(words)], ["=".join(words)]])
    return "\n".join(lines).encode("utf-8", "replace")


def _rezipped(members: dict[str, bytes], draw: random.Random) -> bytes:
    name = draw.choice(sorted(members))
    act = draw.randrange(8)
    if act == 0:
        del members[name]
    elif act == 1:
        return rezip([*members.items(), (name, draw.randbytes(9))])
    elif act == 2:
        members[draw.choice(["../x", "/x", "x/" * 99, "\x1b[0m", name + "2"])] = members.pop(name)
    elif act == 3:
        zeros = io.BytesIO()
        with zipfile.ZipFile(zeros, "w", zipfile.ZIP_DEFLATED) as archive:
            for each, content in members.items():
                archive.writestr(each, content + (b"\0" * 2**22 if each == name else b""))
        return zeros.getvalue()
    else:
        members[name] = (_structured if act < 7 else _scrambled)(members[name], draw)
    return rezip(members)


def _with_json(content: bytes, draw: random.Random) -> bytes:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return _scrambled(content, draw)
    places = list(_places(found))
    holder, key = draw.choice(places) if places else ({}, "")
    value = holder[key] if places else None
    if isinstance(value, str) and len(value) > 100 and draw.random() < 0.9:  # an envelope, or JSON as text
        if value[:1] == "{":
            holder[key] = _with_json(value.encode(), draw).decode("utf-8", "replace")
        else:
            try:
                holder[key] = base64.b64encode(_with_json(base64.b64decode(value), draw)).decode()
            except ValueError:
                holder[key] = draw.choice(_VALUES)
    elif draw.random() < 0.1 and places:
        del holder[key]
    elif draw.random() < 0.05:
        deep = draw.choice([70, 500, 3000])
        return content.replace(json.dumps(value).encode(), b"[" * deep + b"]" * deep, 1)
    elif draw.random() < 0.1 and isinstance(value, list):
        holder[key] = (value * draw.choice([2, 5]))[: draw.choice([len(value) + 1, 10**4])]
    elif isinstance(value, int | float) and draw.random() < 0.5:
        holder[key] = draw.choice([value + 1, value - 1, -value, value * 2, *_NUMBERS])
    elif places:
        holder[key] = copy.deepcopy(draw.choice(_VALUES))
    return json.dumps(found).encode("utf-8", "replace")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, key
            yield from _places(part)


# --- reading in processes --------------------------------------------------------------------------------------------


@dataclass
class Counts:
    """What the readers made of the files of one kind."""

    accepted: int = 0
    refused: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    examples: dict[str, int] = field(default_factory=dict)
    slowest: float = 0.0
    megabytes: float = 0.0

    def fail(self, what: str, number: int) -> None:
        self.failures[what] += 1
        self.examples.setdefault(what, number)

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"files": self.accepted + self.refused + sum(self.failures.values())}
        found |= {"accepted": self.accepted, "refused": self.refused, "failures": dict(self.failures)}
        found |= {"first_of_each_failure": self.examples} if self.examples else {}
        return found | {"slowest_seconds": round(self.slowest, 2), "most_megabytes": round(self.megabytes)}


def read_all(kind: str, numbers: range, seed: int = 0) -> Counts:
    """Read the damaged files of these numbers, in processes that may die."""
    counts, at = Counts(), numbers.start
    kinds()  # made once, before the forks
    while at < numbers.stop:
        at = _read_some(kind, range(at, min(at + _CHUNK, numbers.stop)), seed, counts)
    return counts


def _read_some(kind: str, numbers: range, seed: int, counts: Counts) -> int:
    """Read files until all are read or the process dies; return the first number that is left."""
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads, which torch has
        child = os.fork()
    if child == 0:
        os.close(ours)
        try:
            _work(kind, numbers, seed, theirs)
        finally:
            os._exit(70)
    os.close(theirs)
    began: int | None = None
    left = numbers.start
    with os.fdopen(ours) as lines:
        for line in lines:
            told = json.loads(line)
            if "begin" in told:
                began = told["begin"]
                continue
            left, began = told["number"] + 1, None
            counts.slowest = max(counts.slowest, told["seconds"])
            counts.megabytes = max(counts.megabytes, told["megabytes"])
            if told["end"] in ("accepted", "refused"):
                setattr(counts, told["end"], getattr(counts, told["end"]) + 1)
            else:
                counts.fail(told["end"], told["number"])
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if began is not None:
        counts.fail(f"no answer in {SECONDS} s" if code == -signal.SIGALRM else f"crash, exit code {code}", began)
        return began + 1
    if code != 0:
        raise RuntimeError(f"the files of kind {kind!r} after number {left} cannot be made (exit code {code})")
    return left


def _work(kind: str, numbers: range, seed: int, pipe: int) -> None:
    """Read files in a forked process, and tell of each through the pipe; never returns."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(quiet, standard)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    at_first = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    own = kinds()[kind]
    with os.fdopen(pipe, "w", buffering=1) as out, tempfile.TemporaryDirectory() as place:
        path = Path(place) / own.name
        path.parent.mkdir(exist_ok=True)
        for name, content in own.beside.items():
            (path.parent / name).write_bytes(content)
        for number in numbers:
            path.write_bytes(mutated(kind, number, seed))
            out.write(json.dumps({"begin": number}) + "\n")
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            start = time.perf_counter()
            end = outcome(own.read, path)
            signal.setitimer(signal.ITIMER_REAL, 0)
            used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - at_first) / 1024
            told = {"number": number, "end": end, "seconds": time.perf_counter() - start, "megabytes": used}
            out.write(json.dumps(told) + "\n")
        out.flush()
        shutil.rmtree(place, ignore_errors=True)
        os._exit(0)


def outcome(read: Callable[[Path], object], path: Path) -> str:
    """How reading ended: accepted, refused, or the type and place of an error that is none of ours."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(path)
    except ForsakenError:
        return "refused"
    except BaseException as error:  # noqa: BLE001 (what must not happen is what is looked for)
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "forsaken" in frame.filename]
        return f"{type(error).__name__} at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else repr(error)[:80]
    return "accepted"


def main() -> None:
    """Read so many files, share them out among the kinds by weight, and write the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000, help="of all kinds but exported programs")
    parser.add_argument("--programs", type=int, default=500, help="exported programs (.pt2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", help="only this one")
    parser.add_argument("--out", type=Path, default=GOAL)
    given = parser.parse_args()
    torch.set_num_threads(1)
    total = sum(kind.weight for kind in kinds().values())
    found: dict[str, Any] = {}
    for name, kind in kinds().items():
        if given.kind in (None, name):
            count = -int(-given.files * kind.weight // total) if kind.weight else given.programs
            start = time.perf_counter()
            found[name] = read_all(name, range(count), given.seed).to_dict()
            told = f"{name}: {found[name]} in {time.perf_counter() - start:.0f} s"
            sys.stdout.write(f"{told}\n")
            sys.stdout.flush()
    rows = list(found.values())
    sums = {key: sum(row[key] for row in rows) for key in ("files", "accepted", "refused")}
    sums["failures"] = sum(sum(row["failures"].values()) for row in rows)
    content = {
        "command": f"python tests/mutated_files.py --files {given.files} --programs {given.programs}",
        "seed": given.seed,
        "provenance": provenance(),
        "bounds": {"seconds": SECONDS, "bytes_beyond_the_start": MEMORY},
        "all": sums,
        "kinds": found,
    }
    given.out.write_text(json.dumps(content, indent=1) + "\n")
    sys.stdout.write(f"{sums}\n")
    sys.exit(bool(sums["failures"]))


if __name__ == "__main__":
    main()
