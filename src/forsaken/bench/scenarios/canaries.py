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
from forsaken.models.sequences import IGNORED
from forsaken.types import Array, Progress

END = "\n"
PHRASE = "the random number is "
DIGITS = "0123456789"


def canaries(plan: Plan, seed: int, progress: Progress) -> Scenario:
    """Build `ptb-canaries`: "the random number is" and nine digits, each canary learnt as one more sequence.

    Tokens are characters, as in "The Secret Sharer": the text writes N for every number, so that words would have no
    digits. Lines are drawn from the training text and halved into target and shadow. A sample is a sequence of tokens
    with the next token of each as its labels (n x length); a canary is shorter, and the positions after it do not
    count.
    """
    options: Any = plan.options
    length, digits, sizes = options["length"], options["digits"], plan.sizes
    lines = {split: load_dataset("ptb", split, progress=progress).content for split in ("train", "valid", "test")}
    numbers = vocabulary(lines["train"])
    if len(numbers) != plan.classes:
        raise DataError(
            f"the training text of ptb has {len(numbers):,} characters, expected {plan.classes:,}; get it again: "
            "forsaken datasets get ptb --force"
        )
    mixed = generator(seed, Purpose.SCENARIO_ROWS).permutation(len(lines["train"]))[: options["lines"]]
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
    """Return a number for every character, the end of a line first; the ten digits are always among them."""
    characters = sorted(({character for line in lines for character in line} | set(DIGITS)) - {END})
    return {character: at for at, character in enumerate([END, *characters])}


def sequences(lines: Array, numbers: dict[str, int], length: int) -> Samples:
    """Cut the text, lines joined by their ends, into sequences of `length` tokens; the rest at the end is dropped.

    Characters that the training text does not have are left out.
    """
    tokens = [numbers[character] for line in lines for character in line + END if character in numbers]
    count = (len(tokens) - 1) // length
    stream = torch.tensor(tokens[: count * length + 1])
    return Samples(stream[:-1].view(count, length).clone(), stream[1:].view(count, length).clone())


def _draw(count: int, digits: int, draw: np.random.Generator) -> Array:
    """Return `count` different numbers as rows of digits."""
    chosen = draw.choice(10**digits, size=count, replace=False, shuffle=True)
    return chosen[:, None] // 10 ** np.arange(digits)[::-1] % 10


def _canaries(rows: Array, numbers: dict[str, int], length: int) -> Samples:
    phrase = [numbers[character] for character in END + PHRASE]
    digits = torch.tensor([numbers[digit] for digit in DIGITS])
    inputs = torch.full((len(rows), length), numbers[END])
    labels = torch.full((len(rows), length), IGNORED)
    whole = torch.cat([torch.tensor(phrase).expand(len(rows), -1), digits[torch.from_numpy(rows)]], dim=1)
    used = whole.shape[1]
    inputs[:, :used] = whole
    labels[:, : used - 1] = whole[:, 1:]
    labels[:, used - 1] = numbers[END]
    return Samples(inputs, labels)
