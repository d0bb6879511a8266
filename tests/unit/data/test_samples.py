"""What users hand over is read right, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from forsaken.data.samples import Samples, join
from forsaken.errors import EmptyError, InputError

X = torch.arange(12.0).view(6, 2)
Y = torch.tensor([0, 1, 2, 0, 1, 2])


class Items(Dataset[object]):
    def __init__(self, item: Callable[[int], object], count: int = 6) -> None:
        self.item, self.count = item, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> object:
        return self.item(at)


class Plain:
    """Indexable, and no Dataset: as those of Hugging Face are."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        return {"x": X[at], "label": Y[at]}


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(X, Y, strict=True))


def same(samples: Samples, inputs: Tensor, labels: Tensor | None) -> bool:
    assert isinstance(samples.inputs, Tensor)
    alike = torch.equal(samples.inputs, inputs) and samples.inputs.dtype == inputs.dtype
    if labels is None or samples.labels is None:
        return alike and labels is samples.labels
    return alike and torch.equal(samples.labels, labels) and samples.labels.dtype == torch.long


# what lies in memory


@pytest.mark.parametrize("data", [X, X.numpy(), X.double().numpy().tolist()], ids=["tensor", "array", "list"])
def test_inputs_alone(data: object) -> None:
    samples = Samples.read(data, "forget")
    assert len(samples) == 6
    assert same(samples, X.double() if isinstance(data, list) else X, None)


@pytest.mark.parametrize("labels", [Y, Y.numpy(), Y.tolist(), Y.int(), Y.byte(), Y.numpy().astype(np.uint16)])
def test_pair(labels: object) -> None:
    assert same(Samples.read((X, labels), "forget"), X, Y)


def test_pair_without_labels() -> None:
    assert same(Samples.read((X, None), "forget"), X, None)


def test_bool_labels_are_two_classes() -> None:
    assert same(Samples.read((X, Y > 0), "forget"), X, (Y > 0).long())


@pytest.mark.parametrize("key", ["labels", "label"])
def test_dictionary_with_labels(key: str) -> None:
    samples = Samples.read({"x": X, key: Y, "mask": X > 3}, "forget")
    assert isinstance(samples.inputs, dict)
    assert set(samples.inputs) == {"x", "mask"}
    assert torch.equal(samples.inputs["x"], X)
    assert torch.equal(samples.inputs["mask"], X > 3)
    assert torch.equal(samples.labels, Y)


def test_dictionary_without_labels() -> None:
    samples = Samples.read({"x": X}, "forget")
    assert samples.labels is None
    assert isinstance(samples.inputs, dict)


def test_two_inputs_with_labels() -> None:
    samples = Samples.read(((X, X.numpy() + 1), Y), "forget")
    assert isinstance(samples.inputs, tuple)
    assert torch.equal(samples.inputs[0], X)
    assert torch.equal(samples.inputs[1], X + 1)
    assert torch.equal(samples.labels, Y)


def test_three_inputs_are_no_pair() -> None:
    samples = Samples.read((X, X + 1, X + 2), "forget")
    assert isinstance(samples.inputs, tuple)
    assert [float(part[0, 0]) for part in samples.inputs] == [0.0, 1.0, 2.0]
    assert samples.labels is None


def test_nested_dictionary() -> None:
    samples = Samples.read(({"text": {"ids": Y, "mask": Y > 0}, "image": (X, X)}, Y), "forget")
    assert isinstance(samples.inputs, dict)
    assert torch.equal(samples.inputs["text"]["ids"], Y)  # type: ignore[call-overload,index]
    assert isinstance(samples.inputs["image"], tuple)
    assert len(samples) == 6
    assert torch.equal(samples.labels, Y)


def test_samples_are_handed_through() -> None:
    samples = Samples(X, Y)
    assert Samples.read(samples, "forget") is samples


def test_gradients_are_cut() -> None:
    samples = Samples.read(X.clone().requires_grad_(True), "forget")
    assert isinstance(samples.inputs, Tensor)
    assert not samples.inputs.requires_grad


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (np.uint8, torch.uint8),
        (np.uint16, torch.int64),
        (np.uint32, torch.int64),
        (np.int8, torch.int8),
        (np.int64, torch.int64),
        (np.bool_, torch.bool),
        (np.float16, torch.float16),
        (np.float32, torch.float32),
        (np.float64, torch.float64),
        (np.dtype(">f4"), torch.float32),
        (np.dtype(">i8"), torch.int64),
    ],
    ids=str,
)
def test_dtypes_of_arrays(given: np.dtype, read: torch.dtype) -> None:
    array = np.array([[0, 1], [1, 0], [0, 100]]).astype(given)
    samples = Samples.read(array, "forget")
    assert isinstance(samples.inputs, Tensor)
    assert samples.inputs.dtype == read
    assert samples.inputs.tolist() == array.tolist()


def test_large_unsigned_numbers_keep_their_value() -> None:
    samples = Samples.read(np.array([[65535]], dtype=np.uint16), "forget")
    assert samples.inputs.tolist() == [[65535]]  # type: ignore[union-attr]


