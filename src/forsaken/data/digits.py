"""The digits that come with scikit-learn: eight of them as the task, the other two as strangers."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits

from forsaken.data.samples import Samples
from forsaken.data.scenario import OodSizes, Scenario, ood_rows, ood_scenario

CLASSES = 8
_SIZES = OodSizes(forget=40, shadow_in=40, shadow_out=40, reference=200, train_share=0.7, retain_share=0.1)


def digits(seed: int) -> Scenario:
    """Return the scenario `digits`: 0 to 7 are the task, 40 eights and nines under random labels are forgotten.

    1,443 samples are halved into target and shadow, each split 70/30 into train and test; of the 354 eights
    and nines 200 are references. 50 retain samples are 9 % of the training data: 1 % would be five.
    Inputs are the 64 pixels, from 0 to 1.
    """
    pixels, labels = load_digits(return_X_y=True)
    samples = Samples(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    split = ood_rows(np.asarray(labels) < CLASSES, _SIZES, seed)
    return ood_scenario("digits", samples, split, CLASSES, _SIZES, seed)
