"""Scenarios of pictures: CIFAR, STL-10 and TinyImage, all as 32 x 32 RGB bytes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from forsaken._random import Purpose, generator
from forsaken.bench.datasets.store import data_folder, load_dataset
from forsaken.bench.scenarios.scenario import (
    Plan,
    Rows,
    Scenario,
    draw_members,
    draw_strangers,
    halve,
    id_scenario,
    ood_scenario,
    poison_scenario,
)
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.types import Array, Progress

SIZE = (32, 32)
_TEST = {"tiny-imagenet": "val"}  # what a dataset calls its test part, where not "test"

# Labels of TinyImage classes that show what a class of the task shows: they would be no strangers. Their names are in
# docs/guide/scenarios.md.
_AS_IN_CIFAR10 = "2 3 11 20 21 22 24 25 26 27 28 29 30 31 32 52 70 94 108 115 116 121 133 145 153 166"
_AS_IN_CIFAR100 = (
    "0 1 4 5 8 9 15 18 19 23 33 34 35 36 38 41 44 45 47 49 50 53 55 57 66 73 81 91 92 97 98 103 113 114 121 128 130 "
    "135 137 142 145 154 155 157 162 164 166 170 174 177 184 185 186 193 194 195 196 197 198"
)
SHARED = {
    task: frozenset(int(label) for label in labels.split())
    for task, labels in (("cifar10", _AS_IN_CIFAR10), ("cifar100", _AS_IN_CIFAR100))
}
_DECODED: dict[tuple[Path, str, str], Records] = {}  # by data folder, dataset and split
# STL-10's classes in CIFAR-10's numbers; its monkeys are none of them.
_STL_IN_CIFAR = np.array([0, 2, 1, 3, 4, 5, 7, -1, 8, 9])


@dataclass(frozen=True, slots=True)
class Album:
    """Pictures with class numbers of the task (strangers: their own class there, or -1)."""

    pixels: Array
    labels: Array
    names: tuple[str, ...]
    train: Rows
    test: Rows
    strangers: Rows


def strangers_of_tiny(plan: Plan, seed: int, progress: Progress) -> Scenario:
    """Build a scenario of CIFAR-10 or CIFAR-100 with TinyImage under random labels."""
    task = plan.datasets[0]
    train, test = _parts(task, ("train", "test"), progress)
    (tiny,) = _parts("tiny-imagenet", ("train",), progress)
    outside = tiny.rows(np.flatnonzero(~np.isin(_labels(tiny), list(SHARED[task]))))
    return _with_strangers(plan, seed, _album(train, test, outside, np.full(len(outside), -1)))


def strangers_of_stl(plan: Plan, seed: int, progress: Progress) -> Scenario:
    """Build CIFAR-10 with STL-10's labelled pictures under labels other than their own."""
    train, test = _parts("cifar10", ("train", "test"), progress)
    parts = _parts("stl10", ("train", "test"), progress)
    outside = Records(np.concatenate([part.content for part in parts]), np.concatenate([_labels(p) for p in parts]))
    return _with_strangers(plan, seed, _album(train, test, outside, _STL_IN_CIFAR[_labels(outside)]))


def mislabelled(plan: Plan, seed: int, progress: Progress) -> Scenario:
    """Build CIFAR-10 with pictures of its own that are held out of both halves, under labels other than their own."""
    train, test = _parts("cifar10", ("train", "test"), progress)
    mixed = generator(seed, Purpose.SCENARIO_CLASSES).permutation(len(train))
    held, task = mixed[: plan.sizes.strangers], np.sort(mixed[plan.sizes.strangers :])
    album = _album(train.rows(task), test, train.rows(held), _labels(train)[held])
    return _with_strangers(plan, seed, album)


def classes_of_tiny(plan: Plan, seed: int, progress: Progress) -> Scenario:
    """Build a task of randomly drawn TinyImage classes; strangers are its other classes, or CIFAR-10 where so asked."""
    train, test = _parts("tiny-imagenet", ("train", "val"), progress)
    foreign = "cifar10" in plan.datasets
    able = [number for number in range(len(train.names)) if not (foreign and number in SHARED["cifar10"])]
    chosen = np.sort(generator(seed, Purpose.SCENARIO_CLASSES).permutation(able)[: plan.classes])
    numbers = np.full(len(train.names), -1)
    numbers[chosen] = np.arange(plan.classes)

    def of_task(part: Records) -> Records:
        inside = part.rows(np.flatnonzero(np.isin(_labels(part), chosen)))
        return Records(inside.content, numbers[_labels(inside)], tuple(train.names[at] for at in chosen))

    if foreign:
        (outside,) = _parts("cifar10", ("train",), progress)
    else:
        outside = train.rows(np.flatnonzero(~np.isin(_labels(train), chosen)))
    return _with_strangers(plan, seed, _album(of_task(train), of_task(test), outside, np.full(len(outside), -1)))


