"""What an audit shows and what it does not, in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forsaken.auditing.result import Alarm, Claim, Number, Profile
from forsaken.metrics import FEW

NEAR = 0.03  # of 0.5: as near as retrained models are (docs/guide/audit.md)

COSTS: dict[Profile, str] = {
    "quick": "no training: one oracle, which an earlier shadow model made",
    "standard": "trains a few reference models (8 by default) and a white-box oracle, and fine-tunes for relearn time",
    "full": f"trains N originals, each unlearned, and 2 N retrained models ({FEW} and {2 * FEW} by default)",
}

_NOT = {
    "quick": "That a stronger attack, sample by sample, could not tell them: use the profile standard or full for that",
    "standard": "That an attacker with many retrained models could not tell the model from one that never saw the "
    "samples: the profile full tests that",
    "full": "That no other attack exists, nor anything about copies of the samples that stayed in the training data, "
    "in older checkpoints or in other models",
}


def claim(profile: Profile, numbers: Sequence[Number], alarms: Sequence[Alarm]) -> Claim:
    """Say in two sentences what the numbers show."""
    known = {number.name: number for number in numbers}
    by_name = {alarm.name: alarm for alarm in alarms}
    if by_name["no-op"].raised:
        return Claim(f"Nothing was forgotten. {by_name['no-op'].told}", "Anything else.")
    shown = {"quick": _quick, "standard": _standard, "full": _full}[profile](known)
    if by_name["over-forgetting"].raised:
        shown += f" But the samples stand out by having been forgotten too well. {by_name['over-forgetting'].told}"
    return Claim(shown, f"{_NOT[profile]}.")


def _quick(known: Mapping[str, Number]) -> str:
    rate = known.get("fr")
    if rate is None or rate.value is None:
        sure = known["forget_confidence"]
        return (
            f"The model's mean confidence on the forgotten samples went from {_told(sure.before)} to "
            f"{_told(sure.value)}{_beside(sure)}; without an oracle nothing is shown about membership."
        )
    return (
        f"By a black-box oracle {rate.value:.1%} of the {rate.n} samples' memory is gone (forgetting rate)"
        f"{_beside(rate, percent=True)}."
    )


def _standard(known: Mapping[str, Number]) -> str:
    attack = known["rmia_auc"]
    other = known.get("white_box_auc")
    told = (
        f"An attacker with a few reference models tells the forgotten samples from samples that were never seen with "
        f"AUC {_told(attack.value)} ({_told(attack.before)} before{_beside(attack, bracket=False)})"
    )
    if other is not None and other.value is not None:
        told += f", one who reads the weights with AUC {_told(other.value)} ({_told(other.before)} before)"
    return f"{told}; 0.5 is a coin. {_verdict(attack)}"


def _full(known: Mapping[str, Number]) -> str:
    attack = known["u_lira_auc"]
    low, high = attack.floor or (0.5, 0.5)
    return (
        f"The strongest attack known (U-LiRA) tells the unlearned models from models that never saw the samples with "
        f"AUC {_told(attack.value)}; between models that never saw them it reaches {low:.3f} to {high:.3f}, and before "
        f"unlearning {_told(attack.before)}. {_verdict(attack)}"
    )


def _verdict(attack: Number) -> str:
    if attack.value is None:
        return "Nothing is shown."
    near = abs(attack.value - 0.5) <= NEAR
    if attack.floor is not None:
        chance = near or attack.floor[0] <= attack.value <= attack.floor[1]
    else:
        low, high = attack.interval or (0.5, 0.5)
        chance = near or low <= 0.5 <= high
    return "That is no better than chance." if chance else "That is better than chance: the samples can still be told."


def _beside(number: Number, *, percent: bool = False, bracket: bool = True) -> str:
    if number.retrained is None:
        return ""
    value = f"{number.retrained:.1%}" if percent else _told(number.retrained)
    return f" (retrained: {value})" if bracket else f", {value} for retrained models"


def _told(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"
