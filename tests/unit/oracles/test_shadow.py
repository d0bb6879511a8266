"""The shadow oracle: numbers that others compute too, files without surprises, and the sign of its score."""

from __future__ import annotations

import json
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn import metrics
from torch import Tensor, nn

import forsaken
from forsaken import ShadowOracle
from forsaken.bench.networks import mlp
from forsaken.data.samples import Samples
from forsaken.errors import EmptyError, ForsakenError, OracleError, OutputError, SettingsError
from forsaken.models.train import train
from forsaken.oracles.shadow import top_posteriors
from forsaken.recipe import Recipe


@dataclass(frozen=True)
class Trained:
    """A network trained on random labels for too long, what it was trained on and what it was not."""

    model: nn.Module
    members: Tensor
    nonmembers: Tensor


def over_trained(seed: int, count: int = 200, classes: int = 4) -> Trained:
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(2 * count, 12, generator=draw)
    labels = torch.randint(classes, (count,), generator=draw)
    data = Samples(inputs[:count], labels)
    model = train(lambda: mlp((12, 64, classes)), data, Recipe(60, 40, 1e-2), seed=seed)
    return Trained(model, inputs[:count], inputs[count:])


@pytest.fixture(scope="module")
def shadow() -> Trained:
    return over_trained(1)


@pytest.fixture(scope="module")
def target() -> Trained:
    return over_trained(2)


@pytest.fixture(scope="module")
def oracle(shadow: Trained) -> ShadowOracle:
    return ShadowOracle.fit(shadow.model, members=shadow.members, nonmembers=shadow.nonmembers)


# what it says


def test_higher_scores_mean_member(oracle: ShadowOracle, target: Trained) -> None:
    scores = oracle.score(target.model, torch.cat([target.members, target.nonmembers]))
    truth = np.repeat([1, 0], [len(target.members), len(target.nonmembers)])
    assert metrics.roc_auc_score(truth, scores) > 0.6
    assert scores.dtype == np.float64
    assert scores.min() >= 0
    assert scores.max() <= 1


def test_verdicts_are_scores_above_one_half(oracle: ShadowOracle, target: Trained) -> None:
    scores, verdicts = (ask(target.model, target.members) for ask in (oracle.score, oracle.is_member))
    assert verdicts.dtype == np.bool_
    assert np.array_equal(verdicts, scores > 0.5)
    assert 0 < verdicts.sum() < len(verdicts)


def test_the_same_seed_gives_the_same_scores(shadow: Trained, target: Trained, oracle: ShadowOracle) -> None:
    torch.manual_seed(123)
    again = ShadowOracle.fit(shadow.model, members=shadow.members, nonmembers=shadow.nonmembers)
    assert np.array_equal(again.score(target.model, target.members), oracle.score(target.model, target.members))


def test_only_the_sorted_posteriors_count(oracle: ShadowOracle, target: Trained) -> None:
    swapped = oracle.score(target.model, target.members, forward=lambda model, inputs: model(inputs)[:, [2, 0, 3, 1]])
    assert np.array_equal(swapped, oracle.score(target.model, target.members))


def test_labels_are_ignored(shadow: Trained, oracle: ShadowOracle) -> None:
    labels = torch.zeros(len(shadow.members), dtype=torch.long)
    labelled = ShadowOracle.fit(shadow.model, members=(shadow.members, labels), nonmembers=shadow.nonmembers)
    found = labelled.score(shadow.model, (shadow.members, labels))
    assert np.array_equal(found, oracle.score(shadow.model, shadow.members))


