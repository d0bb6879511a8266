"""From any model to logits: one adapter, one prediction pass.

Everything downstream sees a float matrix of samples x classes with at least two columns, whatever the model returns and
however it is called. A linear classifier of scikit-learn becomes a module (`LinearModel`), and an estimator again.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from forsaken._random import torch_seed
from forsaken.data.nest import Nest, leaves, map_nest, shape_of
from forsaken.data.samples import Samples
from forsaken.errors import ForsakenError, ModelError, NonFiniteError

Forward: TypeAlias = Callable[[nn.Module, Any], Tensor]

PREDICT_BATCH = 512  # samples of one prediction pass
_ESTIMATORS = (LogisticRegression, LinearSVC)
_TORCH = Path(torch.__file__).parent


class LogitModel(nn.Module):
    """A model seen as a function from a nest of inputs to logits (samples x classes).

    Parameters
    ----------
    model : Module
        Called with a tensor, with a dictionary's entries as keywords, or with a tuple's entries as arguments.
    forward : callable, optional
        ``forward(model, inputs)`` returns the logits, for a model that is called in another way or whose output is not
        the logits themselves.
    """

    def __init__(self, model: nn.Module, forward: Forward | None = None) -> None:
        super().__init__()
        self.model = model
        self.call = forward
        if forward is not None and not callable(forward):
            raise ModelError(f"forward is {forward!r}, expected a function: forward=lambda model, inputs: ...")
        dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
        self.dtype = dtypes.pop() if len(dtypes) == 1 else None
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def place(self, inputs: Nest) -> Nest:
        """Copy inputs to the model's device, and floating-point ones to its dtype where all its weights share one."""

        def move(leaf: Tensor) -> Tensor:
            dtype = self.dtype if leaf.is_floating_point() else None
            # Always a copy: a model that works in place must not change the user's data.
            return leaf.to(device=self.device, dtype=dtype, copy=True)

        return map_nest(move, inputs)

    def forward(self, inputs: Nest) -> Tensor:
        """Return the logits of inputs that `place` has moved."""
        return as_logits(self.output(inputs))

    def output(self, inputs: Nest) -> object:
        """Return what the model itself returns for inputs that `place` has moved, or the `logits` in it."""
        if self.call is not None:
            output: Any = self.call(self.model, inputs)
        elif isinstance(inputs, dict):
            output = self.model(**inputs)
        elif isinstance(inputs, tuple):
            output = self.model(*inputs)
        else:
            output = self.model(inputs)
        return output if isinstance(output, Tensor) else getattr(output, "logits", output)


def as_logits(output: object) -> Tensor:
    """Return a model's output as samples x classes; a single column z becomes the classes (-z/2, z/2)."""
    if not isinstance(output, Tensor):
        raise ModelError(
            f"the model returned {type(output).__name__}, expected a tensor of logits; say how to get them "
            "with forward=lambda model, inputs: ..."
        )
    if output.dim() == 1:
        output = output.unsqueeze(1)
    if output.dim() != 2 or not output.is_floating_point() or output.shape[1] == 0:
        raise ModelError(
            f"the model returned shape {tuple(output.shape)} of {output.dtype}, expected logits of shape "
            "(samples, classes); say how to get them with forward=lambda model, inputs: ..."
        )
    if output.shape[1] == 1:
        output = torch.cat([-output / 2, output / 2], dim=1)
    return output


def centre(logits: Tensor) -> Tensor:
    """Subtract the mean over the classes. Centred logits and posteriors determine each other.

    >>> centre(torch.tensor([[1.0, 3.0]]))
    tensor([[-1.,  1.]])
    """
    return logits - logits.mean(dim=-1, keepdim=True)


def differentiable(logits: Tensor) -> Tensor:
    """Return logits that a gradient goes through; a model that cuts its gradient off cannot be made to forget."""
    if not logits.requires_grad:
        raise ModelError(
            "the logits do not depend on the chosen parameters by a gradient; remove detach(), no_grad() or "
            "rounding from the model, or choose other parameters="
        )
    return logits


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode inside the block; afterwards every module has its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def copied(module: nn.Module) -> nn.Module:
    """Return a deep copy of a model, or raise a `ModelError` if it cannot be copied."""
    try:
        return copy.deepcopy(module)
    except (RuntimeError, TypeError) as error:
        raise ModelError(f"the model cannot be copied ({error}); give one that copy.deepcopy can copy") from error


def as_module(model: object) -> nn.Module:
    """Return a module: the model itself, or the linear layer of a scikit-learn estimator."""
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, BaseEstimator):
        return LinearModel(model)
    raise ModelError(
        f"the model is of type {type(model).__name__}, expected a torch.nn.Module or an estimator; load a state dict "
        "into its module first"
    )


def caller(network: nn.Module, forward: Forward | None = None) -> Callable[[Nest], Tensor]:
    """Return a function from placed inputs to the network's logits, of samples or of the positions of sequences.

    A `LogitModel` is called as it is; any other network as one would call it.
    """
    if isinstance(network, LogitModel):
        return network
    adapter = LogitModel(network, forward)

    def logits(inputs: Nest) -> Tensor:
        output = adapter.output(inputs)
        return output if isinstance(output, Tensor) and output.dim() > 2 else as_logits(output)

    return logits


