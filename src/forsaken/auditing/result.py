"""What an audit found: one typed value, checked when it is made and when it is read from its file."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from forsaken._html import bullets, paragraph, table
from forsaken.errors import InputError
from forsaken.result import NO_VERDICT, Count, Digest, Document, Part, Share, Table, Verdict
from forsaken.result import Number as Finite
from forsaken.types import Array

if TYPE_CHECKING:  # a result is read without what measures one
    from forsaken.metrics import Roc

Profile: TypeAlias = Literal["quick", "standard", "full"]
PROFILES: tuple[Profile, ...] = ("quick", "standard", "full")  # from the weakest to the strongest
FILES: dict[Profile, str] = {profile: f"audit-{profile}.json" for profile in PROFILES}
EARLIER = "audit.json"  # what versions before wrote, whatever the profile

_MOST = 100_000  # points of a curve, or models of a histogram
_LONGEST = 5000  # characters of a text; the longest sentence of an audit has some hundred
_MEANS = ("forget_confidence", "neighbour_confidence")  # numbers that are means over forgotten records or their copies
_OF_OTHERS = ("accuracy", "cfr")  # numbers over samples of which none is forgotten
_POINTS = 400  # of a ROC curve that was thinned for a picture


def _ordered(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[0] > ends[1]:
        raise ValueError(f"its lower end {ends[0]:g} lies above its upper end {ends[1]:g}")
    return ends


Pair = tuple[Finite, Finite]
Interval = Annotated[Pair, AfterValidator(_ordered)]
Rates = Annotated[tuple[Share, ...], Field(min_length=2, max_length=_MOST)]
Text = Annotated[str, Field(max_length=_LONGEST)]


def _shown(value: float | None, ends: tuple[float, float] | None = None) -> str:
    if value is None:
        return "n/a"
    return f"{value:.3f}" if ends is None else f"{value:.3f} ({ends[0]:.3f} to {ends[1]:.3f})"


class Number(Part):
    """One number of an audit, with everything that is needed to read it.

    Attributes
    ----------
    name : str
        A name for scripts, such as "u_lira_auc".
    label : str
        The name for people.
    value : float or None
        None where it is undefined; `note` says why, and there is no interval then.
    direction : str
        "lower" or "higher" is better; "half": 0.5 is ideal, and less is no better than more; "retrained": the nearer to
        the retrained model's value the better.
    n : int
        How many of `unit` it was computed from.
    unit : str
        What n counts: samples, models, or pairs of both.
    interval : (float, float) or None
        A 95 % interval: over models by the jackknife, over samples by the bootstrap.
    retrained : float or None
        The same number for a retrained model, or for retrained models against each other.
    before : float or None
        The same number for the model before it forgot.
    floor : (float, float) or None
        The range that holds the number 95 times in 100 for models that were retrained without the samples.
    note : str or None
        What to know when reading it.
    """

    name: Text
    label: Text
    value: Finite | None
    direction: Literal["lower", "higher", "half", "retrained"]
    n: Count
    unit: Text
    interval: Interval | None = None
    retrained: Finite | None = None
    before: Finite | None = None
    floor: Interval | None = None
    note: Text | None = None

    @property
    def about(self) -> Literal["means", "records", "others"]:
        """What it is made of, which decides how much of it a file may tell.

        "means" over forgotten records or over copies of them, other facts about these "records", or facts about
        "others".
        """
        return "means" if self.name in _MEANS else "others" if self.name in _OF_OTHERS else "records"

    @field_validator("interval")
    @classmethod
    def _of_a_value(cls, interval: tuple[float, float] | None, info: ValidationInfo) -> tuple[float, float] | None:
        return None if info.data.get("value") is None else interval


class Alarm(Part):
    """One of the three alarms of an audit; `raised` is None where the audit could not decide."""

    name: Literal["over-forgetting", "under-forgetting", "no-op"]
    raised: bool | None
    told: Text


class Conclusion(Part):
    """In plain words: what the audit showed, and what it did not."""

    shown: Text
    not_shown: Text


class Curve(Part):
    """A ROC curve: both rates rise, point by point."""

    name: Text
    fpr: Rates
    tpr: Rates

    @model_validator(mode="after")
    def _is_a_curve(self) -> Curve:
        if len(self.fpr) != len(self.tpr):
            raise ValueError(f"fpr has {len(self.fpr)} points, but tpr has {len(self.tpr)}")
        if any(after < before for rates in (self.fpr, self.tpr) for before, after in pairwise(rates)):
            raise ValueError("its rates fall somewhere, and those of a ROC curve only rise")
        return self

    @classmethod
    def of(cls, name: str, roc: Roc) -> Curve:
        """Return a curve for a picture. Of a curve with many points it keeps those at even steps of log FPR."""
        fpr, tpr = roc.fpr, roc.tpr
        if len(fpr) > _POINTS:
            steps = np.geomspace(max(fpr[fpr > 0].min(), 1e-6), 1, _POINTS)
            keep = np.unique([0, *(np.searchsorted(fpr, steps, side="right") - 1), len(fpr) - 1])
            fpr, tpr = fpr[keep], tpr[keep]

        def rounded(rates: Array) -> tuple[float, ...]:
            return tuple(np.round(rates, 6).tolist())

        return cls(name=name, fpr=rounded(fpr), tpr=rounded(tpr))


class Spread(Part):
    """The margins of one forgotten sample under many models; `row` is its place in the forget set."""

    row: Count
    unlearned: Annotated[tuple[Finite, ...], Field(min_length=1, max_length=_MOST)]
    retrained: Annotated[tuple[Finite, ...], Field(min_length=1, max_length=_MOST)]
    before: Annotated[tuple[Finite, ...], Field(max_length=_MOST)] = ()


class Divergence(Part):
    """KLoM on one set: mean and 95th percentile over samples, for three pairs of ensembles of the same size.

    `value` compares unlearned with retrained models, `floor` retrained with other retrained models, and `ceiling` the
    models before with retrained ones.
    """

    part: Literal["forget", "retain", "test"]
    n: Count
    value: Pair
    floor: Pair
    ceiling: Pair


class Audit(Document):
    """The result of an audit: all of audit-quick.json, audit-standard.json or audit-full.json.

    Attributes
    ----------
    profile : str
        "quick", "standard" or "full".
    claim : Conclusion
        What was shown, and what was not.
    numbers : tuple of Number
        In the order in which to read them.
    alarms : tuple of Alarm
        Over-forgetting, under-forgetting and no-op.
    warnings : tuple of str
        What makes a number weaker than it looks.
    cost : dict
        Seconds by part, and how many models were trained.
    roc, margins, klom
        What the pictures show, where the profile has it.
    verdict : Verdict
        One word and one line: forgotten, not shown or failed.
    settings, provenance : dict
        What decided the audit, and where it was made.
    mac : str or None
        The seal of an audit of a job: see `forsaken.jobs.seal`.
    """

    kind: ClassVar[str] = "forsaken.audit"
    version: ClassVar[int] = 1
    remedy: ClassVar[str] = "run forsaken audit again, or restore the file"

    profile: Profile
    claim: Conclusion
    numbers: Annotated[tuple[Number, ...], Field(max_length=200)]
    alarms: Annotated[tuple[Alarm, ...], Field(max_length=3)]
    warnings: Annotated[tuple[Text, ...], Field(max_length=200)]
    cost: Table
    roc: Annotated[tuple[Curve, ...], Field(max_length=50)]
    margins: Annotated[tuple[Spread, ...], Field(max_length=1000)]
    klom: Annotated[tuple[Divergence, ...], Field(max_length=3)]
    settings: Table
    provenance: Table
    verdict: Verdict = NO_VERDICT
    mac: Digest | None = None

    @model_validator(mode="after")
    def _names_are_unique(self) -> Audit:
        named: dict[str, list[str]] = {
            "alarms": [each.name for each in self.alarms],
            "klom": [each.part for each in self.klom],
        }
        for place, names in named.items():
            twice = [name for at, name in enumerate(names) if name in names[:at]]
            if twice:
                raise ValueError(f"{place} names {twice[0]} more than once")
        return self

    def __getitem__(self, name: str) -> Number:
        """Return a number by its name."""
        found = {number.name: number for number in self.numbers}
        if name not in found:
            raise InputError(f"the audit has no number {name!r}; it has {', '.join(found)}")
        return found[name]

    def _repr_html_(self) -> str:
        """Return the audit as a notebook shows it: the verdict, what was shown, and every number."""
        colours = {"forgotten": "good", "not shown": "open", "failed": "bad"}
        told = [paragraph(self.verdict.line, head=f"{self.verdict.word}:", colour=colours[self.verdict.word])]
        told += [paragraph(self.claim.shown, head="Shown:"), paragraph(self.claim.not_shown, head="Not shown:")]
        raised = {True: ("Alarm", "bad"), False: ("No alarm", "good"), None: ("Not known", "open")}
        for alarm in self.alarms:
            word, colour = raised[alarm.raised]
            told.append(paragraph(alarm.told, head=f"{word} ({alarm.name}):", colour=colour))
        rows = [
            (each.label, _shown(each.value, each.interval), _shown(each.retrained, each.floor), _shown(each.before))
            for each in self.numbers
        ]
        heads = ("", "value (95 % interval)", "retrained (floor)", "before")
        return "".join(told) + table(f"Audit, profile {self.profile}", rows, heads) + bullets(self.warnings)

    @property
    def alarmed(self) -> bool:
        """Whether an alarm was raised."""
        return any(alarm.raised for alarm in self.alarms)
