"""What an audit found: one frozen value, with a JSON form. `report` shows it, and nothing else reads models for it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from forsaken.errors import InputError

SCHEMA, KIND, FILE = 1, "forsaken.audit", "audit.json"

Profile: TypeAlias = Literal["quick", "standard", "full"]
# What is good: low, high, 0.5 (cannot be told apart), or near the retrained model's value.
Direction: TypeAlias = Literal["lower", "higher", "half", "retrained"]
Interval: TypeAlias = tuple[float, float]

PROFILES: tuple[Profile, ...] = ("quick", "standard", "full")


@dataclass(frozen=True, slots=True)
class Number:
    """One number of an audit, with all that it takes to read it.

    Attributes
    ----------
    name : str
        A name for scripts, such as "u_lira_auc".
    label : str
        The same for people.
    value : float or None
        None where it is undefined; `note` says why.
    direction : str
        "lower" or "higher" is better, "half": 0.5 is ideal and less is no better than more, "retrained": the nearer to
        the retrained model's value the better.
    n : int
        On how many of `unit` it rests.
    unit : str
        What was counted: samples, models, pairs of both.
    interval : (float, float) or None
        A 95 % interval: over models by the jackknife, over samples by the bootstrap.
    retrained : float or None
        The same number for a retrained model, or for retrained models against each other.
    before : float or None
        The same number for the model that has forgotten nothing.
    floor : (float, float) or None
        Where the number lies, 95 times in 100, for models that were really retrained.
    """

    name: str
    label: str
    value: float | None
    direction: Direction
    n: int
    unit: str
    interval: Interval | None = None
    retrained: float | None = None
    before: float | None = None
    floor: Interval | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if self.value is None:
            object.__setattr__(self, "interval", None)  # there is no interval of nothing
        told = [self.value, self.retrained, self.before, *(self.interval or ()), *(self.floor or ())]
        if not all(one is None or math.isfinite(one) for one in told):
            raise InputError(f"{self.name} holds a number that is not finite: {told}; leave it out and say why")


@dataclass(frozen=True, slots=True)
class Alarm:
    """One of the two alarms; `raised` is None where it could not be told."""

    name: Literal["over-forgetting", "no-op"]
    raised: bool | None
    told: str


@dataclass(frozen=True, slots=True)
class Claim:
    """In plain words: what was shown, and what was not."""

    shown: str
    not_shown: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A ROC curve."""

    name: str
    fpr: tuple[float, ...]
    tpr: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """The margins of one forgotten sample under many models; `row` is its place in the forget set."""

    row: int
    unlearned: tuple[float, ...]
    retrained: tuple[float, ...]
    before: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Divergence:
    """KLoM on one set ("forget", "retain" or "test"): mean and 95th percentile, of three pairs at the same N.

    `value` is unlearned against retrained, `floor` retrained against retrained, `ceiling` doing nothing against
    retrained.
    """

    part: str
    n: int
    value: Interval
    floor: Interval
    ceiling: Interval


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit.

    Attributes
    ----------
    profile : str
        "quick", "standard" or "full".
    claim : Claim
        What was shown, and what was not.
    numbers : tuple of Number
        In the order in which to read them.
    alarms : tuple of Alarm
        Over-forgetting and no-op.
    warnings : tuple of str
        What makes a number weaker than it looks.
    cost : mapping
        Seconds by part, and how many models were trained.
    roc, margins, klom
        What the pictures show, where the profile has it.
    settings, provenance : mapping
        What decided the audit, and where it was made.
    """

    profile: Profile
    claim: Claim
    numbers: tuple[Number, ...]
    alarms: tuple[Alarm, ...]
    warnings: tuple[str, ...] = ()
    cost: Mapping[str, Any] = field(default_factory=dict)
    roc: tuple[Curve, ...] = ()
    margins: tuple[Spread, ...] = ()
    klom: tuple[Divergence, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Number:
        """Return a number by its name."""
        found = {number.name: number for number in self.numbers}
        if name not in found:
            raise InputError(f"the audit has no number {name!r}; it has {', '.join(found)}")
        return found[name]

    @property
    def alarmed(self) -> bool:
        """Whether an alarm was raised."""
        return any(alarm.raised for alarm in self.alarms)

    def to_dict(self) -> dict[str, Any]:
        """Return the audit JSON-ready."""
        return {"schema": SCHEMA, "kind": KIND, **asdict(self)}

    def to_json(self) -> str:
        """Return the audit as a line of JSON for each part."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Audit:
        """Return what `to_dict` gave; a report checks a file before it comes here."""
        if content.get("kind") != KIND or content.get("schema") != SCHEMA:
            raise InputError(
                f"not an audit of schema {SCHEMA}: kind {content.get('kind')!r}, schema {content.get('schema')!r}; run "
                "forsaken audit again"
            )
        parts: dict[str, type[Any]] = {
            "numbers": Number,
            "alarms": Alarm,
            "roc": Curve,
            "margins": Spread,
            "klom": Divergence,
        }
        try:
            made: dict[str, Any] = {
                name: tuple(kind(**_tupled(one)) for one in content[name]) for name, kind in parts.items()
            }
            rest: dict[str, Any] = {name: content[name] for name in ("profile", "cost", "settings", "provenance")}
            return cls(claim=Claim(**content["claim"]), warnings=tuple(content["warnings"]), **made, **rest)
        except (KeyError, TypeError) as error:
            raise InputError(f"the audit is damaged ({error}); run forsaken audit again") from error


def _tupled(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in part.items()}
