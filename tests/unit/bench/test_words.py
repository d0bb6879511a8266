"""Words, vocabularies, sequences and vectors: compared with what can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from forsaken.bench.scenarios.texts import Vocabulary, split_words, word_vectors, words
from forsaken.errors import EmptyError


def test_words_are_lower_case_and_without_tags() -> None:
    assert words("A<br /><br />b's C-3\n\u00e9t\u00e9") == ["a", "b's", "c", "3", "\u00e9t\u00e9"]
    assert words("1 < 2 and 3 > 2") == ["1", "2", "and", "3", "2"], "a comparison is no tag"


def test_the_most_frequent_words_come_first_and_ties_are_alphabetical() -> None:
    known = Vocabulary.fit([["b", "a", "c"], ["c", "a", "b"], ["c"]], size=10)
    assert known.numbers == {"c": 2, "a": 3, "b": 4}
    assert len(known) == 5


def test_sequences_are_cut_and_padded_at_the_end() -> None:
    known = Vocabulary({"a": 2, "b": 3})
    assert known.sequences([["a", "b", "x", "a"], ["b"]], 3).tolist() == [[2, 3, 1], [3, 0, 0]]


def test_a_corpus_without_words_is_an_error() -> None:
    with pytest.raises(EmptyError, match="no words"):
        Vocabulary.fit([[], []], size=3)


def test_progress_ends_at_the_last_text() -> None:
    ticks = []
    assert split_words(["a b"] * 5, ticks.append) == [["a", "b"]] * 5
    assert (ticks[-1].done, ticks[-1].total) == (5, 5)


def brute_force(texts: list[list[str]], known: Vocabulary, window: int) -> np.ndarray:
    """Positive pointwise mutual information, counted pair by pair."""
    counts = np.zeros((len(known), len(known)))
    for text in texts:
        for i, first in enumerate(text):
            for j, second in enumerate(text):
                near = 0 < abs(i - j) <= window and first in known.numbers and second in known.numbers
                if near:
                    counts[known.numbers[first], known.numbers[second]] += 1 / abs(i - j)
    expected = np.outer(counts.sum(1), counts.sum(0)) / counts.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.maximum(np.log(counts / expected), 0), nan=0.0, neginf=0.0)


def test_vectors_factorise_the_mutual_information_of_near_words() -> None:
    draw = np.random.default_rng(0)
    texts = [[f"w{n}" for n in draw.integers(12, size=9)] for _ in range(40)]
    known = Vocabulary.fit(texts, size=10)
    vectors = word_vectors(texts, known, dimensions=3, window=2).double().numpy()
    left, strength, _ = np.linalg.svd(brute_force(texts, known, 2))
    expected = left[:, :3] * np.sqrt(strength[:3])
    expected *= 0.5 / np.sqrt((expected[2:] ** 2).mean())
    assert np.allclose(np.abs(vectors[2:]), np.abs(expected[2:]), atol=1e-4), "up to the sign of each dimension"
    assert not vectors[:2].any(), "padding and unknown words are zero"


def test_vectors_are_the_same_bits_each_time() -> None:
    texts = [["a", "b", "c", "d"], ["b", "c", "a"], ["d", "a"]]
    known = Vocabulary.fit(texts, size=4)
    assert torch.equal(*(word_vectors(texts, known, dimensions=2, window=2) for _ in range(2)))
