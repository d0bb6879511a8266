"""Augmentations: known answers, and trainings that follow their seed and draw from nobody else's generator."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, product

import pytest
import torch
from torch import Tensor, nn

from forsaken.bench.networks import mlp, small_convolutions
from forsaken.data.nest import Nest
from forsaken.data.samples import Samples
from forsaken.errors import InputError, SettingsError, UnknownNameError
from forsaken.models import augment as place
from forsaken.models.augment import AUGMENTATIONS, augmentation_named, mirror_shift, word_dropout
from forsaken.models.ensemble import augmented, train_many, vectorises
from forsaken.models.train import train
from forsaken.models.weights import fingerprint
from forsaken.recipe import Recipe

DRAWS = torch.Generator().manual_seed(0)
PICTURES = Samples(torch.randn(40, 1, 8, 8, generator=DRAWS), torch.arange(40) % 3)
BAGS = Samples(torch.rand(40, 12, generator=DRAWS), torch.arange(40) % 3)
ROWS = [torch.randperm(40, generator=DRAWS)[:25] for _ in range(3)]
SEEDS = [5, 6, 5]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- known answers ---------------------------------------------------------------------------------------------------


def shifted(picture: Tensor, down: int, right: int) -> Tensor:
    """Move a picture (channels x height x width) pixel by pixel; outside of its edges it repeats them."""
    _, height, width = picture.shape
    found = torch.empty_like(picture)
    for row in range(height):
        for column in range(width):
            from_row, from_column = min(max(row + down, 0), height - 1), min(max(column + right, 0), width - 1)
            found[:, row, column] = picture[:, from_row, from_column]
    return found


def test_each_picture_is_mirrored_or_not_and_shifted_by_up_to_two_pixels() -> None:
    picture = torch.randn(2, 6, 7, generator=seeded())
    steps = range(-2, 3)
    known = {
        (down, right, mirrored): shifted(picture.flip(2) if mirrored else picture, down, right)
        for down, right, mirrored in product(steps, steps, (False, True))
    }
    count = 2000
    seen = mirror_shift(picture.expand(count, -1, -1, -1), seeded())
    which = [next((at for at, each in known.items() if torch.equal(each, one)), None) for one in seen]
    assert None not in which, "nothing else comes out"
    assert set(which) == set(known), "and each of the fifty does"
    assert 0.45 < sum(at[2] for at in which) / count < 0.55
    for side, step in product((0, 1), steps):
        assert 0.16 < sum(at[side] == step for at in which) / count < 0.24


def test_a_shift_repeats_the_edge_and_a_mirror_turns_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 10.0, 11.0, 12.0]])[None, None]

    def as_drawn(*steps: int) -> Tensor:
        left = iter(steps)
        monkeypatch.setattr(place.torch, "randint", lambda *_, **__: torch.tensor([[next(left)]]))
        return mirror_shift(picture, seeded())[0, 0]

    assert torch.equal(as_drawn(0, 0, 0), picture[0, 0])
    assert as_drawn(0, 0, 1).tolist() == [[4, 3, 2, 1], [8, 7, 6, 5], [12, 11, 10, 9]]
    assert as_drawn(1, 0, 0).tolist() == [[5, 6, 7, 8], [9, 10, 11, 12], [9, 10, 11, 12]]
    assert as_drawn(0, -2, 0).tolist() == [[1, 1, 1, 2], [5, 5, 5, 6], [9, 9, 9, 10]]
    assert as_drawn(-1, 2, 1).tolist() == [[2, 1, 1, 1], [2, 1, 1, 1], [6, 5, 5, 5]]


def test_pictures_keep_their_kind_and_are_not_written_to() -> None:
    for picture in (torch.randint(256, (3, 1, 4, 4), dtype=torch.uint8), torch.randn(3, 1, 4, 4, dtype=torch.float64)):
        before = picture.clone()
        seen = mirror_shift(picture, seeded())
        assert (seen.dtype, seen.shape) == (picture.dtype, picture.shape)
        assert torch.equal(picture, before)
        assert set(seen.reshape(-1).tolist()) <= set(picture.reshape(-1).tolist())


def test_what_is_no_picture_is_told() -> None:
    with pytest.raises(InputError, match=r"not for shape \(3, 8\)"):
        mirror_shift(torch.zeros(3, 8), seeded())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32])
def test_a_fifth_of_the_words_is_left_out(dtype: torch.dtype) -> None:
    words = (torch.arange(20_000).view(100, 200) % 97 + 1).to(dtype)
    seen = word_dropout(words, seeded())
    assert seen.dtype == dtype
    gone = seen == 0
    assert 0.19 < gone.double().mean() < 0.21
    assert torch.equal(seen[~gone], words[~gone]), "the others are as they were"
    assert (words > 0).all()
    assert len({tuple(row.tolist()) for row in gone}) == 100, "each text loses others"


def test_of_several_inputs_the_words_alone_are_left_out() -> None:
    words, mask = torch.ones(4, 300, dtype=torch.int64), torch.ones(4, 300, dtype=torch.int64)
    seen = word_dropout({"input_ids": words, "attention_mask": mask}, seeded())
    assert list(seen) == ["input_ids", "attention_mask"]
    assert torch.equal(seen["input_ids"], word_dropout(words, seeded()))
    assert torch.equal(seen["attention_mask"], mask)
    assert torch.equal(word_dropout({"words": (words,)}, seeded())["words"][0], word_dropout(words, seeded()))


def test_words_that_cannot_be_told_from_other_inputs() -> None:
    with pytest.raises(InputError, match="which of 2 inputs holds the words"):
        word_dropout((torch.ones(4, 300, dtype=torch.int64), torch.arange(4)), seeded())


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_view_follows_its_generator_alone(name: str) -> None:
    view, state = augmentation_named(name), torch.random.get_rng_state()
    one, other = view(PICTURES.inputs, seeded(3)), view(PICTURES.inputs, seeded(3))
    assert torch.equal(one, other)
    assert not torch.equal(one, view(PICTURES.inputs, seeded(4)))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_names_that_are_not_known() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'word-dropout'"):
        augmentation_named("word_dropout")
    with pytest.raises(SettingsError, match="unknown augmentation 'cutout'"):
        Recipe(1, 8, 1e-2, augmentation="cutout")


# --- in a training ---------------------------------------------------------------------------------------------------


def pictures() -> nn.Module:
    return small_convolutions(classes=3, channels=(4, 6))


def bags() -> nn.Module:
    return mlp((12, 8, 3), dropout=0.3)


CASES: dict[str, tuple[Callable[[], nn.Module], Samples]] = {
    "mirror-shift": (pictures, PICTURES),
    "word-dropout": (bags, BAGS),
}


def recipe(name: str | None) -> Recipe:
    return Recipe(3, 8, 1e-2, augmentation=name)


@pytest.mark.parametrize("name", CASES)
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    build, data = CASES[name]
    state = torch.random.get_rng_state()
    one, again, other = (fingerprint(train(build, data, recipe(name), seed=seed)) for seed in (1, 1, 2))
    plain = fingerprint(train(build, data, recipe(None), seed=1))
    assert one == again
    assert len({one, other, plain}) == 3
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("name", CASES)
def test_an_augmentation_draws_from_a_generator_of_its_own(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Order and dropout are those of a training without: an augmentation that draws and changes nothing proves it."""
    build, data = CASES[name]
    plain = fingerprint(train(build, data, recipe(None), seed=1))

    def idle(batch: Nest, generator: torch.Generator) -> Nest:
        torch.rand(1000, generator=generator)
        return batch

    monkeypatch.setitem(AUGMENTATIONS, name, idle)
    assert fingerprint(train(build, data, recipe(name), seed=1)) == plain