def called_plainly(
    build: Callable[[], nn.Module], samples: Samples, forward: Forward | None
) -> Callable[[], nn.Module]:
    """Return a function that builds networks which map the inputs of such samples to two or more logits.

    That is what `train_many` needs. It is `build` itself where its networks do so on one sample, and otherwise `build`
    with an adapter (`LogitModel`) around the network.
    """
    plain = forward is None and not isinstance(samples.inputs, dict | tuple)
    if plain:
        with torch_seed(0):
            network = build()
        with torch.no_grad():
            found = network.eval()(LogitModel(network).place(samples.rows([0]).inputs))
        plain = isinstance(found, Tensor) and found.dim() == 2 and found.shape[1] > 1
    return build if plain else lambda: LogitModel(build(), forward)


def predict_logits(
    model: object, data: object, *, forward: Forward | None = None, batch_size: int | None = PREDICT_BATCH
) -> Tensor:
    """Return the logits (samples x classes) of `data` on the CPU, in the model's dtype.

    Parameters
    ----------
    model : Module or estimator
        Called in evaluation mode; its own mode is restored.
    data : Samples, tensor, array, nest, Dataset or DataLoader
        The samples; labels are ignored.
    forward : callable, optional
        See `LogitModel`.
    batch_size : int or None
        The samples of one pass; None for all at once.
    """
    adapter = LogitModel(as_module(model), forward)
    samples = Samples.read(data, "the samples to predict", labels=False)
    with evaluation(adapter), torch.no_grad():
        parts = [_called(adapter, part) for part in samples.batches(batch_size)]
    logits = torch.cat(parts)
    if len(logits) != len(samples):
        raise ModelError(f"the model returned {len(logits)} rows of logits for {len(samples)} samples")
    if not bool(torch.isfinite(logits).all()):
        raise NonFiniteError("the model's logits are NaN or infinite for some samples; check its weights")
    return logits


def _called(adapter: LogitModel, samples: Samples) -> Tensor:
    with _ModelCall(samples):
        logits: Tensor = adapter(adapter.place(samples.inputs)).cpu()
    return logits


@dataclass(frozen=True, slots=True)
class _ModelCall:
    """A block that calls the user's model, which may raise anything: its text may quote a sample and is never shown."""

    samples: Samples

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, ForsakenError | torch.OutOfMemoryError):
            return
        inputs = self.samples.inputs
        kinds = ", ".join(sorted({str(leaf.dtype) for leaf in leaves(inputs)}))
        shown = error if _is_torchs(error) else None
        raise ModelError(
            f"the model cannot take samples of shape {shape_of(inputs)} ({kinds}): {told(error)}; give what it "
            "was trained on, or say how to call it with forward=lambda model, inputs: ..."
        ) from shown


def told(error: BaseException) -> str:
    """Describe an error of a user's model without its text, which may quote a sample; torch's own texts do not."""
    if _is_torchs(error):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "an unknown place"
    return f"{type(error).__name__} at {where}"


def _is_torchs(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).is_relative_to(_TORCH)


def posteriors(model: object, data: object, *, forward: Forward | None = None) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the softmax of the logits, in float64, as an array (samples x classes).

    >>> posteriors(nn.Identity(), torch.tensor([[0.0, 0.0], [0.0, 100.0]])).round(3).tolist()
    [[0.5, 0.5], [0.0, 1.0]]
    """
    return predict_logits(model, data, forward=forward).double().softmax(1).numpy()


def accuracy(model: object, data: object, *, forward: Forward | None = None) -> float:
    """Return the share of samples whose largest logit is at their label; an estimator's labels are its class names."""
    module = as_module(model)
    classes = module.estimator.classes_ if isinstance(module, LinearModel) else None
    samples = Samples.read(data, "the labelled samples", classes=classes)
    if samples.labels is None:
        raise ModelError("accuracy needs labels; give (inputs, labels)")
    right = predict_logits(module, samples, forward=forward).argmax(1) == samples.labels.cpu()
    return float(right.double().mean())


class LinearModel(nn.Module):
    """A fitted `LogisticRegression` or `LinearSVC` as a linear layer of the estimator's dtype.

    The logits are the estimator's decision values. With two classes there is a single decision value z, and the logits
    are (-z/2, z/2), so that their softmax is the logistic function of z. For logistic regression that is
    `predict_proba`. A support vector machine has no posterior of its own: here it is the softmax of its decision values
    (one against the rest where there are many classes).
    """

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        if not isinstance(estimator, _ESTIMATORS):
            names = ", ".join(kind.__name__ for kind in _ESTIMATORS)
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
        twin.coef_ = self.weight.detach().cpu().numpy().astype(twin.coef_.dtype)
        if isinstance(twin.intercept_, np.ndarray):
            twin.intercept_ = self.bias.detach().cpu().numpy().astype(twin.intercept_.dtype)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> LinearModel:
        twin = LinearModel(self.estimator)
        twin.load_state_dict(self.state_dict())
        memo[id(self)] = twin
        return twin


def as_given(module: nn.Module) -> Any:
    """Return the model as the user gave it: the estimator behind a `LinearModel`, or the module itself."""
    return module.to_estimator() if isinstance(module, LinearModel) else module
