"""The digits that come with scikit-learn: eight of them as the task, the other two as strangers."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits

from forsaken._random import Purpose, generator
from forsaken.bench.scenarios.plan import Plan
from forsaken.bench.scenarios.scenario import Scenario, ood_scenario
from forsaken.bench.scenarios.splits import draw_strangers, halve
from forsaken.data.samples import Samples
from forsaken.types import Progress


def digits(plan: Plan, seed: int, progress: Progress) -> Scenario:  # noqa: ARG001 (a builder's signature)
    """Build `digits`: 0 to 7 are the task, 40 eights and nines under random labels are forgotten.

    1,443 samples are halved into target and shadow, each split 70/30 into train and test; of the 354 eights
    and nines 200 are references. 50 retain samples are 9 % of the training data: 1 % would be five.
    Inputs are the 64 pixels, from 0 to 1; with the option `pictures` as 1 x 8 x 8.
    """
    pixels, numbers = load_digits(return_X_y=True)
    draw = generator(seed, Purpose.SCENARIO_ROWS)
    halves, _ = halve(np.flatnonzero(numbers < plan.classes), None, plan.sizes, draw)
    strangers = draw_strangers(np.flatnonzero(numbers >= plan.classes), plan.sizes, draw, "digits")
    labels = np.where(numbers < plan.classes, numbers, -1)
    inputs = torch.tensor(pixels / 16, dtype=torch.float32)
    if plan.options.get("pictures"):
        inputs = inputs.view(-1, 1, 8, 8)
    samples = Samples(inputs, torch.tensor(labels))
    return ood_scenario(plan.frame(seed), samples, halves, strangers, names=tuple("01234567"))
