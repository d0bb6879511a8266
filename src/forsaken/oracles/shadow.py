"""The paper's membership oracle: a shadow model and gradient-boosted trees (Salem et al. 2019).

A shadow model is trained like the target, on other data of the same kind. Its members and non-members are
known, so trees can learn from its largest posteriors what a member looks like, and judge the target's.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forsaken._files import write_atomically
from forsaken._random import checked_seed
from forsaken._untrusted import UnreadableError, parse_json, read_at_most
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
_MOST_BYTES, _MOST = 2**26, 10**6  # of a file; of classes
_INDICES = ("left_children", "right_children", "split_indices", "default_left")
_NUMBERS = ("split_conditions", "base_weights", "loss_changes", "sum_hessian")
_LARGEST = 3.4e38  # of a float32
_NO_PARENT = 2**31 - 1  # XGBoost's word for it
_SCORE = re.compile(r"\[?[0-9.]{1,20}(E-?[0-9]{1,3})?\]?")
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
        booster = _booster(top_posteriors(members), top_posteriors(nonmembers), seed)
        return cls(booster, members.shape[1])

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
            content = parse_json(read_at_most(path, _MOST_BYTES))
        except OSError as error:
            raise OracleError(f"cannot read {path}: {error.strerror}") from error
        except UnreadableError as error:
            raise OracleError(f"{path} is not an oracle: {error}") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise OracleError(f"{path} is not an oracle: expected JSON that ShadowOracle.save wrote")
        if content.get("version") != _VERSION:
            raise OracleError(f"{path} has version {content.get('version')!r}, this package reads {_VERSION}")
        booster = _trees().Booster()
        try:
            classes = content["classes"]
            booster.load_model(bytearray(json.dumps(_rebuilt(content["trees"], classes)).encode()))
        except (KeyError, TypeError, ValueError, AttributeError, _trees().core.XGBoostError) as error:
            raise OracleError(f"{path} is damaged: its trees cannot be read") from error
        booster.set_param({"nthread": _SETTINGS["nthread"]})
        return cls(booster, classes)


def _booster(members: Array, nonmembers: Array, seed: int) -> xgboost.Booster:
    """Return trees that tell rows of features of members from those of non-members."""
    trees = _trees()
    features = np.concatenate([members, nonmembers])
    truth = np.repeat([1.0, 0.0], [len(members), len(nonmembers)])
    # Equal total weights, or the verdict would depend on the sizes of the two sets. Each total is the size of the
    # smaller set, since XGBoost's regularisation depends on the absolute weights: copies in the larger set must
    # not weaken it.
    total = min(len(members), len(nonmembers))
    weights = np.repeat([total / len(members), total / len(nonmembers)], [len(members), len(nonmembers)])
    data = trees.DMatrix(features, label=truth, weight=weights)
    found: xgboost.Booster = trees.train(_SETTINGS | {"seed": checked_seed(seed)}, data, num_boost_round=_TREES)
    return found


def fit_trees(members: Array, nonmembers: Array, *, seed: int = 0) -> Callable[[Array], Array]:
    """Return a score, higher for members, that trees with the oracle's settings learn from rows of any features."""
    booster = _booster(members, nonmembers, seed)
    return lambda features: np.asarray(booster.predict(_trees().DMatrix(features)), dtype=np.float64)


def _rebuilt(content: Any, classes: Any) -> dict[str, Any]:
    """Return XGBoost's description of an oracle, made anew from the checked splits and leaves of a file.

    XGBoost trusts what it reads: a wrong index makes it read memory that is not its own. So of the file's numbers only
    those of `_rebuilt_tree` and the two below are passed on, and everything else is written here.
    """
    if type(classes) is not int or not 2 <= classes <= _MOST:
        raise ValueError("classes")
    features, learner = min(classes, _TOP), content["learner"]
    given = learner["gradient_booster"]["model"]
    trees = [_rebuilt_tree(tree, at, features) for at, tree in enumerate(given["trees"])]
    score, version = learner["learner_model_param"]["base_score"], content["version"]
    if not _SCORE.fullmatch(score) or not 0 < float(score.strip("[]")) < 1:
        raise ValueError("base score")
    if len(version) != 3 or not all(type(part) is int and 0 <= part <= _MOST for part in version):
        raise ValueError("version")
    count = {"num_parallel_tree": "1", "num_trees": str(len(trees))}
    model: dict[str, Any] = {"gbtree_model_param": count, "tree_info": [0] * len(trees), "trees": trees}
    model["iteration_indptr"] = list(range(len(trees) + 1))
    if "cats" in given:  # versions before 3.1 know no categories
        model["cats"] = {"enc": [], "feature_segments": [], "sorted_idx": []}
    about = {"base_score": score, "boost_from_average": "1", "num_class": "0", "num_target": "1"}
    return {
        "version": version,
        "learner": {
            "attributes": {},
            "feature_names": [],
            "feature_types": [],
            "gradient_booster": {"name": "gbtree", "model": model},
            "learner_model_param": about | {"num_feature": str(features)},
            "objective": {"name": _SETTINGS["objective"], "reg_loss_param": {"scale_pos_weight": "1"}},
        },
    }


def _rebuilt_tree(tree: Any, number: int, features: int) -> dict[str, Any]:
    """Return one tree, in which every node but the first must have exactly one parent, which stands before it."""
    left, right, splits, defaults = indices = [tree[name] for name in _INDICES]
    count = len(left)
    if any(len(part) != count or {type(one) for one in part} != {int} for part in indices):
        raise ValueError("indices")
    parents: list[int | None] = [None] * count
    for at, children in enumerate(zip(left, right, strict=True)):
        if children == (-1, -1):
            continue
        for child in children:
            if not at < child < count or parents[child] is not None:
                raise ValueError("links")
            parents[child] = at
    if None in parents[1:] or not all(0 <= split < features for split in splits) or not set(defaults) <= {0, 1}:
        raise ValueError("nodes")
    for part in (tree[name] for name in _NUMBERS):
        if len(part) != count or not all(type(one) in (int, float) and abs(one) <= _LARGEST for one in part):
            raise ValueError("numbers")
    sizes = {"num_nodes": count, "num_feature": features, "num_deleted": 0, "size_leaf_vector": 1}
    return {
        **{name: tree[name] for name in (*_INDICES, *_NUMBERS)},
        **{name: [] for name in ("categories", "categories_nodes", "categories_segments", "categories_sizes")},
        "split_type": [0] * count,
        "parents": [_NO_PARENT, *parents[1:]],
        "id": number,
        "tree_param": {name: str(size) for name, size in sizes.items()},
    }


def _trees() -> Any:
    # Imported where it is used: unlearning works without XGBoost installed.
    try:
        import xgboost  # noqa: PLC0415
    except ImportError as error:
        raise OracleError("the shadow oracle needs XGBoost; install it with: pip install xgboost") from error
    return xgboost
