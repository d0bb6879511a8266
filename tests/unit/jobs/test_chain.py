"""Chains of requests: sums, advice, and finding the certificate before."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from forsaken.errors import DataNotFoundError, OutputError, SettingsError
from forsaken.jobs.certificate import Certificate, Chain, Link, Weights, extend, find_previous, make_certificate

TIME = "2025-06-01T12:00:00+00:00"


def link(number: int = 1, **changes: Any) -> Link:
    facts = {"time": TIME, "forgotten": 1, "drift": 0.02, "accuracy_before": 0.9, "accuracy_after": 0.88}
    return Link(**{"number": number, "certificate": None, **facts, **changes})


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make(old: bytes, new: bytes, previous: Certificate | None = None, **changes: Any) -> Certificate:
    return make_certificate(
        old=Weights(sha256=digest(old), format="pt", name="m.pt"),
        new=Weights(sha256=digest(new), format="pt", name="m.pt"),
        method="forsaken",
        settings={},
        hashes=[digest(b"record")],
        read_as=None,
        target=None,
        numbers={},
        unlearning_seconds=1.0,
        total_seconds=2.0,
        stopped="converged",
        chain=extend(previous, link(**changes)).to_dict(),
        mask_kept=False,
        time=TIME,
    )


def test_the_first_request() -> None:
    chain = extend(None, link(drift=0.03), max_drift=0.1, max_accuracy_loss=0.05)
    assert chain.to_dict() == {
        "links": [
            {
                "number": 1,
                "time": TIME,
                "forgotten": 1,
                "drift": 0.03,
                "accuracy_before": 0.9,
                "accuracy_after": 0.88,
                "certificate": None,
            }
        ],
        "drift": 0.03,
        "accuracy_loss": pytest.approx(0.02),
        "max_drift": 0.1,
        "max_accuracy_loss": 0.05,
        "advice": [],
    }


def test_three_requests() -> None:
    first = make(b"a", b"b", accuracy_before=0.95)
    second = make(b"b", b"c", first, drift=0.03)
    third = extend(second, link(number=77, drift=0.05, accuracy_after=0.7, certificate="0" * 64))
    assert [part.number for part in third.links] == [1, 2, 3]
    assert [part.certificate for part in third.links] == [first.sha256, second.sha256, None]
    assert third.drift == pytest.approx(0.10)
    losses = [part.accuracy_before - part.accuracy_after for part in third.links]
    assert third.accuracy_loss == pytest.approx(sum(losses))
    assert second.chain.links[-1].certificate is None


def test_each_request_loses_on_its_own_test_set() -> None:
    same = {"accuracy_before": 0.9, "accuracy_after": 0.9}, {"accuracy_before": 0.8, "accuracy_after": 0.8}
    assert Chain((link(1, **same[0]), link(2, **same[1]))).accuracy_loss == 0


def test_the_loss_is_unknown_where_one_is() -> None:
    assert Chain((link(accuracy_before=None), link(2))).accuracy_loss is None
    assert Chain((link(), link(2, accuracy_after=None))).accuracy_loss is None
    assert Chain((link(accuracy_before=None),), max_accuracy_loss=0.0).advice == ()


@given(st.lists(st.tuples(st.integers(0, 2**32), st.floats(0, 0.5)), min_size=1, max_size=6))
def test_the_drifts_bound_the_distance_from_the_first_weights(steps: list[tuple[int, float]]) -> None:
    first = torch.ones(20, dtype=torch.float64)
    weights, links = first, []
    for number, (seed, size) in enumerate(steps, 1):
        step = size * torch.randn(20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        links.append(link(number, drift=float(step.norm() / weights.norm())))
        weights = weights + step
    chain = Chain(tuple(links))
    moved = float((weights - first).norm() / first.norm())
    assert chain.drift == pytest.approx(sum(part.drift for part in links))
    assert moved <= math.prod(1 + part.drift for part in links) - 1 + 1e-9
    assert moved <= math.expm1(chain.drift) + 1e-9


@pytest.mark.parametrize(
    ("drift", "bound", "words"),
    [
        (0.02, None, None),
        (0.079, 0.1, None),
        (0.08, 0.1, None),
        (0.09, 0.1, "The cumulative drift is 0.09, 90% of the bound of 0.1: plan to retrain"),
        (0.1, 0.1, "100% of the bound of 0.1: plan to retrain"),
        (0.12, 0.1, "The cumulative drift is 0.12, above the bound of 0.1: retrain the model without the forgotten"),
        (0.01, 0.0, "The cumulative drift is 0.01, above the bound of 0: retrain"),
        (0.0, 0.0, None),
    ],
)
def test_advice_on_drift(drift: float, bound: float | None, words: str | None) -> None:
    advice = Chain((link(drift=drift),), max_drift=bound).advice
    assert len(advice) == (words is not None)
    assert words is None or words in advice[0]


def test_advice_on_both() -> None:
    chain = Chain((link(drift=0.2, accuracy_before=0.9, accuracy_after=0.8),), 0.1, 0.11)
    assert len(chain.advice) == 2
    assert "drift is 0.2, above" in chain.advice[0]
    assert "loss of accuracy is 0.1, 91% of the bound of 0.11" in chain.advice[1]
    better = Chain((link(accuracy_before=0.8, accuracy_after=0.9),), None, 0.0)
    assert better.accuracy_loss == pytest.approx(-0.1)
    assert better.advice == ()


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "m.pt"
    path.write_bytes(b"new")
    return path


def test_none_before(weights: Path) -> None:
    assert find_previous(weights) is None


def test_the_one_beside_is_found(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make(b"old", b"new")
    certificate.write(weights.parent / "certificate.json")
    assert find_previous(weights, None) == certificate
    (tmp_path / "link.pt").symlink_to(weights)
    assert find_previous(tmp_path / "link.pt") == certificate
    monkeypatch.chdir(weights.parent)
    assert find_previous(Path("m.pt")) == certificate


def test_the_one_beside_a_folder_of_weights_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes(b"{}")
    new = Weights.of(folder, "huggingface")
    certificate = make(b"old", b"new")
    certificate = certificate.model_copy(update={"weights": certificate.weights.model_copy(update={"new": new})})
    certificate.write(tmp_path / "certificate.json")
    assert find_previous(folder) == certificate


def test_one_beside_that_speaks_of_other_weights_is_passed_over(weights: Path) -> None:
    make(b"old", b"other").write(weights.parent / "certificate.json")
    assert find_previous(weights) is None


def test_a_certificate_of_something_else_beside_is_passed_over(weights: Path) -> None:
    for raw in (b'{"kind": "tls"}', b"-----BEGIN CERTIFICATE-----", b"\xff\x00"):
        (weights.parent / "certificate.json").write_bytes(raw)
        assert find_previous(weights) is None


def test_a_damaged_one_beside_is_an_error(weights: Path) -> None:
    path = make(b"old", b"new").write(weights.parent / "certificate.json")
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(OutputError, match="damaged"):
        find_previous(weights)


def test_the_named_one_must_fit(weights: Path, tmp_path: Path) -> None:
    named = tmp_path / "named.json"
    make(b"old", b"new").write(named)
    assert find_previous(weights, named) == make(b"old", b"new")
    make(b"old", b"other").write(named)
    with pytest.raises(SettingsError, match=f"{digest(b'other')}, but .*m.pt has {digest(b'new')}; name the cert"):
        find_previous(weights, named)
    make(b"new", b"newer").write(named)
    with pytest.raises(SettingsError, match="they are the weights before that request"):
        find_previous(weights, named)
    with pytest.raises(OutputError, match="no certificate"):
        find_previous(weights, tmp_path / "nothing")
    with pytest.raises(DataNotFoundError, match=r"gone\.pt"):
        find_previous(tmp_path / "gone.pt", named)


def test_one_that_was_changed_after_signing_is_refused(weights: Path) -> None:
    path = make(b"old", b"new").sign(Ed25519PrivateKey.generate()).write(weights.parent / "certificate.json")
    assert find_previous(weights) is not None
    path.write_text(path.read_text().replace('"converged"', '"iterations"'))
    for named in (None, path):
        with pytest.raises(OutputError, match="was changed after it was signed"):
            find_previous(weights, named)
