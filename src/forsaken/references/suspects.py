"""Which training samples may carry a wrong label: those whose label is unlike what models that never saw them say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forsaken.data.samples import Samples, check_labels
from forsaken.errors import InputError
from forsaken.references.table import References
from forsaken.types import Array


@dataclass(frozen=True, slots=True, eq=False)
class Suspects:
    """Training samples, ranked by how unlike their label is to what models that never saw them answer.

    Attributes
    ----------
    rows : int array, shape (n,)
        The row numbers of all samples, the most suspicious first. Equal scores keep the order of the data.
    scores : float array, shape (n,)
        For each of `rows`, the largest adjusted posterior of another class less that of its label.
    posteriors : float array, shape (n,)
        For each of `rows`, the out-of-fold posterior of its label, not adjusted.
    """

    rows: Array
    scores: Array
    posteriors: Array

    def doubted(self, posterior: float = 0.5) -> int:
        """Return how many samples have a label to which the models give less than `posterior`."""
        return int((self.posteriors < posterior).sum())


def rank_suspects(references: References, data: object) -> Suspects:
    """Rank training samples by how unlike their label is to their out-of-fold posterior.

    A posterior is adjusted by how sure the models are of each class as a rule, t_c = the mean posterior of class c over
    the samples labelled c: P_c - t_c + max t, divided by its sum (the thresholds of confident learning, Northcutt et
    al. 2021). A class of which many samples are poisoned would look doubtful throughout otherwise.

    A high rank is no proof: samples that are hard or rare rank high too. Have a person look at them before they are
    forgotten. Where most copies of a poison lie in the other folds, the models have learnt the poison as well, and a
    sample of the poison looks less suspicious than it is.

    Parameters
    ----------
    references : References
        The table of the training data (`forsaken.References.fit`).
    data : pair (inputs, labels)
        Training samples of the table, under the labels that the model learnt.

    Examples
    --------
    >>> import torch
    >>> x, logits = torch.eye(3), torch.tensor([[2.0, 0.0], [3.0, 0.0], [0.0, 1.0]])
    >>> found = rank_suspects(References.claimed(x, logits), (x, torch.tensor([0, 1, 1])))
    >>> found.rows.tolist(), found.doubted()
    ([1, 0, 2], 1)
    """
    samples = Samples.read(data, "data")
    if samples.labels is None or samples.labels.dim() != 1:
        raise InputError(
            "the data have no label for each sample, and suspects are found by their labels; give (inputs, labels)"
        )
    check_labels(samples, "data", references.classes)
    said, labels = references.logits(samples).double().softmax(1).numpy(), samples.labels.cpu().numpy()
    every = np.arange(len(labels))
    own = said[every, labels]
    counts = np.bincount(labels, minlength=references.classes)
    sums = np.bincount(labels, weights=own, minlength=references.classes)
    usual = np.where(counts > 0, sums / np.maximum(counts, 1), own.mean())
    adjusted = said - usual + usual.max()
    adjusted /= adjusted.sum(1, keepdims=True)
    others = adjusted.copy()
    others[every, labels] = -np.inf
    scores = others.max(1) - adjusted[every, labels]
    order = np.argsort(-scores, kind="stable")
    return Suspects(order, scores[order], own[order])
