"""Trials of exposure: a small language model that learnt canaries, numbers computed anew, and the curve over rounds."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import forsaken
from forsaken.auditing.exposure import extract
from forsaken.bench import exposure
from forsaken.bench.exposure import LanguageStage
from forsaken.bench.scenarios import canaries, table
from forsaken.bench.scenarios.scenario import Sizes
from forsaken.bench.store import Store
from forsaken.bench.trials import Trial, measure_group
from forsaken.recipe import Network, Recipe

NAME, PLACES, SECRETS = "ptb-canaries", 5, 6
WORDS = ("the", "number", "is", "random", "for", "a", "market", "said", "of", "one", "company", "two")
ROUNDS = {"rounds": 3, "steps": 8}
TRIALS = [
    Trial(NAME, 0, "before", "exposure"),
    Trial(NAME, 0, "retrained", "exposure"),
    Trial(NAME, 0, "matched", "exposure", ROUNDS),
    Trial(NAME, 0, "paper", "exposure"),
    Trial(NAME, 0, "matched-anchors", "exposure", {"iterations": 5}),
    Trial(NAME, 0, "fine-tune", "exposure"),
    Trial(NAME, 0, "gradient-ascent", "exposure"),
]


def lines(split: str) -> np.ndarray[Any, Any]:
    """Return lines of twelve words in random order."""
    seed, count = {"train": (0, 160), "valid": (1, 40), "test": (2, 40)}[split]
    draw = np.random.default_rng(seed)
    return np.array([" ".join(draw.choice(WORDS, 6)) for _ in range(count)])


@pytest.fixture(scope="module")
def small() -> Any:
    """Put a small text and network in the place of the scenario's; no dataset is needed."""
    classes = len(canaries.vocabulary(lines("train")))
    plan = dataclasses.replace(
        table.SCENARIOS[NAME],
        classes=classes,
        network=Network("language-model", {"words": classes, "units": 32, "layers": 1}),
        recipe=Recipe(epochs=30, batch_size=16, learning_rate=1e-2, clip=5.0),
        sizes=Sizes(SECRETS, 12, SECRETS, SECRETS, retain_share=0.1),
        options={"length": 40, "digits": PLACES, "lines": 160, "repeats": 8},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(table.SCENARIOS, NAME, plan)
        patch.setattr(canaries, "load_dataset", lambda _, split, **__: SimpleNamespace(content=lines(split)))
        yield plan


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def found(small: Any, store: Store) -> dict[str, dict[str, Any]]:
    return {trial.row: content["numbers"] for trial, content in measure_group(TRIALS, store)}


@pytest.fixture(scope="module")
def stage(small: Any, found: dict[str, Any], store: Store) -> LanguageStage:
    """The stage of the trials; its networks are those that were kept."""
    return exposure.staged(small.build(small, 0, lambda _: None), store=store)


def test_the_numbers_are_those_of_the_public_functions(stage: LanguageStage, found: dict[str, dict[str, Any]]) -> None:
    scenario = stage.scenario
    phrase = len("\nthe random number is ")
    vocabulary = {character: at for at, character in enumerate(scenario.names)}
    canary = forsaken.CanaryFormat.from_text("\nthe random number is ", "0123456789", PLACES, vocabulary)
    secrets = scenario.forget.inputs[:, phrase : phrase + PLACES].numpy()
    alone = forsaken.exposure(stage.retrained.model, canary, secrets).bits
    for row, model in (("before", stage.target.model), ("retrained", stage.retrained.model)):
        bits, numbers = forsaken.exposure(model, canary, secrets).bits, found[row]
        assert numbers["exposure"] == pytest.approx(bits.mean())
        assert numbers["exposure_largest"] == pytest.approx(bits.max())
        assert numbers["below_10"] == (bits < 10).mean()
        assert numbers["kolmogorov_smirnov_p"] == pytest.approx(stats.ks_2samp(bits, alone).pvalue)
        assert numbers["mann_whitney_p"] == pytest.approx(stats.mannwhitneyu(bits, alone).pvalue)
        assert numbers["beam_found"] == len(
            {tuple(one) for one in extract(model, canary, beam=200)[0].tolist()}
            & {tuple(one) for one in secrets.tolist()}
        )
        guesses = extract(model, canary, known=secrets[:, : PLACES // 3])[:, 0]
        assert numbers["greedy_found"] == sum(map(np.array_equal, guesses, secrets))
        with torch.no_grad():
            logits = model(stage.test.inputs).double()
        loss = float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), stage.test.labels.flatten()))
        assert numbers["test_loss"] == pytest.approx(loss)
        assert numbers["perplexity"] == pytest.approx(math.exp(loss))


