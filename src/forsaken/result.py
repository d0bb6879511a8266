"""The typed result of a run: the demonstration and jobs build it, the certificate hashes it, the report reads it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from forsaken._files import write_atomically
from forsaken._untrusted import UnreadableError, parse_json, read_at_most
from forsaken.errors import OutputError

_MAX_BYTES = 2**29  # a million forgotten samples take half of it
_MAX_COUNT = 10**15  # more than any count of weights, and exact in a float
_MAX_DEPTH = 20  # of tables within tables
_MAX_PROBLEMS = 5  # that one message names
# The kinds of problems that pydantic tells apart; the rest is "of the wrong type" or "not as expected".
_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not known",
    "finite_number": "is NaN or infinite",
    "literal_error": "is none of the values that are known",
    "string_pattern_mismatch": "is not of the form that is expected",
    **dict.fromkeys(("greater_than", "greater_than_equal"), "is too small"),
    **dict.fromkeys(("less_than", "less_than_equal"), "is too large"),
    **dict.fromkeys(("too_short", "string_too_short"), "is too short"),
    **dict.fromkeys(("too_long", "string_too_long"), "is too long"),
}

Count = Annotated[int, Field(ge=0, le=_MAX_COUNT)]
AtLeastOne = Annotated[int, Field(ge=1, le=_MAX_COUNT)]
Whole = Annotated[int, Field(ge=-_MAX_COUNT, le=_MAX_COUNT)]
Number = Annotated[float, Field(ge=-1e300, le=1e300)]
Amount = Annotated[float, Field(ge=0, le=1e300)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
Share = Annotated[float, Field(ge=0, le=1 + 1e-9)]  # a sum of posteriors may round up
Rate = Annotated[float, Field(ge=-_MAX_COUNT, le=1)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
KeyId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Time = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(\+00:00|Z)$")]
Stopped = Annotated[str, Field(pattern="^(iterations|converged|calibrated|tolerance|line-search|not-memorised)$")]


def _shallow(table: dict[str, Any]) -> dict[str, Any]:
    level: list[Any] = [table]
    for _ in range(_MAX_DEPTH):
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
        level = [inner for inner in level if isinstance(inner, dict | list)]
        if not level:
            return table
    raise ValueError(f"holds tables within tables, more than {_MAX_DEPTH} deep")


Table = Annotated[dict[str, Any], AfterValidator(_shallow)]


class Part(BaseModel):
    """A part of a saved file: no type is guessed, and keys that this version does not know are left out."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", allow_inf_nan=False, ser_json_inf_nan="constants"
    )


class Document(Part):
    """A whole saved file. Subclasses say their `kind`, the version of their `schema` and what a damaged file needs."""

    kind: ClassVar[str]
    version: ClassVar[int]
    remedy: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, ready for JSON."""
        return {"schema": self.version, "kind": self.kind, **self.model_dump(mode="json")}

    def write(self, path: Path) -> Path:
        """Write the file in one step; NaN and infinity are refused."""
        return write_atomically(path, json.dumps(self.to_dict(), indent=1, allow_nan=False).encode() + b"\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a file that anybody may have written; what is wrong with it is an `OutputError`."""
        try:
            table = parse_json(read_at_most(path, _MAX_BYTES), _refuse_constant)
        except OSError as error:
            raise OutputError(f"cannot read {path}: {error.strerror}", remedy="check the path") from error
        except UnreadableError as error:
            raise OutputError(f"{path} is damaged: {error}", remedy=cls.remedy) from error
        if not isinstance(table, dict):
            raise OutputError(
                f"{path} is damaged: it holds a {type(table).__name__}, expected a table", remedy=cls.remedy
            )
        found = (table.get("kind"), table.get("schema"))
        if found != (cls.kind, cls.version):
            raise OutputError(
                f"{path} is of kind {found[0]!r} and schema {found[1]!r}",
                expected=f"kind {cls.kind!r} and schema {cls.version}",
                remedy=cls.remedy,
            )
        try:
            # As JSON, where a table may stand for a dataclass; half characters of file names become question marks.
            return cls.model_validate_json(json.dumps(table, ensure_ascii=False).encode("utf-8", "replace"))
        except ValidationError as error:
            raise OutputError(f"{path} is damaged: {problems_of(error)}", remedy=cls.remedy) from error


def problems_of(error: ValidationError) -> str:
    """Return the first problems that pydantic found, each with its place; never a value of the file.

    >>> try:
    ...     ByClass.model_validate({"support": [1], "before": [2.0], "after": [1.0]})
    ... except ValidationError as error:
    ...     print(problems_of(error))
    before.0 is too large
    """
    found = error.errors(include_url=False, include_context=False, include_input=False)
    if found[0]["type"] == "json_invalid":
        return "it is not JSON"
    lines = [f"{'.'.join(map(str, one['loc'])) or 'the whole'}{_in_words(one)}" for one in found[:_MAX_PROBLEMS]]
    more = f"; and {len(found) - _MAX_PROBLEMS} more" if len(found) > _MAX_PROBLEMS else ""
    return "; ".join(lines) + more


def _in_words(problem: ErrorDetails) -> str:
    """Say what pydantic found, in words of our own: its messages speak of Python's types."""
    kind = problem["type"]
    if kind == "value_error":  # raised by a check of our own
        return problem["msg"].replace("Value error, ", ": ", 1)
    return f" {_WORDS.get(kind, 'is of the wrong type' if kind.endswith('_type') else 'is not as expected')}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is not JSON")


class BeforeAfter(Part):
    """A share under the model before, the model after and, where there is one, a retrained model."""

    before: Share
    after: Share
    retrained: Share | None = None