def members(plan: Plan, seed: int, progress: Progress) -> Scenario:
    """Build a scenario that forgets training pictures of the task: the classes of all its datasets."""
    parts = [_parts(name, ("train", _TEST.get(name, "test")), progress) for name in plan.datasets]
    starts = np.cumsum([0, *(len(train.names) for train, _ in parts)])
    train, test = (_joined([own[at] for own in parts], starts) for at in (0, 1))
    album = _album(train, test)
    share = plan.options.get("target_share", 0.5)
    drawn = draw_members(album.train, album.test, plan.sizes, generator(seed, Purpose.SCENARIO_ROWS), share=share)
    return id_scenario(plan, seed, _samples(album), drawn.halves, drawn.forget, drawn.reference, names=album.names)


def poisoned(plan: Plan, seed: int, progress: Progress) -> Scenario:
    """Build CIFAR-10 with a share of one class's training pictures under the label of another (5 -> 3).

    The option `pictures` takes so many of the training pictures, drawn by the seed, for networks that a CPU can train.
    """
    train, test = _parts("cifar10", ("train", "test"), progress)
    if "pictures" in plan.options:
        drawn = generator(seed, Purpose.SCENARIO_CLASSES).permutation(len(train))[: plan.options["pictures"]]
        train = train.rows(np.sort(drawn))
    album = _album(train, test)
    halves, _ = halve(album.train, album.test, plan.sizes, generator(seed, Purpose.SCENARIO_ROWS))
    return poison_scenario(plan, seed, _samples(album), halves, names=album.names)


def _parts(name: str, splits: tuple[str, ...], progress: Progress) -> list[Records]:
    return [_part(name, split, progress) for split in splits]


def _part(name: str, split: str, progress: Progress) -> Records:
    """Return a part of a dataset. A process decodes it once: every trial of a benchmark builds its scenario anew."""
    place = data_folder(), name, split
    if place not in _DECODED:
        _DECODED[place] = load_dataset(name, split, size=SIZE, progress=progress)
    return _DECODED[place]


def _joined(parts: list[Records], starts: Array) -> Records:
    """Join datasets into one whose classes are those of all, numbered one after the other."""
    if len(parts) == 1:
        return parts[0]
    labels = [_labels(part) + start for part, start in zip(parts, starts, strict=False)]
    names = tuple(name for part in parts for name in part.names)
    return Records(np.concatenate([part.content for part in parts]), np.concatenate(labels), names)


def _labels(records: Records) -> Array:
    return records.labels if records.labels is not None else np.empty(0, dtype=np.int64)


def _album(train: Records, test: Records, outside: Records | None = None, own: Array | None = None) -> Album:
    parts = [train, test] if outside is None else [train, test, outside]
    labels = [_labels(train), _labels(test)] if own is None else [_labels(train), _labels(test), own]
    ends = np.cumsum([0, *(len(part) for part in parts)])
    rows = [np.arange(start, end) for start, end in pairwise(ends)]
    pixels = np.concatenate([part.content for part in parts])
    strangers = rows[2] if outside is not None else np.empty(0, dtype=np.intp)
    return Album(pixels, np.concatenate(labels).astype(np.int64), train.names, rows[0], rows[1], strangers)


def _samples(album: Album) -> Samples:
    return Records(album.pixels, album.labels).samples()


def _with_strangers(plan: Plan, seed: int, album: Album) -> Scenario:
    draw = generator(seed, Purpose.SCENARIO_ROWS)
    halves, _ = halve(album.train, album.test, plan.sizes, draw)
    strangers = draw_strangers(album.strangers, plan.sizes, draw, " and ".join(plan.datasets[1:] or plan.datasets))
    return ood_scenario(plan, seed, _samples(album), halves, strangers, names=album.names)
