"""Register a trained model with the keyed hashes of its training rows, and ask which versions saw a record."""

import os
import tempfile
from pathlib import Path

import safetensors.torch
import torch
from sklearn.datasets import load_digits
from torch import nn

import forsaken
from forsaken.integrations.mlflow import find_versions, log_training


def build() -> nn.Module:
    """Return the network."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def main() -> None:
    """Register two versions, of which the second never saw the first 20 digits."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # a folder stands in for your server
    import mlflow  # noqa: PLC0415

    inputs, labels = load_digits(return_X_y=True)
    rows, numbers = torch.tensor(inputs[:300] / 16, dtype=torch.float32), torch.tensor(labels[:300])
    training = forsaken.Training(build, forsaken.Recipe(epochs=3, batch_size=32, learning_rate=1e-2))
    with tempfile.TemporaryDirectory() as place:
        mlflow.set_tracking_uri(f"file://{place}/mlruns")
        key = bytes(range(32))  # yours is secret: forsaken keys new-record
        for first in (0, 20):
            data = rows[first:], numbers[first:]
            table = forsaken.References.fit(training, data, folds=2, seed=1, key=key)
            weights = Path(place) / "model.safetensors"
            safetensors.torch.save_file(build().state_dict(), weights)
            log_training("digits", weights, table)
        for found in find_versions("digits", rows[:20], key):
            print(f"version {found.version} saw {found.seen} of 20 records")


if __name__ == "__main__":
    main()
