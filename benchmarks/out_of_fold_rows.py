"""The rows of benchmarks/out_of_fold.py: methods, their references and their retain samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from common import MOVED, RESULTS
from torch import Tensor

from forsaken import Forsaken
from forsaken._random import generator
from forsaken.auditing.held_out import HeldOut
from forsaken.bench.wrapped import InTurn, OrNothing
from forsaken.data.nest import leaves, map_nest
from forsaken.data.samples import Samples
from forsaken.unlearning.base import Unlearner
from forsaken.unlearning.methods import build

IDEAL = HeldOut(by="all")
TEN = HeldOut(4, "group")  # its groups are known with the scenario: `in_groups`
PEERS = ("salun", "neggrad-plus", "scrub")
# Where peers are tuned, if not on the task itself: by --rows peers, or by forsaken bench tune, there or on the
# nearest task that it knows.
TUNED = {"reuters-": "reuters-35-11", "news-": "news-15-5", "imdb-": "i-c", "cifar10-": "c10-t"}
WORTH = 5.0  # of a point of accuracy beside one of AUC: a model that lost both is no better for the AUC
FEW = ("digits", "reuters-", "news-")  # training data of a few thousand rows: peers get all of them as well
PICTURES = ("c10", "cifar10", "poison-")


@dataclass(frozen=True)
class Row:
    """One row: a method, how the references of each original are made, and which samples it retains."""

    method: Unlearner
    references: HeldOut | None = None
    retain: str = "few"

    def told(self) -> dict[str, Any]:
        """Return the row's settings, ready for JSON."""
        plan = None if self.references is None else self.references.to_dict()
        method = self.method.method if isinstance(self.method, OrNothing) else self.method
        return {"settings": method.settings, "references": plan, "retain": self.retain}


def grouped(folds: int) -> HeldOut:
    """Return folds in which the forgotten samples are one group."""
    return HeldOut(folds, "forgotten")


def ours(plan: HeldOut = IDEAL, retain: str = "tenth", **changes: Any) -> Row:
    """Return Forsaken with references."""
    return Row(Forsaken.out_of_fold(**changes), plan, retain)


def near(forget: Samples, others: Samples, count: int) -> np.ndarray[Any, Any]:
    """Return the samples that are most like some forgotten one, by the cosine of their centred inputs."""
    rows = [
        np.concatenate([leaf.reshape(len(leaf), -1).double() for leaf in leaves(part.inputs)], axis=1)
        for part in (forget, others)
    ]
    middle = rows[1].mean(0)
    one, two = ((part - middle) / (np.linalg.norm(part - middle, axis=1, keepdims=True) + 1e-12) for part in rows)
    return np.argsort(-(two @ one.T).max(1), kind="stable")[:count]


def in_groups(rest: int, count: int, parts: int = 10) -> tuple[int, ...]:
    """Return groups for which each of `parts` of the last `count` rows is one, and every other row its own."""
    own = [-1 - at for at, part in enumerate(np.array_split(np.arange(count), parts)) for _ in part]
    return (*range(rest), *own)


def neighbours(samples: Samples, seed: int) -> dict[str, Samples]:
    """Return near neighbours of samples, by name: pictures mirrored and shifted, words left out, numbers with noise."""
    draw = generator(seed, 92)

    def moved(leaf: Tensor) -> Tensor:
        shape = leaf.shape
        if not leaf.is_floating_point():  # tokens: one in seven is taken from elsewhere in the same text
            swap = torch.from_numpy(draw.random(shape) < 1 / 7)
            other = torch.from_numpy(np.stack([draw.permutation(shape[1]) for _ in range(shape[0])]))
            return torch.where(swap, leaf.gather(1, other), leaf)
        if float((leaf == 0).double().mean()) > 0.9:  # a bag of words: one in five is left out
            return leaf * torch.from_numpy(draw.random(shape) >= 0.2)
        return leaf + 0.1 * leaf.std() * torch.from_numpy(draw.standard_normal(shape)).to(leaf.dtype)

    def shifted(leaf: Tensor) -> Tensor:
        return torch.cat([leaf[..., :1], leaf[..., :-1]], dim=-1)

    if all(leaf.dim() == 4 for leaf in leaves(samples.inputs)):
        return {
            "mirrored": Samples(map_nest(lambda leaf: leaf.flip(-1), samples.inputs), samples.labels),
            "shifted": Samples(map_nest(shifted, samples.inputs), samples.labels),
        }
    return {"near": Samples(map_nest(moved, samples.inputs), samples.labels)}


def peers(task: str) -> dict[str, Row]:
    """Return the methods that references are compared with, tuned."""
    found = {"class-mean": Row(OrNothing(method=Forsaken())), "paper": Row(OrNothing(method=Forsaken.paper()))}
    kind = next((own for start, own in TUNED.items() if task.startswith(start)), task)
    path = RESULTS / f"out-of-fold-{kind}-peers-100.json"
    if path.exists():
        best = chosen(json.loads(path.read_bytes())["rows"])
    else:
        nearest = "digits-pictures" if task.startswith(PICTURES) else "reuters-35-11"
        source = kind if (RESULTS / f"baselines-{kind}.json").exists() else nearest
        best = json.loads((RESULTS / f"baselines-{source}.json").read_bytes())["settings"]
    for name in (name for name in PEERS if name in best):
        found[name] = Row(OrNothing(method=build(name, best[name])))  # what was best may diverge on another original
        if f"{name}, all kept" in best and task.startswith(FEW):
            found[f"{name}, all kept"] = Row(OrNothing(method=build(name, best[f"{name}, all kept"])), None, "all")
    return found


