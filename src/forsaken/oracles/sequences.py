"""A black-box oracle for sequences: a shadow language model shows what sequences that were learnt look like."""

from __future__ import annotations

import numpy as np
from torch import nn

from forsaken.errors import OracleError
from forsaken.models.sequences import token_log_probabilities
from forsaken.oracles.shadow import fit_trees
from forsaken.types import Array


class SequenceOracle:
    """Tells whether a language model has learnt a sequence. HIGHER MEANS MEMBER.

    The features of a sequence are the log-probabilities of its tokens from position `start` on, in ascending order;
    trees with the settings of `ShadowOracle` decide.
    """

    threshold = 0.5

    def __init__(self, score: object, start: int, width: int) -> None:
        self._score, self.start, self.width = score, start, width

    @classmethod
    def fit(
        cls, shadow_model: nn.Module, *, members: object, nonmembers: object, start: int = 0, seed: int = 0
    ) -> SequenceOracle:
        """Learn from sequences that a shadow model was and was not trained on; all have the same number of tokens."""
        inside, outside = (_features(shadow_model, part, start) for part in (members, nonmembers))
        return cls(fit_trees(inside, outside, seed=seed), start, inside.shape[1])

    def score(self, model: nn.Module, sequences: object) -> Array:
        """Return the probability of membership of each sequence."""
        features = _features(model, sequences, self.start)
        if features.shape[1] != self.width:
            raise OracleError(
                f"the sequences have {features.shape[1]} tokens from position {self.start} on, but the oracle learnt "
                f"from {self.width}; give sequences of the same format"
            )
        return np.asarray(self._score(features), dtype=np.float64)  # type: ignore[operator]

    def is_member(self, model: nn.Module, sequences: object) -> Array:
        """Return whether each sequence seems to be remembered."""
        return self.score(model, sequences) > self.threshold


def _features(model: nn.Module, sequences: object, start: int) -> Array:
    return np.sort(token_log_probabilities(model, sequences, start=start), axis=1)