def test_each_step_sees_another_view(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    real = AUGMENTATIONS["word-dropout"]

    def noting(batch: Nest, generator: torch.Generator) -> Nest:
        found = real(batch, generator)
        seen.append((found == 0)[:8])
        return found

    monkeypatch.setitem(AUGMENTATIONS, "word-dropout", noting)
    train(bags, BAGS, recipe("word-dropout"), seed=0)
    assert len(seen) == 3 * 5
    assert len({tuple(each.reshape(-1).tolist()) for each in seen}) == len(seen)


@pytest.mark.parametrize("name", CASES)
def test_many_networks_at_once_are_those_of_one_by_one(name: str) -> None:
    build, data = CASES[name]
    double = Samples(data.inputs.double(), data.labels)
    assert vectorises(lambda: build().double(), double)
    many = list(
        chain.from_iterable(
            train_many(lambda: build().double(), double, recipe(name), rows=ROWS, seeds=SEEDS, at_once=2)
        )
    )
    for network, rows, seed in zip(many, ROWS, SEEDS, strict=True):
        alone = train(lambda: build().double(), double.rows(rows), recipe(name), seed=seed)
        for one, other in zip(network.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-6)


def test_stacked_batches_are_augmented_network_by_network() -> None:
    inputs = {"input_ids": torch.ones(2, 5, 40), "more": (torch.ones(2, 5, 3, dtype=torch.int64),)}
    settings = recipe("word-dropout")
    cpu = torch.device("cpu")
    found = augmented(inputs, [place.Augmenter(settings, seed, cpu) for seed in (3, 4)])
    for at, seed in enumerate((3, 4)):
        own = place.Augmenter(settings, seed, cpu)(
            {"input_ids": inputs["input_ids"][at], "more": (inputs["more"][0][at],)}
        )
        assert torch.equal(found["input_ids"][at], own["input_ids"])
        assert torch.equal(found["more"][0][at], own["more"][0])
    assert augmented(inputs, [place.Augmenter(recipe(None), seed, cpu) for seed in (3, 4)]) is inputs
