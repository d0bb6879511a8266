"""Views: augmented copies of a row, which come back the same whenever they are asked for.

A model that is trained with augmentation remembers the mirrored and shifted copies of a picture too. What the models of
the folds say about a few such copies tells where these must go when the picture is forgotten.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from forsaken.data.nest import concatenate, leaves, length, shape_of
from forsaken.data.samples import Samples
from forsaken.errors import InputError, SettingsError
from forsaken.models.augment import AUGMENTATIONS, View, augmentation_named
from forsaken.references.keys import row_hashes

_PUBLIC = bytes(32)  # no secret: hashes of content are the seeds of views, and are not kept
CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class Views:
    """How many views of each row there are, and how they are made.

    Attributes
    ----------
    count : int
        Views of each row.
    seed : int
        Together with a row's content it decides its views.
    name : str
        A name of `forsaken.models.augment.AUGMENTATIONS`, or "custom".
    view : callable or None
        ``view(inputs, generator)`` returns an augmented copy of a batch; None where a table was read without it.
    """

    count: int
    seed: int
    name: str
    view: View | None

    @classmethod
    def of(cls, count: int, view: View | str | None, seed: int) -> Views | None:
        """Check what a user gives; `view` is a function, or a name. None for no views."""
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
            raise SettingsError(f"views is {count!r}, expected how many views of each row: a whole number >= 0")
        if count == 0:
            return None
        if view is None:
            raise SettingsError(
                f"views={count} needs to know what a view is; give view= (a function (inputs, generator) -> inputs, or "
                f"one of {', '.join(AUGMENTATIONS)}), or a Training whose recipe has an augmentation"
            )
        if isinstance(view, str):
            return cls(int(count), seed, view, augmentation_named(view))
        if not callable(view):
            raise SettingsError(f"view is of type {type(view).__name__}, expected a function (inputs, generator)")
        known = [name for name, each in AUGMENTATIONS.items() if each is view]
        return cls(int(count), seed, known[0] if known else CUSTOM, view)

    def __call__(self, samples: Samples) -> Samples:
        """Return the views of samples: the first view of each, then the second of each, and so on."""
        made = self._function()
        hashes = row_hashes(samples, _PUBLIC)
        found = []
        for number in range(self.count):
            for at in range(len(samples)):
                draw = torch.Generator().manual_seed(self._seed_of(hashes[at].tobytes(), number))
                row = samples.rows([at]).inputs
                seen = made(row, draw)
                if type(seen) is not type(row) and not (isinstance(seen, Tensor) and isinstance(row, Tensor)):
                    raise InputError(
                        f"view= returned {type(seen).__name__} for a row of type {type(row).__name__}; expected inputs "
                        "of the same shape"
                    )
                if shape_of(seen) != shape_of(row) or length(seen) != 1:
                    raise InputError(
                        f"view= turned a row of shape {shape_of(row)} into {length(seen)} of shape {shape_of(seen)}; "
                        "expected inputs of the same shape"
                    )
                found.append(seen)
        inputs = concatenate(found)
        if any(leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()) for leaf in leaves(inputs)):
            raise InputError("view= made inputs that are NaN or infinite; check it")
        return Samples(inputs)

    def _seed_of(self, content: bytes, number: int) -> int:
        digest = hashlib.blake2b(content + number.to_bytes(4, "little") + self.seed.to_bytes(8, "little"))
        return int.from_bytes(digest.digest()[:7], "little")

    def _function(self) -> View:
        if self.view is None:
            raise SettingsError(
                "this table's views were made by a function of your own; load it with view=, that same function"
            )
        return self.view
