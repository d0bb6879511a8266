"""How well a server tells the upload of a client that forgets from ordinary ones, by form of upload.

usage: FORSAKEN_DATA=<folder> python benchmarks/federated_detector.py [--seeds 0-2] [--cover 0.06,0.15]

Ten clients on the data of benchmarks/federated.py; every client has 100 strangers under random labels of its own, so
that nobody stands out by having some. 207 rounds start at the weights of the last ten rounds of a training; in each,
three clients forget their strangers, counterfactually: nothing is applied. A classifier (gradient boosting, and
logistic regression; the better one is reported) gets, for every upload, norms, sizes, peaks, sparsity, spectra and
tails by layer, the cosine to the others' mean and to the same client's upload before, as they are and relative to the
round. Cross-validated AUC; folds share no start and so no mask. `ten_rounds_auc` is for a server that adds up a
client's uploads of ten rounds first. Writes benchmarks/results/federated-detector.json.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, add_seeds, summary, write_result
from federated import CLIENTS, LOCAL, ROUNDS, Federation, Task, initial, model_of
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import forsaken
from forsaken.data.samples import Samples, join
from forsaken.federated.client import _DAMPING, _noise
from forsaken.federated.client import ROUNDS as SPREAD
from forsaken.federated.scaling import Vector, norm, plus
from forsaken.metrics import separation
from forsaken.models.train import train
from forsaken.references.curvature import Curvature
from forsaken.types import Array

STRANGERS, STARTS, WINDOWS, FORGETTING = 100, 10, 23, 3
COVERS = (0.06, 0.15)


def features(upload: Vector, others: Vector, last: Vector) -> list[float]:
    """Return what a server can compute of an upload."""
    found = [np.log(norm(upload) + 1e-12), cosine(upload, others), cosine(upload, last)]
    for name in sorted(upload):
        part = upload[name].float()
        size = float(part.norm()) + 1e-12
        scaled = part / size * part.numel() ** 0.5
        found += [np.log(size), float(scaled.abs().mean()), float(scaled.abs().max())]
        found += [float((scaled.abs() < 0.05).float().mean()), float(scaled.square().square().mean())]
        if part.dim() == 2:
            spectrum = torch.linalg.eigvalsh(part @ part.T if part.shape[0] < part.shape[1] else part.T @ part)
            found += [float(value) ** 0.5 / size for value in spectrum.clamp_min(0).flip(0)[:3]]
            found += [float(scaled.square().mean(0).max()), float(scaled.square().mean(1).max())]
    return found


def cosine(one: Vector, other: Vector) -> float:
    dot = sum(float((one[name].double() * other[name].double()).sum()) for name in one)
    return dot / (norm(one) * norm(other) + 1e-12)


def total(uploads: list[Vector]) -> Vector:
    found = uploads[0]
    for each in uploads[1:]:
        found = plus(found, each)
    return found


def detected(rows: list[list[list[float]]], forgets: list[list[bool]], starts: list[int]) -> float:
    """Return the AUC of the better of two classifiers, on features as they are and relative to the round."""
    x, y, groups = [], [], []
    for features_of, truth, start in zip(rows, forgets, starts, strict=True):
        table = np.array(features_of)
        relative = (table - np.median(table, 0)) / (table.std(0) + 1e-9)
        x.append(np.concatenate([table, relative], 1))
        y.append(truth)
        groups.append([start] * len(truth))
    data, labels, folds = np.nan_to_num(np.concatenate(x)), np.concatenate(y), np.concatenate(groups)
    models = (
        HistGradientBoostingClassifier(random_state=0, max_iter=100),
        make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000)),
    )
    areas = []
    for model in models:
        said = cross_val_predict(model, data, labels, groups=folds, cv=GroupKFold(5), method="predict_proba")[:, 1]
        areas.append(separation(said[labels], said[~labels]))
    return max(areas)


class Clients:
    """Clients with strangers, the weights of the last rounds of their training, and their masks."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.task, self.seed = Task.load(seed, "iid"), seed
        draw = np.random.default_rng(seed)
        unseen = Samples(self.task.strangers.inputs, torch.from_numpy(draw.integers(35, size=len(self.task.strangers))))
        strangers = join([self.task.forget, unseen])
        self.kept = self.task.clients(None)
        self.strangers = [strangers.rows(range(at * STRANGERS, (at + 1) * STRANGERS)) for at in range(CLIENTS)]
        every = [join([kept, some]) for kept, some in zip(self.kept, self.strangers, strict=True)]
        self.every = every
        run = Federation(every, folder / "target", seed * 10 + 1)
        strategy = run.run(ROUNDS - STARTS, initial(seed * 10 + 1))
        self.starts = []
        for _ in range(STARTS):
            run.run(1, strategy.theta, strategy)
            self.starts.append(dict(strategy.theta))
        self.innocent = model_of(Federation(self.kept, folder / "claims", 7).run(ROUNDS, initial(7)).theta)
        self.known: dict[Any, Vector] = {}

    def upload(self, start: int, client: int, number: int, *, forgets: bool) -> Vector:
        """Return an ordinary upload of a round; all forms of upload get the same ones."""
        key = start, client, number, forgets
        if key not in self.known:
            self.known[key] = self._trained(start, client, number, forgets=forgets)
        return self.known[key]

    def _trained(self, start: int, client: int, number: int, *, forgets: bool) -> Vector:
        model = model_of(self.starts[start]).train()
        data = self.kept[client] if forgets else self.every[client]
        local = train(lambda: model, data, LOCAL, seed=number * 101 + client)
        return {name: self.starts[start][name] - part.detach() for name, part in local.named_parameters()}

    def mask(self, start: int, client: int, damping: float) -> Vector:
        """Return the mask of a client's strangers."""
        key = start, client, damping
        if key not in self.known:
            model, inputs = model_of(self.starts[start]), self.strangers[client].inputs
            table = forsaken.References.from_models([self.innocent], inputs, [range(STRANGERS)])
            curvature = Curvature.fit(model, self.kept[client].inputs)
            done = forsaken.unlearn(model, inputs, references=table, curvature=curvature, damping=damping)
            after = dict(done.model.named_parameters())
            self.known[key] = {name: part - after[name].detach() for name, part in self.starts[start].items()}
        return self.known[key]


