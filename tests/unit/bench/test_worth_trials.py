"""What references are worth, and requests in a row, as trials: small networks, and numbers that are computed twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forsaken.bench import sequences, worth
from forsaken.bench.benchmarks import BENCHMARKS
from forsaken.bench.scenarios.table import load_scenario
from forsaken.bench.sequences import ORDERS, SequenceStage
from forsaken.bench.store import Store
from forsaken.bench.trials import Changes
from forsaken.bench.worth import WorthStage
from forsaken.errors import UnknownNameError
from forsaken.metrics import request_u_lira, u_lira
from forsaken.references.worth import Worth

FEW = Changes(epochs=4)


def stage(store: Store | None = None) -> WorthStage:
    return worth.staged(FEW.scenario("digits-id", 100), store=store)


def test_fold_models_lack_their_fold_and_judges_lack_what_is_forgotten() -> None:
    found = stage()
    forgotten = set(range(found.rest, len(found.train)))
    assert len(forgotten) == len(load_scenario("digits-id", seed=100).forget) == 20
    assert not forgotten & set(found.judges(2)[1].rows)
    assert not forgotten & set(found.fold_model(4, 0).rows), "the samples to forget are one group"
    folds = [set(found.fold_model(4, 0, at).rows) for at in range(4)]
    assert sorted(row for rows in folds for row in set(range(len(found.train))) - rows) == list(range(len(found.train)))
    assert found.fold_model(4, 1, 1).rows.tolist() != found.fold_model(4, 0, 1).rows.tolist()
    wholes = [one for table in range(2) for one in found.wholes(table, 2)]
    assert {len(one.rows) for one in wholes} == {len(found.train)}
    assert len({one.seed for one in wholes}) == 4, "each table has a target of its own"


def test_answers_come_from_the_store_the_second_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    first = stage(store)
    models = [*first.wholes(0, 1), *first.judges(2)]
    said = first.answers(models)
    monkeypatch.setattr(worth, "predict_logits", lambda *_: pytest.fail("trained again"))
    again = stage(store).answers(models[::-1])
    for name, logits in said.items():
        np.testing.assert_array_equal(again[name], logits[::-1])


def test_what_is_measured_is_the_attack_on_the_fold_models() -> None:
    found = stage()
    numbers = worth.measured(found, folds=4, models=4, tables=2, wholes=2)
    references = found.answers([found.fold_model(4, table) for table in range(4)])["forget"]
    judges = found.answers(found.judges(8))["forget"]
    margins = [found.margins(logits, "forget") for logits in (references, judges[:4])]
    assert numbers["auc_forget"] == u_lira(*margins).auc
    assert len(numbers["estimates"]) == len(numbers["worths"]) == 2
    assert numbers["estimate"] == pytest.approx(np.mean(numbers["estimates"]))
    assert numbers["request"] == pytest.approx(20 / len(found.train))
    near = [abs(one - numbers["auc_forget"]) <= 0.04 for one in numbers["expected_of_tables"]]
    assert numbers["near"] == np.mean(near)


def test_an_attack_with_few_models_is_expected_to_find_less() -> None:
    known = Worth(0.0, 0.0, 0.0, 0.4, 0.9, 0.0, 0.0, 4, 100, 2)
    few, many = (worth.expected_with(models, known, 0.0) for models in (8, 200))
    assert few < many == pytest.approx(known.at(4), abs=0.01)


@pytest.fixture(scope="module")
def originals() -> SequenceStage:
    # Strangers under random labels, learnt by heart: a model that still knows them is told at once.
    return sequences.staged(Changes(epochs=40, forget=10).scenario("digits", 100), models=3)


@pytest.mark.parametrize("order", ORDERS)
def test_requests_in_a_row_forget_everything_in_the_end(
    originals: SequenceStage, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted, fit = [], sequences.References.fit
    monkeypatch.setattr(sequences, "REFIT", 1)
    monkeypatch.setattr(sequences.References, "fit", lambda *given, **named: fitted.append(1) or fit(*given, **named))
    numbers = sequences.measured(originals, "references", order, requests=2)
    assert len(fitted) == len(originals.originals) * (2 if order == "row, refit" else 1), "tables"
    before = sequences.measured(originals, "before", requests=2)["auc_2"]
    assert before > 0.95
    assert numbers["auc_2"] < before - 0.05
    counts = (2,) if order == "one request" else (1, 2)
    assert {name for name in numbers if name.startswith("auc_last")} == {f"auc_last_{count}" for count in counts}
    for count in counts:
        assert 0 <= numbers[f"auc_{count}"] <= 1
        assert numbers[f"changed_{count}"] > 0
    assert numbers["accuracy_2"] == pytest.approx(np.mean([one["accuracy"] for one in originals.before]), abs=0.1)


def test_the_lines_beside_them_are_the_models_as_they_are(originals: SequenceStage) -> None:
    before = sequences.measured(originals, "before", requests=2)
    retrained = sequences.measured(originals, "retrained", requests=2)

    def margins(of: list[dict[str, np.ndarray]]) -> np.ndarray:
        return np.stack([one["forget"] for one in of])

    assert before["auc_2"] == u_lira(margins(originals.before), margins(originals.judges[:3])).auc
    assert retrained["auc_2"] == u_lira(margins(originals.judges[3:]), margins(originals.judges[:3])).auc
    assert before["auc_request_2"] == request_u_lira(margins(originals.before), margins(originals.judges[:3]))
    with pytest.raises(UnknownNameError, match="order"):
        sequences.measured(originals, "references", "backwards")


def test_every_line_of_their_tables_can_be_measured() -> None:
    for name in ("worth", "sequences"):
        benchmark = BENCHMARKS[name]
        for scenario in benchmark.scenarios:
            for line in benchmark.lines_of(scenario):
                assert benchmark.trial(scenario, line, 0).key
                if name == "worth":
                    assert set(line.settings) == {"folds", "models", "tables", "wholes"}
                elif line.settings:
                    assert line.settings["order"] in ORDERS
