"""The interface of every membership oracle: a score for each sample, and a threshold. HIGHER MEANS MEMBER."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import ClassVar, final

from forsaken.models.logits import Forward
from forsaken.types import Array


@dataclass(frozen=True, slots=True)
class OracleReport:
    """How well an oracle tells members from non-members, on samples where the truth is known."""

    accuracy: float
    precision: float
    recall: float
    balanced_accuracy: float
    members: int
    nonmembers: int

    @classmethod
    def of(cls, inside: Array, outside: Array) -> OracleReport:
        """Count the verdicts (true = member) on known members and known non-members."""
        hits, alarms = int(inside.sum()), int(outside.sum())
        recall, specificity = hits / len(inside), 1 - alarms / len(outside)
        return cls(
            accuracy=(hits + len(outside) - alarms) / (len(inside) + len(outside)),
            precision=hits / (hits + alarms) if hits + alarms else 0.0,
            recall=recall,
            balanced_accuracy=(recall + specificity) / 2,
            members=len(inside),
            nonmembers=len(outside),
        )

    def to_dict(self) -> dict[str, float | int]:
        """Return the numbers by name."""
        return asdict(self)


class Oracle(ABC):
    """Judges which samples a model was trained on. Subclasses learn how members differ, and implement `score`."""

    threshold: ClassVar[float] = 0.5

    @abstractmethod
    def score(self, model: object, samples: object, *, forward: Forward | None = None) -> Array:
        """Return the probability of membership of each sample, a float64 array. Higher means member."""

    @final
    def is_member(self, model: object, samples: object, *, forward: Forward | None = None) -> Array:
        """Return the verdicts, a boolean array; true = member."""
        return self.score(model, samples, forward=forward) > self.threshold

    @final
    def evaluate(
        self, model: object, *, members: object, nonmembers: object, forward: Forward | None = None
    ) -> OracleReport:
        """Evaluate the oracle on known members and non-members that it was not fitted on."""
        inside = self.is_member(model, members, forward=forward)
        outside = self.is_member(model, nonmembers, forward=forward)
        return OracleReport.of(inside, outside)
