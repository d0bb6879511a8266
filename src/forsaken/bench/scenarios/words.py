"""From texts to numbers: words, vocabularies, token sequences, and word vectors made from a corpus itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.extmath import randomized_svd
from torch import Tensor

from forsaken.errors import EmptyError
from forsaken.types import Progress, Tick, silent

PADDING, UNKNOWN = 0, 1  # the first two token numbers
_WORD = re.compile(r"[\w']+")
_TAG = re.compile(r"</?[a-z][^<>]{0,40}>")  # reviews carry line breaks of HTML
_TICK = 2000  # texts between two signs of life


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without HTML tags.

    >>> words("It's <br />FINE, really.")
    ["it's", 'fine', 'really']
    """
    return _WORD.findall(_TAG.sub(" ", text.lower()))


def split_words(texts: Sequence[str], progress: Progress = silent) -> list[list[str]]:
    """Return the words of every text."""
    found = []
    for at, text in enumerate(texts):
        if at % _TICK == 0:
            progress(Tick("split into words", at, len(texts)))
        found.append(words(text))
    progress(Tick("split into words", len(texts), len(texts)))
    return found


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The most frequent words of a corpus. Token 0 is padding, token 1 a word that is not in the vocabulary.

    >>> known = Vocabulary.fit([["a", "b", "a"], ["c", "a", "b"]], size=2)
    >>> known.sequences([["b", "a", "z"], []], length=4).tolist()
    [[3, 2, 1, 0], [0, 0, 0, 0]]
    """

    numbers: dict[str, int]

    def __len__(self) -> int:
        return len(self.numbers) + 2

    @classmethod
    def fit(cls, texts: Iterable[Sequence[str]], size: int) -> Vocabulary:
        """Take the `size` most frequent words; among equally frequent ones, the first in alphabetical order."""
        counts = Counter(chain.from_iterable(texts))
        if not counts:
            raise EmptyError("the corpus holds no words, so no vocabulary can be made; give texts")
        ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:size]
        return cls({word: at + 2 for at, (word, _) in enumerate(ordered)})

    def tokens(self, text: Sequence[str]) -> list[int]:
        """Return the numbers of the words of one text."""
        return [self.numbers.get(word, UNKNOWN) for word in text]

    def sequences(self, texts: Sequence[Sequence[str]], length: int) -> Tensor:
        """Return the first `length` tokens of every text, padded at the end (texts x length)."""
        matrix = np.full((len(texts), length), PADDING, dtype=np.int64)
        for at, text in enumerate(texts):
            tokens = self.tokens(text[:length])
            matrix[at, : len(tokens)] = tokens
        return torch.from_numpy(matrix)


def word_vectors(texts: Sequence[Sequence[str]], known: Vocabulary, *, dimensions: int, window: int) -> Tensor:
    """Return a vector for every token of a vocabulary, learnt from which words stand near each other.

    The positive pointwise mutual information of word pairs within `window` words, factorised by a truncated singular
    value decomposition with square roots of the singular values (Levy, Goldberg and Dagan 2015), scaled to a root
    mean square of 1/2. Padding and unknown words are zero.

    Returns
    -------
    Tensor
        tokens x `dimensions`, float32; the same bits for the same texts.
    """
    size = len(known)
    pairs = _near(texts, known, window, size)
    total = pairs.sum()
    rows, columns = np.asarray(pairs.sum(1)).ravel(), np.asarray(pairs.sum(0)).ravel()
    shape = pairs.tocoo()
    information = np.log(shape.data * total / (rows[shape.row] * columns[shape.col]))
    kept = information > 0
    positive = sparse.csr_matrix((information[kept], (shape.row[kept], shape.col[kept])), shape=(size, size))
    left, strength, _ = randomized_svd(positive, dimensions, random_state=0)
    vectors = left * np.sqrt(strength)
    vectors *= 0.5 / np.sqrt(np.square(vectors[2:]).mean())
    vectors[:2] = 0
    return torch.tensor(vectors, dtype=torch.float32)


def _near(texts: Sequence[Sequence[str]], known: Vocabulary, window: int, size: int) -> Any:
    """Count how often two known words stand within `window` words of each other, nearer pairs counting more."""
    # Texts are laid end to end with a gap, so that no pair spans two of them.
    gap = [UNKNOWN] * window
    stream = np.fromiter(chain.from_iterable(known.tokens(text) + gap for text in texts), dtype=np.int64)
    counts = sparse.csr_matrix((size, size))
    for distance in range(1, window + 1):
        first, second = stream[:-distance], stream[distance:]
        both = (first != UNKNOWN) & (second != UNKNOWN)
        weights = np.full(int(both.sum()), 1 / distance)
        counts = counts + sparse.csr_matrix((weights, (first[both], second[both])), shape=(size, size))
    return counts + counts.T
