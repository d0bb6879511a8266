"""What references are worth: how well an attack would tell them from models that were retrained.

A request moves a forgotten sample to where a fold's model has it. U-LiRA compares that, over many originals, with where
retrained models have it. Retrained models differ from each other by their seeds alone (σ); fold models differ also
because each lacks other rows. All of this can be seen on samples that no model learnt, without a request. With φ and ψ
the margins of such a sample by K fold models and by T models that learnt everything (the target, and others like it),
and expectations over the draw of the folds and the seeds,

    the variance among the models of everything   E Var(ψ₁ ... ψ_T)   = σ²
    the variance among the fold models            E Var(φ₁ ... φ_K)   = σ² + d² · K / (K - 1)
    the distance of their means                   E (mean ψ - mean φ)² = b² + σ² (1/T + 1/K)

where d² is the variance due to the rows that a fold model lacks, and b its systematic shift. (The folds are parts of
one whole, so what one lacks the others have: hence K / (K - 1) in the second line, and no d² in the third.) A reference
is then a draw from N(b, d² + σ²) and a retrained model one from N(0, σ²), which `likelihood_ratio_auc` tells apart.

The seed of a model moves the margins of all samples together, so that b² alone is known badly. What a seed hardly moves
is the mean over all samples, and models that learnt less are less certain of most samples: b² counts where the mean
margins of both kinds of models differ by more than chance allows (a t test).

Models of everything differ less among themselves than fold models do. Where they differ by more than chance allows, the
target was trained in another way than the others: then σ² is taken to be the variance among the fold models, and the
shift to be the distance of the target alone.

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
_ENOUGH = 4  # folds, of which one may be told apart
_CHANCE = 0.01  # how often chance alone may pass for an unusual fold, or for a target that was trained in another way
_TINY = np.finfo(float).tiny
_LEAST_DEGREES = 2  # with which models tell how many samples they are worth
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)  # means over a normal
_LEAST = 0.1  # no standard deviation is taken to be smaller, as in `u_lira`
_DOUBT, _SURE = (
    0.1,
    0.025,
)  # how often chance alone may pass for a shift, in the estimate and at the interval's lower end
_DRAWS = 500  # of the bootstrap


@dataclass(frozen=True, slots=True)
class Worth:
    """An estimate of how well an attack tells references from retrained models, sample by sample.

    Attributes
    ----------
    auc : float
        The AUC of a likelihood-ratio attack that knows both distributions, for a row drawn at random; 0.5 is ideal.
    low, high : float
        Between these the AUC lies for 95 % of other unseen samples and other trainings. The lower end counts a shift
        that chance hardly explains, the upper one all of the target's own distance that chance does not explain.
    sigma : float
        The standard deviation of the margin among models that differ by their seeds alone.
    data : float
        The standard deviation that comes from the rows which a fold model lacks.
    group : float
        The standard deviation that the model of an unusual fold has beyond it; 0 where none is.
    shift : float
        The systematic shift b: the root mean square distance between the means of both kinds of models that chance does
        not explain; 0 where their mean margins do not tell them apart. It grows with the share of rows that fold models
        lack.
    folds : int
        K of the fold models that were compared.
    samples : int
        How many unseen samples they were compared on.
    pairs : int
        How many models were compared with the target that differ from it by their seeds alone: T - 1.
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
        spread, sigma = (max(_LEAST, math.sqrt(part)) for part in (data2 + self.sigma**2, self.sigma**2))
        return self.shift * share / own, spread, sigma

    @property
    def folds_needed(self) -> int | None:
        """The smallest K whose estimate is below 0.55; None where there is none up to 512."""
        return next((folds for folds in range(2, MOST + 1) if self.at(folds) < GOAL), None)

    def about(self) -> dict[str, Any]:
        """Return the estimate, ready for JSON."""
        return asdict(self) | {"folds_needed": self.folds_needed}


