"""Every unlearning method by name."""

from __future__ import annotations

from typing import Any

from forsaken.errors import UnknownNameError
from forsaken.unlearning.bad_teacher import BadTeacher
from forsaken.unlearning.base import Unlearner
from forsaken.unlearning.ct import Ct
from forsaken.unlearning.do_nothing import DoNothing
from forsaken.unlearning.fine_tune import FineTune
from forsaken.unlearning.forsaken.method import Forsaken
from forsaken.unlearning.forsaken.targets import OUT_OF_FOLD
from forsaken.unlearning.gradient_ascent import GradientAscent
from forsaken.unlearning.l1_sparse import L1Sparse
from forsaken.unlearning.msg import Msg
from forsaken.unlearning.neggrad_plus import NegGradPlus
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
