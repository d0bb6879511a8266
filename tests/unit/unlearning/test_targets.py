"""Targets against sums written out by hand, and whether there is anything to forget."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from forsaken import Forsaken
from forsaken.data.samples import Samples
from forsaken.errors import InputError, SettingsError
from forsaken.unlearning.base import Request
from forsaken.unlearning.forsaken import targets
from forsaken.unlearning.forsaken.objective import kl, squared_logits
from forsaken.unlearning.forsaken.targets import find_target, margin, memorised


def test_class_rows_average_posteriors_class_by_class() -> None:
    posterior = torch.tensor([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
    rows, missing = targets.class_rows(posterior, posterior.argmax(1))
    np.testing.assert_allclose(rows[0], [0.7, 0.2, 0.1], rtol=1e-6)
    np.testing.assert_allclose(rows[1], [0.2, 0.7, 0.1], rtol=1e-6)
    np.testing.assert_allclose(rows[2], posterior.mean(0), rtol=1e-6)
    assert missing == (2,)


def test_target_logits_give_the_posterior_back() -> None:
    posterior = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    torch.testing.assert_close(targets.target_logits(posterior).softmax(1), posterior)
    assert targets.target_logits(posterior).sum().abs() < 1e-12


def test_target_logits_are_floored() -> None:
    found = targets.target_logits(torch.tensor([[1.0, 0.0]]))
    assert found.dtype == torch.float64
    assert float(found[0, 0] - found[0, 1]) == pytest.approx(-math.log(1e-12))


def test_given_targets_are_centred_and_one_column_is_two_classes() -> None:
    assert targets.given([[1.0, 3.0]], 1, 2).tolist() == [[-1.0, 1.0]]
    assert targets.given(np.array([2.0, -4.0]), 2, 2).tolist() == [[-1.0, 1.0], [2.0, -2.0]]


@pytest.mark.parametrize("wrong", [[[1.0, 2.0, 3.0]], [[1.0, 2.0], [3.0, 4.0]]])
def test_given_targets_must_fit(wrong: list[list[float]]) -> None:
    with pytest.raises(InputError, match=r"expected \(1, 2\)"):
        targets.given(wrong, 1, 2)


def aim(kind, distance, data: Request):
    """Find the target for a model whose logits are its inputs."""
    return find_target(
        kind, distance, data, data.forget.inputs, None if data.reference is None else data.reference.inputs
    )


def request(forget, reference=None, **more) -> Request:
    return Request.read(torch.tensor(forget), None if reference is None else torch.tensor(reference), **more)


def test_margin_is_the_log_odds_of_the_posterior() -> None:
    logits = torch.randn(50, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(50) % 5
    p = logits.softmax(1)[torch.arange(50), labels]
    torch.testing.assert_close(margin(logits, labels), (p / (1 - p)).log())


def test_class_mean_takes_the_row_of_the_predicted_class() -> None:
    reference = [[2.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 3.0, 0.0]]
    found = aim("class-mean", squared_logits, request([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0]], reference))
    posterior = torch.tensor(reference).double().softmax(1)
    torch.testing.assert_close(found.logits.softmax(1)[0], posterior[:2].mean(0))
    torch.testing.assert_close(found.logits.softmax(1)[1], posterior[2])
    assert found.memorised
    assert found.notes == ()


def test_class_without_references_is_said() -> None:
    found = aim("class-mean", kl, request([[0.0, 0.0, 9.0]], [[2.0, 0.0, 0.0], [0.0, 3.0, 0.0]]))
    assert "1 of the classes" in found.notes[0]


def test_corrected_takes_the_row_of_the_true_class() -> None:
    reference = torch.tensor([[5.0, 0.0], [0.0, 5.0]])
    data = Request.read((torch.tensor([[9.0, 0.0]]), [1]), (reference, [0, 1]))
    found = aim("corrected", squared_logits, data)
    torch.testing.assert_close(found.logits.softmax(1)[0], reference.double().softmax(1)[1])
    assert found.memorised, "a poisoned sample is memorised where its true class is unlikely"
    healed = Request.read((torch.tensor([[0.0, 5.5]]), [1]), (reference, [0, 1]))
    assert not aim("corrected", squared_logits, healed).memorised


def test_corrected_needs_labels() -> None:
    with pytest.raises(InputError, match="true labels"):
        aim("corrected", kl, request([[1.0, 0.0]], [[0.0, 1.0]]))


def test_class_mean_needs_references() -> None:
    with pytest.raises(SettingsError, match="reference="):
        aim("class-mean", kl, request([[1.0, 0.0]]))


def test_given_targets_come_first() -> None:
    found = aim("class-mean", squared_logits, request([[1.0, 0.0]], targets=[[0.0, 4.0]]))
    assert found.name == "given"
    assert found.logits.tolist() == [[-2.0, 2.0]]
    assert found.before == pytest.approx(6.25)  # centred: (0.5, -0.5) to (-2, 2)


def test_at_the_target_already_is_not_memorised() -> None:
    assert not aim("uniform", squared_logits, request([[1.0, 1.0]])).memorised
    assert aim("uniform", squared_logits, request([[1.0, 0.0]])).memorised


def test_memorised_compares_with_the_references() -> None:
    reference = torch.linspace(-1, 1, 100)
    assert memorised(torch.tensor([5.0]), reference)
    assert not memorised(torch.tensor([-1.0]), reference)
    assert memorised(torch.tensor([0.3]), reference), "a single sample is not excused for being single"
    assert not memorised(reference + 0.01, reference), "a hundredth is chance"
    assert memorised(torch.full((1000,), 0.2), reference)


def test_non_members_are_mostly_not_memorised() -> None:
    draw = torch.Generator().manual_seed(0)
    answers = [memorised(torch.randn(50, generator=draw), torch.randn(500, generator=draw)) for _ in range(300)]
    assert sum(answers) / 300 < 0.25  # one standard error: 16 %


def test_unsure_but_far_from_its_target_is_memorised() -> None:
    """A mislabelled sample among easy references: its margin is small, and yet it stands where no reference does."""

    draw = torch.Generator().manual_seed(0)
    easy = 9 * torch.nn.functional.one_hot(torch.arange(60) % 3, 3) + 0.1 * torch.randn(60, 3, generator=draw)
    torn = torch.tensor([[5.0, 4.0, -9.0], [4.0, -9.0, 5.0]])
    data = Request(Samples(torn), reference=Samples(easy))
    found = find_target("class-mean", squared_logits, data, torn, easy)
    assert found.before > found.bound
    assert found.memorised


# --- claims: what a certificate says, word by word where it matters --------------------------------------------------

ATTACKER = "An attacker who compares sample by sample with models that never saw the sample can still tell"
CLAIMED = {
    "class-mean": ("samples of the same predicted class that the model never saw", "keep their predicted class"),
    "corrected": ("like clean samples of their true class", "a correction, not the answer of a model that never saw"),
    "uniform": ("no longer favours any class", "the indecision itself gives them away"),
    "out-of-fold": ("like a reference model, which was trained in the same way", "forsaken audit measures whether"),
    "out-of-fold, claimed": ("like the references that were handed in", "whoever handed them in says so"),
    "given": ("as the target says that was handed in for it", "whoever handed them in says so"),
}


@pytest.mark.parametrize("target", CLAIMED)
def test_every_target_claims_what_it_aims_at_and_names_what_it_does_not_show(target: str) -> None:
    shown, not_shown = CLAIMED[target]
    found = targets.claim_of("forsaken", {"target": target})
    assert set(targets.CLAIMS) == set(CLAIMED)
    assert found.target == target
    assert found.shown.startswith("The method aimed at this, and the numbers say how near it came:")
    assert shown in found.shown
    assert not_shown in found.not_shown
    assert (ATTACKER in found.not_shown) == (target in ("class-mean", "corrected", "uniform"))


def test_a_method_without_a_target_claims_no_single_sample() -> None:
    found = targets.claim_of("scrub", {})
    assert found.target == "scrub"
    assert "has no measure of its own" in found.shown
    assert found.not_shown.startswith("That the model answers like one that was not trained on the samples")
    assert ATTACKER in found.not_shown


def test_labels_out_of_range_are_counted_and_not_shown() -> None:
    x = torch.randn(6, 4)
    with pytest.raises(InputError, match=r"2 of 2 labels of forget are out of range.*from 0 to 2") as told:
        Forsaken(target="uniform")(nn.Linear(4, 3), (x[:2], torch.tensor([7, 9])), None, x[2:])
    assert "7" not in str(told.value)
    assert "9" not in str(told.value)
