"""Sets that share samples: what a retrained model saw after all, and what it was judged on although it learnt it."""

from __future__ import annotations

from forsaken.data.duplicates import content_keys
from forsaken.data.samples import Samples
from forsaken.errors import InputError
from forsaken.sets import Sets


def overlaps(sets: Sets) -> list[str]:
    """Return a warning for each pair of sets that share samples and must not.

    Copies happen in real data, so some are a warning; a forget set that lies in the remaining data as a whole is an
    error, since no model would be retrained without it.
    """
    found = []
    for name in ("kept", "retain"):
        part: Samples | None = getattr(sets, name)
        if part is None:
            continue
        same = _shared(sets.forget, part)
        if same == len(sets.forget):
            raise InputError(
                f"all {same} forget samples are in {name}, so that models retrained on it would learn them; give "
                f"{name} without them"
            )
        if same:
            found.append(f"{same} of {len(sets.forget)} forget samples are also in {name}: retrained models learn them")
        for other in ("test", "nonmembers"):
            outside: Samples | None = getattr(sets, other)
            if outside is not None and (known := _shared(outside, part)):
                found.append(f"{known} of {len(outside)} {other} samples are also in {name}: they are no non-members")
    for other in ("test", "nonmembers"):
        outside = getattr(sets, other)
        if outside is not None and (known := _shared(outside, sets.forget)):
            found.append(f"{known} of {len(outside)} {other} samples are also in forget: they are no non-members")
    return found


def _shared(samples: Samples, others: Samples) -> int:
    ours, theirs = content_keys(Samples(samples.inputs), Samples(others.inputs))
    known = set(theirs)
    return sum(key in known for key in ours)
