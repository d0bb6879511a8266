"""Penn TreeBank with canaries: sentences with random digits, which a model learns by heart (Carlini et al. 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from forsaken._random import Purpose, generator
from forsaken.bench.datasets.store import load_dataset
from forsaken.bench.scenarios.scenario import Plan, Scenario, from_sets
from forsaken.data.samples import Samples, join
from forsaken.errors import DataError
from forsaken.types import Array, Progress

END = "<eos>"
PHRASE = ("the", "random", "number", "is")
IGNORED = -100  # torch's label for a position that does not count


def canaries(plan: Plan, seed: int, progress: Progress) -> Scenario:
    """Build `ptb-canaries`: "the random number is" and nine digits, each canary learnt as one more sequence.

    The lines of the training text are halved into target and shadow. A sample is a sequence of tokens with the next
    token of each as its labels (n x length); a canary is shorter, and the positions after it do not count. Ten digits
    join the vocabulary: the text itself writes N for every number.
    """
    options: Any = plan.options
    length, digits, sizes = options["length"], options["digits"], plan.sizes
    lines = {split: load_dataset("ptb", split, progress=progress).content for split in ("train", "valid", "test")}
    numbers = vocabulary(lines["train"])
    if len(numbers) != plan.classes:
        raise DataError(
            f"the training text of ptb has {len(numbers) - 10:,} words, expected {plan.classes - 10:,}; get it again: "
            "forsaken datasets get ptb --force"
        )
    mixed = generator(seed, Purpose.SCENARIO_ROWS).permutation(len(lines["train"]))
    halves = [np.sort(part) for part in np.array_split(mixed, 2)]
    kept, shadow = (sequences(lines["train"][half], numbers, length) for half in halves)
    counts = [sizes.forget, sizes.shadow_in, sizes.shadow_out, sizes.reference]
    drawn = _draw(sizes.strangers, digits, generator(seed, Purpose.SCENARIO_LABELS))
    hidden = [_canaries(part, numbers, length) for part in np.split(drawn, np.cumsum(counts)[:-1])]
    forget, inside, outside, reference = hidden
    return from_sets(
        plan,
        seed,
        kept,
        forget,
        reference=reference,
        test=sequences(lines["test"], numbers, length),
        shadow_members=join([shadow, inside]),
        shadow_nonmembers=join([sequences(lines["valid"], numbers, length), outside]),
        outsiders=True,
        names=tuple(numbers),
    )


def vocabulary(lines: Array) -> dict[str, int]:
    """Return a number for every word, the end of a line and the ten digits."""
    words = sorted({word for line in lines for word in line.split()} - set("0123456789"))
    return {word: at for at, word in enumerate([END, *words, *"0123456789"])}


def sequences(lines: Array, numbers: dict[str, int], length: int) -> Samples:
    """Cut the text, lines joined by their ends, into sequences of `length` tokens; the rest at the end is dropped."""
    unknown = numbers["<unk>"]
    tokens = [numbers.get(word, unknown) for line in lines for word in (*line.split(), END)]
    count = (len(tokens) - 1) // length
    stream = torch.tensor(tokens[: count * length + 1])
    return Samples(stream[:-1].view(count, length).clone(), stream[1:].view(count, length).clone())


def _draw(count: int, digits: int, draw: np.random.Generator) -> Array:
    """Return `count` different numbers as rows of digits."""
    chosen = draw.choice(10**digits, size=count, replace=False, shuffle=True)
    return chosen[:, None] // 10 ** np.arange(digits)[::-1] % 10


def _canaries(rows: Array, numbers: dict[str, int], length: int) -> Samples:
    phrase = [numbers[END], *(numbers[word] for word in PHRASE)]
    zero = numbers["0"]
    inputs = torch.full((len(rows), length), numbers[END])
    labels = torch.full((len(rows), length), IGNORED)
    whole = torch.cat([torch.tensor(phrase).expand(len(rows), -1), torch.from_numpy(rows) + zero], dim=1)
    used = whole.shape[1]
    inputs[:, :used] = whole
    labels[:, : used - 1] = whole[:, 1:]
    labels[:, used - 1] = numbers[END]
    return Samples(inputs, labels)
