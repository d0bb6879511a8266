"""What a target can claim, and what it cannot, in sentences for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """What a result made with a target can show, where its numbers are good, and what it does not show."""

    target: str
    shown: str
    not_shown: str

    def to_dict(self) -> dict[str, str]:
        """Return the sentences by name."""
        return asdict(self)


_ATTACK = (
    "An attacker who compares sample by sample with models that never saw the sample can still tell that it was there."
)

_AIM = "The aim, and how far it was reached the numbers say:"

CLAIMS = {
    "class-mean": Claim(
        "class-mean",
        f"{_AIM} the forgotten samples are answered, on average, like samples of the same predicted class that the "
        "model never saw.",
        "They keep their predicted class, which a model that never saw them might not give them, and are more alike "
        f"than strangers are. {_ATTACK}",
    ),
    "corrected": Claim(
        "corrected",
        f"{_AIM} the forgotten samples are answered, on average, like clean samples of their true class.",
        f"That is a correction, not the answer of a model that never saw them. {_ATTACK}",
    ),
    "uniform": Claim(
        "uniform",
        f"{_AIM} the model no longer favours any class for the forgotten samples.",
        "A model that never saw them would hardly be so undecided, so the indecision itself gives them away. "
        f"{_ATTACK}",
    ),
    "out-of-fold": Claim(
        "out-of-fold",
        f"{_AIM} each forgotten sample is answered as a model answered it that was trained like this one and never saw "
        "it: what retraining would do, sample by sample.",
        "That model also lacked other rows of its fold, and it had seen what was forgotten since the table was made. "
        "Whether attacks can tell the result from retraining is for forsaken audit to measure.",
    ),
    "out-of-fold, claimed": Claim(
        "out-of-fold, claimed",
        f"{_AIM} each forgotten sample is answered as the references say that were handed in for it.",
        "That the models behind them never saw the samples is the word of whoever handed them in.",
    ),
    "given": Claim(
        "given",
        f"{_AIM} the forgotten samples are answered as the targets that were handed in say, sample by sample.",
        "Whether those targets come from a model that never saw the samples is the word of whoever handed them in.",
    ),
}


def claim_of(method: str, facts: Mapping[str, object]) -> Claim:
    """Return what a run can claim: by its target, or for a method that has none by its name."""
    known = CLAIMS.get(str(facts.get("target")))
    return known or Claim(
        method,
        f"{_AIM} the model behaves as if it had not been trained on the forgotten samples.",
        f"{method} gives no guarantee for a single sample. {_ATTACK}",
    )
