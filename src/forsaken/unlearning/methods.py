"""Every unlearning method by name."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, TypeVar

from forsaken.errors import UnknownNameError
from forsaken.models.logits import Forward
from forsaken.models.train import Training
from forsaken.references.curvature import Curvature
from forsaken.references.table import References
from forsaken.types import Progress
from forsaken.unlearning.bad_teacher import BadTeacher
from forsaken.unlearning.base import Unlearned, Unlearner, setting_parameters
from forsaken.unlearning.ct import Ct
from forsaken.unlearning.do_nothing import DoNothing
from forsaken.unlearning.fine_tune import FineTune
from forsaken.unlearning.forsaken.method import Forsaken
from forsaken.unlearning.forsaken.targets import OUT_OF_FOLD
from forsaken.unlearning.gradient_ascent import GradientAscent
from forsaken.unlearning.l1_sparse import L1Sparse
from forsaken.unlearning.msg import Msg
from forsaken.unlearning.neggrad_plus import NegGradPlus
from forsaken.unlearning.oracle_matching import OracleMatching
from forsaken.unlearning.retrain import Retrain
from forsaken.unlearning.salun import SalUn
from forsaken.unlearning.scrub import Scrub
from forsaken.unlearning.sisa.dp_sgd import SisaDpSgd
from forsaken.unlearning.sisa.method import Sisa
from forsaken.unlearning.sisa.noise import SisaDp
from forsaken.unlearning.smu import Smu
from forsaken.unlearning.ssd import Ssd

METHODS: dict[str, type[Unlearner]] = {
    "bad-teacher": BadTeacher,
    "ct": Ct,
    "do-nothing": DoNothing,
    "fine-tune": FineTune,
    "forsaken": Forsaken,
    "gradient-ascent": GradientAscent,
    "l1-sparse": L1Sparse,
    "msg": Msg,
    "neggrad-plus": NegGradPlus,
    "oracle-matching": OracleMatching,
    "retrain": Retrain,
    "salun": SalUn,
    "scrub": Scrub,
    "sisa": Sisa,
    "sisa-dp": SisaDp,
    "sisa-dp-sgd": SisaDpSgd,
    "smu": Smu,
    "ssd": Ssd,
}


def build(name: str, settings: dict[str, Any], *, references: bool = False) -> Unlearner:
    """Return the method called `name` with these settings.

    Where there are `references`, Forsaken goes by them unless the settings name another target.
    """
    if not isinstance(name, str) or name not in METHODS:
        raise UnknownNameError("method", name, METHODS)
    if references and METHODS[name] is Forsaken and settings.get("target", OUT_OF_FOLD) == OUT_OF_FOLD:
        return Forsaken.out_of_fold(**settings)
    return METHODS[name](**settings)


M = TypeVar("M")
F = TypeVar("F", bound=Callable[..., Any])


def _showing_settings(function: F) -> F:
    """Let help() and completion see the settings of the default method, which the function takes as ``**settings``."""
    plain = signature(function)
    *own, rest = plain.parameters.values()
    shown = plain.replace(parameters=[*own, *setting_parameters(Forsaken), rest])
    function.__signature__ = shown  # type: ignore[attr-defined]
    return function


@_showing_settings
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
