"""Chains: one request after another on the same model, and when it is time to retrain."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forsaken.errors import OutputError, SettingsError
from forsaken.jobs.certificate import FILE, KIND, Certificate
from forsaken.jobs.hashes import file_hash
from forsaken.jobs.statements import Link, lost

__all__ = ["Chain", "Link", "extend", "find_previous"]

_NEARLY = 0.8  # of a bound: time to plan for retraining


@dataclass(frozen=True, slots=True)
class Chain:
    """Every request so far, and the bounds past which retraining is advised.

    >>> accuracy = {"accuracy_before": 0.9, "accuracy_after": 0.88}
    >>> first = Link(number=1, time="2025-01-01T00:00:00+00:00", forgotten=40, drift=0.02, certificate=None, **accuracy)
    >>> Chain((first,), max_drift=0.01).advice
    ('The cumulative drift is 0.02, above the bound of 0.01: retrain the model without the forgotten records.',)
    """

    links: tuple[Link, ...]
    max_drift: float | None = None
    max_accuracy_loss: float | None = None

    @property
    def drift(self) -> float:
        """Sum of the links' drifts, each relative to the weights that its request started from.

        By the triangle inequality the distance from the first weights, relative to them, is at most the product of
        all (1 + drift) minus 1, which for small drifts is hardly more than this sum (0.105 for a sum of 0.1).
        """
        return math.fsum(link.drift for link in self.links)

    @property
    def accuracy_loss(self) -> float | None:
        """Sum of what each request lost on its own test set; None where one is unknown."""
        return lost(self.links)

    @property
    def advice(self) -> tuple[str, ...]:
        """Sentences that advise retraining where a bound is passed, or planning for it where it is near."""
        return (
            *_advice("drift", self.drift, self.max_drift),
            *_advice("loss of accuracy", self.accuracy_loss, self.max_accuracy_loss),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the chain as a result file holds it."""
        return {
            "links": [link.model_dump(mode="json") for link in self.links],
            "drift": self.drift,
            "accuracy_loss": self.accuracy_loss,
            "max_drift": self.max_drift,
            "max_accuracy_loss": self.max_accuracy_loss,
            "advice": list(self.advice),
        }


def extend(
    previous: Certificate | None,
    link: Link,
    *,
    max_drift: float | None = None,
    max_accuracy_loss: float | None = None,
) -> Chain:
    """Return the chain of `previous` with one more link; its number follows from the place, whatever `link` says."""
    links: tuple[Link, ...] = ()
    if previous is not None:
        *before, last = previous.chain.links
        links = (*before, last.model_copy(update={"certificate": previous.sha256}))
    own = link.model_copy(update={"number": len(links) + 1, "certificate": None})
    return Chain((*links, own), max_drift, max_accuracy_loss)


def find_previous(weights: Path, named: Path | None = None) -> Certificate | None:
    """Return the certificate of the request that made these weights, if there was one.

    Parameters
    ----------
    weights : Path
        The weights that are about to forget.
    named : Path, optional
        The certificate, if the user names it: then it must fit. Without it, one that lies beside the weights is taken
        if it fits, and passed over if it speaks of other weights.
    """
    if named is not None:
        certificate = _unchanged(named)
        found, stated = file_hash(weights), certificate.weights
        if found != stated.new.sha256:
            early = " (they are the weights before that request)" if found == stated.old.sha256 else ""
            raise SettingsError(
                f"the certificate {named} speaks of weights with the SHA-256 {stated.new.sha256}, but {weights} has "
                f"{found}{early}; name the certificate that was made with these weights, or leave it out"
            )
        return certificate
    for path in _beside(weights):
        certificate = _unchanged(path)
        if certificate.weights.new.sha256 == file_hash(weights):
            return certificate
    return None


def _beside(weights: Path) -> Iterator[Path]:
    for folder in dict.fromkeys((weights.absolute().parent, weights.resolve().parent)):
        path = folder / FILE
        try:
            ours = path.is_file() and KIND.encode() in path.read_bytes()
        except OSError as error:
            raise OutputError(f"{path} cannot be read ({error.strerror}); is it the certificate before?") from error
        if ours:  # other software has certificates too
            yield path


def _unchanged(path: Path) -> Certificate:
    certificate = Certificate.read(path)
    if certificate.check_signature() == "invalid":
        raise OutputError(
            f"the certificate {path} was changed after it was signed; get it again from whoever issued it"
        )
    return certificate


def _advice(what: str, value: float | None, bound: float | None) -> tuple[str, ...]:
    if value is None or bound is None or value <= _NEARLY * bound:
        return ()
    if value > bound:
        more = "retrain the model without the forgotten records"
        return (f"The cumulative {what} is {value:.4g}, above the bound of {bound:.4g}: {more}.",)
    more = "plan to retrain the model without the forgotten records"
    return (f"The cumulative {what} is {value:.4g}, {value / bound:.0%} of the bound of {bound:.4g}: {more}.",)
