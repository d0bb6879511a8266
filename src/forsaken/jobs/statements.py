"""What a certificate states, part by part: frozen, and checked once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
    model_validator,
)

from forsaken.jobs.hashes import file_hash

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Time = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(\+00:00|Z)$")]
Words = Annotated[str, StringConstraints(min_length=1)]
Amount = Annotated[float, Field(ge=0)]
Whole = Annotated[int, Field(ge=0)]


class Statement(BaseModel):
    """A part of a certificate: its types are exact, and it has no other fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class LaterStatement(Statement):
    """A part with fields that older versions do not have: these are left out where they say nothing.

    So an older certificate stays the same to the last bit, and so do its hash and its signature. There is one way only
    to say nothing: a null in such a place is refused.
    """

    later: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _said_once(self) -> Self:
        if any(name in self.model_fields_set and getattr(self, name) is None for name in self.later):
            raise ValueError("a part that says nothing must be left out")
        return self

    @model_serializer(mode="wrap")
    def _without_gaps(self, plainly: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = plainly(self)
        return {name: value for name, value in content.items() if name not in self.later or value is not None}


class Weights(Statement):
    """A file or folder of weights: its SHA-256, format and name without a path."""

    sha256: Digest
    format: Words
    name: Words

    @classmethod
    def of(cls, path: Path, kind: str) -> Weights:
        """Describe the weights at `path`, whose format is called `kind`."""
        name = path.name if path.name not in ("", "..") else path.resolve().name
        spelt = name.encode("utf-8", "replace").decode()  # a file system may allow names that are no text
        return cls(sha256=file_hash(path), format=kind, name=spelt or "/")


class BothWeights(Statement):
    """The weights before and after."""

    old: Weights
    new: Weights


class Settings(Statement):
    """Hashes of the method's settings and, where there was one, of the whole job."""

    sha256: Digest
    job_sha256: Digest | None


class ReadAs(LaterStatement):
    """How the file of the records was read: the columns of labels and ids, and the size of pictures.

    `group` is the column that said whose each row is, where the run had one.
    """

    later: ClassVar[tuple[str, ...]] = ("group",)

    label: Words
    id: Words | None
    size: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] | None
    group: Words | None = None


class Forgotten(Statement):
    """The forgotten records as keyed hashes; `read_as` is None where they did not come from a file."""

    count: Annotated[int, Field(ge=1)]
    hmac_sha256: tuple[Digest, ...]
    read_as: ReadAs | None

    @model_validator(mode="after")
    def _counted(self) -> Self:
        if self.count != len(self.hmac_sha256):
            raise ValueError(f"{self.count} records but {len(self.hmac_sha256)} hashes")
        return self


class Target(Statement):
    """What the target of the method shows when the numbers are good, and what it does not show."""

    target: Words
    shown: str
    not_shown: str


class Audit(Statement):
    """How well it went, and how thoroughly that was looked into."""

    profile: Words
    numbers: dict[str, JsonValue]


class Seconds(Statement):
    """How long it took."""

    unlearning: Amount
    total: Amount


class Link(Statement):
    """One request of a chain of requests; `certificate` is the SHA-256 of its certificate, None for the last."""

    number: Annotated[int, Field(ge=1)]
    time: Time
    forgotten: Annotated[int, Field(ge=1)]
    drift: Amount
    accuracy_before: float | None
    accuracy_after: float | None
    certificate: Digest | None


def lost(links: tuple[Link, ...]) -> float | None:
    """Return the sum of the accuracy that each request lost; None where one is unknown."""
    losses = [
        link.accuracy_before - link.accuracy_after
        for link in links
        if link.accuracy_before is not None and link.accuracy_after is not None
    ]
    return math.fsum(losses) if len(losses) == len(links) else None


class History(Statement):
    """Every request so far, with the sum of the drifts and the loss of accuracy over all of them."""

    links: Annotated[tuple[Link, ...], Field(min_length=1)]
    drift: Amount
    accuracy_loss: float | None

    @model_validator(mode="after")
    def _joined(self) -> Self:
        if [link.number for link in self.links] != list(range(1, len(self.links) + 1)):
            raise ValueError("the numbers of the links do not count from 1")
        if [link.certificate is None for link in self.links] != [False] * (len(self.links) - 1) + [True]:
            raise ValueError("every link but the last must name its certificate")
        if not math.isclose(self.drift, math.fsum(link.drift for link in self.links), rel_tol=1e-9, abs_tol=1e-12):
            raise ValueError("the drift is not the sum of the links' drifts")
        loss = lost(self.links)
        known = loss is not None and self.accuracy_loss is not None
        if (loss is None) != (self.accuracy_loss is None) or (known and abs(loss - self.accuracy_loss) > 1e-9):  # type: ignore[operator]
            raise ValueError("the loss of accuracy is not the sum of the links' losses")
        return self


class MaskFate(Statement):
    """Whether the mask, which can restore the memory, was kept."""

    kept: bool


class ReferenceTable(LaterStatement):
    """The table of references that the run read: its SHA-256, and how it came about.

    `forgotten` rows had been taken out of it before this run; `models_owe` is how many forgotten records the models
    kept in it still remember after this run. `views` is how many augmented copies of each row its models were asked
    about too, and `view` what made them, where there were some.
    """

    later: ClassVar[tuple[str, ...]] = ("views", "view")

    sha256: Digest
    rows: Whole
    folds: Whole
    by: Literal["row", "group", "claim"]
    steps: Whole | None
    claimed: Whole
    forgotten: Whole
    models_kept: Whole
    models_owe: Whole
    views: Annotated[int, Field(ge=1)] | None = None
    view: Words | None = None


class Signature(Statement):
    """An Ed25519 signature of everything else, with the public key that fits it."""

    algorithm: Literal["Ed25519"]
    public_key: Words
    key_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
    value: Words
