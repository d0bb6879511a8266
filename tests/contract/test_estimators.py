"""scikit-learn's linear classifiers: estimators in, estimators out."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit, softmax
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import forsaken
from forsaken.models.logits import posteriors

Array = np.ndarray[Any, np.dtype[Any]]

FEATURES, FORGET, RETAIN = 12, 6, 12
NAMES = np.array(["ape", "bee", "cat", "dog"])


@dataclass(frozen=True)
class Kind:
    """One kind of estimator, and of the data it was fitted on."""

    name: str
    estimator: type = LogisticRegression
    classes: int = 3
    text: bool = False
    sparse: bool = False
    dtype: type = np.float64
    settings: dict[str, Any] = field(default_factory=dict)


def _kinds() -> list[Kind]:
    kinds = []
    for estimator in (LogisticRegression, LinearSVC):
        for classes in (2, 4):
            plain = Kind(f"{estimator.__name__}-{classes}", estimator, classes)
            kinds += [
                plain,
                replace(plain, name=f"{plain.name}-text", text=True),
                replace(plain, name=f"{plain.name}-no-intercept", settings={"fit_intercept": False}),
                replace(plain, name=f"{plain.name}-sparse-input", sparse=True),
                replace(plain, name=f"{plain.name}-float32", dtype=np.float32),
            ]
    return kinds


KINDS = {kind.name: kind for kind in _kinds()}


@dataclass(frozen=True)
class Fitted:
    """An estimator, the rows it was fitted on (the first are to be forgotten) and rows that it never saw."""

    kind: Kind
    model: Any
    inputs: Any
    labels: Array
    fresh: Any

    @property
    def forget(self) -> Any:
        return self.inputs[:FORGET]

    def unlearn(self, **settings: Any) -> forsaken.Unlearned[Any]:
        retain = (self.inputs[FORGET : FORGET + RETAIN], self.labels[FORGET : FORGET + RETAIN])
        asked = {"retain": retain, "target": "uniform", "iterations": 25, **settings}
        return forsaken.unlearn(self.model, (self.forget, self.labels[:FORGET]), **asked)


def _fitted(kind: Kind) -> Fitted:
    draw = np.random.default_rng(4)
    centres = draw.normal(size=(kind.classes, FEATURES))
    numbers = draw.permutation(np.arange(80) % kind.classes)
    rows = centres[numbers] + 0.7 * draw.normal(size=(80, FEATURES))
    rows[np.abs(rows) < 0.3] = 0  # so that sparse input has zeros to leave out
    labels = NAMES[numbers] if kind.text else numbers
    inputs: Any = rows.astype(kind.dtype)
    if kind.sparse:
        inputs = sparse.csr_matrix(inputs)
    # float32 fits of scikit-learn may warn about convergence at its default tolerance
    model = kind.estimator(C=10.0, max_iter=5000, tol=1e-3, random_state=0, **kind.settings)
    return Fitted(kind, model.fit(inputs[:50], labels[:50]), inputs[:50], labels[:50], inputs[50:])


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def fitted(request: pytest.FixtureRequest) -> Fitted:
    return _fitted(request.param)


def _same(a: Any, b: Any) -> bool:
    """Whether two learnt attributes are of one type, dtype and shape and hold the same bits."""
    x, y = np.asarray(a), np.asarray(b)
    return type(a) is type(b) and x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def _logits(model: Any, inputs: Any) -> Array:
    """The centred logits, in float64 even where the estimator is in float32."""
    z = model.decision_function(inputs).astype(np.float64)
    return np.stack([-z / 2, z / 2], 1) if z.ndim == 1 else z - z.mean(1, keepdims=True)


def _posterior(model: Any, inputs: Any) -> Array:
    """The posterior by its definition, from scikit-learn's own numbers."""
    if isinstance(model, LogisticRegression):
        return model.predict_proba(inputs)
    z = model.decision_function(inputs)
    return np.stack([expit(-z), expit(z)], 1) if z.ndim == 1 else softmax(z, axis=1)


def test_posteriors_are_those_of_scikit_learn(fitted: Fitted) -> None:
    found, wanted = posteriors(fitted.model, fitted.fresh), _posterior(fitted.model, fitted.fresh)
    assert found.shape == (30, fitted.kind.classes)
    # scikit-learn computes in the dtype it was fitted in
    exact = 1e-12 if fitted.kind.dtype is np.float64 else 1e-5
    np.testing.assert_allclose(found, wanted, rtol=0, atol=exact)
    assert (found.argmax(1) == np.searchsorted(fitted.model.classes_, fitted.model.predict(fitted.fresh))).all()


def test_the_estimator_handed_over_is_left_alone(fitted: Fitted) -> None:
    coef, intercept = fitted.model.coef_, fitted.model.intercept_
    before = copy.deepcopy(fitted.model.__dict__)
    fitted.unlearn()
    assert fitted.model.coef_ is coef
    assert fitted.model.intercept_ is intercept
    assert fitted.model.__dict__.keys() == before.keys()
    for name, value in before.items():
        assert _same(getattr(fitted.model, name), value), name


