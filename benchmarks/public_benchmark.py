"""The public benchmark data-unlearning-bench, on CIFAR-10: KLoM beside its published rows.

    FORSAKEN_DATA=... python benchmarks/public_benchmark.py --models 40 --device cuda --engine processes --workers 8

Its network (a ResNet-9 of 2.3 million parameters), its recipe (SGD, 24 epochs, no augmentation) and its forget sets of
100 of the 50,000 training pictures: one at random, two whose pictures act alike (rows with the largest first and second
principal component of the data's influence). N originals learn everything, each with a table of references of its own:
four folds of rows, drawn before anybody knows a request, which serve all three sets. 2 N models are retrained for each
set: N to judge, and N that stand for retraining. Every method starts from the same originals, and oracle matching gets
the same references. The settings of the two peers are a small grid, all of which is shown. With few models KLoM's floor
is high, so the AUC of U-LiRA on the forgotten samples stands beside it.

Differs from the benchmark in Nesterov momentum, in a schedule that rises over a fifth of the steps and not over 5 of 24
epochs, in bfloat16 in place of float16, and in N.

What is measured of each model is kept in results/public-benchmark (in half precision, 0.3 MB an original and 10 kB a
retrained model), so that a run which was stopped goes on where it was, on another machine too, and others can judge
without training. Writes results/public-benchmark.json.
"""

from __future__ import annotations

import argparse
import inspect
import io
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, origin
from torch import Tensor, nn

from forsaken import Forsaken, Recipe, References, Training
from forsaken._files import make_folder, write_atomically
from forsaken._random import torch_seed
from forsaken._untrusted import UnreadableError, read_npz
from forsaken.bench.datasets.store import data_folder, load_dataset
from forsaken.bench.networks import Pixels
from forsaken.bench.store import content_hash, identity
from forsaken.data.samples import Samples
from forsaken.engine import fan_out
from forsaken.errors import DataNotFoundError, NonFiniteError, OutputError
from forsaken.metrics import klom, klom_floor, klom_summary, margins, u_lira, u_lira_floor
from forsaken.models.logits import predict_logits
from forsaken.progress import bars
from forsaken.provenance import PACKAGE, source_hash
from forsaken.unlearning.methods import build

SETS = {"random": "random-100", "first component": "first-component-100", "second component": "second-component-100"}
RECIPE = Recipe(24, 256, 0.4, weight_decay=5e-4, optimiser="sgd", schedule="one-cycle")
FOLDS = 4
LEAST = 3  # models on each side, for U-LiRA
PARTS = ("forget", "retain", "validation")
# 95th percentiles of KLoM on forget, retain and validation samples, of 100 models (data-unlearning-bench).
PUBLISHED = {"do nothing": (9.3, 0.65, 0.68), "retrain": (0.78, 0.85, 0.83)}
OURS = f"Forsaken, K = {FOLDS} by row"
METHODS = {
    OURS: Forsaken.out_of_fold(),
    **{
        f"oracle matching, rate {rate:g}": build("oracle-matching", {"learning_rate": rate, "epochs": 8})
        for rate in (3e-6, 1e-5, 3e-5, 1e-4, 1e-3)
    },
    **{
        f"gradient ascent, rate {rate:g}": build("gradient-ascent", {"learning_rate": rate, "epochs": 5})
        for rate in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
    },
}
Item = tuple[str, int]
ROWS = ("retrain", "do nothing", *METHODS)


class Residual(nn.Module):
    """Add what two convolutions make of their input to it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(block(channels, channels), block(channels, channels))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the sum."""
        return inputs + self.inside(inputs)


class Fifth(nn.Module):
    """Divide the logits by five."""

    def forward(self, logits: Tensor) -> Tensor:
        """Return a fifth of the input."""
        return 0.2 * logits


