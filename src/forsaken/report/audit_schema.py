"""What a saved audit must look like, so that drawing it never meets a surprise."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from forsaken.result import Count, Document, Number, Part, Share, Table

_MOST = 100_000  # points of a curve, or models of a histogram
_LONGEST = 5000  # characters of a text; the longest sentence of an audit has some hundred


def _ordered(ends: list[float]) -> list[float]:
    if ends[0] > ends[1]:
        raise ValueError(f"its lower end {ends[0]:g} lies above its upper end {ends[1]:g}")
    return ends


Pair = Annotated[list[Number], Field(min_length=2, max_length=2)]
Interval = Annotated[Pair, AfterValidator(_ordered)]
Margins = Annotated[list[Number], Field(min_length=1, max_length=_MOST)]
Rates = Annotated[list[Share], Field(min_length=2, max_length=_MOST)]
Text = Annotated[str, Field(max_length=_LONGEST)]


class SavedNumber(Part):
    """One number, with all that it takes to read it."""

    name: Text
    label: Text
    value: Number | None
    direction: Literal["lower", "higher", "half", "retrained"]
    n: Count
    unit: Text
    interval: Interval | None = None
    retrained: Number | None = None
    before: Number | None = None
    floor: Interval | None = None
    note: Text | None = None


class SavedAlarm(Part):
    """One of the two alarms."""

    name: Literal["over-forgetting", "no-op"]
    raised: bool | None
    told: Text


class SavedClaim(Part):
    """What was shown, and what was not."""

    shown: Text
    not_shown: Text


class SavedCurve(Part):
    """A ROC curve: both rates rise, point by point."""

    name: Text
    fpr: Rates
    tpr: Rates

    @model_validator(mode="after")
    def _is_a_curve(self) -> SavedCurve:
        if len(self.fpr) != len(self.tpr):
            raise ValueError(f"fpr has {len(self.fpr)} points, but tpr has {len(self.tpr)}")
        if any(after < before for rates in (self.fpr, self.tpr) for before, after in pairwise(rates)):
            raise ValueError("its rates fall somewhere, and those of a ROC curve only rise")
        return self


class SavedSpread(Part):
    """The margins of one forgotten sample under many models."""

    row: Count
    unlearned: Margins
    retrained: Margins
    before: Annotated[list[Number], Field(max_length=_MOST)]


class SavedDivergence(Part):
    """KLoM on one set: mean and 95th percentile, of three pairs."""

    part: Literal["forget", "retain", "test"]
    n: Count
    value: Pair
    floor: Pair
    ceiling: Pair


class SavedAudit(Document):
    """All of audit.json."""

    kind: ClassVar[str] = "forsaken.audit"
    version: ClassVar[int] = 1
    remedy: ClassVar[str] = "run forsaken audit again, or restore the file"

    profile: Literal["quick", "standard", "full"]
    claim: SavedClaim
    numbers: Annotated[list[SavedNumber], Field(max_length=200)]
    alarms: Annotated[list[SavedAlarm], Field(max_length=2)]
    warnings: Annotated[list[Text], Field(max_length=200)]
    cost: Table
    roc: Annotated[list[SavedCurve], Field(max_length=50)]
    margins: Annotated[list[SavedSpread], Field(max_length=1000)]
    klom: Annotated[list[SavedDivergence], Field(max_length=3)]
    settings: Table
    provenance: Table

    @model_validator(mode="after")
    def _says_everything_once(self) -> SavedAudit:
        named: dict[str, list[str]] = {
            "alarms": [each.name for each in self.alarms],
            "klom": [each.part for each in self.klom],
        }
        for place, names in named.items():
            twice = [name for at, name in enumerate(names) if name in names[:at]]
            if twice:
                raise ValueError(f"{place} names {twice[0]} more than once")
        return self
