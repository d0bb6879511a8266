"""What an audit shows and what it does not, in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forsaken.auditing.result import Alarm, Claim, Number, Profile
from forsaken.metrics import FEW

_WIDE = 0.3  # an interval of an AUC this wide rules nothing out
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
    attack, others = known["rmia_auc"], [known[name] for name in ("lira_auc", "white_box_auc") if name in known]
    told = (
        f"An attacker with a few reference models tells the {attack.n // 2} forgotten samples from samples that were "
        f"never seen with AUC {_told(attack.value)} by RMIA{_range(attack)}, {_told(attack.before)} before"
        f"{_beside(attack, bracket=False)}"
    )
    labels = {"lira_auc": "LiRA", "white_box_auc": "an attacker who reads the weights"}
    told += "".join(f"; {labels[one.name]} reaches {_told(one.value)}{_range(one)}" for one in others)
    return f"{told}; 0.5 is a coin. {_verdict([attack, *others])}"


def _full(known: Mapping[str, Number]) -> str:
    attack, worst = known["u_lira_auc"], known["u_lira_worst"]
    low, high = attack.floor or (0.5, 0.5)
    told = (
        f"The strongest attack known (U-LiRA) tells the unlearned models from models that never saw the samples with "
        f"AUC {_told(attack.value)}; between models that never saw them it reaches {low:.3f} to {high:.3f}, and before "
        f"unlearning {_told(attack.before)}. {_verdict([attack])}"
    )
    if chance(attack) and worst.value is not None and worst.floor is not None and worst.value > worst.floor[1]:
        told += (
            f" But the tenth of the samples that is told best stands out: AUC {worst.value:.3f}, where retrained "
            f"models reach {worst.floor[1]:.3f} at most."
        )
    return told


def chance(attack: Number) -> bool | None:
    """Return whether an attack does no better than a coin; None where too little was seen to tell."""
    if attack.value is None or (attack.interval is None and attack.floor is None):
        return None
    if attack.floor is not None:
        return abs(attack.value - 0.5) <= NEAR or attack.floor[0] <= attack.value <= attack.floor[1]
    low, high = attack.interval or (0.5, 0.5)
    return low <= 0.5 <= high


def _verdict(attacks: Sequence[Number]) -> str:
    found = [chance(attack) for attack in attacks]
    if False in found:
        return "That is better than chance: the samples can still be told."
    if None in found:
        return "That is too little to tell whether it is better than chance."
    widest = max((attack.interval or (0.5, 0.5) for attack in attacks), key=lambda pair: pair[1] - pair[0])
    if attacks[0].floor is None and widest[1] - widest[0] > _WIDE:
        return "That cannot be told from chance, but with so few samples little could be."
    return "That is no better than chance."


def _range(number: Number) -> str:
    return "" if number.interval is None else f" ({number.interval[0]:.3f} to {number.interval[1]:.3f})"


def _beside(number: Number, *, percent: bool = False, bracket: bool = True) -> str:
    if number.retrained is None:
        return ""
    value = f"{number.retrained:.1%}" if percent else _told(number.retrained)
    return f" (retrained: {value})" if bracket else f", {value} for retrained models"


def _told(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"