def test_the_models_are_left_alone(shadow: Trained) -> None:
    state = {name: value.clone() for name, value in shadow.model.state_dict().items()}
    generator = torch.get_rng_state()
    shadow.model.train()
    fitted = ShadowOracle.fit(shadow.model, members=shadow.members, nonmembers=shadow.nonmembers)
    fitted.is_member(shadow.model, shadow.members)
    assert shadow.model.training
    shadow.model.eval()
    assert all(torch.equal(value, state[name]) for name, value in shadow.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize("times", [2, 10])
@pytest.mark.parametrize("repeated", ["members", "nonmembers"])
def test_verdicts_do_not_follow_the_sizes_of_the_sets(
    shadow: Trained, target: Trained, oracle: ShadowOracle, repeated: str, times: int
) -> None:
    sets = {"members": shadow.members, "nonmembers": shadow.nonmembers}
    sets[repeated] = sets[repeated].repeat(times, 1)
    other = ShadowOracle.fit(shadow.model, **sets)
    asked = torch.cat([target.members, target.nonmembers])
    differ = oracle.is_member(target.model, asked) != other.is_member(target.model, asked)
    assert differ.mean() <= 0.02


def test_a_smaller_set_weighs_as_much(shadow: Trained, target: Trained) -> None:
    few = ShadowOracle.fit(shadow.model, members=shadow.members, nonmembers=shadow.nonmembers[:40])
    report = few.evaluate(target.model, members=target.members, nonmembers=target.nonmembers)
    # taken by numbers alone, five members to a non-member, nearly everything would be a member
    outsiders = few.is_member(target.model, target.nonmembers).mean()
    assert outsiders < 0.6
    assert report.balanced_accuracy > 0.6


@pytest.mark.parametrize(("classes", "seen"), [(1, 2), (2, 2), (3, 3), (7, 3)])
def test_at_most_three_posteriors_are_seen(classes: int, seen: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, classes)
    inputs = torch.randn(40, 5)
    fitted = ShadowOracle.fit(model, members=inputs[:20] * 9, nonmembers=inputs[20:])
    assert fitted.classes == max(classes, 2)
    assert fitted._booster.num_features() == seen
    assert fitted.is_member(model, inputs * 9).mean() > fitted.is_member(model, inputs).mean()


@settings(deadline=None, database=None, derandomize=True)
@given(
    rows=hnp.arrays(float, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(0, 1)),
    count=st.integers(1, 5),
)
def test_top_posteriors_by_hand(rows: np.ndarray, count: int) -> None:
    expected = [sorted(row, reverse=True)[:count] for row in rows.tolist()]
    assert top_posteriors(rows, count).tolist() == expected


def test_score_posteriors_is_score(oracle: ShadowOracle, target: Trained) -> None:
    with torch.no_grad():
        posterior = target.model(target.members).double().softmax(1).numpy()
    assert np.allclose(oracle.score_posteriors(posterior), oracle.score(target.model, target.members), atol=1e-6)


# how well it does


def test_report_agrees_with_scikit_learn(oracle: ShadowOracle, target: Trained) -> None:
    members, nonmembers = target.members[:90], target.nonmembers
    report = oracle.evaluate(target.model, members=members, nonmembers=nonmembers)
    truth = np.repeat([True, False], [len(members), len(nonmembers)])
    said = oracle.is_member(target.model, torch.cat([members, nonmembers]))
    assert report.to_dict() == pytest.approx(
        {
            "accuracy": metrics.accuracy_score(truth, said),
            "precision": metrics.precision_score(truth, said),
            "recall": metrics.recall_score(truth, said),
            "balanced_accuracy": metrics.balanced_accuracy_score(truth, said),
            "members": 90,
            "nonmembers": 200,
        }
    )
    assert 0.5 < report.balanced_accuracy < 1


class Verdicts(ShadowOracle):
    """Says what it is told to, for counts that no trained model would give."""

    def __init__(self) -> None:
        self.classes = 2

    def score(self, model: object, samples: object, *, forward: object = None) -> np.ndarray:
        return np.asarray(samples, dtype=float)


@settings(deadline=None, database=None, derandomize=True)
@given(
    inside=st.lists(st.booleans(), min_size=1, max_size=20), outside=st.lists(st.booleans(), min_size=1, max_size=20)
)
def test_report_agrees_with_scikit_learn_for_any_verdicts(inside: list[bool], outside: list[bool]) -> None:
    report = Verdicts().evaluate(None, members=inside, nonmembers=outside)
    truth, said = [True] * len(inside) + [False] * len(outside), inside + outside
    assert report.accuracy == pytest.approx(metrics.accuracy_score(truth, said))
    assert report.precision == pytest.approx(metrics.precision_score(truth, said, zero_division=0.0))
    assert report.recall == pytest.approx(metrics.recall_score(truth, said))
    assert report.balanced_accuracy == pytest.approx(metrics.balanced_accuracy_score(truth, said))


# files


def test_loaded_oracle_scores_the_same(oracle: ShadowOracle, target: Trained, tmp_path: Path) -> None:
    path = oracle.save(tmp_path / "oracle.json")
    assert path == tmp_path / "oracle.json"
    loaded = ShadowOracle.load(path)
    everything = torch.cat([target.members, target.nonmembers])
    assert np.array_equal(loaded.score(target.model, everything), oracle.score(target.model, everything))
    assert loaded.classes == oracle.classes == 4
    assert loaded.save(tmp_path / "again").read_bytes() == path.read_bytes()


def test_the_file_is_json_and_no_pickle(oracle: ShadowOracle, tmp_path: Path) -> None:
    content = oracle.save(tmp_path / "oracle").read_bytes()
    assert json.loads(content)["format"] == "forsaken.shadow-oracle"
    with pytest.raises(ValueError, match=r"opcode|pickle"):
        list(pickletools.genops(content))


def test_the_file_holds_no_samples(oracle: ShadowOracle, shadow: Trained, tmp_path: Path) -> None:
    content = oracle.save(tmp_path / "oracle").read_bytes()
    assert shadow.members.numpy().tobytes()[:16] not in content
    assert str(float(shadow.members[0, 0])).encode() not in content


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\x80\x04\x95", b"[]", b"3", b"null", b"{}", b'{"format": "forsaken.mask", "version": 1}'],
    ids=repr,
)
def test_files_that_are_no_oracle(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(OracleError, match="file is not an oracle"):
        ShadowOracle.load(path)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(OracleError, match=rf"cannot read .*{path.name}"):
            ShadowOracle.load(path)


def altered(oracle: ShadowOracle, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    content = json.loads(oracle.save(path).read_bytes())
    change(content)
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_version(version: object, oracle: ShadowOracle, tmp_path: Path) -> None:
    path = altered(oracle, tmp_path / "oracle", lambda content: content.update(version=version))
    with pytest.raises(OracleError, match=rf"version {version!r}.*reads 1"):
        ShadowOracle.load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("trees"),
        lambda content: content.pop("classes"),
        lambda content: content.update(trees={}),
        lambda content: content.update(trees="trees"),
        lambda content: content["trees"]["learner"].pop("gradient_booster"),
        lambda content: content.update(classes="many"),
        lambda content: content.update(classes=None),
        lambda content: content.update(classes=-1),
        lambda content: content.update(classes=2),  # while the trees look at three posteriors
    ],
    ids=[
        "no trees",
        "no classes",
        "empty trees",
        "trees are text",
        "no booster",
        "classes are text",
        "classes are null",
        "negative classes",
        "fewer classes than posteriors",
    ],
)
def test_damaged_files(change: Callable[[dict[str, Any]], object], oracle: ShadowOracle, tmp_path: Path) -> None:
    path = altered(oracle, tmp_path / "oracle", change)
    with pytest.raises(OracleError, match="oracle is damaged"):
        ShadowOracle.load(path)


