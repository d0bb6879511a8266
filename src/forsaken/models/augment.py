"""Augmentations by name: what a training shows in place of a sample, and what a request forgets beside it.

An augmentation is a function ``(inputs, generator) -> inputs``. It takes a batch and draws from `generator` alone,
which lies on the inputs' device, so that the same seed gives the same copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from forsaken._random import checked_seed
from forsaken.data.nest import Nest, leaves, map_nest
from forsaken.errors import InputError, UnknownNameError
from forsaken.recipe import Recipe

View: TypeAlias = Callable[[Nest, torch.Generator], Nest]

SHIFT = 2  # pixels, at most, in each direction
DROPPED = 0.2  # the share of a text's words that is left out
_STREAM = 0x5EED << 32  # added to the seed, so that augmentation shares no draws with order and dropout


def mirror_shift(inputs: Nest, generator: torch.Generator) -> Nest:
    """Mirror half of the pictures (n x channels x height x width) and shift each by up to two pixels.

    Where a shift leaves a border empty, the border repeats the picture's edge.

    >>> picture = torch.arange(9.0).view(1, 1, 3, 3)
    >>> mirror_shift(picture, torch.Generator().manual_seed(0)).shape
    torch.Size([1, 1, 3, 3])
    """

    def moved(pictures: Tensor) -> Tensor:
        if pictures.dim() != 4:
            raise InputError(
                f"mirror-shift is for pictures (n x channels x height x width), not for shape {tuple(pictures.shape)}; "
                "choose another augmentation, or give a function of your own as view="
            )
        count, _, height, width = pictures.shape
        place = pictures.device

        def draw(low: int, high: int) -> Tensor:
            return torch.randint(low, high + 1, (count, 1), generator=generator, device=place)

        down, right, mirror = draw(-SHIFT, SHIFT), draw(-SHIFT, SHIFT), draw(0, 1)
        rows = (torch.arange(height, device=place) + down).clamp_(0, height - 1)
        columns = (torch.arange(width, device=place) + right).clamp_(0, width - 1)
        columns = torch.where(mirror == 1, width - 1 - columns, columns)
        samples = torch.arange(count, device=place)
        found = pictures[samples[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return found.permute(0, 3, 1, 2)

    return map_nest(moved, inputs)


def word_dropout(inputs: Nest, generator: torch.Generator) -> Nest:
    """Leave out a fifth of the words: set entries of a bag of words, or tokens of a sequence, to zero.

    Of several inputs those called ``input_ids`` are the words; the others, such as a mask, stay as they are.

    >>> bags = torch.ones(2, 50)
    >>> int(word_dropout(bags, torch.Generator().manual_seed(0)).sum()) < 100
    True
    """

    def thinned(leaf: Tensor) -> Tensor:
        drawn = torch.rand(leaf.shape, generator=generator, device=leaf.device)
        return leaf.masked_fill(drawn < DROPPED, 0)

    if isinstance(inputs, dict) and isinstance(words := inputs.get("input_ids"), Tensor):
        return inputs | {"input_ids": thinned(words)}
    if (count := len(leaves(inputs))) > 1:
        raise InputError(
            f'word-dropout cannot tell which of {count} inputs holds the words; name them "input_ids" in a dictionary, '
            "choose another augmentation, or give a function of your own as view="
        )
    return map_nest(thinned, inputs)


AUGMENTATIONS: dict[str, View] = {"mirror-shift": mirror_shift, "word-dropout": word_dropout}


def augmentation_named(name: str) -> View:
    """Return the augmentation called `name`."""
    if name not in AUGMENTATIONS:
        raise UnknownNameError("augmentation", name, AUGMENTATIONS)
    return AUGMENTATIONS[name]


class Augmenter:
    """The augmentation of one training, with a generator of its own: a batch in, its augmented copy out.

    Attributes
    ----------
    idle : bool
        Whether the recipe has no augmentation: batches are returned as they are.
    """

    def __init__(self, recipe: Recipe, seed: int, place: torch.device) -> None:
        self._view = None if recipe.augmentation is None else augmentation_named(recipe.augmentation)
        self._generator = torch.Generator(place).manual_seed(_STREAM + checked_seed(seed))
        self.idle = self._view is None

    def __call__(self, batch: Nest) -> Nest:
        """Return the batch as the network sees it in this step."""
        return batch if self._view is None else self._view(batch, self._generator)
