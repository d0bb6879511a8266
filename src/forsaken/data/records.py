"""Records: the rows of a dataset as people know them, before they become numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from forsaken.data.samples import Samples
from forsaken.errors import InputError
from forsaken.types import Array

Kind = Literal["features", "image", "text"]


@dataclass(frozen=True, slots=True)
class Records:
    """n rows of a dataset: texts, pictures or features, and labels where there are any.

    Attributes
    ----------
    content : array
        Texts as an array of str (n); pictures as bytes (n x height x width x channels); features as
        float32 (n x ...).
    labels : int64 array, optional
        Class numbers.
    names : tuple of str
        The name of each class, where known.
    columns : mapping
        Further columns that were asked for.
    fields : tuple of str
        The names of the columns that features come from, in their order; empty where they have none.
    by_name : bool
        Whether the labels were names in the file, and are numbers only here: the places in `names`.
    """

    content: Array
    labels: Array | None = None
    names: tuple[str, ...] = ()
    columns: Mapping[str, Array] = field(default_factory=dict)
    by_name: bool = False
    fields: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.content)

    @property
    def kind(self) -> Kind:
        """What the rows are."""
        if self.content.dtype == object:
            return "text"
        return "image" if self.content.dtype == np.uint8 and self.content.ndim == 4 else "features"

    def rows(self, index: Array) -> Records:
        """Return the rows at `index`, in that order."""
        labels = None if self.labels is None else self.labels[index]
        columns = {name: column[index] for name, column in self.columns.items()}
        return Records(self.content[index], labels, self.names, columns, self.by_name, self.fields)

    def samples(self) -> Samples:
        """Return pictures (n x channels x height x width, bytes) or features as samples for a model."""
        if self.kind == "text":
            raise InputError(
                "texts are not numbers; turn them into tokens with your model's tokeniser, or into a bag of words with "
                "scikit-learn's CountVectorizer"
            )
        content = torch.from_numpy(self.content)
        inputs = content.permute(0, 3, 1, 2).contiguous() if self.kind == "image" else content
        return Samples(inputs, None if self.labels is None else torch.from_numpy(self.labels))
