"""The conclusion of an audit in plain words: what it shows, what it does not, and what it trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forsaken.auditing.result import Alarm, Conclusion, Number, Profile
from forsaken.metrics.ulira import NEAR
from forsaken.verdict import LEAST_RECORDS

_WIDE = 0.3  # an interval of an AUC this wide rules nothing out
_OTHER_KIND = 0.1  # from 0.5: on a retrained model an attack this good tells two kinds of samples apart, not membership

_SHIFTS = ("u_lira_smallest_shift", "u_lira_request_smallest_shift")

_NOT = {
    "quick": "That a stronger attack, sample by sample, would fail as well: the profiles standard and full test that",
    "standard": "That an attacker with many retrained models could not distinguish the model from one that never saw "
    "the samples: the profile full tests that",
    "full": "That no other attack exists, nor anything about copies of the samples that stayed in the training data, "
    "in older checkpoints or in other models. U-LiRA, KLoM and the score are about models that were trained and "
    "unlearned like the audited model; about that model itself the audit only shows how many of its samples lie inside "
    "the retrained models' band",
}


def cost_of(profile: Profile, models: int, references: str = "") -> str:
    """Return what a profile trains, in words.

    Parameters
    ----------
    profile : str
        "quick", "standard" or "full".
    models : int
        Shadow models of "standard"; originals and retrained models of "full" together.
    references : str
        How many references the originals of "full" need, such as "at most 64"; empty where they need none.
    """
    if profile == "quick":
        return "trains nothing"
    if profile == "standard":
        return f"trains {models} shadow models and two white-box oracles, and fine-tunes for relearn time"
    originals, retrained = f"{models // 3} originals, each unlearned", f"{2 * models // 3} retrained models"
    own = f" {references} references for these," if references else ""
    return f"trains {originals},{own} and {retrained}"


def conclusion(
    profile: Profile, numbers: Sequence[Number], alarms: Sequence[Alarm], doubts: Sequence[str] = ()
) -> Conclusion:
    """Return in a few sentences what the numbers show, and what they do not."""
    known = {number.name: number for number in numbers}
    by_name = {alarm.name: alarm for alarm in alarms}
    shown = {"quick": _quick, "standard": _standard, "full": _full}[profile](known)
    if by_name["no-op"].raised:
        shown = f"Nothing was forgotten. {by_name['no-op'].told} {shown}"
    if by_name["over-forgetting"].raised:
        shown += f" Too much was forgotten, which makes the samples stand out. {by_name['over-forgetting'].told}"
    under = by_name.get("under-forgetting")
    if under is not None and under.raised and not by_name["no-op"].raised:
        shown += f" Too little was forgotten. {under.told}"
    return Conclusion(shown=" ".join([shown, *doubts]), not_shown=f"{_NOT[profile]}.")


def _quick(known: Mapping[str, Number]) -> str:
    rate, sure = known.get("fr"), known["forget_confidence"]
    if rate is None or rate.value is None:
        why = "without an oracle" if rate is None else f"since {rate.note}"
        if sure.n < LEAST_RECORDS:  # a mean over a few records could identify one of them
            return f"{why[0].upper()}{why[1:]}, nothing is shown about membership."
        return (
            f"The model's mean confidence on the forgotten samples went from {_told(sure.before)} to "
            f"{_told(sure.value)}{_beside(sure)}; {why}, nothing is shown about membership."
        )
    told = f"By a black-box oracle the forgetting rate is {rate.value:.3f} on {rate.n} samples{_beside(rate)}."
    label = known.get("forget_accuracy")
    if label is not None and label.value is not None and label.retrained is not None:
        far = label.value - label.retrained
        if abs(far) > _OTHER_KIND:
            told += (
                f" But the model answers {label.value:.0%} of them with the label that was learnt, a retrained one "
                f"{label.retrained:.0%}: an attacker who knows the labels can use that."
            )
    return told


def _standard(known: Mapping[str, Number]) -> str:
    attack, others = known["rmia_auc"], [known[name] for name in ("lira_auc", "white_box_auc") if name in known]
    told = (
        f"An attacker with a few shadow models distinguishes the {attack.n // 2} forgotten samples from samples "
        f"that were never seen with AUC {_told(attack.value)} by RMIA{_range(attack)}, {_told(attack.before)} before"
        f"{_beside(attack, bracket=False)}"
    )
    labels = {"lira_auc": "LiRA", "white_box_auc": "an attacker who reads the weights"}
    told += "".join(f"; {labels[one.name]} reaches {_told(one.value)}{_range(one)}" for one in others)
    return f"{told}; 0.5 is chance. {_verdict([attack, *others])}"


def _full(known: Mapping[str, Number]) -> str:
    attack, worst = known["u_lira_auc"], known["u_lira_worst"]
    low, high = attack.floor or (0.5, 0.5)
    told = (
        f"Sample by sample U-LiRA distinguishes the unlearned models from models that never saw the samples with AUC "
        f"{_told(attack.value)}; between models that never saw them it reaches {low:.3f} to {high:.3f}, and before "
        f"unlearning {_told(attack.before)}."
    )
    if attack.before is not None and _at_floor(attack.before, attack):
        return f"{told} That shows nothing: the attack does not work on the models before unlearning either."
    if chance(attack) and worst.value is not None and worst.floor is not None and worst.value > worst.floor[1]:
        return (
            f"{told} On average that is no better than chance, but on the tenth of the samples where the attack works "
            f"best it reaches AUC {worst.value:.3f}, and with retrained models at most {worst.floor[1]:.3f}. "
            f"{_request(known)}"
        ).rstrip()
    return f"{told} {_verdict([attack])} {_request(known)}".rstrip()


def _request(known: Mapping[str, Number]) -> str:
    """Return what an attacker who knows the whole request sees, and how small a difference would have been seen."""
    whole, shifts = known.get("u_lira_request_auc"), [known.get(name) for name in _SHIFTS]
    told = []
    if whole is not None and whole.value is not None and whole.floor is not None:
        low, high = whole.floor
        reach = f"AUC {whole.value:.3f} ({low:.3f} to {high:.3f} between retrained models)"
        if chance(whole):
            told.append(f"An attacker who knows the whole request does no better than chance either: {reach}.")
        else:
            told.append(f"But an attacker who knows the whole request tells the models apart: {reach}.")
    seen = [shift.value for shift in shifts if shift is not None and shift.value is not None]
    if seen:
        told.append(
            f"With these models and samples a shift of the margins by less than {min(seen):.2f} standard "
            "deviations could have gone unseen."
        )
    return " ".join(told)


def chance(attack: Number) -> bool | None:
    """Return whether an attack does no better than chance; None where that is not known."""
    if attack.value is None or (attack.interval is None and attack.floor is None):
        return None
    if attack.floor is not None:
        return _at_floor(attack.value, attack)
    if attack.retrained is not None and abs(attack.retrained - 0.5) > _OTHER_KIND:
        return None
    low, high = attack.interval or (0.5, 0.5)
    return low <= 0.5 <= high


def _at_floor(value: float, attack: Number) -> bool:
    low, high = attack.floor or (0.5, 0.5)
    return abs(value - 0.5) <= NEAR + 1e-9 or low <= value <= high


def _verdict(attacks: Sequence[Number]) -> str:
    found = [chance(attack) for attack in attacks]
    telling = [attack for attack, nothing in zip(attacks, found, strict=True) if nothing is False]
    if telling and all((attack.value or 0.0) < 0.5 for attack in telling):
        return (
            "That is not chance, but the other way round: the forgotten samples look less like training data than the "
            "samples that they are compared with. If these are not like the forgotten ones, that says nothing; "
            "otherwise too much may have been forgotten, which a retrained model would tell."
        )
    if telling:
        return "That is better than chance: the samples can still be recognised as training data."
    if None in found:
        return "Whether that is better than chance is not known; the notes and warnings say why."
    widest = max((attack.interval or (0.5, 0.5) for attack in attacks), key=lambda pair: pair[1] - pair[0])
    if attacks[0].floor is None and widest[1] - widest[0] > _WIDE:
        return "That is compatible with chance, but with so few samples the intervals are too wide to show much."
    return "That is no better than chance."


def _range(number: Number) -> str:
    return "" if number.interval is None else f" ({number.interval[0]:.3f} to {number.interval[1]:.3f})"


def _beside(number: Number, *, bracket: bool = True) -> str:
    if number.retrained is None:
        return ""
    value = _told(number.retrained)
    return f" (retrained: {value})" if bracket else f", {value} for retrained models"


def _told(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"