def test_truncated_file(oracle: ShadowOracle, tmp_path: Path) -> None:
    path = oracle.save(tmp_path / "oracle")
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(OracleError, match="not JSON"):
        ShadowOracle.load(path)


def test_a_folder_that_does_not_exist(oracle: ShadowOracle, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="folder"):
        oracle.save(tmp_path / "missing" / "oracle")
    assert list(tmp_path.iterdir()) == []


# what it cannot judge


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_another_number_of_classes(classes: int, oracle: ShadowOracle, target: Trained) -> None:
    for ask in (oracle.score, oracle.is_member):
        with pytest.raises(OracleError, match=rf"{classes} classes.*4.*shadow of this model"):
            ask(nn.Linear(12, classes), target.members)
    with pytest.raises(OracleError, match=f"{classes} classes"):
        oracle.evaluate(nn.Linear(12, classes), members=target.members, nonmembers=target.nonmembers)


@pytest.mark.parametrize(
    "rows",
    [np.full((3, 2), 0.5), np.full((3, 10), 0.1), np.full(4, 0.25), np.full((2, 4), np.nan), np.full((1, 4, 1), 0.25)],
    ids=["two classes", "ten classes", "one row", "NaN", "three axes"],
)
def test_rows_that_are_not_its_posteriors(rows: np.ndarray, oracle: ShadowOracle) -> None:
    with pytest.raises(ForsakenError):
        oracle.score_posteriors(rows)


@pytest.mark.parametrize("name", ["members", "nonmembers"])
def test_an_empty_set(name: str, shadow: Trained) -> None:
    sets = {"members": shadow.members, "nonmembers": shadow.nonmembers, name: shadow.members[:0]}
    with pytest.raises(EmptyError, match=name):
        ShadowOracle.fit(shadow.model, **sets)


@pytest.mark.parametrize("name", ["members", "nonmembers"])
def test_nan_inputs(name: str, shadow: Trained) -> None:
    sets = {"members": shadow.members, "nonmembers": shadow.nonmembers, name: shadow.members * np.nan}
    with pytest.raises(forsaken.errors.InputError, match=rf"{name}.*NaN"):
        ShadowOracle.fit(shadow.model, **sets)


@pytest.mark.parametrize("seed", [-1, 2**32, 0.5, "0", True])
def test_bad_seeds(seed: Any, shadow: Trained) -> None:
    with pytest.raises(SettingsError, match=r"seed is .*expected a whole number"):
        ShadowOracle.fit(shadow.model, members=shadow.members, nonmembers=shadow.nonmembers, seed=seed)


def test_a_model_that_cannot_take_the_samples(oracle: ShadowOracle, target: Trained) -> None:
    with pytest.raises(ForsakenError, match=r"\(7,\)"):
        oracle.score(target.model, target.members[:, :7])
