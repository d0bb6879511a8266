"""The rows of benchmarks/out_of_fold.py: methods, their references and their retain samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from common import RESULTS
from torch import Tensor

from forsaken import Forsaken
from forsaken._random import generator
from forsaken.auditing.held_out import HeldOut
from forsaken.bench.wrapped import InTurn, OrNothing
from forsaken.data.nest import leaves, map_nest
from forsaken.data.samples import Samples
from forsaken.unlearning.base import Unlearner
from forsaken.unlearning.table import build

IDEAL = HeldOut(by="all")
TEN = HeldOut(4, "group")  # its groups are known with the scenario: `in_groups`
PEERS = ("salun", "neggrad-plus", "scrub")
# Where peers are tuned, if not on the task itself: by --rows peers, or by benchmarks/baselines.py, there or on the
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


def ours(plan: HeldOut = IDEAL, retain: str = "few", **changes: Any) -> Row:
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


def neighbours(samples: Samples, seed: int) -> Samples:
    """Return near neighbours of samples: words left out, pictures moved by a pixel and mirrored, numbers with noise."""
    draw = generator(seed, 92)

    def moved(leaf: Tensor) -> Tensor:
        shape = leaf.shape
        if leaf.dim() == 4:
            return leaf.roll(1, dims=-1).flip(-1)
        if not leaf.is_floating_point():  # tokens: one in seven is taken from elsewhere in the same text
            swap = torch.from_numpy(draw.random(shape) < 1 / 7)
            other = torch.from_numpy(np.stack([draw.permutation(shape[1]) for _ in range(shape[0])]))
            return torch.where(swap, leaf.gather(1, other), leaf)
        if float((leaf == 0).double().mean()) > 0.9:  # a bag of words: one in five is left out
            return leaf * torch.from_numpy(draw.random(shape) >= 0.2)
        return leaf + 0.1 * leaf.std() * torch.from_numpy(draw.standard_normal(shape)).to(leaf.dtype)

    return Samples(map_nest(moved, samples.inputs), samples.labels)


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
    for name in PEERS:
        found[name] = Row(OrNothing(method=build(name, best[name])))  # what was best may diverge on another original
        if f"{name}, all kept" in best and task.startswith(FEW):
            found[f"{name}, all kept"] = Row(OrNothing(method=build(name, best[f"{name}, all kept"])), None, "all")
    return found


def chosen(rows: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings of each peer whose AUC and accuracy are nearest to a retrained model's."""
    aim = rows["retrained"]["accuracy"]

    def distance(row: dict[str, Any]) -> float:
        return abs(row["auc"] - 0.5) + WORTH * max(0.0, aim - row["accuracy"])

    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(row.split(":")[0] for row in rows if ":" in row):
        of_peer = [row for key, row in rows.items() if key.startswith(f"{name}:")]
        found[name] = min(of_peer, key=distance)["settings"]
    return found


def tried(task: str) -> dict[str, Row]:
    """Return the peers with every setting that is tried, on the seeds of the tuning."""
    rates = {
        "salun": (1e-4, 1e-3, 1e-2, 1e-1),
        "neggrad-plus": (1e-2, 3e-2, 1e-1, 3e-1),
        "scrub": (3e-3, 3e-2, 0.3, 3.0),
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


def confirm(task: str) -> dict[str, Row]:
    """Return the rows that are reported, with the settings fixed."""
    found = {**peers(task), "all but D": ours(), "K = 4 by group": ours(grouped(4))}
    if task != "cifar10-id":
        found["all but D, 10 % retained"] = ours(retain="tenth")
    if task.startswith(("digits", "reuters-")):
        found |= {
            "K = 4 by group, 10 % retained": ours(grouped(4), "tenth"),
            "K = 2 by group": ours(grouped(2)),
            "K = 8 by group": ours(grouped(8)),
            "K = 2 by row": ours(HeldOut(2)),
            "K = 4 by row": ours(HeldOut(4)),
            "K = 8 by row": ours(HeldOut(8)),
        }
    return found


def curve(task: str) -> dict[str, Row]:
    """Return the trade between forgetting and keeping, over λ."""
    del task
    shares = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
    return {f"share {value:g}": ours(penalty_share=value) for value in shares}


def attacks(task: str) -> dict[str, Row]:
    """Return the rows that are attacked harder: near neighbours, and ten requests one after the other."""
    del task
    return {
        "class-mean": Row(Forsaken()),
        "all but D": ours(),
        "K = 4 by group": ours(grouped(4)),
        "ten requests, K = 4 by group": Row(InTurn(method=Forsaken.out_of_fold()), TEN),
        "ten requests, class-mean": Row(InTurn(method=Forsaken())),
    }


def tune(task: str) -> dict[str, Row]:
    """Return what is tried on the seeds of the tuning: one thing at a time left out or changed, and some pairs."""
    del task
    bare = {"relax": False, "ease": False, "let_go": None, "anchor_references": 0, "importance_from": "retain"}
    bare |= {"close": None}
    changes: dict[str, dict[str, Any]] = {
        "settled": {},
        "penalised to the end": {"relax": False},
        "λ stays": {"ease": False},
        "λ stays, share 1e-3": {"ease": False, "penalty_share": 1e-3},
        "every reference held": {"let_go": None},
        "let go at 0.03": {"let_go": 0.03},
        "let go at 0.3": {"let_go": 0.3},
        "no reference held": {"anchor_references": 0},
        "100 references held": {"anchor_references": 100},
        "800 references held": {"anchor_references": 800},
        "importance from retain samples": {"importance_from": "retain"},
        "importance by the loss": {"importance_from": "retain", "importance": "loss"},
        "share 1e-3": {"penalty_share": 1e-3},
        "share 2e-2": {"penalty_share": 2e-2},
        "every weight may go on": {"at_most": None},
        "power 0": {"power": 0.0},
        "power 1/3, floor 0.01": {"power": 1 / 3, "floor": 0.01},
        "power 1/2, floor 0.1": {"power": 0.5, "floor": 0.1},
        "power 3/4, floor 0.2": {"power": 0.75, "floor": 0.2},
        "floor 1/2": {"floor": 0.5},
        "floor 2": {"floor": 2.0},
        "anchor 0.3": {"anchor": 0.3},
        "anchor 3": {"anchor": 3.0},
        "80 iterations": {"iterations": 80},
        "240 iterations": {"iterations": 240},
        "history 20": {"history": 20},
        "never stopped early": {"stop": "none", "close": None},
        "close at 1e-3": {"close": 1e-3},
        "close at 1e-4": {"close": 1e-4},
        "bare": bare,
        "bare, share 3e-4": bare | {"penalty_share": 3e-4},
        "bare, relaxed": bare | {"relax": True},
        "bare, references held": bare | {"anchor_references": 300},
    }
    found = {name: ours(**each) for name, each in changes.items()}
    return found | {"near": ours(retain="near"), "tenth": ours(retain="tenth")}


PRESETS: dict[str, Callable[[str], dict[str, Row]]] = {
    "attacks": attacks,
    "confirm": confirm,
    "curve": curve,
    "peers": tried,
    "tune": tune,
}