def block(before: int, after: int, size: int = 3, stride: int = 1, padding: int | None = None) -> nn.Sequential:
    """Return a convolution, its batch-norm and ReLU."""
    convolution = nn.Conv2d(before, after, size, stride, size // 2 if padding is None else padding, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU())


def resnet9(classes: int = 10) -> nn.Sequential:
    """Return the benchmark's network: from bytes of 32 x 32 pictures to logits.

    >>> sum(weight.numel() for weight in resnet9().parameters()) // 1000
    2274
    """
    return nn.Sequential(
        Pixels((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        block(3, 64),
        block(64, 128, 5, 2),
        Residual(128),
        block(128, 256),
        nn.MaxPool2d(2),
        Residual(256),
        block(256, 128, padding=0),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(128, classes, bias=False),
        Fifth(),
    )


@dataclass(frozen=True)
class Task:
    """What is trained and measured.

    Attributes
    ----------
    train, validation : Samples
        All training pictures in the benchmark's order, and the test pictures.
    sets : mapping of str to array
        The rows of each forget set.
    watched : int
        How many kept and validation pictures are measured.
    """

    train: Samples
    validation: Samples
    sets: Mapping[str, Any]
    training: Training
    device: str
    seed: int
    folder: Path
    watched: int

    def rest(self, name: str) -> Any:
        """Return the training rows that a set leaves."""
        return np.setdiff1d(np.arange(len(self.train)), self.sets[name])

    def asked(self, name: str) -> dict[str, Samples]:
        """Return the samples of a set whose margins are measured."""
        draw = np.random.default_rng([self.seed, *name.encode()])
        rest = self.rest(name)
        kept = np.sort(draw.permutation(rest)[: self.watched])
        # The first thousand validation pictures are the unseen samples of the references.
        return {
            "forget": self.train.rows(self.sets[name]),
            "retain": self.train.rows(kept),
            "validation": self.validation.rows(np.arange(self._unseen, len(self.validation))[: self.watched]),
        }

    @staticmethod
    def _source(who: str) -> list[str]:
        made = original if who == "original" else retrained
        return [inspect.getsource(each) for each in (block, Residual, Fifth, Task, measured, margins, made)]

    @property
    def _unseen(self) -> int:
        return min(1000, len(self.validation) // 2)

    @property
    def unseen(self) -> Samples:
        """The validation pictures that references are fitted with; they are not watched."""
        return Samples(self.validation.rows(np.arange(self._unseen)).inputs)

    def drawn(self, *what: int | str) -> int:
        """Return the seed of a model."""
        told = " ".join(map(str, what)).encode()
        return int(np.random.default_rng([self.seed, *told]).integers(2**31))

    def paths(self, items: Iterable[Item]) -> dict[Item, Path]:
        """Return where the record of each model lies; a name holds all that decides what is in it."""
        with torch_seed(0):
            network = self.training.build()
        few = self.train.rows(np.arange(min(16, len(self.train))))
        shared = {
            # the answers too: the text does not say how a layer scales pictures
            "network": [str(network), content_hash(Samples(predict_logits(network, few)))],
            "data": [content_hash(self.train), content_hash(self.validation)],
            "recipe": self.training.recipe.to_dict(),
            "watched": self.watched,
            "seed": self.seed,
            "device": torch.device(self.device).type,
            "torch": torch.__version__,
        }
        found = {}
        for who, number in items:
            rooms = ("data", "models", *(("references", "unlearning") if who == "original" else ()))
            facts = {
                "script": self._source(who),
                "methods": [[row, method.settings] for row, method in METHODS.items()] if who == "original" else [],
                "sets": {name: rows.tolist() for name, rows in self.sets.items() if who in ("original", name)},
                "code": [source_hash(PACKAGE / room) for room in rooms],
            }
            name = f"{who.replace(' ', '-')}-{number}-{identity(shared | facts)[:16]}.npz"
            found[who, number] = self.folder / name
        return found

    def path(self, who: str, number: int) -> Path:
        """Return where the record of one model lies."""
        return self.paths([(who, number)])[who, number]


def measured(task: Task, model: nn.Module, name: str, row: str) -> dict[str, Any]:
    """Return the margins of a model on the samples of one set, and its accuracy on validation pictures."""
    found = {}
    for part, samples in task.asked(name).items():
        logits, labels = predict_logits(model, samples).double().numpy(), np.asarray(samples.labels)
        found[f"{row}|{name}|{part}"] = margins(logits, labels).astype(np.float16)
        if part == "validation":
            found[f"{row}|{name}|accuracy"] = np.array((logits.argmax(1) == labels).mean())
    return found


def original(task: Task, number: int) -> dict[str, Any]:
    """Train one original and its references, and return what it says of every set before and after each method."""
    seed = task.drawn("original", number)
    model = task.training.run(task.train, seed=seed)
    table = References.fit(
        task.training,
        task.train,
        FOLDS,
        seed=task.drawn("folds", number),
        model=model,
        unseen=task.unseen,
        second=False,
    )
    found: dict[str, Any] = {}
    for name, rows in task.sets.items():
        forget, rest = task.train.rows(rows), task.rest(name)
        kept = task.train.rows(np.random.default_rng(seed).permutation(rest)[: 20 * len(rows)])
        found |= measured(task, model, name, "do nothing")
        for row, method in METHODS.items():
            given = table if "references" in method.about.needs or row == OURS else None
            try:
                done = method(model, forget, None, kept, references=given, seed=seed)
                found |= measured(task, done.model, name, row)
            except NonFiniteError:  # a rate at which the method diverges: the row is shown as one without numbers
                continue
            found[f"{row}|{name}|seconds"] = np.array(done.seconds)
            if "sample_passes" in done.details.facts:
                found[f"{row}|{name}|passes"] = np.array(float(done.details.facts["sample_passes"]))
    return found


def retrained(task: Task, name: str, number: int) -> dict[str, Any]:
    """Train one model without a set, and return what it says of it."""
    data = task.train.rows(task.rest(name))
    return measured(task, task.training.run(data, seed=task.drawn(name, number)), name, "retrain")


def record(task: Task, told: tuple[Item, Path]) -> None:
    """Measure one model, unless it is measured, and keep what is found at a path."""
    (who, number), path = told
    if saved(path) is not None:
        return
    found = original(task, number) if who == "original" else retrained(task, who, number)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **found)
    make_folder(path.parent)
    write_atomically(path, buffer.getvalue())


def saved(path: Path) -> dict[str, Any] | None:
    """Return a record, or None where there is none or it is damaged."""
    try:
        return read_npz(path)[1]
    except (OSError, UnreadableError):
        return None


def items_of(task: Task, models: int) -> list[Item]:
    """Return all models; the originals, each with five trainings, come first, or the last would run alone."""
    retrained = [(name, 2 * at + twin) for at in range(models) for name in task.sets for twin in (0, 1)]
    return [*(("original", at) for at in range(models)), *retrained]


def stacked(records: Iterable[Mapping[str, Any]], key: str) -> Any:
    """Return what several models say (models x samples)."""
    return np.stack([one[key] for one in records]).astype(np.float64)


def judged(task: Task, models: int) -> dict[str, Any]:
    """Return every row of every set: KLoM by part, accuracy, seconds and sample passes."""
    records = {}
    for item, path in task.paths(items_of(task, models)).items():
        records[item] = saved(path)
        if records[item] is None:
            raise OutputError(f"the record of {item[0]} {item[1]} is damaged or gone; run the script again")
    originals = [records["original", number] for number in range(models)]
    table: dict[str, Any] = {}
    for name in task.sets:
        judges = [records[name, number] for number in range(2 * models)]
        rows: dict[str, Any] = {}
        for row in ROWS:
            own = judges[models:] if row == "retrain" else originals
            if lost := sum(f"{row}|{name}|accuracy" not in one for one in own):
                rows[row] = {"diverged": lost}
                continue
            rows[row] = {"accuracy": float(np.mean([one[f"{row}|{name}|accuracy"] for one in own]))}
            for fact in ("seconds", "passes"):
                values = [float(one[f"{row}|{name}|{fact}"]) for one in own if f"{row}|{name}|{fact}" in one]
                rows[row][fact] = float(np.median(values)) if values else None
            for part in PARTS:
                mine = stacked(own, f"{row}|{name}|{part}")
                theirs = stacked(judges[:models], f"retrain|{name}|{part}")
                rows[row][f"klom_{part}"], rows[row][f"klom_{part}_p95"] = klom_summary(klom(mine, theirs))
                if part == "forget" and models >= LEAST:
                    rows[row]["u_lira"] = u_lira(mine, theirs).auc
        every = stacked(judges, f"retrain|{name}|forget")
        floor = klom_floor(every, seed=task.seed)
        rows["retrain"]["floor_p95"] = [floor.p95_low, floor.p95_high]
        if models >= LEAST:
            chance = u_lira_floor(every, seed=task.seed)
            rows["retrain"]["u_lira_floor"] = [chance.low, chance.high]
        rows["retrain"]["passes"] = task.training.recipe.epochs * len(task.rest(name))
        table[name] = rows
    return table


def loaded(options: argparse.Namespace) -> Task:
    """Return the task, with the forget sets that lie beside the datasets."""
    train, test = (load_dataset("cifar10", split, size=(32, 32)) for split in ("train", "test"))
    data, validation = train.samples(), test.samples()
    folder = data_folder() / "unlearning-bench"
    if gone := [f"{file}.txt" for file in SETS.values() if not (folder / f"{file}.txt").is_file()]:
        raise DataNotFoundError(
            f"{gone[0]} is not in the folder unlearning-bench of the datasets; put the benchmark's forget sets there, "
            "one row number a line, counted in the order of CIFAR-10's training pictures"
        )
    sets = {name: np.loadtxt(folder / f"{file}.txt", dtype=np.int64) for name, file in SETS.items()}
    if options.rows is not None:  # a small version, to try the script: the sets' pictures come with it
        inside = np.unique(np.concatenate([*sets.values(), np.arange(options.rows)]))
        data, sets = data.rows(inside), {name: np.searchsorted(inside, rows) for name, rows in sets.items()}
        validation = validation.rows(np.arange(2 * options.watched))
    recipe = RECIPE if options.epochs is None else Recipe(**RECIPE.to_dict() | {"epochs": options.epochs})
    training = Training(resnet9, recipe, options.device)
    return Task(
        data, validation, sets, training, options.device, options.seed, options.folder.absolute(), options.watched
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=40, help="N; the benchmark has 100")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--epochs", type=int, help="in place of the benchmark's 24")
    parser.add_argument("--rows", type=int, help="so many training pictures in place of all 50,000")
    parser.add_argument("--watched", type=int, default=2000, help="kept and validation pictures that are measured")
    parser.add_argument("--engine", default="local", help="processes trains models side by side: see forsaken.engine")
    parser.add_argument("--workers", type=int, help="how many processes, with --engine processes")
    parser.add_argument("--folder", type=Path, default=RESULTS / "public-benchmark", help="where records are kept")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    start = time.perf_counter()
    task = loaded(options)
    with bars() as progress:
        paths = list(task.paths(items_of(task, options.models)).items())
        work = partial(record, task)
        fan_out(work, paths, engine=options.engine, workers=options.workers, progress=progress, stage="models")
    told = {
        name: value for name, value in vars(options).items() if name not in ("folder", "results", "engine", "workers")
    }
    content = {
        "command": "python benchmarks/public_benchmark.py",
        "options": told,
        "provenance": origin(),
        "wall_seconds": time.perf_counter() - start,
        "published_p95": {name: dict(zip(PARTS, values, strict=True)) for name, values in PUBLISHED.items()},
        "rows": judged(task, options.models),
    }
    options.results.mkdir(parents=True, exist_ok=True)
    write_atomically(
        options.results / "public-benchmark.json", json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"
    )
    for name, rows in content["rows"].items():
        for row, found in rows.items():
            if "diverged" in found:
                print(f"{name:18s} {row:30s} diverged in {found['diverged']} of {options.models} models")
                continue
            cells = "  ".join(f"{part} {found[f'klom_{part}_p95']:.2f}" for part in PARTS)
            attack = f"U-LiRA {found['u_lira']:.3f}  " if "u_lira" in found else ""
            print(f"{name:18s} {row:30s} {cells}  {attack}accuracy {found['accuracy']:.3f}")


if __name__ == "__main__":
    main()
