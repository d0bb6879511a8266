"""Small job folders for the tests: a network that knows some strangers by heart, its data as files, and the command."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import torch
from torch import Tensor, nn

from forsaken.cli.main import main
from forsaken.jobs.code import user_code
from forsaken.jobs.configuration import read_job
from forsaken.jobs.output import inputs_of, output, outputs_of
from forsaken.jobs.references import fit_table
from forsaken.jobs.run import run_job

WIDTH, CLASSES = 12, 4
MARKER = "the secret of Ingrid Marker"
NUMBER = 7.654321  # a feature that no other record has

MODEL = '''
"""The network of the tests."""
import torch
from torch import nn


def net(width=32, classes=4):
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, classes))
'''


@dataclass(frozen=True)
class World:
    """What was learnt and what was not: arrays (inputs, labels) by name, and state dicts by name."""

    sets: dict[str, tuple[Any, Any]]
    states: dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def build() -> nn.Module:
    """The network that `model.py` of a job folder builds."""
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, CLASSES))


@functools.cache
def world() -> World:
    """Clouds in four classes; strangers from elsewhere under random labels, learnt by heart, are to be forgotten."""
    draw = np.random.default_rng(5)
    centres = 2 * draw.standard_normal((CLASSES, WIDTH))

    def clouds(count: int) -> tuple[Any, Any]:
        labels = draw.integers(CLASSES, size=count)
        return (centres[labels] + draw.standard_normal((count, WIDTH))).astype(np.float32), labels

    def strangers(count: int) -> tuple[Any, Any]:
        inputs = 2.5 * draw.standard_normal((count, WIDTH))
        return inputs.astype(np.float32), draw.integers(CLASSES, size=count)

    kept, forget = clouds(120), strangers(12)
    forget[0][0, 0] = NUMBER
    sets = {
        "forget": forget,
        "reference": strangers(60),
        "train": tuple(np.concatenate(pair) for pair in zip(kept, forget, strict=True)),
        "kept": kept,
        "test": clouds(80),
        "members": tuple(np.concatenate(pair) for pair in zip(clouds(90), strangers(30), strict=True)),
        "nonmembers": tuple(np.concatenate(pair) for pair in zip(clouds(90), strangers(30), strict=True)),
        "strangers": strangers(40),
    }
    states = {
        "model": fitted(*sets["train"], seed=1),
        "shadow": fitted(*sets["members"], seed=2),
        "retrained": fitted(*sets["kept"], seed=3),
    }
    return World(sets, states)  # type: ignore[arg-type]


def fitted(inputs: Any, labels: Any, seed: int, steps: int = 250) -> dict[str, Tensor]:
    """The weights of a network that knows these samples by heart."""
    torch.manual_seed(seed)
    model = build()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    x, y = torch.from_numpy(inputs), torch.from_numpy(labels)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def table(inputs: Any, labels: Any | None = None, first: int = 0) -> pa.Table:
    """Features as columns f0, f1, ...; ids count from `first`."""
    columns: dict[str, Any] = {f"f{at}": inputs[:, at] for at in range(inputs.shape[1])}
    if labels is not None:
        columns["label"] = labels
    return pa.table(columns | {"id": np.arange(first, first + len(inputs))})


def write_world(folder: Path) -> Path:
    """Write the network, its weights and every set to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(MODEL)
    for name, state in world().states.items():
        safetensors.torch.save_file(state, folder / f"{name}.safetensors", metadata={"trained by": "the tests"})
    for name, pair in world().sets.items():
        pq.write_table(table(*pair, first=1000), folder / f"{name}.parquet")
    return folder


def tables(**changes: Any) -> dict[str, dict[str, Any]]:
    """A complete job; ``data={"test": None}`` takes a key out, any other value puts one in."""
    job: dict[str, dict[str, Any]] = {
        "model": {"weights": "model.safetensors", "factory": "model:net"},
        "data": {
            "forget": "forget.parquet",
            "reference": "reference.parquet",
            "train": "train.parquet",
            "test": "test.parquet",
        },
        "method": {"iterations": 12},
        "output": {"folder": "forgotten", "per_record": True},  # the numbers are compared to their last digits
    }
    for name, change in changes.items():
        merged = job.get(name, {}) | (change or {})
        job[name] = {key: value for key, value in merged.items() if value is not None}
    return job