@dataclass(frozen=True)
class Form:
    """A form of upload: the mask's damping and factor (None: as much as an ordinary norm allows), what goes with it."""

    damping: float
    factor: float | None
    added: bool = True
    cover: float = 0.0


def forms(covers: list[float]) -> dict[str, Form]:
    """Return the forms of upload that are measured."""
    plain, share = 0.1, CLIENTS / SPREAD
    found = {
        "exact": Form(plain, float(CLIENTS), added=False),
        "added, whole": Form(plain, float(CLIENTS)),
        "added, over 9 rounds": Form(plain, share),
        "small mask, over 9 rounds": Form(_DAMPING, share),
        "small mask, ordinary norm": Form(_DAMPING, None),
    }
    return found | {f"hidden, cover {cover:g}": Form(_DAMPING, share, cover=cover) for cover in covers}


@dataclass(eq=False)
class Seen:
    """What the server has seen of a form of upload: features, who forgot, and from which weights they started."""

    rows: list[list[list[float]]] = field(default_factory=list)
    truths: list[list[bool]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def add(self, uploads: list[Vector], last: list[Vector], chosen: Array, start: int) -> None:
        """Add the uploads of one round."""
        mean = total(uploads)
        self.rows.append([features(each, plus(mean, each, -1.0), last[at]) for at, each in enumerate(uploads)])
        self.truths.append([client in chosen for client in range(CLIENTS)])
        self.starts.append(start)

    def auc(self) -> float:
        """Return how well a classifier tells who forgot."""
        return detected(self.rows, self.truths, self.starts)


def with_mask(own: Vector, mask: Vector, form: Form) -> Vector:
    """Return the upload of a client that forgets."""
    if form.factor is None:  # half of the power of an ordinary upload is the mask's
        return plus({name: part * 0.5**0.5 for name, part in own.items()}, mask, 0.5**0.5 * norm(own) / norm(mask))
    return plus(own if form.added else {name: 0 * part for name, part in own.items()}, mask, form.factor)


def measured(clients: Clients, form: Form) -> dict[str, float]:
    """Return the detector's AUC for a form of upload: nine rounds with masks, and one that takes the cover back."""
    draw, noisy = np.random.default_rng(clients.seed + 5), np.random.default_rng(clients.seed + 6)
    each, added_up, ratios = Seen(), Seen(), []
    last = [clients.upload(0, client, 10_000, forgets=False) for client in range(CLIENTS)]
    for window in range(WINDOWS):
        chosen, start = draw.permutation(CLIENTS)[:FORGETTING], window % STARTS
        inside: list[Vector | None] = [None] * CLIENTS
        sums: list[list[Vector]] = [[] for _ in range(CLIENTS)]
        for turn in range(SPREAD + 1):
            uploads = []
            for client in range(CLIENTS):
                own = clients.upload(start, client, window * (SPREAD + 1) + turn, forgets=client in chosen)
                if client in chosen and turn < SPREAD:
                    mask = clients.mask(start, client, form.damping)
                    ratios.append(norm(plus(with_mask(own, mask, form), own, -1.0)) / norm(own))
                    own = with_mask(own, mask, form)
                uploads.append(own)
            if form.cover:
                for client, own in enumerate(uploads):
                    before = inside[client]
                    scale = 0.0 if turn == SPREAD else 2**0.5 if before is None else 1.0
                    new = fresh(own, scale * form.cover, noisy)
                    uploads[client] = plus(own, new) if before is None else plus(plus(own, new), before, -1.0)
                    inside[client] = new
            if turn < SPREAD:
                each.add(uploads, last, chosen, start)
            for client, own in enumerate(uploads):
                sums[client].append(own)
            last = uploads
        whole = [total(some) for some in sums]
        added_up.add(whole, whole, chosen, start)
    return {"auc": each.auc(), "ten_rounds_auc": added_up.auc(), "mask_to_ordinary_norm": float(np.median(ratios))}


def fresh(like: Vector, cover: float, draw: np.random.Generator) -> Vector:
    return _noise(like, {"seed": int(draw.integers(2**62)), "deviation": cover})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_seeds(parser, "0-2")
    parser.add_argument("--cover", default=",".join(map(str, COVERS)), help="standard deviations, with commas")
    options = parser.parse_args()
    covers = [float(part) for part in options.cover.split(",")]
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, float]]] = {}
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            clients = Clients(seed, Path(folder))
        for name, form in forms(covers).items():
            numbers = measured(clients, form)
            found.setdefault(name, []).append(numbers)
            print(f"seed {seed}  {name:44s} " + " ".join(f"{k} {v:.4g}" for k, v in numbers.items()), flush=True)
    print(summary(found))
    if min(options.seeds) < 100:
        settings = {"strangers": STRANGERS, "rounds": WINDOWS * SPREAD, "forgetting": FORGETTING, "covers": covers}
        write_result(RESULTS / "federated-detector.json", options.seeds, found, settings=settings)


if __name__ == "__main__":
    main()
