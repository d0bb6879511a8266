"""What references are worth: how well an attack would tell them from models that were retrained.

A request moves a forgotten sample to where a fold's model has it. U-LiRA compares that, over many originals, with where
retrained models have it. Retrained models differ from each other by their seeds alone (σ); fold models differ also
because each lacks other rows. All of this can be seen on samples that no model learnt, without a request. With φ the
margin of such a sample, K folds, and expectations over the draw of the folds and the seeds,

    two trainings of one fold                 E (φ - φ')² / 2          = σ²
    the variance among the fold models        E Var(φ₁ ... φ_K)        = σ² + d² · K / (K - 1)
    the target and the mean of fold models    E (φ_target - mean φ)²   = b² + σ² (1 + 1/K)

where d² is the variance due to the rows that a fold model lacks, and b its systematic shift. (The folds are parts of
one whole, so what one lacks the others have: hence K / (K - 1) in the second line, and no d² in the third.) A reference
is then a draw from N(b, d² + σ²) and a retrained model one from N(0, σ²), which `likelihood_ratio_auc` tells apart. A
shift is seen on one target, whose own seed moves all samples together. So the estimate counts it by as much as b²
exceeds half of d² + σ², and the upper end of the interval counts all of it.

One group of rows may be so large, or so hard to learn, that the model without it is unlike all others, by g² more. A
request for that group is not told by it, since retrained models lack the group too; nor is a request for rows of
another fold, whose references have learnt it like the retrained models. Other rows of the group's fold are: for one row
of K the variance is d² + g² + σ². So from four folds on, a fold whose model is farther from the others than chance
allows is told apart: d² is that among the others, and the estimate for a row drawn at random the mean of (K - 1)
estimates without g² and one with it.

For a model that lacks the share q of the rows, d² grows as q (1 - q), the variance of a sum over q of the rows drawn
without replacement, and b as q. So the estimate at one K tells what another K would be worth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy import stats
from scipy.spatial.distance import cdist
from torch import Tensor

from forsaken.metrics import likelihood_ratio_auc, margins
from forsaken.types import Array

GOAL = 0.55  # the AUC that references are to stay below
MOST = 512  # folds that are considered
_ENOUGH, _CHANCE = 4, 0.01  # folds, of which one may be told apart, and how often that happens where none is unusual
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)  # means over a normal
_LEAST = 0.1  # no standard deviation is taken to be smaller, as in `u_lira`
_ERRORS = 2.0  # standard errors by which a shift must exceed chance
_DRAWS = 500  # of the bootstrap


@dataclass(frozen=True, slots=True)
class Worth:
    """An estimate of how well an attack tells references from retrained models, sample by sample.

    Attributes
    ----------
    auc : float
        The AUC of a likelihood-ratio attack that knows both distributions, for a row drawn at random; 0.5 is ideal.
    low, high : float
        A 95 % interval over other unseen samples and other trainings; over samples alone where there is one pair only.
        The upper end counts all of the shift.
    sigma : float
        The standard deviation of the margin among models that differ by their seeds alone.
    data : float
        The standard deviation that comes from the rows which a fold model lacks.
    group : float
        The standard deviation that the model of an unusual fold has beyond it; 0 where none is.
    shift : float
        The root mean square distance between the fold models' mean and the target that chance does not explain. It
        counts in `auc` by what its square has beyond half of the variance of the references.
    folds : int
        K of the fold models that were compared.
    samples : int
        How many unseen samples they were compared on.
    pairs : int
        How many pairs of models that differ by their seeds alone were compared.
    """

    auc: float
    low: float
    high: float
    sigma: float
    data: float
    group: float
    shift: float
    folds: int
    samples: int
    pairs: int

    def at(self, folds: int, request: float = 0.0) -> float:
        """Return the AUC to expect of references with `folds` folds.

        Parameters
        ----------
        folds : int
            K.
        request : float
            The share of all rows that the request takes, if they are one group: retrained models lack them as well. An
            unusual fold is then left out, since it may be unlike the others for lack of that very group.
        """
        near = likelihood_ratio_auc(*self.normals(folds, request))
        if request or not self.group:
            return near
        shift, spread, sigma = self.normals(folds)
        return near + (likelihood_ratio_auc(shift, math.hypot(spread, self.group), sigma) - near) / folds

    def after(self, forgotten: float) -> float:
        """Return the AUC to expect once earlier requests took the share `forgotten` of all rows.

        Retrained models lack these rows, and fold models have learnt most of them: to first order their influence is a
        shift of each sample, drawn once for all models, with the variance of a sum over that share of the rows.
        """
        own = 1 / self.folds
        aged = self.data * math.sqrt(forgotten * (1 - forgotten) / (own * (1 - own)))
        shift, spread, sigma = self.normals(self.folds)
        found = [likelihood_ratio_auc(abs(shift + aged * node), spread, sigma) for node in _NODES]
        more = self.at(self.folds) - likelihood_ratio_auc(shift, spread, sigma)
        return float(np.average(found, weights=_WEIGHTS)) + more

    def normals(self, folds: int, request: float = 0.0) -> tuple[float, float, float]:
        """Return b and both standard deviations of N(b, d² + σ²) and N(0, σ²), without an unusual fold."""
        share, own = max(0.0, 1 / folds - request), 1 / self.folds
        data2 = self.data**2 * share * (1 - share) / (own * (1 - own))
        return _normals(self.sigma**2, data2, (self.shift * share / own) ** 2)

    @property
    def folds_needed(self) -> int | None:
        """The smallest K whose estimate is below 0.55; None where there is none up to 512."""
        return next((folds for folds in range(2, MOST + 1) if self.at(folds) < GOAL), None)

    def about(self) -> dict[str, Any]:
        """Return the estimate, ready for JSON."""
        return asdict(self) | {"folds_needed": self.folds_needed}


def worth_of(
    folds: Sequence[Tensor], pairs: Sequence[tuple[Tensor, Tensor]], targets: Sequence[Tensor], *, count: int
) -> Worth | None:
    """Estimate what references are worth from logits of samples that no model learnt.

    The margin is that of the class which the fold models find likeliest on average, so no labels are needed.

    Parameters
    ----------
    folds : sequence of Tensor, shape (samples, classes)
        The logits of two or more fold models, of different folds.
    pairs : sequence of pairs of Tensor
        The logits of two models that were trained on the same rows with different seeds; at least one pair. Where these
        are second trainings of folds, those are the first folds.
    targets : sequence of Tensor
        The logits of the target, and of further models that learnt everything.
    count : int
        K, the number of folds; `folds` may hold some of the models only.

    Returns
    -------
    Worth or None
        None where there is nothing to compare: fewer than two fold models or samples, no pair, or one class.
    """
    if len(folds) < 2 or not pairs or not targets or min(folds[0].shape) < 2:
        return None
    fold_logits = np.stack([_array(each) for each in folds])
    likeliest = fold_logits.mean(axis=0).argmax(axis=1)

    def margin(logits: Tensor) -> Array:
        return margins(_array(logits), likeliest)

    among = margins(fold_logits, likeliest)
    # Models move on many samples at once, so one pair of them is worth fewer than n independent differences.
    ones = [margin(one) - margin(other) for one, other in pairs]
    ones += [among[at] - among[at + 1] for at in range(len(pairs), len(among) - 1, 2)]
    one_pair = _freedom(ones)
    far = _unusual(among, one_pair)
    near = among if far is None else np.delete(among, far, axis=0)
    seeds = np.mean([(margin(one) - margin(other)) ** 2 / 2 for one, other in pairs], axis=0)
    apart = (np.mean([margin(each) for each in targets], axis=0) - near.mean(axis=0)) ** 2
    beyond_others = np.zeros_like(seeds) if far is None else ((among[far] - near) ** 2).mean(axis=0) / 2
    chance = 1 / len(targets) + 1 / len(near)

    def parts(of_seeds: Array, of_folds: Array, of_far: Array, of_target: Array) -> tuple[float, float, float, float]:
        sigma2, among2 = float(of_seeds.mean()), float(of_folds.mean())
        data2 = max(0.0, among2 - sigma2) * (count - 1) / count
        group2 = 0.0 if far is None else 2 * max(0.0, float(of_far.mean()) - among2)
        # Some of the folds' models only: their mean still varies with the rows that they lack.
        partial = data2 * (1 / len(near) - 1 / count) * count / (count - 1)
        beyond = of_target - of_seeds * chance - partial
        # A root of what is left of chance would always look like a shift: less than two standard errors are none.
        doubtful = float(beyond.mean()) < _ERRORS * float(beyond.std()) / math.sqrt(len(beyond))
        return sigma2, data2, group2, 0.0 if doubtful else float(beyond.mean())

    def worth(sigma2: float, data2: float, group2: float, shift2: float) -> Worth:
        sigma, data, group, shift = (math.sqrt(part) for part in (sigma2, data2, group2, shift2))
        return Worth(0.0, 0.0, 0.0, sigma, data, group, shift, count, len(likeliest), len(pairs))

    each = (seeds, near.var(axis=0, ddof=1), beyond_others, apart)
    freedom = one_pair * np.array([len(pairs), len(near) - 1, 1.0, 1.0])
    draw, least, most = np.random.default_rng(0), np.empty(_DRAWS), np.empty(_DRAWS)
    for at in range(_DRAWS):
        rows = draw.integers(len(likeliest), size=len(likeliest))
        scale = draw.chisquare(freedom) / freedom if len(pairs) > 1 else np.ones(4)
        sigma2, data2, group2, shift2 = parts(*(part[rows] * own for part, own in zip(each, scale, strict=True)))
        least[at] = worth(sigma2, data2, group2, shift2).at(count)
        # `normals` takes half of the variance off a squared shift, so that adding it counts all of the shift.
        more = shift2 + (data2 + sigma2) / 2 if shift2 else 0.0
        most[at] = worth(sigma2, data2, group2, more).at(count)
    found = worth(*parts(*each))
    auc = found.at(count)
    low, high = float(np.quantile(least, 0.025)), float(np.quantile(most, 0.975))
    return replace(found, auc=auc, low=min(low, auc), high=max(high, auc))


def _unusual(among: Array, freedom: float) -> int | None:
    """Return which fold's model is farther from the others than chance allows; None for none, or fewer than four."""
    if len(among) < _ENOUGH:
        return None
    apart = cdist(among, among, "sqeuclidean") / 2
    far = int(np.median(apart, axis=1).argmax())
    others = np.delete(np.delete(apart, far, axis=0), far, axis=1)
    usual = float(others[np.triu_indices(len(others), 1)].mean())
    ratio = (2 * float(np.delete(apart[far], far).mean()) - usual) / max(usual, np.finfo(float).tiny)
    return far if ratio > stats.f.isf(_CHANCE / len(among), freedom, freedom * (len(others) - 1)) else None


def _freedom(differences: Sequence[Array]) -> float:
    """Return how many independent samples a difference of two models is worth, from independent differences d.

    For d from N(0, C), E (d·d')² = tr C² and E |d|² = tr C, so 1 / cos² of the angle between two of them is about
    (tr C)² / tr C², the degrees of freedom of |d|².
    """
    sizes = [float(each @ each) for each in differences]
    cosines = [
        float(one @ other) ** 2 / (sizes[at] * sizes[to])
        for at, one in enumerate(differences)
        for to, other in enumerate(differences[:at])
        if sizes[at] * sizes[to] > 0
    ]
    most = float(len(differences[0]))
    return min(most, 1 / max(float(np.mean(cosines)), 1 / most)) if cosines else most


def _normals(sigma2: float, data2: float, shift2: float) -> tuple[float, float, float]:
    spread, sigma = (max(_LEAST, math.sqrt(part)) for part in (data2 + sigma2, sigma2))
    return math.sqrt(max(0.0, shift2 - (data2 + sigma2) / 2)), spread, sigma


def _array(logits: Tensor) -> Array:
    return logits.detach().cpu().double().numpy()
