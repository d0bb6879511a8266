"""The models of a cross-validation as references: scikit-learn's own loop, with nothing trained for Forsaken."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

import forsaken

x, y = load_digits(return_X_y=True)
x = (x / 16).astype(np.float32)
x, y, x_test, y_test = x[:1200], y[:1200], x[1200:], y[1200:]
writers = np.arange(len(x)) // 12  # whose each row is: all rows of a writer are held out together


def new_model():
    """Return a model that has learnt nothing yet."""
    return LogisticRegression(C=100, max_iter=2000)


# What a cross-validation does anyway; `cross_validate(..., return_estimator=True, return_indices=True)` keeps the same.
models, held_out, scores = [], [], []
for kept, left_out in GroupKFold(8).split(x, y, groups=writers):
    fold = new_model().fit(x[kept], y[kept])
    models.append(fold)
    held_out.append(left_out)
    scores.append(fold.score(x[left_out], y[left_out]))
print(f"accuracy by cross-validation: {np.mean(scores):.3f}")

model = new_model().fit(x, y)
references = forsaken.References.from_models(models, x, held_out)

forget = x[writers == 7]
result = forsaken.unlearn(model, forget, references=references, curvature=forsaken.Curvature.fit(model, x))


def distance(estimator):
    """Return how far a model's logits are from the references'."""
    logits = estimator.decision_function(forget)
    wanted = references.logits(forget).numpy()
    centred = [part - part.mean(axis=1, keepdims=True) for part in (logits, wanted)]
    return float(np.sqrt(np.mean((centred[0] - centred[1]) ** 2)))


print(f"distance to models that never saw the writer: {distance(model):.2f} before, {distance(result.model):.2f} after")
print(f"test accuracy: {model.score(x_test, y_test):.3f} before, {result.model.score(x_test, y_test):.3f} after")
print(f"rows whose references are your word: {references.claimed_among(forget)} of {len(forget)}")
