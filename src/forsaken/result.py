"""The typed result of a run: the demonstration and jobs build it, the certificate hashes it, the report reads it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

_MOST = 10**15  # more than any count of weights, and exact in a float
_DEEP = 20  # tables within tables

Count = Annotated[int, Field(ge=0, le=_MOST)]
Number = Annotated[float, Field(ge=-1e300, le=1e300)]
Share = Annotated[float, Field(ge=0, le=1 + 1e-9)]  # a sum of posteriors may round up
Rate = Annotated[float, Field(ge=-_MOST, le=1)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]


def _shallow(table: dict[str, Any]) -> dict[str, Any]:
    level: list[Any] = [table]
    for _ in range(_DEEP):
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
        level = [inner for inner in level if isinstance(inner, dict | list)]
        if not level:
            return table
    raise ValueError(f"holds tables within tables, more than {_DEEP} deep")


Table = Annotated[dict[str, Any], AfterValidator(_shallow)]


class Part(BaseModel):
    """A table of a saved file: no type is guessed, and what this version does not know is left out."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class Confidence(Part):
    """A share of the forget samples, or their mean largest posterior."""

    before: Share
    after: Share
    retrained: Share | None = None


class Separation(Part):
    """AUC of the largest posterior, forget samples against samples never trained on."""

    against: Literal["test", "reference"]
    n: Count
    before: Share
    after: Share
    retrained: Share | None = None
    spread: Confidence
    spread_of_others: Share


class Retrained(Part):
    """The yardstick: a model retrained without the samples."""

    fr: Rate | None
    cfr: Rate | None
    accuracy: Share | None
    seconds: Seconds | None


class Counts(Part):
    """How many samples each set holds."""

    forget: Annotated[int, Field(ge=1, le=_MOST)]
    memorised_before: Count | None
    reference: Count
    retain: Count
    train: Count | None
    test: Count
    kept_judged: Count
    kept_members_before: Count | None


class ByClass(Part):
    """Test accuracy of each class."""

    support: list[Count]
    before: list[Share | None]
    after: list[Share | None]


class Layer(Part):
    """How much of one parameter changed."""

    name: str
    changed: Count
    total: Annotated[int, Field(ge=1, le=_MOST)]

    @model_validator(mode="after")
    def _fits(self) -> Layer:
        if self.changed > self.total:
            raise ValueError(f"{self.changed} entries changed of only {self.total}")
        return self


class SampleTable(Part):
    """One entry a forgotten sample."""

    score: Literal["oracle", "confidence"]
    row: list[Annotated[int, Field(ge=-_MOST, le=_MOST)]]
    hash: list[Annotated[str, Field(max_length=64)]] | None
    class_before: list[Count]
    class_after: list[Count]
    confidence_before: list[Share]
    confidence_after: list[Share]
    score_before: list[Share]
    score_after: list[Share]

    @model_validator(mode="after")
    def _one_length(self) -> SampleTable:
        sizes = {len(part) for name, part in self if isinstance(part, list)}
        if len(sizes) > 1:
            raise ValueError(f"its lists have different lengths {sorted(sizes)}")
        return self


class Oracle(Part):
    """How well the oracle tells members from non-members."""

    accuracy: Share | None = None
    precision: Share | None = None
    recall: Share | None = None
    balanced_accuracy: Share | None
    members: Count | None = None
    nonmembers: Count | None = None


class Target(Part):
    """What the target can claim, and what it cannot."""

    target: str
    shown: str
    not_shown: str


class Link(Part):
    """One request of a chain."""

    number: Count
    time: str
    forgotten: Count
    drift: Annotated[float, Field(ge=0, le=1e300)]
    accuracy_before: Share | None
    accuracy_after: Share | None
    certificate: str | None


class Chain(Part):
    """The requests that led to these weights."""

    links: Annotated[list[Link], Field(min_length=1)]
    drift: Annotated[float, Field(ge=0, le=1e300)]
    accuracy_loss: Number | None
    max_drift: Annotated[float, Field(ge=0, le=1e300)] | None
    max_accuracy_loss: Annotated[float, Field(ge=0, le=1)] | None
    advice: list[str]


class Cleaning(Part):
    """What became of the training data."""

    rows: Count
    exact: Count
    near: Count
    not_found: Count
    file: str | None


class Step(Part):
    """One iteration; what a method does not know is None."""

    iteration: Count
    objective: Number | None = None
    distance: Number | None = None
    anchor: Number | None = None
    penalty: Number | None = None
    density: Number | None = None


class Result(Part):
    """All of result.json."""

    task: str
    seed: Annotated[int, Field(ge=-_MOST, le=_MOST)]
    fr: Rate | None
    cfr: Rate | None
    accuracy_before: Share | None
    accuracy_after: Share | None
    seconds: Seconds
    speedup: Annotated[float, Field(ge=0, le=1e12)] | None
    mask_density: Share
    iterations: Count
    evaluations: Count
    stopped: Literal["iterations", "converged", "calibrated", "tolerance", "line-search", "not-memorised"]
    forget_confidence: Confidence
    forget_accuracy: Confidence | None
    separation: Separation | None
    retrain: Retrained | None
    counts: Counts
    classes: Annotated[list[str], Field(min_length=1, max_length=100_000)]
    by_class: ByClass | None
    layers: list[Layer]
    samples: SampleTable
    oracle: Oracle | None
    target: Target
    chain: Chain | None
    cleaning: Cleaning | None
    facts: Table
    notes: list[str]
    warnings: list[str]
    settings: Table
    job: Table | None
    history: list[Step]
    provenance: Table

    @model_validator(mode="after")
    def _agrees(self) -> Result:
        if len(self.samples.row) != self.counts.forget:
            raise ValueError(
                f"samples holds {len(self.samples.row)} entries, but counts.forget is {self.counts.forget}"
            )
        if max(self.samples.class_before + self.samples.class_after) >= len(self.classes):
            raise ValueError(f"samples names a class beyond the {len(self.classes)} of classes")
        if self.by_class and {len(part) for _, part in self.by_class} != {len(self.classes)}:
            raise ValueError(f"by_class must hold one entry for each of the {len(self.classes)} classes")
        return self


class Fingerprint(Part):
    """The hash of something, and for a file its format and name."""

    sha256: str
    format: str | None = None
    name: str | None = None


class Weights(Part):
    """The weights before and after."""

    old: Fingerprint
    new: Fingerprint


class Recorded(Part):
    """The records that were forgotten, as keyed hashes."""

    count: Count


class Kept(Part):
    """Whether the mask was written."""

    kept: bool


class Signature(Part):
    """Who signed."""

    algorithm: str
    key_id: str


class Certificate(Part):
    """The part of certificate.json that the page shows."""

    kind: Literal["forsaken.certificate"]
    time: str
    weights: Weights
    settings: Fingerprint
    records: Recorded
    mask: Kept
    signature: Signature | None
