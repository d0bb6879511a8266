"""Duplicates: copies are found with the record that they come from, strangers are left alone, nothing is quoted."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from forsaken.data.duplicates import Duplicates, Pair, content_keys, find_duplicates
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import InputError
from forsaken.types import Tick

WORDS = [f"{a}{b}{c}" for a in ("ka", "lo", "mi", "tu", "re") for b in ("ber", "non", "sti", "qua") for c in "aeiou"]


def stories(count: int, seed: int = 0, words: int = 60) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, words)) for _ in range(count)]


def texts(some: list[str]) -> Records:
    return Records(np.array(some, dtype=object))


def scenes(count: int, side: int = 32, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return smooth pictures of noise, no two of which look alike."""
    draw = np.random.default_rng(seed)
    noise = ndimage.gaussian_filter(draw.normal(size=(count, side, side, 3)), (0, 2, 2, 0))
    return np.clip(128 + noise * 300, 0, 255).astype(np.uint8)


def jpeg(picture: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    content = io.BytesIO()
    Image.fromarray(picture).save(content, "JPEG", quality=50)
    return np.asarray(Image.open(content))


def both(found: Duplicates) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    exact, near = ([(pair.train, pair.forget) for pair in pairs] for pairs in (found.exact, found.near))
    return exact, near


def test_copies_of_a_text_are_found_and_strangers_are_not() -> None:
    train = stories(40)
    words = train[3].split()
    words[10] = "another"
    train[20] = " ".join(words)  # one word in sixty
    train[21] = train[4].upper().replace(" ", "\n ")
    train[22] = train[3]
    train[23] = train[4][: len(train[4]) * 9 // 10]
    found = find_duplicates(texts(train[3:5]), texts(train), skip=[3, 4])
    assert both(found) == ([(22, 0)], [(20, 0), (21, 1), (23, 1)])
    assert found.exact[0] == Pair(22, 0, 1.0)
    same, edited = found.near[1].similarity, found.near[0].similarity
    assert same == pytest.approx(1.0)
    assert 0.75 <= edited < 0.99


def test_without_skip_the_records_themselves_are_exact_duplicates() -> None:
    train = stories(5)
    assert both(find_duplicates(texts(train[:2]), texts(train))) == ([(0, 0), (1, 1)], [])


def test_a_row_is_paired_with_its_most_similar_record_and_the_first_of_equals() -> None:
    one = stories(1)[0]
    less, least = one[: len(one) * 9 // 10], one[: len(one) * 8 // 10]
    found = find_duplicates(texts([least, less, less]), texts([*stories(9, seed=1), one, less]))
    assert both(found) == ([(10, 1)], [(9, 1)])


def test_the_guess_from_sketches_misses_nothing() -> None:
    forget, draw = stories(50, words=80), np.random.default_rng(3)
    train = []
    for text in forget * 4:
        words = text.split()
        for at in draw.choice(80, 4, replace=False):
            words[at] = draw.choice(WORDS) + "x"
        train.append(" ".join(words))
    found = find_duplicates(texts(forget), texts(train))
    assert both(found)[1] == [(row, row % 50) for row in range(200)]


def test_a_row_of_dots_does_not_make_two_texts_alike() -> None:
    line = " " + "." * 300 + " "
    one, two = (line + text for text in stories(2))
    assert both(find_duplicates(texts([one]), texts([two, *stories(20, seed=1)]))) == ([], [])


def test_empty_and_tiny_texts_are_no_duplicates_of_each_other() -> None:
    assert both(find_duplicates(texts(["", "a", "yes"]), texts(["  ", "b", "no", "YES", "", "\ud800"]))) == (
        [(4, 0)],
        [(3, 2)],
    )


@pytest.mark.parametrize(
    "edit",
    [
        jpeg,
        lambda picture: picture[:, ::-1],
        lambda picture: np.roll(picture, (1, -1), (0, 1)),
        lambda picture: np.clip(picture * 1.1, 0, 255).astype(np.uint8),
        lambda picture: (picture * 0.9).astype(np.uint8),
    ],
    ids=["jpeg", "mirror", "shift", "brighter", "darker"],
)
@pytest.mark.parametrize("kind", ["records", "samples", "floats"])
def test_copies_of_a_picture_are_found(edit: Any, kind: str) -> None:
    train = scenes(60)
    train[41], train[50] = edit(train[8]), train[7]
    records = Records(train)
    held: Any = records if kind == "records" else records.samples()
    if kind == "floats":
        held = Samples((held.inputs.float() - 120) / 60)
    found = find_duplicates(held.rows(np.array([7, 8])), held, skip=[7, 8])
    assert both(found) == ([(50, 0)], [(41, 1)])
    assert 0.99 <= found.near[0].similarity <= 1.0


def test_pictures_of_another_size_may_look_alike() -> None:
    large = scenes(10, side=64)
    small = np.stack([np.asarray(Image.fromarray(one).resize((32, 32), Image.Resampling.BOX)) for one in large])
    found = find_duplicates(Records(large[2:4]), Records(small))
    assert both(found) == ([], [(2, 0), (3, 1)])


def test_flat_pictures_are_not_alike() -> None:
    flat = np.stack([np.full((16, 16, 3), level, dtype=np.uint8) for level in (10, 20, 30, 10)])
    flat[1, 3, 4] = 21
    train = np.concatenate([flat, scenes(5, side=16)])
    assert both(find_duplicates(Records(train[:2]), Records(train), skip=[0, 1])) == ([(3, 0)], [])


def test_features_are_compared_beside_the_spread_of_each_column() -> None:
    draw = np.random.default_rng(0)
    scale = np.array([1e-3, 1.0, 1e4, 1.0, 5.0, 2.0])
    rows = draw.normal(size=(200, 6)) * scale
    rows[:, 3] = 7  # constant: says nothing
    rows[100] = rows[1] + 0.04 * scale * [1, 1, 1, 0, 1, 1]
    rows[101] = rows[2] + 0.06 * scale * [1, 1, 1, 0, 1, 1]
    rows[102] = rows[2]
    content = rows.astype(np.float32)
    found = find_duplicates(Records(content[1:3]), Records(content), skip=[1, 2])
    assert both(found) == ([(102, 1)], [(100, 0)])
    spread = content.astype(np.float64).std(axis=0)
    away = (content[100].astype(np.float64) - content[1])[spread > 0] / spread[spread > 0]
    assert found.near[0].similarity == pytest.approx(1 - np.sqrt(np.mean(away**2)), rel=1e-5)


def test_with_few_columns_close_neighbours_are_no_duplicates() -> None:
    content = np.random.default_rng(0).normal(size=(5000, 2)).astype(np.float32)
    content[4999] = content[0] + 1e-5
    found = find_duplicates(Records(content[:50]), Records(content), skip=range(50))
    assert (4999, 0) in both(found)[1]
    assert len(found.near) <= 5  # 0.1 % of the rows


def test_features_that_are_all_constant_have_no_near_duplicates() -> None:
    rows = np.full((5, 3), 2.5, dtype=np.float32)
    assert both(find_duplicates(Records(rows[:1] + 1), Records(rows))) == ([], [])


def test_tokens_in_place_and_in_any_order() -> None:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 5000, (80, 40), generator=draw)
    ids[:, 30:] = 0
    ids[40] = ids[5]
    ids[40, 2] = 17  # one of thirty
    ids[41, :30] = ids[5, :30].flip(0)
    ids[42] = ids[6]
    ids[43, :10] = ids[5, :10]
    mask = (ids != 0).long()
    samples = Samples({"input_ids": ids, "attention_mask": mask})
    found = find_duplicates(samples.rows([5, 6]), samples, skip=[5, 6])
    assert both(found) == ([(42, 1)], [(40, 0), (41, 0)])
    assert found.near[0].similarity == pytest.approx(29 / 30)
    assert found.near[1].similarity == pytest.approx(1.0)


def test_padding_makes_no_duplicates() -> None:
    ids = torch.zeros(50, 200, dtype=torch.long)
    ids[:, :6] = torch.randint(1, 900, (50, 6), generator=torch.Generator().manual_seed(0))
    assert both(find_duplicates(Samples(ids[:10]), Samples(ids), skip=range(10))) == ([], [])


def test_counts_of_few_different_numbers_say_nothing() -> None:
    bags = (torch.rand(60, 300, generator=torch.Generator().manual_seed(0)) < 0.1).long()
    bags[50] = bags[1]
    bags[50, bags[1].nonzero()[0, 0]] = 0
    assert both(find_duplicates(Samples(bags[:3]), Samples(bags), skip=range(3))) == ([], [(50, 1)])


def test_equal_samples_are_equal_in_any_precision() -> None:
    rows = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    keys, others = content_keys(Samples(rows[2:3].float()), Samples(rows))
    assert [key == keys[0] for key in others] == [False, False, True, False, False, False]


def test_whatever_the_blocks_the_answer_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    train = stories(30)
    train[20], train[29] = train[0] + " more", train[1] + " more"
    whole = find_duplicates(texts(train[:2]), texts(train), skip=[0, 1])
    assert both(whole)[1] == [(20, 0), (29, 1)]
    monkeypatch.setattr("forsaken.data.duplicates._ELEMENTS", 3000)
    ticks: list[Tick] = []
    small = find_duplicates(texts(train[:2]), texts(train), skip=[0, 1], progress=ticks.append)
    assert both(small) == both(whole)
    assert {tick.stage for tick in ticks} == {"look for duplicates"}
    assert len(ticks) > 3
    assert (ticks[-1].done, ticks[-1].total) == (28, 28)


def test_nothing_to_look_for_or_in() -> None:
    some, none = texts(stories(3)), Records(np.array([], dtype=object))
    assert find_duplicates(none, some) == find_duplicates(some, none) == Duplicates((), ())
    assert find_duplicates(some, some, skip=range(3)) == Duplicates((), ())


def test_what_cannot_be_compared_says_so_and_quotes_nothing() -> None:
    secret, numbers = texts(["a secret that stays one"]), Records(np.zeros((2, 3), dtype=np.float32))
    with pytest.raises(InputError, match="kind text, the training data features, expected one kind") as caught:
        find_duplicates(secret, numbers)
    assert "secret" not in str(caught.value)
    with pytest.raises(InputError, match="type Records, train of type Samples, expected"):
        find_duplicates(numbers, numbers.samples())
    with pytest.raises(InputError, match=r"shape \(3,\), a training row \(4,\), expected one shape"):
        find_duplicates(numbers, Records(np.zeros((2, 4), dtype=np.float32)))
