"""Make what this user already has: a model that was trained on the patients, wrong diagnoses included.

It also trains the yardstick, a model that never saw the patients who were mixed up. A user hardly has one.
"""

import torch
from patients import MIXED_UP, network, training
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset


def train(data: Dataset, seed: int) -> nn.Module:
    """Return a network that knows the data by heart."""
    torch.manual_seed(seed)
    made = network()
    optimiser = torch.optim.Adam(made.parameters(), lr=3e-3)
    for _ in range(100):
        for x, y in DataLoader(data, batch_size=32, shuffle=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(made(x), y).backward()
            optimiser.step()
    return made


everybody = training()
others = Subset(everybody, range(MIXED_UP, len(everybody)))
save_file(train(everybody, seed=0).state_dict(), "model.safetensors")
save_file(train(others, seed=1).state_dict(), "retrained.safetensors")
print(f"trained on {len(everybody)} patients, {MIXED_UP} of them mixed up; model.safetensors, retrained.safetensors")
