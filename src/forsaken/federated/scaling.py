"""What a client uploads so that the server's ordinary update moves the weights by a mask: pure arithmetic.

In round t the server adds up what arrived, with weights w_i, and divides by a divisor N that it announced beforehand:

    g_t = (1/N) Σ w_i u_i        v_t = ρ v_(t-1) + g_t        θ_(t+1) = θ_t − η v_t

A client that uploads c·μ adds (w c/N)·μ to g_t. Let `gradient` be that factor of μ in g_t, and `velocity` the factor of
μ in v_t. The weights then move by −η·velocity·μ in every round, so that a shift by −s·μ in this round takes

    gradient = s/η − ρ·velocity        c = gradient·N/w

For ρ = 0 and s = 1 that is c = N/(w η): (n/η) where the server divides a sum by n samples (w = 1, N = n), (m/η) for a
mean over m clients, and n/(n_0 η) for a mean weighted by samples (w = n_0). With momentum the next round takes s = 0,
and so gradient = −ρ/η: the cancelling upload. N is announced and kept, so a client that drops out changes none of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from forsaken._checks import Problems
from forsaken.errors import InputError

Vector = dict[str, Tensor]
"""Numbers for every parameter of a model, by its name."""

RULES = ("mean", "weighted-mean", "sum")
_DONE = 1e-6  # the share of a mask that may be missing, or still move, when it counts as applied


@dataclass(frozen=True, slots=True)
class Terms:
    """What the server announces with a round, and keeps to.

    Attributes
    ----------
    step : int
        How many updates the weights of this round have had. A round without any usable upload makes none.
    rule : str
        Of `RULES`: what an ordinary upload is, and its weight. "mean": the client's (pseudo-)gradient, weight 1.
        "weighted-mean": the same, weighted by the client's number of samples. "sum": the client's gradient times its
        number of samples, weight 1.
    divisor, rate, momentum : float
        N, η and ρ.
    bound : float
        By how much one upload may move the weights (the norm of η w u/N); the server shortens longer ones.
    cover : float
        The standard deviation of the noise that every client adds to its upload, and takes back in its next one.
    counted : tuple of str
        The tokens of the uploads that the last updates were made of.
    horizon : int
        How many updates `counted` covers.
    """

    step: int
    rule: str
    divisor: float
    rate: float
    momentum: float = 0.0
    bound: float = math.inf
    cover: float = 0.0
    counted: tuple[str, ...] = ()
    horizon: int = 0

    def __post_init__(self) -> None:
        found = Problems("Terms")
        found.whole("step", self.step, least=0)
        found.choice("rule", self.rule, RULES)
        found.number("divisor", self.divisor, least=1e-12)
        found.number("rate", self.rate, least=1e-12)
        found.number("momentum", self.momentum, least=0, most=0.999)
        if not self.bound > 0:
            found.add(f"bound is {self.bound!r}, expected a number > 0")
        found.number("cover", self.cover, least=0)
        if self.cover and self.momentum:
            found.add("cover is given beside a momentum, which would repeat the noise; leave one of them out")
        found.report()

    def weight(self, samples: int) -> float:
        """Return w_i for a client of so many samples."""
        return float(samples) if self.rule == "weighted-mean" else 1.0

    def factor(self, gradient: float, samples: int) -> float:
        """Return c, by which μ is multiplied in an upload that adds gradient·μ to g_t.

        >>> Terms(0, "weighted-mean", divisor=1000, rate=0.5).factor(1 / 0.5, samples=100)  # n/(n_0 η)
        20.0
        """
        return gradient * self.divisor / self.weight(samples)

    def effect(self, samples: int) -> float:
        """Return η w/N: by how much the weights move for an upload of norm 1."""
        return self.rate * self.weight(samples) / self.divisor


@dataclass(frozen=True, slots=True)
class Ledger:
    """How much of a mask the server's weights and its momentum hold.

    Attributes
    ----------
    applied : float
        The share of μ that was subtracted from θ.
    velocity : float
        The factor of μ in the server's velocity v.
    step : int
        The number of updates after which that is so.
    """

    applied: float = 0.0
    velocity: float = 0.0
    step: int = 0

    def after(self, gradient: float, terms: Terms) -> Ledger:
        """Return the ledger one update later, to which gradient·μ was added."""
        velocity = terms.momentum * self.velocity + gradient
        return Ledger(self.applied + terms.rate * velocity, velocity, self.step + 1)

    def at(self, step: int, terms: Terms) -> Ledger:
        """Return the ledger at a later step, after updates to which this client added nothing of its mask."""
        found = self
        while found.step < step and terms.momentum * abs(found.velocity) > 0:
            found = found.after(0.0, terms)
        return found if found.step >= step else replace(found, velocity=0.0, step=step)

    def gradient(self, share: float, terms: Terms) -> float:
        """Return the factor of μ in g_t that moves θ by −share·μ in this update."""
        return share / terms.rate - terms.momentum * self.velocity

    def settled(self, terms: Terms) -> bool:
        """Return whether all of the mask is applied and none of it moves the weights any more."""
        return abs(1 - self.applied) < _DONE and terms.rate * terms.momentum * abs(self.velocity) < _DONE


def norm(vector: Mapping[str, Tensor]) -> float:
    """Return the Euclidean norm over all parameters."""
    return math.sqrt(sum(float(part.double().square().sum()) for part in vector.values()))


def plus(one: Mapping[str, Tensor], other: Mapping[str, Tensor], factor: float = 1.0) -> Vector:
    """Return one + factor·other."""
    return {name: part + factor * other[name].to(part.dtype) for name, part in one.items()}


def within(start: Mapping[str, Tensor], direction: Mapping[str, Tensor], factor: float, bound: float) -> float:
    """Return the factor nearest to `factor`, between 0 and it, for which |start + factor·direction| is within a bound.

    Where `start` alone is out of bounds the answer is 0.

    >>> import torch
    >>> within({"w": torch.tensor([3.0, 0.0])}, {"w": torch.tensor([0.0, 1.0])}, 100.0, bound=5.0)
    4.0
    """
    a, c = norm(direction) ** 2, norm(start) ** 2 - bound**2
    if not math.isfinite(bound) or a == 0:
        return factor
    if c >= 0:
        return 0.0
    b = sum(float((start[name].double() * part.double()).sum()) for name, part in direction.items())
    b = b if factor >= 0 else -b
    most = (-b + math.sqrt(b * b - a * c)) / a  # a x² + 2 b x + c = 0, the positive root
    return math.copysign(min(abs(factor), most), factor)


def check_alike(vector: Mapping[str, Tensor], like: Mapping[str, Tensor], what: str) -> None:
    """Raise an `InputError` unless a vector has the parameters and shapes of another."""
    if vector.keys() != like.keys():
        other = sorted(set(vector) ^ set(like))
        raise InputError(
            f"{what} has other parameters than this model ({', '.join(other[:4])})",
            field="model",
            remedy="run the same network on the server and on every node",
        )
    for name, part in like.items():
        if vector[name].shape != part.shape:
            raise InputError(
                f"{what} has {name} of shape {tuple(vector[name].shape)}",
                field="model",
                expected=str(tuple(part.shape)),
                remedy="run the same network on the server and on every node",
            )
