"""Make folders of pictures to try it with, in place of your own: handwritten digits that come with scikit-learn.

`python prepare.py` makes what the README shows, `python prepare.py 5` another draw of everything.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

HERE = Path(__file__).parent
CLASSES = 8  # the digits 0 to 7; eights and nines do not belong to the task
TRAIN = 700  # pictures of the task
SENT = 24  # pictures that a contributor sent, and filed under classes that are wrong
LIKE = 100  # pictures like those that the model never sees: the run and the audit each compare with so many


def write_pictures(folder: Path, pixels: np.ndarray, labels: np.ndarray, start: str) -> list[str]:
    """Write one PNG a picture into the folder of its class, and return the names of the files."""
    names = []
    for number, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        name = f"{label}/{start}-{number:03}.png"
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        grey = np.round(picture / 16 * 255).astype(np.uint8)
        Image.fromarray(np.repeat(grey[:, :, None], 3, axis=2)).save(folder / name)
        names.append(name)
    return names


def main(seed: int) -> None:
    """Draw the pictures, write them, and name those to forget in erase.txt."""
    pixels, digits = load_digits().images, load_digits().target
    draw = np.random.default_rng(seed)
    task = draw.permutation(np.flatnonzero(digits < CLASSES))
    others = draw.permutation(np.flatnonzero(digits >= CLASSES))
    sent, like, more = np.split(others, [SENT, SENT + LIKE])
    wrong = draw.integers(CLASSES, size=len(digits))
    shutil.rmtree(HERE / "pictures", ignore_errors=True)
    train, test = HERE / "pictures" / "train", HERE / "pictures" / "test"
    write_pictures(train, pixels[task[:TRAIN]], digits[task[:TRAIN]], "digit")
    write_pictures(test, pixels[task[TRAIN:]], digits[task[TRAIN:]], "digit")
    write_pictures(HERE / "pictures" / "like-them", pixels[like], digits[like], "other")
    write_pictures(HERE / "pictures" / "never-seen", pixels[more[:LIKE]], wrong[more[:LIKE]], "other")
    names = sorted(write_pictures(train, pixels[sent], wrong[sent], "sent"))
    (HERE / "erase.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    print(f"{TRAIN + SENT} training pictures in pictures/train, {SENT} of them to be forgotten (erase.txt)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