def test_the_result_is_a_fitted_estimator_of_the_same_class(fitted: Fitted) -> None:
    old, new = fitted.model, fitted.unlearn().model
    assert type(new) is type(old)
    assert new is not old
    assert new.get_params() == old.get_params()
    assert _same(new.classes_, old.classes_)
    assert (new.coef_.shape, new.coef_.dtype) == (old.coef_.shape, old.coef_.dtype)
    assert type(new.intercept_) is type(old.intercept_)
    assert np.asarray(new.intercept_).shape == np.asarray(old.intercept_).shape
    assert np.asarray(new.intercept_).dtype == np.asarray(old.intercept_).dtype
    assert not np.shares_memory(new.coef_, old.coef_)
    assert not np.array_equal(new.coef_, old.coef_)
    kept = fitted.inputs[FORGET : FORGET + RETAIN]
    # what is anchored stays where it was, which predictions of the wrong classes would not
    assert np.mean(new.predict(kept) == old.predict(kept)) > 0.8
    assert set(new.predict(fitted.fresh)) <= set(old.classes_)


def test_forgetting_moves_the_posteriors_to_their_target(fitted: Fitted) -> None:
    result = fitted.unlearn(penalty=1e-4)
    flat = 1 / fitted.kind.classes
    before = np.abs(_posterior(fitted.model, fitted.forget) - flat).mean()
    after = np.abs(_posterior(result.model, fitted.forget) - flat).mean()
    assert after < 0.7 * before
    assert result.details.facts["distance_after"] < 0.5 * result.details.facts["distance_before"]
    assert all(np.isfinite([step.objective, step.distance, step.anchor]).all() for step in result.history)


def test_the_report_holds_for_the_estimator_returned(fitted: Fitted) -> None:
    result = fitted.unlearn()
    for name, model in (("distance_before", fitted.model), ("distance_after", result.model)):
        wanted = np.square(_logits(model, fitted.forget)).mean()
        assert result.details.facts[name] == pytest.approx(wanted, rel=1e-3)


def test_class_means_are_those_of_the_references(fitted: Fitted) -> None:
    # rows far out are the surest, so they count as memorised
    model, forget = fitted.model, fitted.inputs[:FORGET] * 3
    others = softmax(_logits(model, fitted.fresh), axis=1)
    rows = [others[others.argmax(1) == c].mean(0) for c in _logits(model, forget).argmax(1)]
    target = np.log(np.stack(rows))
    target -= target.mean(1, keepdims=True)
    result = forsaken.unlearn(model, forget, fitted.fresh, iterations=25)
    before, after = (np.square(_logits(m, forget) - target).mean() for m in (model, result.model))
    assert result.stopped != "not-memorised"
    assert result.details.facts["distance_before"] == pytest.approx(before, rel=1e-3)
    assert after < 0.7 * before


def test_the_mask_is_the_whole_change(fitted: Fitted) -> None:
    result = fitted.unlearn()
    applied = result.mask.apply(fitted.model)
    assert type(applied) is type(fitted.model)
    assert _same(applied.coef_, result.model.coef_)
    assert _same(applied.intercept_, result.model.intercept_)
    reverted = result.mask.revert(result.model)
    assert type(reverted) is type(fitted.model)
    assert _same(reverted.coef_, fitted.model.coef_)
    assert _same(reverted.intercept_, fitted.model.intercept_)


def test_the_mask_counts_what_differs_in_the_estimator(fitted: Fitted) -> None:
    # entries that rounding to the estimator's dtype takes back did not change
    result = fitted.unlearn()
    old, new = fitted.model, result.model
    differ = np.count_nonzero(old.coef_ != new.coef_)
    differ += np.count_nonzero(np.asarray(old.intercept_) != np.asarray(new.intercept_))
    assert len(result.mask) == differ > 0
    free = old.coef_.size + (np.asarray(old.intercept_).size if old.fit_intercept else 0)
    assert result.mask.trainable == free


def test_the_same_seed_gives_the_same_bits(fitted: Fitted) -> None:
    first, second = fitted.unlearn(seed=7).model, fitted.unlearn(seed=7).model
    assert _same(first.coef_, second.coef_)
    assert _same(first.intercept_, second.intercept_)


@pytest.mark.parametrize("name", [name for name in KINDS if name.endswith("-no-intercept")])
def test_an_intercept_that_was_not_fitted_stays_as_it_is(name: str) -> None:
    fitted = _fitted(KINDS[name])
    result = fitted.unlearn()
    assert _same(result.model.intercept_, fitted.model.intercept_)
    assert not np.any(result.model.intercept_)


@pytest.mark.parametrize("name", [name for name in KINDS if name.endswith(("-2", "-4"))])
def test_an_intercept_that_was_fitted_moves(name: str) -> None:
    fitted = _fitted(KINDS[name])
    assert not np.array_equal(fitted.unlearn(penalty=0.0).model.intercept_, fitted.model.intercept_)