def test_unsigned_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="forget"):
        Samples.read(np.array([[2**63 + 5]], dtype=np.uint64), "forget")


def test_long_doubles_are_read_or_refused() -> None:
    array = np.array([[1.5, 2.5]], dtype=np.longdouble)
    try:
        samples = Samples.read(array, "forget")
    except InputError as error:
        assert "longdouble" in str(error) or "float128" in str(error)  # noqa: PT017
    else:
        assert samples.inputs.tolist() == [[1.5, 2.5]]  # type: ignore[union-attr]


@pytest.mark.filterwarnings("error")
def test_read_only_array_is_copied_without_a_warning() -> None:
    array = X.numpy().copy()
    array.flags.writeable = False
    samples = Samples.read(array, "forget")
    assert isinstance(samples.inputs, Tensor)
    samples.inputs.add_(1)
    assert np.array_equal(array, X.numpy())


def test_arrays_are_copied() -> None:
    array = X.numpy().copy()
    samples = Samples.read(array, "forget")
    array[:] = 7
    assert same(samples, X, None)


def test_strides_of_arrays_play_no_role() -> None:
    assert same(Samples.read(X.numpy()[::-1], "forget"), X.flip(0), None)
    assert same(Samples.read(np.asfortranarray(X.numpy()), "forget"), X, None)


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix])
def test_scipy_sparse(kind: Callable[[np.ndarray], object]) -> None:
    assert same(Samples.read((kind(X.numpy()), Y), "forget"), X, Y)


def test_sparse_unsigned_is_read_as_dense_unsigned_is() -> None:
    matrix = np.array([[0, 65535]], dtype=np.uint16)
    dense, thin = Samples.read(matrix, "forget"), Samples.read(sparse.csr_matrix(matrix), "forget")
    assert isinstance(dense.inputs, Tensor)
    assert same(thin, dense.inputs, None)


def test_labels_are_looked_up_in_class_names() -> None:
    names = np.array(["ant", "bee", "cow"])
    samples = Samples.read((X, names[Y.numpy()]), "forget", classes=names)
    assert same(samples, X, Y)


def test_class_names_that_are_numbers() -> None:
    samples = Samples.read((X, [10, 30, 50, 10, 30, 50]), "forget", classes=np.array([10, 30, 50]))
    assert same(samples, X, Y)


# datasets and loaders


@pytest.mark.parametrize(
    "data",
    [
        TensorDataset(X, Y),
        Items(lambda at: (X[at], int(Y[at]))),
        Items(lambda at: [X[at].numpy(), Y[at]]),
        DataLoader(TensorDataset(X, Y), batch_size=4),
        Stream(),
    ],
    ids=["tensor dataset", "pairs", "lists", "loader", "stream"],
)
def test_labelled_datasets(data: object) -> None:
    assert same(Samples.read(data, "forget"), X, Y)


def test_a_loader_of_single_samples_is_refused() -> None:
    with pytest.raises(InputError, match=r"labels of forget have shape \(\)"):
        Samples.read(DataLoader(TensorDataset(X, Y), batch_size=None), "forget")


@pytest.mark.parametrize(
    "data",
    [TensorDataset(X), Items(lambda at: X[at]), Items(lambda at: X[at].numpy()), DataLoader(X, batch_size=4)],  # type: ignore[arg-type]
    ids=["tensor dataset", "bare tensors", "bare arrays", "loader of bare tensors"],
)
def test_unlabelled_datasets(data: object) -> None:
    assert same(Samples.read(data, "forget"), X, None)


@pytest.mark.parametrize("data", [Plain(), Items(lambda at: {"x": X[at], "labels": int(Y[at])})])
def test_datasets_of_dictionaries(data: object) -> None:
    samples = Samples.read(data, "forget")
    assert isinstance(samples.inputs, dict)
    assert list(samples.inputs) == ["x"]
    assert torch.equal(samples.inputs["x"], X)
    assert torch.equal(samples.labels, Y)


def test_dataset_of_two_inputs_with_labels() -> None:
    samples = Samples.read(Items(lambda at: ((X[at], X[at] + 1), Y[at])), "forget")
    assert isinstance(samples.inputs, tuple)
    assert torch.equal(samples.inputs[0], X)
    assert torch.equal(samples.inputs[1], X + 1)
    assert torch.equal(samples.labels, Y)


def test_dataset_of_three_inputs() -> None:
    samples = Samples.read(Items(lambda at: (X[at], X[at] + 1, X[at] + 2)), "forget")
    assert isinstance(samples.inputs, tuple)
    assert torch.equal(samples.inputs[2], X + 2)
    assert samples.labels is None


def test_dataset_larger_than_a_read_batch() -> None:
    many = torch.arange(1000.0)[:, None]
    assert same(Samples.read(TensorDataset(many), "forget"), many, None)


