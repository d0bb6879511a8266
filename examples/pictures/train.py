"""Train the network on the pictures in pictures/train, and write model.safetensors.

This stands for your own training: what counts is that forsaken.toml says how it was done ([audit] recipe).
"""

import tomllib
from pathlib import Path

import torch
from model import build
from safetensors.torch import save_file
from torch import nn

import forsaken

HERE = Path(__file__).parent


def read(folder: str, size: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pictures of a folder as floats from 0 to 1, and the numbers of their classes."""
    records = forsaken.read_records(HERE / "pictures" / folder, size=tuple(size))
    samples = records.samples()
    return samples.inputs.float() / 255, samples.labels


def main() -> None:
    """Train by the recipe of forsaken.toml, and say how well it went."""
    job = tomllib.loads((HERE / "forsaken.toml").read_text(encoding="utf-8"))
    recipe, size = job["audit"]["recipe"], job["data"]["size"]
    x, y = read("train", size)
    torch.manual_seed(1)
    network = build(**job["model"]["arguments"])
    optimiser = torch.optim.Adam(network.parameters(), lr=recipe["learning_rate"])
    for _ in range(recipe["epochs"]):
        for batch in torch.randperm(len(y)).split(recipe["batch_size"]):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
            optimiser.step()
    save_file(network.state_dict(), HERE / "model.safetensors")
    x, y = read("test", size)
    right = float((network(x).argmax(1) == y).float().mean())
    print(f"model.safetensors; accuracy on the {len(y)} test pictures: {right:.3f}")


if __name__ == "__main__":
    main()
