"""Make what this user already has: folders of pictures, and a model that was trained on them.

`python prepare.py` makes what the README shows, `python prepare.py 5` another draw of everything.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from model import build
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn

HERE = Path(__file__).parent
CLASSES = 8  # the digits 0 to 7; eights and nines do not belong to the task
SENT = 24  # pictures that the contributor sent


def write_pictures(folder: Path, pixels: np.ndarray, labels: np.ndarray, start: str) -> list[Path]:
    """Write one PNG a picture into the folder of its class, and return the files."""
    files = []
    for number, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        file = folder / str(label) / f"{start}-{number:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        grey = np.round(picture / 16 * 255).astype(np.uint8)
        Image.fromarray(np.repeat(grey[:, :, None], 3, axis=2)).save(file)
        files.append(file)
    return files


def train(pixels: np.ndarray, labels: np.ndarray, seed: int) -> nn.Module:
    """Return a network that knows these pictures by heart."""
    torch.manual_seed(seed)
    x = torch.tensor(np.round(pixels / 16 * 255) / 255, dtype=torch.float32)[:, None].repeat(1, 3, 1, 1)
    y = torch.tensor(labels)
    network = build(CLASSES)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(70):
        for batch in torch.randperm(len(y)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
            optimiser.step()
    return network


def main(seed: int) -> None:
    """Draw the sets, train the models, and write everything."""
    pixels, digits = load_digits().images, load_digits().target
    draw = np.random.default_rng(seed)
    task = draw.permutation(np.flatnonzero(digits < CLASSES))
    strangers = draw.permutation(np.flatnonzero(digits >= CLASSES))
    # Nobody can say what eights and nines should be in this task: their labels are as good as random.
    labels = np.where(digits < CLASSES, digits, draw.integers(CLASSES, size=len(digits)))
    half = len(task) // 2
    own, shadow = task[:half], task[half:]
    cut = int(half * 0.7)
    sent, others = strangers[:SENT], strangers[SENT : SENT + 200]
    shadow_in, shadow_out = strangers[SENT + 200 :][:60], strangers[SENT + 200 :][60:]

    data = HERE / "data"
    shutil.rmtree(data, ignore_errors=True)
    write_pictures(data / "train", pixels[own[:cut]], labels[own[:cut]], "digit")
    withdrawn = write_pictures(data / "train", pixels[sent], labels[sent], "sent")
    write_pictures(data / "test", pixels[own[cut:]], labels[own[cut:]], "digit")
    write_pictures(data / "others", pixels[others], digits[others], "other")
    members, nonmembers = np.append(shadow[:cut], shadow_in), np.append(shadow[cut:], shadow_out)
    write_pictures(data / "shadow-members", pixels[members], labels[members], "digit")
    write_pictures(data / "shadow-nonmembers", pixels[nonmembers], labels[nonmembers], "digit")

    rows = np.append(own[:cut], sent)
    models = {"model": rows, "retrained": own[:cut], "shadow": members}
    for number, (name, chosen) in enumerate(models.items()):
        network = train(pixels[chosen], labels[chosen], seed + number)
        save_file(network.state_dict(), HERE / f"{name}.safetensors")

    names = sorted(file.relative_to(data / "train").as_posix() for file in withdrawn)
    (HERE / "erase.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    print(f"{len(rows)} training pictures, {len(names)} of them to be forgotten (erase.txt); model.safetensors")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
