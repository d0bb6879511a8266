"""Make what this user already has: a table of texts, and a classifier that was fitted on them.

The texts are the first paragraphs of the docstrings of NumPy, SciPy and scikit-learn; the label is the library.

`python prepare.py` makes what the README shows, `python prepare.py 5` another draw of everything.
"""

import csv
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import skops.io
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

HERE = Path(__file__).parent
LIBRARIES = {
    "numpy": "numpy numpy.linalg numpy.fft numpy.ma numpy.polynomial.polynomial numpy.polynomial.chebyshev numpy.char",
    "scipy": "scipy.linalg scipy.signal scipy.interpolate scipy.optimize scipy.sparse scipy.ndimage scipy.integrate "
    "scipy.fft",
    "sklearn": "sklearn.metrics sklearn.linear_model sklearn.ensemble sklearn.preprocessing sklearn.model_selection "
    "sklearn.cluster sklearn.decomposition sklearn.datasets sklearn.svm sklearn.neighbors sklearn.utils",
}
TRAIN, FIRST, LATER = 150, 16, 12
# Two texts with nearly the same words: the first is to be forgotten, the second stays in the training data.
PAIR = ("sklearn.ensemble.ExtraTreesClassifier", "sklearn.ensemble.ExtraTreesRegressor")

Row = tuple[str, str, str]  # id, text, label


def read_docstrings(library: str, modules: str) -> Iterator[Row]:
    """Return the texts of a library, each once."""
    seen = set()
    for module in modules.split():
        for name, thing in sorted(vars(importlib.import_module(module)).items()):
            home = str(getattr(thing, "__module__", "") or "")
            if name.startswith("_") or not callable(thing) or not home.startswith(library):
                continue
            head = re.split(r"\n[A-Z][A-Za-z ]+\n-{3,}", inspect.getdoc(thing) or "")[0]
            text = " ".join(head.split())
            if len(text) >= 120 and text not in seen:
                seen.add(text)
                yield f"{module}.{name}", text, library


def write_table(path: Path, rows: list[Row]) -> None:
    """Write rows as CSV with the columns id, text and label."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", "text", "label"), *rows])


def main(seed: int) -> None:
    """Draw the sets, fit the classifier, and write everything."""
    rows = [row for library, modules in LIBRARIES.items() for row in read_docstrings(library, modules)]
    pair = [next(row for row in rows if row[0] == name) for name in PAIR]
    others = [row for row in rows if row not in pair]
    mixed = [others[at] for at in np.random.default_rng(seed).permutation(len(others))]
    erased = [pair[0], *mixed[: FIRST - 1]]
    later = mixed[FIRST - 1 : FIRST + LATER - 1]
    train = sorted([*pair, *mixed[: TRAIN - 2]])
    test = mixed[TRAIN - 2 :]

    write_table(HERE / "train.csv", train)
    write_table(HERE / "test.csv", test)
    write_table(HERE / "letter.csv", erased)  # the texts as their author sent them with the request
    for name, chosen in (("erase.txt", erased), ("erase-later.txt", later)):
        (HERE / name).write_text("".join(f"{row[0]}\n" for row in chosen), encoding="utf-8")

    classifier = make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=10, max_iter=2000))
    classifier.fit([text for _, text, _ in train], [label for *_, label in train])
    skops.io.dump(classifier, HERE / "model.skops")
    right = classifier.score([text for _, text, _ in test], [label for *_, label in test])
    print(f"{len(train)} training texts, {len(test)} test texts, {right:.1%} of these classified right; model.skops")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
