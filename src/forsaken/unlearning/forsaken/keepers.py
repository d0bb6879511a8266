"""Who holds a model in place while it forgets: retain samples, references beside them, and what stands in."""

from __future__ import annotations

from dataclasses import dataclass

from forsaken._random import Purpose, generator
from forsaken.data.samples import Samples, join
from forsaken.unlearning.base import Request


@dataclass(frozen=True, slots=True)
class Keepers:
    """The samples that must stay where they are.

    Attributes
    ----------
    anchors : Samples or None
        Whose answers are held: retain samples first, then references.
    guard : Samples or None
        From whom the importance of the weights is measured.
    source : str
        Who the guard is, for the result: "retain", "reference" or "none".
    """

    anchors: Samples | None
    guard: Samples | None
    source: str

    def notes(self, *, importance: bool) -> list[str]:
        """Say what stood in for retain samples that were not given; `importance`: whether it is measured at all."""
        if self.source == "retain":
            return []
        used = (("importance", importance and self.guard is not None), ("anchor", self.anchors is not None))
        parts = [name for name, there in used if there]
        if not parts:
            return [
                "no retain samples were given, and no references stood in: nothing holds the other samples in place"
            ]
        return [f"no retain samples were given: {' and '.join(parts)} come from the references"]


def keepers(request: Request, *, hold: bool, references: int) -> Keepers:
    """Return who holds the model in place.

    The importance comes from the retain samples, or from all references where there are no retain samples.

    Parameters
    ----------
    request : Request
        The data.
    hold : bool
        Whether there are anchors at all.
    references : int
        How many references, at most, are anchors too.
    """
    retain, reference = request.retain, request.reference
    parts = [] if retain is None else [Samples(retain.inputs)]
    if reference is not None and references:
        order = generator(request.seed, Purpose.ANCHORS).permutation(len(reference))
        parts.append(Samples(reference.rows(order[:references]).inputs))
    anchors = join(parts) if hold and parts else None
    if retain is not None:
        return Keepers(anchors, retain, "retain")
    return Keepers(anchors, reference, "none" if reference is None else "reference")