def order(seed: int) -> list[float]:
    loader = DataLoader(TensorDataset(torch.arange(50.0)), batch_size=8, shuffle=True)
    return Samples.read(loader, "forget", seed=seed).inputs.tolist()  # type: ignore[union-attr]


def test_shuffling_loader_follows_the_seed_alone() -> None:
    torch.manual_seed(5)
    first = order(0)
    torch.manual_seed(6)
    assert order(0) == first
    assert order(1) != first
    assert sorted(order(1)) == sorted(first) == list(range(50))


def test_reading_a_loader_does_not_move_the_global_generator() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    order(0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("batched", [False, True], ids=["sampler", "batch sampler"])
def test_a_samplers_own_generator_is_seeded_and_given_back(batched: bool) -> None:
    own = torch.Generator().manual_seed(5)
    before, data = own.get_state(), TensorDataset(torch.arange(50.0))
    sampler = RandomSampler(data, generator=own)
    how = {"batch_sampler": BatchSampler(sampler, 8, drop_last=False)} if batched else {"sampler": sampler}
    loader: DataLoader[object] = DataLoader(data, **how)  # type: ignore[arg-type]
    first, again, other = (Samples.read(loader, "forget", seed=seed).inputs.tolist() for seed in (0, 0, 1))  # type: ignore[union-attr]
    assert first == again != other
    assert torch.equal(own.get_state(), before)


def test_shuffling_keeps_inputs_with_their_labels() -> None:
    loader = DataLoader(TensorDataset(torch.arange(50.0), torch.arange(50)), batch_size=8, shuffle=True)
    samples = Samples.read(loader, "forget", seed=3)
    assert samples.inputs.tolist() == samples.labels.tolist()  # type: ignore[union-attr]


def test_batches_of_different_lengths_are_refused() -> None:
    sentences = [torch.ones(length) for length in (3, 3, 5, 5)]
    loader = DataLoader(Items(sentences.__getitem__, 4), batch_size=2)
    with pytest.raises(InputError, match=r"(?s)forget.*different shapes.*\(3,\) and \(5,\).*pad.*collate_fn"):
        Samples.read(loader, "forget")


def test_batches_that_lose_their_labels_are_refused() -> None:
    batches = [(X, Y), X]
    loader = DataLoader(Items(batches.__getitem__, 2), batch_size=None)
    with pytest.raises(InputError, match=r"forget.*labels"):
        Samples.read(loader, "forget")


@pytest.mark.parametrize("data", [TensorDataset(X[:0]), DataLoader(TensorDataset(X[:0])), Items(lambda at: X, 0)])
def test_empty_datasets(data: object) -> None:
    with pytest.raises(EmptyError, match=r"retain is empty.*at least one"):
        Samples.read(data, "retain")


# rows, batches, join


@pytest.mark.parametrize(
    "index", [[4, 0, 4], np.array([4, 0, 4]), torch.tensor([4, 0, 4]), np.array([4, 0, 4], dtype=np.int8)]
)
def test_rows_in_the_order_asked_for(index: object) -> None:
    assert same(Samples(X, Y).rows(index), X[[4, 0, 4]], Y[[4, 0, 4]])  # type: ignore[arg-type]


def test_rows_of_a_nest() -> None:
    samples = Samples({"x": X, "more": (Y,)}).rows(range(2, 4))
    assert isinstance(samples.inputs, dict)
    assert torch.equal(samples.inputs["x"], X[2:4])
    assert torch.equal(samples.inputs["more"][0], Y[2:4])  # type: ignore[index]
    assert samples.labels is None


def test_no_rows() -> None:
    assert len(Samples(X, Y).rows([])) == 0


@pytest.mark.parametrize(("size", "lengths"), [(4, [4, 2]), (6, [6]), (7, [6]), (1, [1] * 6), (None, [6])])
def test_batches(size: int | None, lengths: list[int]) -> None:
    batches = list(Samples(X, Y).batches(size))
    assert [len(batch) for batch in batches] == lengths
    assert same(join(batches), X, Y)


def test_join_keeps_labels_only_where_all_have_them() -> None:
    assert same(join([Samples(X[:2], Y[:2]), Samples(X[2:], Y[2:])]), X, Y)
    assert same(join([Samples(X[:2], Y[:2]), Samples(X[2:])]), X, None)


def test_join_of_nests() -> None:
    joined = join([Samples({"x": X[:2], "y": (Y[:2],)}), Samples({"x": X[2:], "y": (Y[2:],)})])
    assert isinstance(joined.inputs, dict)
    assert torch.equal(joined.inputs["x"], X)
    assert torch.equal(joined.inputs["y"][0], Y)  # type: ignore[index]


def test_join_goes_by_name() -> None:
    joined = join([Samples.read({"a": X, "b": -X}, "forget"), Samples.read({"b": -X, "a": X}, "retain")])
    assert isinstance(joined.inputs, dict)
    assert torch.equal(joined.inputs["a"], torch.cat([X, X]))
    assert torch.equal(joined.inputs["b"], torch.cat([-X, -X]))
