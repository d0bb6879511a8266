"""scikit-learn's linear classifiers as modules, and back."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from forsaken.errors import ModelError

SUPPORTED = (LogisticRegression, LinearSVC)


def is_estimator(model: object) -> bool:
    """Return whether `model` is a scikit-learn estimator, supported or not."""
    return isinstance(model, BaseEstimator)


class LinearModel(nn.Module):
    """A fitted `LogisticRegression` or `LinearSVC` as a linear layer of the estimator's dtype.

    The logits are the estimator's decision values; two classes have a single decision value z, which is
    read as the logits (-z/2, z/2), so that their softmax is the logistic function of z. For logistic regression
    that is `predict_proba`. A support vector machine has no posterior of its own: here it is defined as
    the softmax of its decision values (one against the rest where there are many classes).
    """

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        if not isinstance(estimator, SUPPORTED):
            names = ", ".join(kind.__name__ for kind in SUPPORTED)
            raise ModelError(
                f"{type(estimator).__name__} is not supported (known estimators: {names}); of a pipeline give "
                "the last step and inputs that the steps before it have transformed"
            )
        try:
            check_is_fitted(estimator)
        except NotFittedError as error:
            raise ModelError(f"the {type(estimator).__name__} is not fitted; fit it first") from error
        coefficients = estimator.coef_
        dense = coefficients.toarray() if sparse.issparse(coefficients) else np.asarray(coefficients)
        intercept = np.broadcast_to(np.asarray(estimator.intercept_, dtype=dense.dtype), (len(dense),))
        self.weight = nn.Parameter(torch.tensor(np.ascontiguousarray(dense)))
        self.bias = nn.Parameter(torch.tensor(np.array(intercept)), requires_grad=bool(estimator.fit_intercept))
        self.estimator = estimator

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the decision values (samples x classes, one column for two classes)."""
        return nn.functional.linear(inputs, self.weight, self.bias)

    def to_estimator(self) -> Any:
        """Return a copy of the estimator with this layer's weights, in the original's shapes and dtype."""
        twin = copy.deepcopy(self.estimator)
        dtype = np.asarray(twin.intercept_).dtype
        twin.coef_ = self.weight.detach().cpu().numpy().astype(twin.coef_.dtype)
        bias = self.bias.detach().cpu().numpy().astype(dtype)
        if isinstance(self.estimator.intercept_, np.ndarray):
            twin.intercept_ = bias
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> LinearModel:
        twin = LinearModel(self.estimator)
        twin.load_state_dict(self.state_dict())
        memo[id(self)] = twin
        return twin


def as_given(module: nn.Module) -> Any:
    """Return what the user handed over: the estimator behind a `LinearModel`, or the module itself."""
    return module.to_estimator() if isinstance(module, LinearModel) else module
