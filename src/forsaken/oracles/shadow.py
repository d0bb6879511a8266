"""The paper's membership oracle: a shadow model and gradient-boosted trees (Salem et al. 2019).

A shadow model is trained like the target, on other data of the same kind. Its members and non-members are
known, so trees can learn from its largest posteriors what a member looks like, and judge the target's.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forsaken._files import write_atomically
from forsaken._random import checked_seed
from forsaken.data.samples import Samples
from forsaken.errors import OracleError
from forsaken.models.logits import Forward, posteriors
from forsaken.oracles.base import Oracle, OracleReport
from forsaken.types import Array

if TYPE_CHECKING:
    import xgboost

_FORMAT = "forsaken.shadow-oracle"
_VERSION = 1
_TOP = 3  # posteriors that the trees see, or all where there are fewer classes
_TREES = 100
_SETTINGS = {"max_depth": 4, "eta": 0.1, "objective": "binary:logistic", "nthread": 1}


def top_posteriors(posterior: Array, count: int = _TOP) -> Array:
    """Return each row's largest posteriors, from large to small: the features of the black-box oracle.

    >>> top_posteriors(np.array([[0.1, 0.6, 0.1, 0.2]])).tolist()
    [[0.6, 0.2, 0.1]]
    """
    kept = min(count, posterior.shape[1])
    return -np.sort(-posterior, axis=1)[:, :kept]


class ShadowOracle(Oracle):
    """Black-box membership oracle. Higher scores mean member.

    Examples
    --------
    >>> from torch import nn
    >>> confident, unsure = np.diag([9.0] * 4), np.diag([1.0] * 4)
    >>> oracle = ShadowOracle.fit(nn.Identity(), members=confident, nonmembers=unsure)
    >>> oracle.is_member(nn.Identity(), np.array([[0.0, 9.5, 0.0, 0.0]]))
    array([ True])
    """

    def __init__(self, booster: xgboost.Booster, classes: int) -> None:
        self._booster = booster
        self.classes = classes

    @classmethod
    def fit(
        cls,
        shadow_model: object,
        *,
        members: object,
        nonmembers: object,
        forward: Forward | None = None,
        seed: int = 0,
    ) -> ShadowOracle:
        """Learn from a shadow model what a member's posteriors look like.

        Parameters
        ----------
        shadow_model : Module or estimator
            Trained like the target, on `members`.
        members, nonmembers : tensor, array, nest, Dataset or DataLoader
            What the shadow was and was not trained on; labels are ignored. Both sets have the same total weight.
        forward : callable, optional
            How to call a model whose output is not the logits themselves.
        seed : int
            For the trees.
        """
        inside = posteriors(shadow_model, Samples.read(members, "members", labels=False), forward=forward)
        outside = posteriors(shadow_model, Samples.read(nonmembers, "nonmembers", labels=False), forward=forward)
        return cls.fit_posteriors(inside, outside, seed=seed)

    @classmethod
    def fit_posteriors(cls, members: Array, nonmembers: Array, *, seed: int = 0) -> ShadowOracle:
        """Learn from the shadow's posteriors (samples x classes) themselves."""
        if {members.ndim, nonmembers.ndim} != {2} or members.shape[1] != nonmembers.shape[1]:
            raise OracleError(f"posteriors have shapes {members.shape} and {nonmembers.shape}, expected n x classes")
        if not len(members) or not len(nonmembers):
            raise OracleError(f"{len(members)} members and {len(nonmembers)} non-members, expected some of both")
        trees = _trees()
        features = top_posteriors(np.concatenate([members, nonmembers]))
        truth = np.repeat([1.0, 0.0], [len(members), len(nonmembers)])
        # Equal total weights, or the verdict would depend on the sizes of the two sets. Each total is the size of the
        # smaller set, since XGBoost's regularisation depends on the absolute weights: copies in the larger set must
        # not weaken it.
        total = min(len(members), len(nonmembers))
        weights = np.repeat([total / len(members), total / len(nonmembers)], [len(members), len(nonmembers)])
        data = trees.DMatrix(features, label=truth, weight=weights)
        settings = _SETTINGS | {"seed": checked_seed(seed)}
        return cls(trees.train(settings, data, num_boost_round=_TREES), members.shape[1])

    def score(self, model: object, samples: object, *, forward: Forward | None = None) -> Array:
        """Return the probability of membership of each sample, a float64 array. Higher means member."""
        posterior = posteriors(model, samples, forward=forward)
        if posterior.shape[1] != self.classes:
            raise OracleError(
                f"the model has {posterior.shape[1]} classes, but the oracle's shadow model had {self.classes}; "
                "fit an oracle on a shadow of this model"
            )
        return self.score_posteriors(posterior)

    def score_posteriors(self, posterior: Array) -> Array:
        """Return the probability of membership for rows of posteriors (samples x classes)."""
        if posterior.ndim != 2 or posterior.shape[1] != self.classes or not np.isfinite(posterior).all():
            raise OracleError(
                f"the posteriors have shape {posterior.shape} or are not finite, expected (samples, {self.classes})"
            )
        return self.score_top(top_posteriors(posterior))

    def score_top(self, top: Array) -> Array:
        """Return the probability of membership for rows of features (`top_posteriors`)."""
        return np.asarray(self._booster.predict(_trees().DMatrix(top)), dtype=np.float64)

    def evaluate_posteriors(self, members: Array, nonmembers: Array) -> OracleReport:
        """Evaluate the oracle on posteriors of known members and non-members."""
        return OracleReport.of(*(self.score_posteriors(part) > self.threshold for part in (members, nonmembers)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the oracle as JSON."""
        trees = json.loads(bytes(self._booster.save_raw(raw_format="json")))
        content = {"format": _FORMAT, "version": _VERSION, "classes": self.classes, "trees": trees}
        return write_atomically(path, json.dumps(content).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ShadowOracle:
        """Read an oracle that `save` wrote. Nothing is unpickled."""
        try:
            content = json.loads(Path(path).read_bytes())
        except OSError as error:
            raise OracleError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise OracleError(f"{path} is not an oracle: it is not JSON ({error})") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise OracleError(f"{path} is not an oracle: expected JSON that ShadowOracle.save wrote")
        if content.get("version") != _VERSION:
            raise OracleError(f"{path} has version {content.get('version')!r}, this package reads {_VERSION}")
        booster = _trees().Booster()
        try:
            classes = int(content["classes"])
            _check_trees(content["trees"], min(classes, _TOP))
            booster.load_model(bytearray(json.dumps(content["trees"]).encode()))
            fits = booster.num_features() == min(classes, _TOP)
        except (KeyError, TypeError, ValueError, _trees().core.XGBoostError) as error:
            raise OracleError(f"{path} is damaged: its trees cannot be read") from error
        if not fits:
            raise OracleError(f"{path} is damaged: its trees do not fit {classes} classes")
        booster.set_param({"nthread": _SETTINGS["nthread"]})
        return cls(booster, classes)


def _check_trees(content: Any, features: int) -> None:
    """Raise a ValueError unless every tree is one: XGBoost itself follows whatever links a file gives it."""
    for tree in content["learner"]["gradient_booster"]["model"]["trees"]:
        count = int(tree["tree_param"]["num_nodes"])
        left, right, splits = tree["left_children"], tree["right_children"], tree["split_indices"]
        if count < 1 or {len(part) for part in (left, right, splits)} != {count} or tree.get("categories"):
            raise ValueError("nodes")
        for at, (one, two, split) in enumerate(zip(left, right, splits, strict=True)):
            leaf = one == two == -1
            inside = at < one < count and at < two < count
            if not (leaf or inside) or not 0 <= split < features:
                raise ValueError("links")


def _trees() -> Any:
    # Imported where it is used: unlearning works without XGBoost installed.
    try:
        import xgboost  # noqa: PLC0415
    except ImportError as error:
        raise OracleError("the shadow oracle needs XGBoost; install it with: pip install xgboost") from error
    return xgboost