def worth_of(folds: Sequence[Tensor], wholes: Sequence[Tensor], *, count: int) -> Worth | None:
    """Estimate what references are worth from logits of samples that no model learnt.

    The margin is that of the class which all models find likeliest on average, so no labels are needed.

    Parameters
    ----------
    folds : sequence of Tensor, shape (samples, classes)
        The logits of two or more fold models, of different folds.
    wholes : sequence of Tensor
        The logits of two or more models that learnt everything and differ by their seeds alone; the target is the
        first.
    count : int
        K, the number of folds; `folds` may hold some of the models only.

    Returns
    -------
    Worth or None
        None where there is nothing to compare: fewer than two models of a kind or samples, or one class.
    """
    if min(len(folds), len(wholes)) < 2 or min(folds[0].shape) < 2:
        return None
    of_folds, of_wholes = (np.stack([_array(each) for each in models]) for models in (folds, wholes))
    # Each model counts alike, so that the choice of the class favours neither kind.
    likeliest = np.concatenate([of_folds, of_wholes]).mean(axis=0).argmax(axis=1)
    among, others = margins(of_folds, likeliest), margins(of_wholes, likeliest)
    far = _unusual(among, others)
    near = among if far is None else np.delete(among, far, axis=0)
    kinds = others, near
    one_pair = _freedom(kinds)  # models move on many samples at once, so their differences are worth fewer than n
    spreads = [kind.var(axis=0, ddof=1) for kind in kinds]
    beyond_others = np.zeros(len(likeliest)) if far is None else ((among[far] - near) ** 2).mean(axis=0) / 2
    apart, own = others.mean(axis=0) - near.mean(axis=0), others[0] - near.mean(axis=0)
    chance, chance_of_one = 1 / len(others) + 1 / len(near), 1 + 1 / len(near)
    # The mean margin of a model varies by its seed (and by what a fold lacks, which errs on the side of no shift).
    freedoms = [len(kind) - 1 for kind in kinds]
    of_means = float(np.average([kind.mean(axis=1).var(ddof=1) for kind in kinds], weights=freedoms)) * chance
    by_chance = 2 * stats.t.sf(abs(float(apart.mean())) / math.sqrt(max(of_means, _TINY)), sum(freedoms))

    wider = float(spreads[0].mean()) / max(float(spreads[1].mean()), _TINY)
    strange = wider > stats.f.isf(_CHANCE, *(one_pair * each for each in freedoms))

    def parts(of_seeds: Array, of_near: Array, of_far: Array, of_apart: Array, of_own: Array) -> tuple[float, ...]:
        among2 = float(of_near.mean())
        sigma2 = min(float(of_seeds.mean()), among2)
        data2 = (among2 - sigma2) * (count - 1) / count
        group2 = 0.0 if far is None else 2 * max(0.0, float(of_far.mean()) - among2)
        # Some of the folds' models only: their mean still varies with the rows that they lack.
        partial = data2 * (1 / len(near) - 1 / count) * count / (count - 1)
        shift2 = max(0.0, float(of_apart.mean()) - sigma2 * chance - partial) if by_chance < _DOUBT else 0.0
        most2 = max(shift2, float(of_own.mean()) - sigma2 * chance_of_one - partial)
        return sigma2, data2, group2, most2 if strange else shift2, most2

    def worth(sigma2: float, data2: float, group2: float, shift2: float) -> Worth:
        sigma, data, group, shift = (math.sqrt(part) for part in (sigma2, data2, group2, shift2))
        return Worth(0.0, 0.0, 0.0, sigma, data, group, shift, count, len(likeliest), len(wholes) - 1)

    each = (spreads[0], spreads[1], beyond_others, apart**2, own**2)
    freedom = one_pair * np.array([*freedoms, 1.0, 1.0, 1.0])
    draw, least, most = np.random.default_rng(0), np.empty(_DRAWS), np.empty(_DRAWS)
    for at in range(_DRAWS):
        rows = draw.integers(len(likeliest), size=len(likeliest))
        scale = draw.chisquare(freedom) / freedom
        sigma2, data2, group2, shift2, most2 = parts(*(part[rows] * one for part, one in zip(each, scale, strict=True)))
        least[at] = worth(sigma2, data2, group2, shift2 if by_chance < _SURE else 0.0).at(count)
        most[at] = worth(sigma2, data2, group2, most2).at(count)
    sigma2, data2, group2, shift2, _ = parts(*each)
    found = worth(sigma2, data2, group2, shift2)
    auc = found.at(count)
    low, high = float(np.quantile(least, 0.025)), float(np.quantile(most, 0.975))
    return replace(found, auc=auc, low=min(low, auc), high=max(high, auc))


def _unusual(among: Array, others: Array) -> int | None:
    """Return which fold's model is farther from the others than chance allows; None for none, or fewer than four."""
    if len(among) < _ENOUGH:
        return None
    apart = cdist(among, among, "sqeuclidean") / 2
    far = int(np.median(apart, axis=1).argmax())
    rest = np.delete(np.delete(apart, far, axis=0), far, axis=1)
    usual = float(rest[np.triu_indices(len(rest), 1)].mean())
    ratio = (2 * float(np.delete(apart[far], far).mean()) - usual) / max(usual, _TINY)
    # Half, since few models tell it badly: with all of it one table in six has an unusual fold by chance (K = 4).
    freedom = _freedom((others, np.delete(among, far, axis=0))) / 2
    return far if ratio > stats.f.isf(_CHANCE / len(among), freedom, freedom * (len(rest) - 1)) else None


def _freedom(kinds: Sequence[Array]) -> float:
    """Return how many independent samples a difference of two models of a kind is worth.

    The margins of a kind's models are taken to be draws from N(m, C), so that |d|² of a difference d has about
    (tr C)² / tr C² degrees of freedom, and C to be the same for all kinds but for its size. Each kind is scaled to the
    size 1, and the ratio estimated from the pooled covariance S: of m kinds with n degrees of freedom in all,
    E tr S² is about 1 / n + (n² + n - 2 m) / n² · tr C² / (tr C)².
    """
    apart = [kind - kind.mean(axis=0) for kind in kinds]
    sizes = [float((part**2).sum()) / (len(part) - 1) for part in apart]
    parts = [part / math.sqrt(size) for part, size in zip(apart, sizes, strict=True) if size > 0]
    n, most = sum(len(part) - 1 for part in parts), float(kinds[0].shape[1])
    if n < _LEAST_DEGREES:
        return most
    rows = np.concatenate(parts) / math.sqrt(n)
    ratio = (float(((rows @ rows.T) ** 2).sum()) - 1 / n) * n**2 / (n**2 + n - 2 * len(parts))
    return min(most, max(1.0, 1 / ratio)) if ratio > 0 else most


def _array(logits: Tensor) -> Array:
    return logits.detach().cpu().double().numpy()
