"""Matrices of margins: saved and read back bit for bit, and refused where they do not belong together."""

from __future__ import annotations

import numpy as np
import pytest

from forsaken.auditing.matrices import Matrices
from forsaken.errors import InputError


def matrices(**changes: np.ndarray) -> Matrices:
    draw = np.random.default_rng(0)
    margins = {
        who: {
            part: draw.normal(size=(models, samples)) for part, samples in (("forget", 5), ("retain", 7), ("test", 6))
        }
        for who, models in (("before", 4), ("gentle|method", 4), ("retrained", 8))
    }
    accuracy = {
        who: {part: draw.random(len(sets["forget"])) for part in ("retain", "test")} for who, sets in margins.items()
    }
    margins["before"] |= changes
    return Matrices(margins, accuracy, {who: np.ones(len(sets["forget"])) for who, sets in margins.items()})


def test_what_is_saved_is_read_back_bit_for_bit(tmp_path):
    ours = matrices()
    read = Matrices.load(ours.save(tmp_path / "matrices.npz"))
    for name in ("margins", "accuracy"):
        for who, parts in getattr(ours, name).items():
            for part, matrix in parts.items():
                assert np.array_equal(getattr(read, name)[who][part], matrix)
    assert {who: value.tolist() for who, value in read.seconds.items()} == {
        who: value.tolist() for who, value in ours.seconds.items()
    }


def test_records_of_single_models_become_rows():
    records = {
        "retrained": [
            {"forget": np.array([float(at), 1.0]), "test.accuracy": np.array(0.5 + at), "seconds": np.array(2.0)}
            for at in range(3)
        ]
    }
    found = Matrices.of(records)
    assert found.margins["retrained"]["forget"].tolist() == [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]
    assert found.accuracy["retrained"]["test"].tolist() == [0.5, 1.5, 2.5]


def test_different_samples_are_refused():
    with pytest.raises(InputError, match="disagree on the number of samples"):
        matrices(forget=np.zeros((4, 6)))


def test_different_numbers_of_models_are_refused():
    with pytest.raises(InputError, match="disagree on the number of models"):
        matrices(forget=np.zeros((3, 5)))


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\x03\x04half"])
def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path, content):
    (tmp_path / "m.npz").write_bytes(content)
    with pytest.raises(InputError, match="delete it, and it is made anew"):
        Matrices.load(tmp_path / "m.npz")


def test_a_pickle_in_the_file_is_not_opened(tmp_path):
    np.savez(tmp_path / "m.npz", **{"margins|before|forget": np.array([{"a": 1}], dtype=object)})
    with pytest.raises(InputError, match="cannot be read"):
        Matrices.load(tmp_path / "m.npz")
