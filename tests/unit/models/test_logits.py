"""From any model to logits."""

from __future__ import annotations

import traceback
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from torch import nn

from forsaken.errors import ModelError, NonFiniteError
from forsaken.models.logits import accuracy, as_logits, evaluation, posteriors, predict_logits


def test_one_column_is_two_classes() -> None:
    z = torch.tensor([[3.0], [-1.0]])
    assert as_logits(z).tolist() == [[-1.5, 1.5], [0.5, -0.5]]
    assert as_logits(z[:, 0]).tolist() == as_logits(z).tolist()
    torch.testing.assert_close(as_logits(z).softmax(1)[:, 1:], z.sigmoid())


@pytest.mark.parametrize("output", [torch.zeros(2, 3, 4), torch.zeros(2, 0), torch.zeros(2, 3, dtype=torch.long)])
def test_what_is_not_logits_is_refused(output: torch.Tensor) -> None:
    with pytest.raises(ModelError, match="forward="):
        as_logits(output)


def test_prediction_does_not_depend_on_batches(problem) -> None:
    x = problem.test[0]
    whole = predict_logits(problem.model, x, batch_size=None)
    torch.testing.assert_close(predict_logits(problem.model, x, batch_size=7), whole, atol=1e-5, rtol=0)


def test_posteriors_are_the_softmax_in_float64(problem) -> None:
    x = problem.test[0]
    found = posteriors(problem.model, x)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, softmax(problem.model(x).detach().double().numpy(), 1), atol=1e-6)


@pytest.mark.parametrize("names", [[1, 2], ["no", "yes"], [3, 5, 9]])
def test_accuracy_of_an_estimator_is_its_score(names: list[object]) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4))
    y = np.array(names)[x[:, : len(names)].argmax(1)]
    estimator = LogisticRegression(C=0.01).fit(x, y)
    assert accuracy(estimator, (x, y)) == estimator.score(x, y)


def test_accuracy_counts(problem) -> None:
    x, y = problem.test
    assert accuracy(problem.model, (x, y)) == np.mean(problem.model(x).argmax(1).numpy() == y.numpy())
    with pytest.raises(ModelError, match="labels"):
        accuracy(problem.model, x)


def test_modes_are_given_back_even_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model.train()
    model[1].eval()

    def fail() -> None:
        with evaluation(model):
            assert not any(module.training for module in model.modules())
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    assert [module.training for module in model.modules()] == [True, True, False]


def test_dropout_is_off() -> None:
    model = nn.Sequential(nn.Dropout(0.9)).train()
    assert torch.equal(predict_logits(model, torch.ones(3, 4)), torch.ones(3, 4))


def test_outputs_with_logits_are_understood() -> None:
    class Wrapped(nn.Module):
        def forward(self, x):
            return SimpleNamespace(logits=x)

    assert torch.equal(predict_logits(Wrapped(), torch.eye(2)), torch.eye(2))


def test_non_finite_logits_are_an_error() -> None:
    class Broken(nn.Module):
        def forward(self, x):
            return x / 0

    with pytest.raises(NonFiniteError):
        predict_logits(Broken(), torch.ones(1, 2))


def test_a_model_that_loses_rows_is_refused() -> None:
    class Short(nn.Module):
        def forward(self, x):
            return x[:1]

    with pytest.raises(ModelError, match="1 rows of logits for 3 samples"):
        predict_logits(Short(), torch.ones(3, 2))


class OddError(Exception):
    """An error class of a user's own."""


@pytest.mark.parametrize("kind", [KeyError, ImportError, StopIteration, OddError])
def test_an_error_of_the_model_does_not_quote_a_sample(kind: type[Exception]) -> None:
    class Quoting(nn.Module):
        def forward(self, x):
            raise kind(f"unknown token {x.tolist()}")

    expected = rf"cannot take samples of shape \(2,\) \(torch.float32\): {kind.__name__} at"
    with pytest.raises(ModelError, match=expected) as caught:
        predict_logits(Quoting(), torch.full((1, 2), 31414.0 + 1))
    assert "31415" not in "".join(traceback.format_exception(caught.value))


def test_an_error_of_torch_is_quoted() -> None:
    with pytest.raises(ModelError, match="mat1 and mat2 shapes cannot be multiplied"):
        predict_logits(nn.Linear(3, 2), torch.ones(1, 2))