class Separation(BeforeAfter):
    """AUC of the largest posterior, forget samples against samples never trained on.

    `spread` is the standard deviation of the forget samples' largest posteriors, `spread_of_others` that of the `n`
    samples which they are compared with, after the request.
    """

    against: Literal["test", "reference"]
    n: Count
    spread: BeforeAfter
    spread_of_others: Share


class Retrained(Part):
    """The same numbers for a model retrained without the samples; None where they are not known."""

    fr: Rate | None
    cfr: Rate | None
    accuracy: Share | None
    seconds: Seconds | None


class Counts(Part):
    """How many samples each set holds, and how many of them the oracle took for members before, and after."""

    forget: AtLeastOne
    memorised_before: Count | None
    reference: Count
    retain: Count
    train: Count | None
    test: Count
    kept_judged: Count
    kept_members_before: Count | None
    memorised_after: Count | None = None


class ByClass(Part):
    """Test samples of each class, and the accuracy on them; None for a class without samples."""

    support: list[Count]
    before: list[Share | None]
    after: list[Share | None]


class LayerChange(Part):
    """How many entries of one parameter changed."""

    name: str
    changed: Count
    total: AtLeastOne

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.changed > self.total:
            raise ValueError(f"{self.changed} entries changed of only {self.total}")
        return self


class SampleTable(Part):
    """One entry a forgotten sample. `score` says whose scores these are; higher means member."""

    score: Literal["oracle", "confidence"]
    row: list[Whole]
    hash: list[Annotated[str, Field(max_length=64)]] | None
    class_before: list[Count]
    class_after: list[Count]
    confidence_before: list[Share]
    confidence_after: list[Share]
    score_before: list[Share]
    score_after: list[Share]

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        sizes = {len(part) for _, part in self if isinstance(part, list)}
        if len(sizes) > 1:
            raise ValueError(f"its lists have different lengths {sorted(sizes)}")
        return self


class OracleQuality(Part):
    """How well the oracle tells members from non-members, on samples where the truth is known."""

    accuracy: Share | None = None
    precision: Share | None = None
    recall: Share | None = None
    balanced_accuracy: Share | None
    members: Count | None = None
    nonmembers: Count | None = None


class TargetClaim(Part):
    """What the target of the method shows when the numbers are good, and what it does not show."""

    target: str
    shown: str
    not_shown: str


class ChainRequest(Part):
    """One request of a chain; `certificate` is the SHA-256 of its certificate, None for the last.

    `signer` is the id of the key that had signed that certificate when the next request was added to the chain; None
    where no signature was checked then.
    """

    number: Count
    time: Time
    forgotten: AtLeastOne
    drift: Amount
    accuracy_before: Share | None
    accuracy_after: Share | None
    certificate: Digest | None
    signer: KeyId | None = None


class ChainSummary(Part):
    """The requests that led to these weights, and the bounds past which retraining is advised."""

    links: Annotated[list[ChainRequest], Field(min_length=1)]
    drift: Amount
    accuracy_loss: Number | None
    max_drift: Amount | None
    max_accuracy_loss: Annotated[float, Field(ge=0, le=1)] | None
    advice: list[str]


class Cleaning(Part):
    """What became of the training data: rows taken out, copies of them that stay, forget records not found there."""

    rows: Count
    exact: Count
    near: Count
    not_found: Count
    file: str | None


class RequestFacts(Part):
    """What the owner's own books say about the request: its case number, and the day by which it is due."""

    case: Annotated[str, Field(min_length=1, max_length=80)] | None = None
    due: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration of a method, for the curve; `seconds` count from the first iteration's start."""

    iteration: Count
    objective: Number
    distance: Number
    anchor: Number
    penalty: Number
    density: Number
    step: Number
    seconds: Number


class Result(Document):
    """What a request did: all of result.json. What is not known is None, never a guess.

    `samples` and, for few records, `forget_confidence` and `separation` are None too where nothing is to be said about
    single records: see `forsaken.jobs.disclosure`.
    """

    kind: ClassVar[str] = "forsaken.result"
    version: ClassVar[int] = 2
    remedy: ClassVar[str] = "run the request again with this version into a new folder, or restore the file"

    task: str
    request: RequestFacts | None = None
    seed: Whole
    fr: Rate | None
    cfr: Rate | None
    accuracy_before: Share | None
    accuracy_after: Share | None
    seconds: Seconds
    speedup: Annotated[float, Field(ge=0, le=1e12)] | None
    mask_density: Share
    iterations: Count
    evaluations: Count
    stopped: Stopped
    forget_confidence: BeforeAfter | None
    forget_accuracy: BeforeAfter | None
    separation: Separation | None
    retrain: Retrained | None
    counts: Counts
    classes: Annotated[list[str], Field(min_length=1, max_length=100_000)]
    by_class: ByClass | None
    layers: list[LayerChange]
    samples: SampleTable | None
    oracle: OracleQuality | None
    target: TargetClaim
    chain: ChainSummary | None
    cleaning: Cleaning | None
    facts: Table
    notes: list[str]
    warnings: list[str]
    stays: list[str] = []
    settings: Table
    job: Table | None
    history: list[Step]
    provenance: Table

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        table = self.samples
        if table is not None and len(table.row) != self.counts.forget:
            raise ValueError(f"samples holds {len(table.row)} entries, but counts.forget is {self.counts.forget}")
        if table is not None and max(table.class_before + table.class_after) >= len(self.classes):
            raise ValueError(f"samples names a class beyond the {len(self.classes)} of classes")
        if self.by_class and {len(part) for _, part in self.by_class} != {len(self.classes)}:
            raise ValueError(f"by_class must hold one entry for each of the {len(self.classes)} classes")
        return self
