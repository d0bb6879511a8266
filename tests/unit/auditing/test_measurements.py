"""Measurements of an ensemble: stacked by group, kept bit for bit, and refused where they do not belong together."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forsaken.auditing import measurements
from forsaken.auditing.measurements import Matrices, MeasurementCache
from forsaken.errors import InputError
from forsaken.provenance import PACKAGE


def test_records_of_single_models_become_rows() -> None:
    records = {
        "retrained": [
            {
                "forget": np.array([float(at), 1.0]),
                "test.accuracy": np.array(0.5 + at),
                "seconds": np.array(2.0),
                "density": np.array(0.1),
            }
            for at in range(3)
        ]
    }
    found = Matrices.of(records)
    assert found.margins["retrained"]["forget"].tolist() == [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]
    assert found.accuracy["retrained"]["test"].tolist() == [0.5, 1.5, 2.5]
    assert found.seconds["retrained"].tolist() == [2.0] * 3
    assert {name: value.tolist() for name, value in found.facts["retrained"].items()} == {"density": [0.1] * 3}


@pytest.mark.parametrize(("shape", "told"), [((4, 6), "number of samples"), ((3, 5), "number of models")])
def test_matrices_that_do_not_belong_together_are_refused(shape: tuple[int, int], told: str) -> None:
    margins = {
        "before": {"forget": np.zeros(shape), "test": np.zeros((4, 7))},
        "retrained": {"forget": np.zeros((8, 5))},
    }
    with pytest.raises(InputError, match=f"disagree on the {told}"):
        Matrices(margins, {}, {})


@pytest.fixture
def cache(tmp_path: Path) -> MeasurementCache:
    return MeasurementCache(tmp_path, {"before": {"before": "a" * 64, "own": None}}, {"before": {"forget": (5,)}})


def test_what_is_kept_is_read_back_bit_for_bit_and_never_written_again(cache: MeasurementCache) -> None:
    record = {"forget": np.random.default_rng(0).normal(size=5)}
    cache.write("before", 7, {"before": record, "own": record})
    cache.write("before", 7, {"before": {"forget": np.zeros(5)}, "own": record})
    (found,) = cache.read("before", 7).values()
    assert found["forget"].tobytes() == record["forget"].tobytes()
    assert cache.groups("before", [7]) == {"before"}
    assert not cache.complete("before", 7), "what has no key is not kept"
    assert cache.read("before", 8) == {}


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\x03\x04half"])
def test_a_damaged_file_is_an_error_that_says_what_to_do(cache: MeasurementCache, content: bytes) -> None:
    cache.write("before", 7, {"before": {"forget": np.zeros(5)}})
    next(cache.folder.rglob("*.npz")).write_bytes(content)
    with pytest.raises(InputError, match="delete it, and it is made anew"):
        cache.read("before", 7)


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"forget": np.array([{"a": 1}], dtype=object)}, "cannot be read"),  # a pickle, which is not opened
        ({}, "is damaged"),
        ({"forget": np.zeros(4)}, "is damaged"),
        ({"forget": np.full(5, np.nan)}, "is damaged"),
    ],
)
def test_arrays_that_are_no_record_are_refused(cache: MeasurementCache, arrays: dict, told: str) -> None:
    cache.write("before", 7, {"before": {"forget": np.zeros(5)}})
    np.savez(next(cache.folder.rglob("*.npz")), **arrays)
    with pytest.raises(InputError, match=told):
        cache.read("before", 7)


def test_with_a_secret_only_its_holder_can_put_a_record_there(cache: MeasurementCache) -> None:
    holder, other = replace(cache, secret=b"k" * 32), replace(cache, secret=b"x" * 32)
    holder.write("before", 7, {"before": {"forget": np.arange(5.0)}, "own": {}})
    assert holder.read("before", 7)["before"]["forget"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    holder.check([("before", 7)])
    with pytest.raises(InputError, match="was not written by an audit of this run"):
        other.read("before", 7)
    with pytest.raises(InputError, match="1 files of measurements were changed"):
        other.check([("before", 7)])


def test_all_code_that_decides_a_measurement_is_in_its_key() -> None:
    for place in measurements._SOURCES:
        assert (PACKAGE / place).exists(), place
    others = {"_files", "_untrusted", "engine", "errors", "provenance", "types"}  # change no measurement
    for place in (place for place in measurements._SOURCES if place.startswith("auditing/")):
        for node in ast.walk(ast.parse((PACKAGE / place).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("forsaken."):
                parts = (node.module or "").split(".")[1:]
                found = {parts[0], f"{parts[0]}.py", "/".join(parts) + ".py"}
                assert found & set(measurements._SOURCES) or parts[0] in others, f"{place} imports {node.module}"