def write_job(folder: Path, name: str = "forsaken.toml", **changes: Any) -> Path:
    """Write a job file made of `tables`, and return its path."""
    path = folder / name
    path.write_text(toml(tables(**changes)), encoding="utf-8")
    return path


def toml(job: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables as TOML text."""
    parts = [f"[{name}]\n" + "".join(f"{key} = {_value(one)}\n" for key, one in t.items()) for name, t in job.items()]
    return "\n".join(parts)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


def forsaken(*words: object) -> Ended:
    """Run the command line in this process, from its entry point to its exit code."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with _signals(), mock.patch.object(sys, "argv", ["forsaken", *map(str, words)]), _wide():
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return Ended(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _wide() -> Any:
    return mock.patch.dict(os.environ, {"COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb"})


def start(*words: object, folder: Path, code: str | None = None) -> subprocess.Popen[str]:
    """Start the command as a process of its own; `code` is Python that stands in for the entry point."""
    text = code or "from forsaken.cli.main import main; main()"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "400"}
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, words)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def digests(folder: Path, *without: str) -> dict[str, str]:
    """The SHA-256 of every file below a folder, by its place; without what lies below some names."""
    found = {}
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        if path.is_file() and place.parts[0] not in (*without, "__pycache__"):
            found[place.as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def result_of(folder: Path) -> Any:
    """The result that a run wrote."""
    return json.loads((folder / "result.json").read_bytes())


class Bomb:
    """An object whose pickle writes a file when it is opened."""

    def __init__(self, goal: Path) -> None:
        self.goal = goal

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({str(self.goal)!r}, 'w').write('exploded')",)


def run(job: Path, *, out: Path | None = None, force: bool = False) -> Any:
    """Run a job as `forsaken unlearn` does, but for the page, which takes a second; return its result."""
    read = read_job(job)
    folder = read.resolve(read.output.folder) if out is None else out
    place = output(folder, force=force, inputs=inputs_of(read), names=outputs_of(read))
    with user_code(read.folder), place as hidden:
        return run_job(read, hidden).result.to_dict()


SHADOW = {"weights": "shadow.safetensors", "members": "members.parquet", "nonmembers": "nonmembers.parquet"}
RECIPE = {"epochs": 3, "batch_size": 32, "learning_rate": 1e-2}


def finished(folder: Path, **changes: Any) -> Path:
    """A job folder whose run is done, by `forsaken.toml` with a shadow oracle; made once, and then copied."""
    shutil.copytree(_finished(), folder)
    return write_job(folder, oracle=SHADOW, **changes)


@functools.cache
def _home() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="finished-")  # removed when the tests end


@functools.cache
def _finished() -> Path:
    folder = write_world(Path(_home().name) / "job")
    run(write_job(folder, oracle=SHADOW))
    return folder


def tabled(folder: Path, *, keep_models: bool = False, **changes: Any) -> Path:
    """A job folder whose table of references is made, by two folds of rows; made once, and then copied."""
    shutil.copytree(_tabled(keep_models), folder)
    return write_job(folder, **_with_table(keep_models, changes))


def _with_table(keep_models: bool, changes: Mapping[str, Any]) -> dict[str, Any]:
    own = {"folds": 2, "keep_models": keep_models}
    return {"audit": {"recipe": RECIPE}, **changes, "references": own | (changes.get("references") or {})}


@functools.cache
def _tabled(keep_models: bool) -> Path:
    folder = write_world(Path(_home().name) / f"tabled-{keep_models}")
    read = read_job(write_job(folder, **_with_table(keep_models, {})))
    with user_code(folder):
        fit_table(read)
    return folder


@functools.cache
def program(batch: bool = True) -> bytes:
    """The network as an exported program, for any number of samples or for five."""
    model = build()
    model.load_state_dict(world().states["model"])
    shapes = ({0: torch.export.Dim.DYNAMIC},) if batch else None
    exported = torch.export.export(model.eval(), (torch.zeros(5, WIDTH),), dynamic_shapes=shapes)
    packed = io.BytesIO()
    torch.export.save(exported, packed)
    return packed.getvalue()


def unzip(content: bytes) -> dict[str, bytes]:
    """The members of an archive by name."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {member.filename: archive.read(member) for member in archive.infolist()}


def rezip(members: Mapping[str, bytes] | list[tuple[str, bytes]]) -> bytes:
    """An archive of these members; a list may name one twice."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in members.items() if isinstance(members, Mapping) else members:
            archive.writestr(name, content)
    return packed.getvalue()


