"""The user's own data and network: a Dataset of patients, and functions that forsaken.toml names."""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.utils.data import Dataset

SEED = 0
MIXED_UP = 12  # patients whose samples were mixed up in the laboratory
GROUPS = {"training": (0, 300), "unseen": (300, 420), "test": (420, 569)}


class Patients(Dataset[tuple[Tensor, int]]):
    """Measurements of cell nuclei, thirty a patient, and the diagnosis: 0 malignant, 1 benign.

    With `as_recorded`, the first patients of the training group have the wrong diagnosis that the laboratory wrote
    down; without it, everybody has the right one.
    """

    def __init__(self, group: str, *, as_recorded: bool = False, seed: int = SEED) -> None:
        data = load_breast_cancer()
        order = np.random.default_rng(seed).permutation(len(data.target))
        training = data.data[order[slice(*GROUPS["training"])]]
        rows = order[slice(*GROUPS[group])]
        self.measured = ((data.data[rows] - training.mean(axis=0)) / training.std(axis=0)).astype(np.float32)
        self.diagnosis = data.target[rows].copy()
        if as_recorded and group == "training":
            self.diagnosis[:MIXED_UP] = 1 - self.diagnosis[:MIXED_UP]

    def __len__(self) -> int:
        return len(self.diagnosis)

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.measured[at]), int(self.diagnosis[at])


def network() -> nn.Module:
    """Return the network without its weights."""
    return nn.Sequential(nn.Linear(30, 256), nn.ReLU(), nn.Linear(256, 2))


def training(seed: int = SEED) -> Dataset[tuple[Tensor, int]]:
    """Return what the model was trained on, with the wrong diagnoses in it."""
    return Patients("training", as_recorded=True, seed=seed)


def mixed_up(seed: int = SEED) -> Dataset[tuple[Tensor, int]]:
    """Return the patients that were mixed up, with their right diagnoses."""
    return torch.utils.data.Subset(Patients("training", seed=seed), range(MIXED_UP))


def unseen(seed: int = SEED) -> Dataset[tuple[Tensor, int]]:
    """Return patients that the model never saw, to be the references."""
    return Patients("unseen", seed=seed)


def test(seed: int = SEED) -> Dataset[tuple[Tensor, int]]:
    """Return patients for the accuracy."""
    return Patients("test", seed=seed)
