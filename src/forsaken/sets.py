"""Who plays which role in a request: one value for methods, audits, jobs and scenarios, checked once, here."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cached_property

from forsaken.data.nest import as_kinds, common_kind, leaves, row_keys, shape_of
from forsaken.data.samples import Samples, join
from forsaken.errors import InputError, OverlapError

ROLES = ("forget", "retain", "reference", "kept", "test", "nonmembers")


@dataclass(frozen=True, eq=False)
class Sets:
    """The samples of a request. All but `forget` may be missing; what needs one of them says so (`need`).

    Samples of all roles have the shape that the model takes, and no retain or reference sample is also to be forgotten.

    Attributes
    ----------
    forget : Samples
        D, what is to be forgotten.
    retain : Samples or None
        D_0, training samples that must be kept and that the method may use: a very small part of the training data.
    reference : Samples or None
        X_n, samples like the forgotten ones that the model was never trained on, for the method to use.
    kept : Samples or None
        Training samples that must be kept and that the method does not see: where collateral damage is measured.
    test : Samples or None
        Labelled samples of the task that no model was trained on.
    nonmembers : Samples or None
        Labelled samples like the forgotten ones that no model was trained on, for attacks to compare with.
    """

    forget: Samples
    _: KW_ONLY
    retain: Samples | None = None
    reference: Samples | None = None
    kept: Samples | None = None
    test: Samples | None = None
    nonmembers: Samples | None = None

    def __post_init__(self) -> None:
        for name in ROLES[1:]:
            if (other := self.get(name)) is not None:
                _check_alike(self.forget, other, name)
        for name in ("reference", "retain"):
            if (other := self.get(name)) is not None:
                _check_apart(self.forget, other, name)

    def get(self, name: str) -> Samples | None:
        """Return the set of a role, or None."""
        found: Samples | None = getattr(self, name)
        return found

    def need(self, name: str, *, labels: bool = False) -> Samples:
        """Return the set of a role, or raise an `InputError` that names what is missing: the set, or its labels."""
        found = self.get(name)
        if found is None or (labels and found.labels is None):
            missing = f"{name} is not given" if found is None else f"{name} has no labels"
            given = f"{name}=(inputs, labels)" if labels else f"{name}=..."
            raise InputError(missing, field=name, remedy=f"give {given}")
        return found

    @cached_property
    def remaining(self) -> Samples:
        """What a retrained model learns from, with labels: kept and retain samples."""
        parts = [self.need(name, labels=True) for name in ("kept", "retain") if self.get(name) is not None]
        if not parts:
            raise InputError(
                "models cannot be retrained without the remaining training data",
                field="kept",
                remedy="give kept=(inputs, labels), and retain=(inputs, labels) for those that the method used",
            )
        return join(parts)

    @cached_property
    def train(self) -> Samples:
        """What the original model learnt from, with labels: the remaining samples, then the forgotten ones."""
        return join([self.remaining, self.need("forget", labels=True)])


def _check_alike(forget: Samples, other: Samples, name: str) -> None:
    ours, theirs = shape_of(forget.inputs), shape_of(other.inputs)
    if ours != theirs:
        raise InputError(
            f"a forget sample has shape {ours} but a {name} sample has {theirs}; they must be inputs of the same model",
            field=name,
        )
    for a, b in zip(leaves(forget.inputs), leaves(other.inputs), strict=True):
        if a.is_floating_point() != b.is_floating_point():
            raise InputError(
                f"forget is {a.dtype} but {name} is {b.dtype}; they must be inputs of the same model", field=name
            )


def _check_apart(forget: Samples, other: Samples, name: str) -> None:
    pairs = zip(leaves(forget.inputs), leaves(other.inputs), strict=True)
    kinds = [common_kind(one.dtype, two.dtype) for one, two in pairs]
    unwanted: dict[bytes, int] = {}
    for at, key in enumerate(row_keys(as_kinds(forget.inputs, kinds))):
        unwanted.setdefault(key, at)
    keys = row_keys(as_kinds(other.inputs, kinds))
    shared = [at for at, key in enumerate(keys) if key in unwanted]
    if shared:
        first = shared[0]
        raise OverlapError(
            f"{len(shared)} of {len(other)} {name} samples are also in forget (first: {name} sample {first} equals "
            f"forget sample {unwanted[keys[first]]})",
            rows=shared,
            field=name,
            remedy="leave them out (this error's `rows` lists them)",
        )
