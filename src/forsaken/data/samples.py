"""Samples: whatever the user hands over, read once into tensors that agree with each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from forsaken._random import torch_seed
from forsaken.data.nest import Nest, concatenate, leaves, length, map_nest, shape_of
from forsaken.errors import EmptyError, InputError

_READ_BATCH = 256  # samples a dataset is asked for at a time
_LABEL_KEYS = ("labels", "label")  # where dictionaries of inputs carry labels, as in Hugging Face datasets


@dataclass(frozen=True, slots=True)
class Samples:
    """n samples: inputs, a nest whose tensors all have n rows, and n labels where they are known.

    >>> two = Samples.read((np.eye(2), [0, 1]), "forget")
    >>> len(two), two.labels
    (2, tensor([0, 1]))
    """

    inputs: Nest
    labels: Tensor | None = None

    def __len__(self) -> int:
        return length(self.inputs)

    def rows(self, index: Sequence[int] | np.ndarray[Any, Any] | Tensor) -> Samples:
        """Return the samples at `index`, in that order."""
        at = torch.as_tensor(np.asarray(index), dtype=torch.long)
        labels = None if self.labels is None else self.labels[at]
        return Samples(map_nest(lambda leaf: leaf[at], self.inputs), labels)

    def batches(self, size: int | None) -> Iterator[Samples]:
        """Return the samples in batches of at most `size`, in order; all at once for None."""
        step = size or len(self)
        for start in range(0, len(self), step):
            part = slice(start, start + step)
            labels = None if self.labels is None else self.labels[part]
            yield Samples(map_nest(lambda leaf, part=part: leaf[part], self.inputs), labels)  # type: ignore[misc]

    @classmethod
    def read(
        cls,
        data: object,
        name: str,
        *,
        labels: bool = True,
        classes: np.ndarray[Any, Any] | None = None,
        seed: int = 0,
    ) -> Samples:
        """Read what a user hands over as the set called `name`.

        Parameters
        ----------
        data : tensor, array, nest, pair, Dataset or DataLoader
            A pair ``(inputs, labels)`` is always read as such; everything else is inputs alone. A dictionary
            may carry its labels under "labels" or "label". Items and batches of datasets and loaders are
            read by the same rule.
        name : str
            What error messages call the set.
        labels : bool
            Whether labels are of use; if not, they are only counted and then left out.
        classes : array, optional
            The class names that labels are looked up in; without it labels are class numbers.
        seed : int
            Makes a shuffling loader give the same order each time.
        """
        if isinstance(data, Samples):
            return data if labels else Samples(data.inputs)
        if isinstance(data, DataLoader) or _is_dataset(data):
            with torch_seed(seed), _loader_seed(data, seed):
                samples = _gather(data, name, labels, classes)
        else:
            samples = _from_memory(data, name, labels, classes)
        _check_finite(samples.inputs, name)
        return samples


def check_labels(samples: Samples, name: str, classes: int) -> None:
    """Raise an `InputError` unless each label of the set called `name`, if it has any, is one of so many classes."""
    if samples.labels is None:
        return
    outside = (samples.labels < 0) | (samples.labels >= classes)
    if bool(outside.any()):
        # the count alone: a label belongs to a record, and must not end up in a log
        raise InputError(
            f"{int(outside.sum())} of {len(samples)} labels of {name} are out of range, expected class numbers from 0 "
            f"to {classes - 1}, as the model has {classes} classes; correct them"
        )


def shuffles(data: object) -> bool:
    """Return whether `data` is a loader that may give its samples in another order than its dataset has them.

    A batch sampler of an unknown class counts as one that shuffles.

    >>> shuffles(DataLoader([1, 2], shuffle=True)), shuffles(DataLoader([1, 2])), shuffles([1, 2])
    (True, False, False)
    """
    if not isinstance(data, DataLoader):
        return False
    batches = data.batch_sampler
    known = batches is None or type(batches) is BatchSampler
    return not (known and isinstance(getattr(batches, "sampler", data.sampler), SequentialSampler))


def join(parts: Sequence[Samples]) -> Samples:
    """Join samples of one shape; the labels are kept where every part has them."""
    labels = [part.labels for part in parts if part.labels is not None]
    inputs = concatenate([part.inputs for part in parts])
    return Samples(inputs, torch.cat(labels) if len(labels) == len(parts) else None)


@contextmanager
def _loader_seed(data: object, seed: int) -> Iterator[None]:
    """Seed the generators of a loader and of its samplers inside the block, and give them back as they were."""
    batches = getattr(data, "batch_sampler", None)
    holders = data, batches, getattr(data, "sampler", None), getattr(batches, "sampler", None)
    found = [getattr(holder, "generator", None) for holder in holders] if isinstance(data, DataLoader) else []
    states = [(each, each.get_state()) for each in found if isinstance(each, torch.Generator)]
    try:
        for each, _ in states:
            each.manual_seed(seed)
        yield
    finally:
        for each, state in states:
            each.set_state(state)


def _is_dataset(data: object) -> bool:
    plain = isinstance(data, Tensor | np.ndarray | dict | list | tuple | str | bytes) or sparse.issparse(data)
    indexable = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return isinstance(data, Dataset) or (not plain and indexable and not hasattr(data, "__array__"))


def _gather(data: Any, name: str, used: bool, classes: np.ndarray[Any, Any] | None) -> Samples:
    if isinstance(data, DataLoader):
        if getattr(data.batch_sampler, "drop_last", data.drop_last):
            raise InputError(f"the loader of {name} has drop_last=True, so samples would be missed; set it to False")
        batches = data
    else:
        if not isinstance(data, IterableDataset) and len(data) == 0:
            raise EmptyError(f"{name} is empty: its dataset has no items; give at least one sample")
        batches = DataLoader(data, batch_size=_READ_BATCH)
    try:
        gathered = list(batches)
    except (TypeError, RuntimeError, KeyError, ValueError, AttributeError, IndexError) as error:
        raise InputError(
            f"the items of {name} cannot be put into batches ({error}); give items of one shape, or a "
            "DataLoader with a collate_fn"
        ) from error
    parts = [_from_memory(_from_collated(batch), name, used, classes) for batch in gathered]
    if not parts:
        raise EmptyError(f"{name} is empty: its loader gave no batch; give at least one sample")
    shapes = {repr(shape_of(part.inputs)) for part in parts}
    if len(shapes) > 1:
        found = " and ".join(sorted(shapes)[:2])
        raise InputError(
            f"the batches of {name} hold samples of different shapes ({found}); "
            "pad them to one length in the loader's collate_fn"
        )
    if len({part.labels is None for part in parts}) > 1:
        raise InputError(f"some batches of {name} have labels and some have not; give them to all or to none")
    return join(parts)


def _from_collated(batch: object) -> object:
    nest = _tuples(batch)
    return nest[0] if isinstance(nest, tuple) and len(nest) == 1 else nest


def _tuples(batch: object) -> object:
    # torch's collate turns the tuples of a dataset's items into lists, at every level
    if isinstance(batch, dict):
        return {key: _tuples(part) for key, part in batch.items()}
    if isinstance(batch, list | tuple) and any(isinstance(part, Tensor | dict | list | tuple) for part in batch):
        return tuple(_tuples(part) for part in batch)
    return batch


def _from_memory(data: object, name: str, used: bool, classes: np.ndarray[Any, Any] | None) -> Samples:
    labels: object = None
    if isinstance(data, tuple) and len(data) == 2:
        data, labels = data
    elif isinstance(data, dict):
        key = next((key for key in _LABEL_KEYS if key in data), None)
        if key is not None:
            labels = data[key]
            data = {other: part for other, part in data.items() if other != key}
    inputs = _nest(data, name)
    counts = {len(leaf) for leaf in leaves(inputs)}
    if len(counts) > 1:
        raise InputError(f"the inputs of {name} disagree on the number of samples: {sorted(counts)}")
    if counts == {0}:
        raise EmptyError(f"{name} is empty; give at least one sample")
    if labels is None:
        return Samples(inputs)
    array = _label_array(labels, length(inputs), name)
    return Samples(inputs, _labels(array, name, classes) if used else None)


def _nest(data: object, name: str) -> Nest:
    if isinstance(data, dict):
        if not data:
            raise EmptyError(f"{name} is an empty dictionary; give at least one input")
        return {str(key): _nest(part, f"{name}[{key!r}]") for key, part in data.items()}
    if isinstance(data, tuple):
        if not data:
            raise EmptyError(f"{name} is an empty tuple; give at least one input")
        return tuple(_nest(part, f"{name}[{at}]") for at, part in enumerate(data))
    return _tensor(data, name)


def _tensor(data: object, name: str) -> Tensor:
    if isinstance(data, Tensor):
        leaf = data.detach()
        odd = leaf.is_complex() or leaf.is_quantized or (leaf.is_floating_point() and leaf.itemsize < 2)
        if odd or leaf.is_meta or leaf.layout != torch.strided:
            raise InputError(
                f"{name} is a {leaf.layout} tensor of {leaf.dtype} on {leaf.device}, expected a dense tensor of real "
                "numbers; convert it first, for example with .to_dense() or .float()"
            )
        leaf = leaf.cpu()  # sets may come from different devices; each batch goes to the model's own
    elif sparse.issparse(data):
        leaf = _from_array(data.toarray(order="C"), name)  # type: ignore[attr-defined]
    else:
        if data is None or isinstance(data, str | bytes):
            # the type alone: a record must not end up in a log
            kind = type(data).__name__
            raise InputError(f"{name} is of type {kind}, expected a tensor, an array, a nest of them or a dataset")
        if isinstance(data, list) and any(isinstance(part, Tensor | dict | tuple) for part in data):
            raise InputError(
                f"{name} is a list of {type(data[0]).__name__}; stack the samples into one tensor, or give a tuple: "
                "(inputs, labels), or the inputs of a model with several"
            )
        leaf = _from_array(data, name)
    if leaf.dim() == 0:
        raise InputError(f"{name} is a single number, expected an array whose first axis counts samples")
    return leaf


def _from_array(data: object, name: str) -> Tensor:
    try:
        array = np.asarray(data)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{name} cannot be read as one array: {error}") from error
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} has dtype {array.dtype}, expected numbers; turn text or objects into numbers first")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        if array.size and array.max() > np.iinfo(np.int64).max:
            raise InputError(f"{name} holds {array.max()}, expected whole numbers of at most 2**63 - 1; rescale them")
        array = array.astype(np.int64)
    return torch.from_numpy(np.array(array, copy=True, order="C"))


def _check_finite(inputs: Nest, name: str) -> None:
    for leaf in leaves(inputs):
        if leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
            bad = (~torch.isfinite(leaf)).reshape(len(leaf), -1).any(1).nonzero()[:, 0].tolist()
            raise InputError(
                f"{name} holds NaN or infinite values in {len(bad)} of {len(leaf)} samples "
                f"(first: sample {bad[0]}); clean or drop them"
            )


def _label_array(labels: object, count: int, name: str) -> np.ndarray[Any, Any]:
    try:
        array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = getattr(labels, "dtype", type(labels).__name__)
        raise InputError(f"the labels of {name} ({kind}) cannot be read ({error}); expected class numbers") from error
    if array.ndim != 1:
        raise InputError(
            f"the labels of {name} have shape {array.shape} and dtype {array.dtype}, expected ({count},) class "
            "numbers; a pair is read as (inputs, labels): for a model with two inputs and no labels write "
            "((a, b), None), and turn one-hot labels into numbers with argmax"
        )
    if len(array) != count:
        raise InputError(f"{name} has {count} samples but {len(array)} labels")
    return array


def _labels(array: np.ndarray[Any, Any], name: str, classes: np.ndarray[Any, Any] | None) -> Tensor:
    if classes is not None:
        known = np.isin(array, classes)
        if not known.all():
            few = ", ".join(str(label) for label in classes[:5])
            raise InputError(
                f"{np.sum(~known)} of {len(array)} labels of {name} are not among the {len(classes)} classes that the "
                f"model knows ({few}{', ...' if len(classes) > 5 else ''})"
            )
        array = np.searchsorted(classes, array)
    if array.dtype.kind not in "iub":
        raise InputError(
            f"the labels of {name} have shape {array.shape} and dtype {array.dtype}, expected class numbers; turn "
            "names into numbers first"
        )
    return torch.from_numpy(array.astype(np.int64))