def test_what_was_learnt_is_exposed_and_a_request_takes_it_back(found: dict[str, dict[str, Any]]) -> None:
    before, retrained, ours = found["before"], found["retrained"], found["matched"]
    assert before["below_10"] == 0
    assert before["beam_found"] == SECRETS
    assert (before["fr"], before["seconds"]) == (0, 0)
    assert retrained["below_10"] == retrained["fr"] == 1
    assert retrained["beam_found"] == 0
    assert retrained["kolmogorov_smirnov_p"] == 1
    assert ours["exposure"] < 0.6 * before["exposure"]
    assert ours["beam_found"] < SECRETS
    assert ours["test_loss"] < before["test_loss"] + 0.1
    for numbers in (ours, found["fine-tune"], found["gradient-ascent"], found["matched-anchors"]):
        assert numbers["exposure_before"] == before["exposure"]
        assert numbers["greedy_found_before"] == before["greedy_found"]
        assert numbers["seconds"] > 0
        assert numbers["retrain_seconds"] == retrained["seconds"] > 0


def test_the_curve_has_a_point_for_rounds_that_double(found: dict[str, dict[str, Any]]) -> None:
    curve, before, ours = found["matched"]["curve"], found["before"], found["matched"]
    assert [point["round"] for point in curve] == [0, 1, 2, ours["iterations"]]
    for point, numbers in ((curve[0], before), (curve[-1], ours)):
        assert {key: numbers[key] for key in point if key != "round"} == {
            key: value for key, value in point.items() if key != "round"
        }
    assert curve[0]["exposure"] > curve[1]["exposure"] > ours["exposure_before"] / 10
    assert "curve" not in found["matched-anchors"]
    assert exposure.doubling(1) == []
    assert exposure.doubling(8) == [1, 2, 4]


def test_a_point_of_the_curve_is_what_so_many_rounds_leave(
    small: Any, store: Store, found: dict[str, dict[str, Any]]
) -> None:
    trial = Trial(NAME, 0, "matched", "exposure", ROUNDS | {"rounds": 1})
    ((_, content),) = measure_group([trial], store)
    assert content["numbers"]["exposure"] == found["matched"]["curve"][1]["exposure"]
    assert len(content["numbers"]["curve"]) == 2


def test_what_is_saved_is_json_and_says_all_settings(
    small: Any, store: Store, found: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert all("refused" in numbers or numbers["forgotten_samples"] == SECRETS for numbers in found.values())
    facts = TRIALS[2].facts()
    assert facts["settings"] == {"optimiser": "gauss-newton", "batch_size": 4096, "damping": 0.3} | ROUNDS
    assert facts["options"]["repeats"] == 8
    assert Trial(NAME, 0, "fine-tune", "exposure").facts()["settings"] == {}, "not those of Reuters"


def test_a_canary_is_repeated_in_the_training_of_the_target_alone(
    stage: LanguageStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []

    def noted(scenario: Any, data: Any, **more: Any) -> Any:
        rows.append(len(data))
        return stage.target if "target" in more["stage"] else stage.retrained

    monkeypatch.setattr(exposure, "train_or_load", noted)
    scenario = stage.scenario
    exposure.staged(scenario)
    assert rows == [
        len(scenario.kept) + 8 * SECRETS,
        len(scenario.kept),
        len(scenario.shadow_members) + 7 * SECRETS,
    ]


def test_trials_of_other_kinds_share_other_models() -> None:
    assert Trial(NAME, 0, "before", "exposure").group != Trial(NAME, 0, "before").group
    assert Trial("digits", 0, "before").group == Trial("digits", 0, "paper", "truth").group
