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

    def __init__(self, group: str, *, as_recorded: bool = False) -> None:
        data = load_breast_cancer()
        order = np.random.default_rng(SEED).permutation(len(data.target))
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


def training() -> Dataset[tuple[Tensor, int]]:
    """Return what the model was trained on, with the wrong diagnoses in it."""
    return Patients("training", as_recorded=True)


def mixed_up() -> Dataset[tuple[Tensor, int]]:
    """Return the patients that were mixed up, with their right diagnoses."""
    return torch.utils.data.Subset(Patients("training"), range(MIXED_UP))


def unseen() -> Dataset[tuple[Tensor, int]]:
    """Return patients that the model never saw, to be the references."""
    return Patients("unseen")


def held_out() -> Dataset[tuple[Tensor, int]]:
    """Return other patients that it never saw, to measure the accuracy."""
    return Patients("test")
