"""How well secrets can be extracted from a language model: exposure, and beam search (Carlini et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from forsaken._random import Purpose, generator
from forsaken.errors import InputError, SettingsError
from forsaken.metrics.exposure import exposure_by_fit, exposure_by_rank
from forsaken.models.logits import LogitModel, evaluation
from forsaken.models.sequences import sequence_logits, token_log_probabilities
from forsaken.types import Array

BY = ("exact", "rank", "skew-normal")
_MOST = 1_000_000  # the largest space that is enumerated


@dataclass(frozen=True, slots=True)
class CanaryFormat:
    """A phrase with places to fill: the format of canaries, such as "the random number is" and nine digits.

    Attributes
    ----------
    prefix : tuple of int
        The tokens of the phrase.
    fills : tuple of int
        The tokens that may stand in each place.
    places : int
        How many places follow the phrase.

    Examples
    --------
    >>> digits = CanaryFormat.from_text("no ", "0123456789", 2, "no 0123456789")
    >>> digits.space, digits.sequences([[3, 4]]).tolist()
    (100, [[0, 1, 2, 3, 4]])
    """

    prefix: tuple[int, ...]
    fills: tuple[int, ...]
    places: int

    def __post_init__(self) -> None:
        if not self.prefix:
            raise InputError("the format's phrase is empty; give at least one token before the places to fill")
        if not self.fills or self.places < 1:
            raise InputError(
                f"the space of fills is empty: {len(self.fills)} tokens for {self.places} places; give at least one "
                "token and one place"
            )
        if len(set(self.fills)) < len(self.fills):
            raise InputError("a token stands twice among the fills; give each once")

    @classmethod
    def from_text(
        cls, phrase: Iterable[str], fills: Iterable[str], places: int, vocabulary: Sequence[str] | Mapping[str, int]
    ) -> CanaryFormat:
        """Return the format of a phrase in the tokens of a vocabulary: characters of texts, or words of lists."""
        known = (
            dict(vocabulary) if isinstance(vocabulary, Mapping) else {word: at for at, word in enumerate(vocabulary)}
        )
        phrase, fills = list(phrase), list(fills)
        missing = sorted({word for word in (*phrase, *fills) if word not in known})
        if missing:
            raise InputError(
                f"the vocabulary lacks {', '.join(map(repr, missing[:10]))}; use a phrase and fills of its "
                f"{len(known):,} tokens, or add them before training",
                field="vocabulary",
            )
        return cls(tuple(known[word] for word in phrase), tuple(known[word] for word in fills), places)

    @property
    def space(self) -> int:
        """|R|, how many fills there are."""
        return int(len(self.fills) ** self.places)

    @property
    def start(self) -> int:
        """The position before the first place."""
        return len(self.prefix) - 1

    def sequences(self, secrets: object) -> Tensor:
        """Return whole canaries (n x tokens) for rows of tokens in the places (n x places)."""
        rows = torch.as_tensor(np.asarray(secrets))
        if (
            rows.dim() != 2
            or rows.shape[1] != self.places
            or not bool(torch.isin(rows, torch.tensor(self.fills)).all())
        ):
            raise InputError(
                f"the secrets have shape {tuple(rows.shape)} or hold other tokens than the {len(self.fills)} fills, "
                f"expected (n, {self.places}) token numbers"
            )
        return torch.cat([torch.tensor(self.prefix).expand(len(rows), -1), rows.long()], dim=1)

    def draw(self, count: int, seed: int) -> Array:
        """Return fills that are drawn at random (count x places)."""
        return np.asarray(self.fills)[
            generator(seed, Purpose.CANARY_FILLS).integers(len(self.fills), size=(count, self.places))
        ]

    def everything(self) -> Array:
        """Return all fills (|R| x places)."""
        if self.space > _MOST:
            raise SettingsError(
                f"the space has {self.space:,} fills, and at most {_MOST:,} are enumerated", remedy='by="skew-normal"'
            )
        grid = np.indices((len(self.fills),) * self.places).reshape(self.places, -1).T
        return np.asarray(self.fills)[grid]


@dataclass(frozen=True, slots=True)
class Exposure:
    """The exposure of secrets.

    Attributes
    ----------
    bits, log_perplexities : arrays
        A number a secret.
    by : str
        How it was found.
    largest : float
        log2 |R|: the exposure of the likeliest fill.
    """

    bits: Array
    log_perplexities: Array
    by: str
    largest: float


def log_perplexities(model: nn.Module, canary: CanaryFormat, secrets: object) -> Array:
    """Return Σ −log2 Pr(token | the tokens before it) over a canary's tokens after the first, a number a secret."""
    return np.asarray(-token_log_probabilities(model, canary.sequences(secrets)).sum(1))


