"""What a target can claim, and what it cannot, in sentences for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """What a result made with a target shows when its numbers are good, and what it does not show."""

    target: str
    shown: str
    not_shown: str

    def to_dict(self) -> dict[str, str]:
        """Return the sentences by name."""
        return asdict(self)


_ATTACK = (
    "An attacker who compares sample by sample with models that never saw the sample can still tell that it was there."
)

CLAIMS = {
    "class-mean": Claim(
        "class-mean",
        "The forgotten samples are answered like samples of the same predicted class that the model never saw, on "
        "average.",
        f"They keep their predicted class, which a model that never saw them might not give them. {_ATTACK}",
    ),
    "corrected": Claim(
        "corrected",
        "The forgotten samples are answered like clean samples of their true class, on average.",
        f"That is a correction, not the answer of a model that never saw them. {_ATTACK}",
    ),
    "uniform": Claim(
        "uniform",
        "The model no longer favours any class for the forgotten samples.",
        "A model that never saw them would hardly be so undecided, so the indecision itself gives them away. "
        f"{_ATTACK}",
    ),
    "given": Claim(
        "given",
        "The forgotten samples are answered as the targets that were handed in say, sample by sample.",
        "Whether those targets come from a model that never saw the samples is the word of whoever handed them in.",
    ),
}
