"""Neighbours: altered copies of the forgotten samples, which an attacker may have in place of the originals."""

from __future__ import annotations

import torch

from forsaken.auditing.inputs import Train
from forsaken.data.nest import leaves
from forsaken.data.samples import Samples
from forsaken.errors import InputError
from forsaken.models.augment import View, augmentation_named
from forsaken.models.train import Training

AUTO = "auto"
_STREAM = 0x0E16 << 32  # added to the seed, so that neighbours share no draws with a training's augmentation
_SPARSE = 0.9  # the share of zeros from which on a row of numbers is taken for a bag of words


def neighbours_of(
    forget: Samples, how: str | View | None, training: Training | Train | None, seed: int
) -> Samples | None:
    """Return one neighbour of each forgotten sample, with its label; None where there are none to be made.

    Parameters
    ----------
    forget : Samples
        The forgotten samples.
    how : str, callable or None
        A name of `forsaken.models.augment.AUGMENTATIONS`, a function ``(inputs, generator) -> inputs``, or None for no
        neighbours. "auto": the augmentation of the recipe; without one, texts lose a fifth of their words, and samples
        of another kind have no neighbours.
    training : Training, callable or None
        Its recipe may name an augmentation.
    seed : int
        Of the draws.
    """
    recipe = training.recipe if isinstance(training, Training) else None
    if how == AUTO:
        how = None if recipe is None else recipe.augmentation
        if how is None and _is_text(forget):
            how = "word-dropout"
    if how is None:
        return None
    view = augmentation_named(how) if isinstance(how, str) else how
    made = Samples(view(forget.inputs, torch.Generator().manual_seed(_STREAM + seed)), forget.labels)
    if [leaf.shape for leaf in leaves(made.inputs)] != [leaf.shape for leaf in leaves(forget.inputs)]:
        raise InputError(
            "neighbours returned inputs of another shape than the forgotten samples have",
            field="neighbours",
            remedy="return one altered copy of each sample, in the same order and of the same shape",
        )
    return made


def _is_text(samples: Samples) -> bool:
    """Return whether all inputs are rows of tokens or of mostly zeros, and it is known which of them is the words."""
    inputs = samples.inputs
    parts = leaves(inputs)
    return (len(parts) == 1 or (isinstance(inputs, dict) and "input_ids" in inputs)) and all(
        leaf.dim() == 2 and (not leaf.is_floating_point() or float((leaf == 0).double().mean()) > _SPARSE)
        for leaf in parts
    )
