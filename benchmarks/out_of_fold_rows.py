"""The rows of benchmarks/out_of_fold.py: methods, their references and their retain samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from common import RESULTS
from torch import Tensor, nn

from forsaken import Forsaken
from forsaken._random import generator
from forsaken.auditing.held_out import HeldOut
from forsaken.data.nest import leaves, map_nest
from forsaken.data.samples import Samples
from forsaken.unlearning.base import About, Details, Unlearner
from forsaken.unlearning.request import Request
from forsaken.unlearning.table import build

IDEAL = HeldOut(by="all")
TEN = HeldOut(4, "group")  # its groups are known with the scenario: `in_groups`
PEERS = ("salun", "neggrad-plus", "scrub")
# Where peers were tuned (benchmarks/baselines.py): on the task itself, or on the nearest one that was.
TUNED = {"digits": "digits", "digits-pictures": "digits-pictures"}
PICTURES = ("c10-", "cifar10-", "tiny-", "t100-")


@dataclass(frozen=True)
class Row:
    """One row: a method, how the references of each original are made, and which samples it retains."""

    method: Unlearner
    references: HeldOut | None = None
    retain: str = "few"

    def told(self) -> dict[str, Any]:
        """Return the row's settings, ready for JSON."""
        plan = None if self.references is None else self.references.to_dict()
        return {"settings": self.method.settings, "references": plan, "retain": self.retain}


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


@dataclass(frozen=True, kw_only=True)
class InTurn(Unlearner):
    """The same method for one part of the samples after the other: as many requests, from one table."""

    about: ClassVar[About] = About("request after request", "this benchmark", ("forget",))
    method: Unlearner
    parts: int = 10

    def run(self, student: nn.Module, request: Request) -> Details:
        """Forget part after part; a later part is still in the model while an earlier one is forgotten."""
        steps = evaluations = 0
        for part in np.array_split(np.arange(len(request.forget)), self.parts):
            targets = None if request.targets is None else torch.as_tensor(request.targets)[part]
            found = self.method(
                student,
                request.forget.rows(part),
                request.reference,
                request.retain,
                targets=targets,
                training=request.training,
                forward=request.forward,
                seed=request.seed,
            )
            student.load_state_dict(found.model.state_dict())
            steps, evaluations = steps + found.iterations, evaluations + found.evaluations
        return Details("iterations", steps, evaluations, ())


def in_groups(rest: int, count: int, parts: int = 10) -> tuple[int, ...]:
    """Return groups for which each of `parts` of the last `count` rows is one, and every other row its own."""
    own = [-1 - at for at, part in enumerate(np.array_split(np.arange(count), parts)) for _ in part]
    return (*range(rest), *own)


def neighbours(samples: Samples, seed: int) -> Samples:
    """Return near neighbours of samples: words left out, pictures moved by a pixel and mirrored, numbers with noise."""
    draw = generator(seed, 92)

    def moved(leaf: Tensor) -> Tensor:
        shape = leaf.shape
        if not leaf.is_floating_point():  # tokens: one in seven is taken from elsewhere in the same text
            swap = torch.from_numpy(draw.random(shape) < 1 / 7)
            other = torch.from_numpy(np.stack([draw.permutation(shape[1]) for _ in range(shape[0])]))
            return torch.where(swap, leaf.gather(1, other), leaf)
        if leaf.dim() == 4:
            return leaf.roll(1, dims=-1).flip(-1)
        if float((leaf == 0).double().mean()) > 0.9:  # a bag of words: one in five is left out
            return leaf * torch.from_numpy(draw.random(shape) >= 0.2)
        return leaf + 0.1 * leaf.std() * torch.from_numpy(draw.standard_normal(shape)).to(leaf.dtype)

    return Samples(map_nest(moved, samples.inputs), samples.labels)


def peers(task: str) -> dict[str, Row]:
    """Return the methods that references are compared with, tuned."""
    source = TUNED.get(task, "digits-pictures" if task.startswith(PICTURES) else "reuters-35-11")
    best = json.loads((RESULTS / f"baselines-{source}.json").read_bytes())["settings"]
    found = {"class-mean": Row(Forsaken()), "paper": Row(Forsaken.paper())}
    for name in PEERS:
        found[name] = Row(build(name, best[name]))
        found[f"{name}, all kept"] = Row(build(name, best[f"{name}, all kept"]), None, "all")
    return found


def confirm(task: str) -> dict[str, Row]:
    """Return the rows that are reported, with the settings fixed."""
    small = task.startswith(PICTURES)
    found = {
        **peers(task),
        "all but D": ours(),
        "K = 4 by group": ours(grouped(4)),
        "all but D, 10 % retained": ours(retain="tenth"),
        "K = 4 by group, 10 % retained": ours(grouped(4), "tenth"),
    }
    if not small:
        found |= {
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
    penalties = (0.0, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
    return {f"penalty {value:g}": ours(penalty=value) for value in penalties}


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
    """Return what is tried on the seeds of the tuning: one setting at a time around the default, and some pairs."""
    del task
    found = {"default": ours()}
    tried: dict[str, tuple[Any, ...]] = {
        "penalty": (0.0, 1e-4, 3e-4, 3e-3, 1e-2),
        "power": (0.0, 0.5),
        "iterations": (30, 60, 90, 180, 240),
        "stop": ("none",),
        "anchor": (0.1, 0.3, 3.0, 10.0),
        "anchor_references": (50, 300),
        "history": (20,),
        "importance": ("loss",),
        "weights": ("importance",),
    }
    found |= {f"{name} {value}": ours(**{name: value}) for name, values in tried.items() for value in values}
    found |= {"near": ours(retain="near"), "tenth": ours(retain="tenth")}
    for penalty in (3e-4, 3e-3):
        found[f"penalty {penalty}, iterations 60"] = ours(penalty=penalty, iterations=60)
        found[f"penalty {penalty}, anchor 0.3"] = ours(penalty=penalty, anchor=0.3)
        found[f"penalty {penalty}, anchor 3"] = ours(penalty=penalty, anchor=3.0)
    return found


PRESETS: dict[str, Callable[[str], dict[str, Row]]] = {
    "attacks": attacks,
    "confirm": confirm,
    "curve": curve,
    "tune": tune,
}
