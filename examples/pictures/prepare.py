"""Make what a user already has: a folder of pictures, and a trained model.

Writes data/train, data/test and data/others (one folder a class, PNG), erase.txt and model.safetensors.
"""

from pathlib import Path

import numpy as np
import torch
from model import build
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn

HERE = Path(__file__).parent


def write_pictures(folder: Path, pixels: np.ndarray, labels: np.ndarray) -> list[str]:
    """Write one PNG a picture into a folder for each class; return their names in the order of the folder."""
    for number, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        place = folder / str(label)
        place.mkdir(parents=True, exist_ok=True)
        grey = (picture / 16 * 255).astype(np.uint8)
        Image.fromarray(np.repeat(grey[:, :, None], 3, axis=2)).save(place / f"{number:04}.png")
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.png"))


def main() -> None:
    """Draw the sets, train until the training data are known by heart, and save."""
    pixels, labels = load_digits().images, load_digits().target
    order = np.random.default_rng(0).permutation(len(labels))
    train, others, test = order[:600], order[600:1200], order[1200:]
    # Sixteen people's pictures were labelled wrongly: the model knows them by heart, and they are to be forgotten.
    wrong = labels.copy()
    wrong[train[:16]] = (wrong[train[:16]] + 5) % 10
    for name, rows in (("train", train), ("others", others), ("test", test)):
        write_pictures(HERE / "data" / name, pixels[rows], wrong[rows])
    files = sorted((HERE / "data" / "train").rglob("*.png"))
    erased = {f"{number:04}.png" for number in range(16)}
    rows = [str(row) for row, path in enumerate(files) if path.name in erased]
    (HERE / "erase.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")

    torch.manual_seed(0)
    x = torch.tensor(np.floor(pixels[train] / 16 * 255) / 255, dtype=torch.float32)[:, None].repeat(1, 3, 1, 1)
    y = torch.tensor(wrong[train])
    network = build()
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
    for _ in range(60):
        for batch in torch.randperm(len(y)).split(50):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
            optimiser.step()
    save_file(network.state_dict(), HERE / "model.safetensors")
    right = (network(x).argmax(1) == y).float().mean()
    print(f"trained: {right:.1%} of the training pictures known, those with wrong labels too; {len(rows)} to forget")


if __name__ == "__main__":
    main()