def exposure(
    model: nn.Module,
    canary: CanaryFormat,
    secrets: object,
    *,
    by: str = "skew-normal",
    fills: int = 5000,
    seed: int = 0,
) -> Exposure:
    """Measure how exposed secrets are in a language model.

    Parameters
    ----------
    model : Module
        Maps tokens (n x length) to logits (n x length x vocabulary), or has them as `logits` or first in a tuple.
    canary : CanaryFormat
        What the secrets fill.
    secrets : int array (n x places)
        The tokens in the places.
    by : {"skew-normal", "rank", "exact"}
        Over a distribution fitted to sampled fills, by rank among them (at most log2 of their number), or by rank
        among all fills.
    fills : int
        How many fills to sample.
    seed : int
        Decides the sample.
    """
    if by not in BY:
        raise SettingsError(f"by is {by!r}, expected one of {', '.join(BY)}")
    if by != "exact" and (isinstance(fills, bool) or not isinstance(fills, int | np.integer) or fills < 20):
        raise SettingsError(f"fills is {fills!r}, expected how many to sample: a whole number >= 20")
    own = log_perplexities(model, canary, secrets)
    others = log_perplexities(model, canary, canary.everything() if by == "exact" else canary.draw(int(fills), seed))
    # a batch's size changes a sum in its last digits, and a secret must not lose its rank to itself
    own, others = own.round(6), others.round(6)
    bits = (
        exposure_by_fit(own, others) if by == "skew-normal" else exposure_by_rank(own, others, all_fills=by == "exact")
    )
    return Exposure(bits, own, by, float(canary.places * np.log2(len(canary.fills))))


def extract(model: nn.Module, canary: CanaryFormat, *, known: object = None, beam: int = 1) -> Array:
    """Return the likeliest fills that a beam search finds (attempts x beam x places); greedy with one beam.

    Parameters
    ----------
    model : Module
        See `exposure`.
    canary : CanaryFormat
        The phrase and the fills.
    known : int array (attempts x k), optional
        The first k tokens of a secret, if an attacker knows them: an attempt each. Nothing is known by default.
    beam : int
        How many candidates to keep.
    """
    if isinstance(beam, bool) or not isinstance(beam, int | np.integer) or beam < 1:
        raise SettingsError(f"beam is {beam!r}, expected how many candidates to keep: a whole number >= 1")
    begun = torch.zeros((1, 0), dtype=torch.long) if known is None else torch.as_tensor(np.asarray(known)).long()
    if begun.dim() != 2 or begun.shape[1] >= canary.places:
        raise InputError(f"known has shape {tuple(begun.shape)}, expected fewer tokens than the {canary.places} places")
    device, fills = LogitModel(model).device, torch.tensor(canary.fills)
    attempts = len(begun)
    found, scores = begun[:, None], torch.zeros(attempts, 1, dtype=torch.float64)
    with evaluation(model), torch.no_grad():
        for _ in range(canary.places - begun.shape[1]):
            flat = found.flatten(0, 1)
            whole = torch.cat([torch.tensor(canary.prefix).expand(len(flat), -1), flat], dim=1)
            parts = [sequence_logits(model, part.to(device))[:, -1].double().cpu() for part in torch.split(whole, 1024)]
            likely = torch.cat(parts).log_softmax(1)[:, fills].reshape(attempts, -1, len(fills))
            total = (scores[:, :, None] + likely).flatten(1)
            scores, best = total.topk(min(int(beam), total.shape[1]), dim=1)
            earlier = found.gather(1, (best // len(fills))[:, :, None].expand(-1, -1, found.shape[2]))
            found = torch.cat([earlier, fills[best % len(fills)][:, :, None]], dim=2)
    return found.numpy()