def chosen(rows: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings of each peer whose AUC and accuracy are nearest to a retrained model's.

    Settings that diverge on most originals, and so leave them as they were, are refused; a peer may have no other.
    """
    aim = rows["retrained"]["accuracy"]

    def distance(row: dict[str, Any]) -> float:
        return abs(row["auc"] - 0.5) + WORTH * max(0.0, aim - row["accuracy"])

    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(row.split(":")[0] for row in rows if ":" in row):
        of_peer = [row for key, row in rows.items() if key.startswith(f"{name}:") and row["density"] > MOVED]
        if of_peer:
            found[name] = min(of_peer, key=distance)["settings"]
    return found


def tried(task: str) -> dict[str, Row]:
    """Return the peers with every setting that is tried, on the seeds of the tuning."""
    rates = {
        "salun": (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
        "neggrad-plus": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0),
        "scrub": (3e-5, 3e-4, 3e-3, 3e-2, 0.3, 3.0),
    }
    found = {}
    for name in PEERS:
        for rate in rates[name]:
            for epochs in (5, 50):
                row = Row(OrNothing(method=build(name, {"learning_rate": rate, "epochs": epochs})))
                found[f"{name}: {rate:g}, {epochs} epochs"] = row
            if not task.startswith(PICTURES):
                row = Row(OrNothing(method=build(name, {"learning_rate": rate})), None, "all")
                found[f"{name}, all kept: {rate:g}"] = row
    return found


def views_of(task: str) -> tuple[int, str | None]:
    """Return how many views the references of a task are asked about, and which augmentation makes them."""
    if task.startswith("digits"):
        return 0, None
    if task.endswith("-augmented"):
        return 8, None
    return 3, "mirror-shift" if task.startswith(PICTURES) else "word-dropout"


def confirm(task: str) -> dict[str, Row]:
    """Return the rows that are reported, with the settings fixed; what a user can have comes first."""
    count, view = views_of(task)
    four, ideal = (replace(plan, views=count, view=view) for plan in (grouped(4), IDEAL))
    if task.endswith("-augmented"):
        return {
            "K = 4 by group, 8 views": ours(four),
            "K = 4 by group, 3 views": ours(four, views=3),
            "all but D, 8 views": ours(ideal),
            "all but D, 3 views": ours(ideal, views=3),
            "all but D": ours(ideal, views=0),
        }
    found = {"K = 4 by group": ours(four, views=0), "all but D": ours(ideal, views=0)}
    return found | ({"all but D, 3 views": ours(ideal)} if count else {})


def attacks(task: str) -> dict[str, Row]:
    """Return the rows that are attacked harder: ten requests one after the other."""
    del task
    return {
        "class-mean": Row(Forsaken()),
        "all but D": ours(),
        "K = 4 by group": ours(grouped(4)),
        "ten requests, K = 4 by group": Row(InTurn(method=Forsaken.out_of_fold()), TEN),
        "ten requests, class-mean": Row(InTurn(method=Forsaken())),
    }


def tune(task: str) -> dict[str, Row]:
    """Return what is tried on the seeds of the tuning: one thing at a time changed."""
    del task
    changes: dict[str, dict[str, Any]] = {
        "settled": {},
        "damping 0.01": {"damping": 0.01},
        "damping 0.03": {"damping": 0.03},
        "damping 0.3": {"damping": 0.3},
        "damping 1": {"damping": 1.0},
        "tolerance 0.01": {"tolerance": 0.01},
        "tolerance 0.05": {"tolerance": 0.05},
        "tolerance 0.1": {"tolerance": 0.1},
        "tolerance 0.2": {"tolerance": 0.2},
        "every layer moves": {"frozen_prefix": 0.0},
        "half of the weights stay": {"frozen_prefix": 0.5},
        "5 steps": {"steps": 5},
        "OWL-QN with anchors": {"optimiser": "owlqn"},
        "L-BFGS with anchors": {"optimiser": "lbfgs", "penalty": 0.0},
    }
    return {name: ours(**each) for name, each in changes.items()}


def matching(task: str) -> dict[str, Row]:
    """Return oracle matching with every setting that is tried, given the references that a user can have."""
    kept = "tenth" if task.startswith(PICTURES) else "all"  # its 20 |D| retain samples are drawn from these
    return {
        f"oracle-matching: {rate:g}, {epochs} epochs": Row(
            OrNothing(method=build("oracle-matching", {"learning_rate": rate, "epochs": epochs})), grouped(4), kept
        )
        for rate in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
        for epochs in (4, 13)
    }


def matched(task: str) -> dict[str, Row]:
    """Return oracle matching, tuned by --rows matching on seed 100 if that was run, and Forsaken, both with K = 4."""
    path, rows = RESULTS / f"out-of-fold-{task}-matching-100.json", list(matching(task).values())
    best = chosen(json.loads(path.read_bytes())["rows"])["oracle-matching"] if path.exists() else {}
    row = replace(rows[0], method=OrNothing(method=build("oracle-matching", best)))
    return {"K = 4 by group": ours(grouped(4), views=0), "oracle-matching, K = 4 by group": row}


PRESETS: dict[str, Callable[[str], dict[str, Row]]] = {
    "attacks": attacks,
    "confirm": confirm,
    "matched": matched,
    "matching": matching,
    "peers": tried,
    "rivals": peers,
    "tune": tune,
}
