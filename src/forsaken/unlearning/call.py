"""`forsaken.unlearn`: the one call."""

from __future__ import annotations

from typing import Any, TypeVar

from forsaken.models.logits import Forward
from forsaken.models.train import Training
from forsaken.references.curvature import Curvature
from forsaken.references.table import References
from forsaken.types import Progress
from forsaken.unlearning.base import Unlearned
from forsaken.unlearning.table import build

M = TypeVar("M")


def unlearn(
    model: M,
    forget: object,
    reference: object = None,
    retain: object = None,
    *,
    method: str = "forsaken",
    targets: object = None,
    references: References | None = None,
    curvature: Curvature | None = None,
    training: Training | None = None,
    forward: Forward | None = None,
    seed: int = 0,
    progress: bool | Progress = False,
    **settings: Any,
) -> Unlearned[M]:
    """Make a trained classifier forget samples. The model handed over is left bit for bit as it is.

    Parameters
    ----------
    model : Module, LogisticRegression or LinearSVC
        Maps a batch to logits (samples x classes; a single column is read as two classes).
    forget : inputs, or pair (inputs, labels)
        D, what is to be forgotten. Inputs are tensors, NumPy arrays, nests of dictionaries and tuples of them, a
        Dataset or a DataLoader; a pair is always read as (inputs, labels). Which methods need the labels
        is told by ``forsaken methods list``; the default one does for ``target="corrected"`` alone.
    reference : inputs, optional
        X_n, samples like these that the model was never trained on; not needed with ``targets=`` or
        ``target="uniform"``.
    retain : inputs, or pair (inputs, labels), optional
        D_0, a very small part of the training data (1 % is enough) that must not be forgotten. Without it the
        references take its place, and the result says so.
    method : str
        A name of `forsaken.METHODS`.
    targets : array, shape (|D|, classes), optional
        Logits that a model which never saw the samples would give them, sample by sample.
    references : References, optional
        A table of such logits for all of the training data, made once by `forsaken.References.fit`. The method then
        goes by ``target="out-of-fold"``, unless you say otherwise.
    curvature : Curvature, optional
        What `forsaken.Curvature.fit` measured in one pass over the training data; the references' own by default. The
        default method then passes the forgotten samples alone, and retain samples are not needed.
    training : Training, optional
        How the model came about (network, recipe, device), for methods that train again, such as "retrain".
    forward : callable, optional
        ``forward(model, inputs)`` returns the logits, for a model whose output is not the logits themselves.
    seed : int
        The same seed gives the same bits.
    progress : bool or callable
        Show a bar, or tell a function of each `Tick`.
    **settings
        Settings of the method; see ``forsaken methods show NAME``, or its class in `forsaken.METHODS`.

    Returns
    -------
    Unlearned
        With `model`, `history`, `seconds`, `iterations`, `stopped` and `notes`; `mask` is there for methods that make
        one, such as the default.

    Examples
    --------
    >>> import torch, forsaken
    >>> model = torch.nn.Linear(4, 3)
    >>> x = torch.eye(4)
    >>> result = forsaken.unlearn(model, forget=x[:1], retain=x[2:], target="uniform", seed=0)
    >>> bool(result.model(x[:1]).softmax(1).max() < model(x[:1]).softmax(1).max())
    True
    """
    chosen = build(method, settings, references=references is not None)
    return chosen(
        model,
        forget,
        reference,
        retain,
        targets=targets,
        references=references,
        curvature=curvature,
        training=training,
        forward=forward,
        seed=seed,
        progress=progress,
    )