@pytest.mark.parametrize("estimator", [LogisticRegression, LinearSVC])
@pytest.mark.parametrize("classes", [2, 4])
def test_sparse_input_means_the_same_as_dense_input(estimator: type, classes: int) -> None:
    fitted = _fitted(KINDS[f"{estimator.__name__}-{classes}-sparse-input"])
    dense = replace(fitted, inputs=fitted.inputs.toarray(), fresh=fitted.fresh.toarray())
    assert sparse.issparse(fitted.forget)
    assert _same(fitted.unlearn().model.coef_, dense.unlearn().model.coef_)
    for kind in (sparse.csc_matrix, sparse.coo_array, sparse.csr_array):
        found = forsaken.unlearn(fitted.model, kind(fitted.forget), target="uniform", iterations=5).model
        wanted = forsaken.unlearn(fitted.model, dense.forget, target="uniform", iterations=5).model
        # formats fill memory in different orders, and sums over it round differently
        np.testing.assert_allclose(found.coef_, wanted.coef_, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("estimator", [LogisticRegression, LinearSVC])
@pytest.mark.parametrize("classes", [2, 4])
def test_class_names_mean_the_same_as_class_numbers(estimator: type, classes: int) -> None:
    # "corrected" and the loss read the labels: a name taken for the wrong class would move other weights
    texts, numbers = (_fitted(KINDS[f"{estimator.__name__}-{classes}{end}"]) for end in ("-text", ""))
    assert _same(texts.model.coef_, numbers.model.coef_)
    wrong = (numbers.labels[:FORGET] + 1) % classes
    others = np.arange(30) % classes

    def ask(fitted: Fitted, forget: Array, reference: Array) -> Any:
        retain = (fitted.inputs[FORGET : FORGET + RETAIN], fitted.labels[FORGET : FORGET + RETAIN])
        settings = {"target": "corrected", "importance": "loss", "iterations": 10}
        return forsaken.unlearn(
            fitted.model, (fitted.forget, forget), (fitted.fresh, reference), retain, **settings
        ).model

    by_name = ask(texts, NAMES[wrong], NAMES[others])
    by_number = ask(numbers, wrong, others)
    assert _same(by_name.coef_, by_number.coef_)
    assert not np.array_equal(by_name.coef_, ask(numbers, numbers.labels[:FORGET], others).coef_)


def test_a_class_that_the_estimator_does_not_know_is_refused_without_a_record_s_label() -> None:
    fitted = _fitted(KINDS["LogisticRegression-4-text"])
    with pytest.raises(forsaken.ForsakenError, match=r"labels of forget are not among .*\(ape, bee") as caught:
        forsaken.unlearn(fitted.model, (fitted.forget, ["eel"] * FORGET), target="uniform")
    assert "eel" not in str(caught.value)


def test_classes_need_not_be_numbered_from_zero() -> None:
    fitted = _fitted(KINDS["LogisticRegression-4"])
    far = np.array([-3, 10, 20, 700])
    model = LogisticRegression(**fitted.model.get_params()).fit(fitted.inputs, far[fitted.labels])
    moved = replace(fitted, model=model, labels=far[fitted.labels]).unlearn(importance="loss").model
    assert _same(moved.coef_, fitted.unlearn(importance="loss").model.coef_)
    assert set(moved.predict(fitted.fresh)) <= set(far)


@pytest.mark.parametrize("estimator", [LogisticRegression, LinearSVC])
def test_sparsified_coefficients_are_read(estimator: type) -> None:
    fitted = _fitted(KINDS[f"{estimator.__name__}-4"])
    dense = fitted.unlearn(iterations=5).model
    thin = replace(fitted, model=copy.deepcopy(fitted.model).sparsify())
    result = thin.unlearn(iterations=5)
    assert sparse.issparse(thin.model.coef_)
    assert np.array_equal(thin.model.coef_.toarray(), fitted.model.coef_)
    found = result.model.coef_.toarray() if sparse.issparse(result.model.coef_) else result.model.coef_
    np.testing.assert_allclose(found, dense.coef_, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(result.model.predict(fitted.fresh), dense.predict(fitted.fresh))


@pytest.mark.parametrize(
    "estimator",
    [RandomForestClassifier(n_estimators=3), make_pipeline(StandardScaler(), LogisticRegression())],
    ids=["forest", "pipeline"],
)
def test_other_estimators_are_refused_with_a_remedy(estimator: Any) -> None:
    fitted = _fitted(KINDS["LogisticRegression-2"])
    estimator.fit(fitted.inputs, fitted.labels)
    with pytest.raises(forsaken.ForsakenError) as caught:
        forsaken.unlearn(estimator, fitted.forget, target="uniform")
    message = str(caught.value)
    assert type(estimator).__name__ in message
    assert "LogisticRegression" in message
    assert "LinearSVC" in message
    assert "last step" in message


@pytest.mark.parametrize("estimator", [LogisticRegression, LinearSVC])
def test_an_estimator_that_is_not_fitted_is_refused(estimator: type) -> None:
    fitted = _fitted(KINDS["LogisticRegression-2"])
    with pytest.raises((forsaken.ForsakenError, NotFittedError), match=r"(?i)fit") as caught:
        forsaken.unlearn(estimator(), fitted.forget, target="uniform")
    assert estimator.__name__ in str(caught.value)
