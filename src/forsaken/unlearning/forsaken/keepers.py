"""Who holds a model in place while it forgets: retain samples, references beside them, and what stands in."""

from __future__ import annotations

from dataclasses import dataclass

from forsaken._random import generator
from forsaken.data.samples import Samples, join
from forsaken.unlearning.request import Request

SOURCES = ("anchors", "retain")
_DRAW = 11  # purpose of the seed


@dataclass(frozen=True, slots=True)
class Keepers:
    """The samples that must stay where they are.

    Attributes
    ----------
    anchors : Samples or None
        Whose answers are held: retain samples first, then references.
    retained : int
        How many of the anchors are retain samples.
    guard : Samples or None
        From whom the importance of the weights is measured.
    source : str
        Who they are, for the result.
    """

    anchors: Samples | None
    retained: int
    guard: Samples | None
    source: str

    def notes(self, *, importance: bool) -> list[str]:
        """Say what stood in for retain samples that were not given; `importance`: whether it is measured at all."""
        if self.source.startswith("retain"):
            return []
        used = (("importance", importance and self.guard is not None), ("anchor", self.anchors is not None))
        parts = [name for name, there in used if there]
        if not parts:
            return [
                "no retain samples were given, and no references stood in: nothing holds the other samples in place"
            ]
        return [f"no retain samples were given: {' and '.join(parts)} come from the references"]


def keepers(request: Request, *, hold: bool, references: int, importance_from: str) -> Keepers:
    """Return who holds the model in place.

    Parameters
    ----------
    request : Request
        The data.
    hold : bool
        Whether there are anchors at all.
    references : int
        How many references, at most, are anchors too.
    importance_from : {"retain", "anchors"}
        Who speaks for the importance. Where there are no retain samples, all references stand in for them.
    """
    retain, reference = request.retain, request.reference
    parts = {} if retain is None else {"retain": Samples(retain.inputs)}
    if reference is not None and references:
        order = generator(request.seed, _DRAW).permutation(len(reference))
        parts["reference"] = Samples(reference.rows(order[:references]).inputs)
    both = join(list(parts.values())) if parts else None
    anchors, retained = both if hold else None, 0 if retain is None else len(retain)
    if importance_from == "anchors" and both is not None:
        return Keepers(anchors, retained, both, " and ".join(parts))
    if retain is not None:
        return Keepers(anchors, retained, retain, "retain")
    return Keepers(anchors, retained, reference, "none" if reference is None else "reference")