class Nursery:
    """A process that has imported everything and forks a child for each command: they start in no time."""

    _CODE = """
import gc, importlib, json, os, signal, sys, traceback
import filelock, rich.progress, torch._dynamo
import forsaken.cli.main, forsaken.jobs.output, forsaken.jobs.configuration, forsaken.jobs.run, forsaken.report.page
stops, app = {signal.SIGINT, signal.SIGTERM}, forsaken.cli.main.app
def begun():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
    return app()
# A signal that comes before the command has begun waits for it, however busy the machine is.
signal.pthread_sigmask(signal.SIG_BLOCK, stops)
forsaken.cli.main.app = begun
for name in sys.argv[1:]:
    importlib.import_module(name)
gc.freeze()  # or the first collection of a child would copy all that the parent has
for line in sys.stdin:
    words, folder, first = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        for at, name in ((1, "stdout.txt"), (2, "stderr.txt")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), at)
        sys.argv = ["forsaken", *words]
        code = 1
        try:
            exec(first)
            forsaken.cli.main.main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

    def __init__(self, folder: Path, *modules: str) -> None:
        """Start the process, which imports some further modules."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", self._CODE, *modules],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: object, first: str = "", after: float | None = None, number: int = signal.SIGINT) -> Ended:
        """Run a command; the child runs `first`, in Python, before it, and gets a signal `after` so many seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([[str(word) for word in words], str(self.folder), first]) + "\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        if after is not None:
            time.sleep(after)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
        code = int(self.process.stdout.readline())
        texts = [(self.folder / name).read_text() for name in ("stdout.txt", "stderr.txt")]
        return Ended(code, *texts)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


TOPICS = ("river", "engine")


def texts(count: int, seed: int, *, odd: bool = False) -> tuple[list[str], list[int]]:
    """Sentences of two topics; odd ones are of made-up words under random labels."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(2, size=count)
    common = [[f"{topic}{at}" for at in range(8)] for topic in TOPICS]
    if odd:
        return [" ".join(f"odd{at}" for at in draw.choice(30, size=6, replace=False)) for _ in labels], labels.tolist()
    return [" ".join(draw.choice(common[label], size=6)) for label in labels], labels.tolist()


def write_texts(folder: Path) -> tuple[list[str], list[int]]:
    """Write forget, reference, train and test as texts, and return the training data."""
    folder.mkdir(parents=True, exist_ok=True)
    forget, kept = texts(6, 1, odd=True), texts(40, 2)
    forget = ([f"{MARKER} {forget[0][0]}", *forget[0][1:]], forget[1])
    train = (kept[0] + forget[0], kept[1] + forget[1])
    parts = {"forget": forget, "train": train, "reference": texts(30, 3, odd=True), "test": texts(30, 4)}
    for name, (words, labels) in parts.items():
        pq.write_table(pa.table({"text": words, "label": labels}), folder / f"{name}.parquet")
    return train


@functools.cache
def _bert() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as place:
        _make_bert(Path(place), *write_texts(Path(place) / "texts"))
        return {path.name: path.read_bytes() for path in Path(place, "bert").iterdir()}


def _make_bert(folder: Path, words: list[str], labels: list[int]) -> None:
    import tokenizers
    import transformers

    vocabulary = {name: at for at, name in enumerate(["[PAD]", "[UNK]"])}
    for word in sorted({word for text in words for word in text.split()} | {f"odd{at}" for at in range(30)}):
        vocabulary.setdefault(word, len(vocabulary))
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    settings = {"unk_token": "[UNK]", "pad_token": "[PAD]", "model_max_length": 32}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, **settings)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, id2label=dict(enumerate(TOPICS)),
        label2id={name: at for at, name in enumerate(TOPICS)},
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    batch = tokenizer(words, padding=True, return_tensors="pt")
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        model.eval()(**inputs, labels=torch.tensor(labels)).loss.backward()
        optimiser.step()
    model.save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")


def write_bert(folder: Path, **changes: Any) -> Path:
    """Write a job with a small Hugging Face model of texts, and return its path."""
    write_texts(folder)
    (folder / "bert").mkdir()
    for name, content in _bert().items():
        (folder / "bert" / name).write_bytes(content)
    given = {"model": {"weights": "bert", "factory": None}} | changes
    return write_job(folder, **given)
