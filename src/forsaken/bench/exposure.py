"""Canaries: what a language model still knows of secrets that it was made to forget (Fig. language_elimination).

A model learns the text and each canary several times (option `repeats` of the scenario). Its exposures before and
after, and what extraction finds, stand beside those of a model that was trained on the text alone. Samples are
positions of sequences (`forsaken.positions`), so that every method works on a language model as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import nn

from forsaken.auditing.exposure import CanaryFormat, exposure, extract
from forsaken.bench.rows import BEFORE, RETRAINED, method_of, row_named
from forsaken.bench.scenarios.canaries import DIGITS, END, PHRASE
from forsaken.bench.scenarios.scenario import Scenario
from forsaken.bench.scenarios.table import plan_named
from forsaken.bench.store import Store, Trained, clocked
from forsaken.bench.trial import train_or_load
from forsaken.data.samples import Samples, join
from forsaken.metrics import forgetting_rate
from forsaken.models.logits import predict_logits
from forsaken.models.sequences import causal, matched_targets, positions
from forsaken.oracles.sequences import SequenceOracle
from forsaken.references.curvature import Curvature
from forsaken.types import Array, Progress, silent
from forsaken.unlearning.forsaken.method import GAUSS_NEWTON

NEGLIGIBLE = 10  # bits of exposure, below which the paper calls the risk of an extraction negligible
BEAM = 200
_TEST = 1000  # sequences of test text
_CURVATURE = 600  # positions of kept text that the curvature is measured on
_RETAIN, _FINE_TUNE = 300, 2000  # positions of kept text that are held in place, and that are trained on
_UNUSED = 200  # unused canaries that serve as references
_LARGEST = 700.0  # nats, of which exp still is a float
_CURVE = ("exposure", "fr", "test_loss")
_BEFORE = ("exposure", "exposure_largest", "below_10", "test_loss", "beam_found", "greedy_found")


@dataclass(frozen=True, slots=True)
class LanguageStage:
    """The models of one seed, and how a model is judged.

    Attributes
    ----------
    scenario : Scenario
        The text, and canaries as whole sequences.
    canary : CanaryFormat
        The format of canaries.
    target, retrained : Trained
        Trained on the text with the canaries, and on the text alone.
    oracle : SequenceOracle
        Learnt from a shadow with canaries of its own.
    secrets, unused : int array (canaries x places)
        The digits of the canaries to forget, and of those that no model saw.
    remembered : bool array
        Which canaries the oracle takes for learnt by the target.
    alone : array
        The retrained model's exposures.
    test : Samples
        Test text.
    """

    scenario: Scenario
    canary: CanaryFormat
    target: Trained
    retrained: Trained
    oracle: SequenceOracle
    secrets: Array
    unused: Array
    remembered: Array
    alone: Array
    test: Samples

    def judge(self, model: nn.Module) -> dict[str, Any]:
        """Return how exposed the canaries are in a model, what an attacker extracts, and how well it knows test text.

        `greedy_found` counts canaries that an attacker completes who knows the first third of their digits.
        """
        bits = exposure(model, self.canary, self.secrets).bits
        verdict = self.oracle.is_member(model, self.canary.sequences(self.secrets))
        beams = {tuple(row) for row in extract(model, self.canary, beam=BEAM)[0].tolist()}
        finished = extract(model, self.canary, known=self.secrets[:, : self.canary.places // 3])[:, 0]
        loss = self.loss(model)
        return {
            "exposure": float(bits.mean()),
            "exposure_largest": float(bits.max()),
            "below_10": float((bits < NEGLIGIBLE).mean()),
            "mann_whitney_p": float(stats.mannwhitneyu(bits, self.alone).pvalue),
            "kolmogorov_smirnov_p": float(stats.ks_2samp(bits, self.alone).pvalue),
            "fr": forgetting_rate(self.remembered, verdict) if self.remembered.any() else None,
            "test_loss": loss,
            "perplexity": math.exp(loss) if loss < _LARGEST else None,
            "beam_found": sum(tuple(row) in beams for row in self.secrets.tolist()),
            "greedy_found": int((finished == self.secrets).all(1).sum()),
        }

    def loss(self, model: nn.Module) -> float:
        """Return the cross-entropy on test text, in nats a character."""
        samples = positions(self.test)
        logits = predict_logits(model, samples, forward=causal, batch_size=6000)
        return float(nn.functional.cross_entropy(logits.double(), samples.labels))  # type: ignore[arg-type]


def staged(
    scenario: Scenario,
    progress: Progress = silent,
    *,
    device: str | torch.device = "cpu",
    store: Store | None = None,
) -> LanguageStage:
    """Train the target, the retrained model and the shadow; networks that a store holds are not trained again."""
    options: Any = plan_named(scenario.name).options
    seed, count = scenario.seed, len(scenario.forget)
    canary = CanaryFormat.from_text(END + PHRASE, DIGITS, options["digits"], scenario.names)
    # The shadow's canaries are the last rows of its text, and those that it never saw the last rows of the other text.
    text, inside = _split(scenario.shadow_members, count)
    _, outside = _split(scenario.shadow_nonmembers, count)

    def trained(what: str, number: int, text: Samples, *canaries: Samples) -> Trained:
        return train_or_load(
            scenario,
            join([text, *canaries * int(options["repeats"])]),
            seed=seed * 10 + number,
            device=device,
            store=store,
            progress=progress,
            stage=f"train the {what}",
        )

    def digits(samples: Samples) -> Array:
        first = len(canary.prefix)
        return np.asarray(samples.inputs[:, first : first + canary.places])  # type: ignore[index, call-overload]

    target = trained("target", 0, scenario.kept, scenario.forget)
    retrained = trained("retrained model", 1, scenario.kept)
    shadow = trained("shadow", 2, text, inside).model
    secrets = digits(scenario.forget)
    oracle = SequenceOracle.fit(
        shadow,
        members=canary.sequences(digits(inside)),
        nonmembers=canary.sequences(digits(outside)),
        start=canary.start,
        seed=seed,
    )
    drawn = np.random.default_rng(seed).choice(len(scenario.test), min(_TEST, len(scenario.test)), replace=False)
    return LanguageStage(
        scenario,
        canary,
        target,
        retrained,
        oracle,
        secrets,
        digits(scenario.reference),
        oracle.is_member(target.model, canary.sequences(secrets)),
        exposure(retrained.model, canary, secrets).bits,
        scenario.test.rows(drawn),
    )


def measured(
    stage: LanguageStage, name: str, settings: Mapping[str, Any], progress: Progress = silent
) -> dict[str, Any]:
    """Return what a row leaves of the canaries, and for a request by the curvature the curve over its rounds.

    Parameters
    ----------
    stage : LanguageStage
        The trained models.
    name : str
        A name of `rows.ROWS`.
    settings : mapping
        Every setting of the method that is not its default.
    progress : callable
        Called while the method works.
    """
    before = stage.judge(stage.target.model)
    if name == BEFORE:
        after, numbers = before, {"seconds": 0.0}
    elif name == RETRAINED:
        times = {"seconds": stage.retrained.seconds, "processor_seconds": stage.retrained.processor_seconds}
        after, numbers = stage.judge(stage.retrained.model), times
    else:
        after, numbers = _forgotten(stage, name, settings, before, progress)
    return (
        after
        | {f"{key}_before": before[key] for key in _BEFORE}
        | {
            "memorised": int(stage.remembered.sum()),
            "forgotten_samples": len(stage.secrets),
            "train_seconds": stage.target.seconds,
            "retrain_seconds": stage.retrained.seconds,
            "retrain_processor_seconds": stage.retrained.processor_seconds,
        }
        | numbers
    )


def _forgotten(
    stage: LanguageStage, name: str, settings: Mapping[str, Any], before: Mapping[str, Any], progress: Progress
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is left after a request, and what the request took.

    The model after k rounds is found by running the same request with `rounds=k`.
    """
    given, numbers = _given(stage, name, settings)

    def request(**changes: Any) -> Trained:
        method = method_of(name, {**settings, **changes})
        more: dict[str, Any] = {"forward": causal, "seed": stage.scenario.seed, "progress": progress}
        return clocked(lambda: method(stage.target.model, **given, **more))

    found = request()
    result = found.model
    after = stage.judge(result.model)
    numbers |= {
        "seconds": result.seconds,
        "processor_seconds": found.processor_seconds,
        "density": result.density,
        "iterations": result.iterations,
        "stopped": result.stopped,
    }
    if "curvature" in given:
        between = [(at, stage.judge(request(rounds=at).model.model)) for at in doubling(result.iterations)]
        points = [(0, before), *between, (result.iterations, after)]
        numbers["curve"] = [{"round": at, **{key: seen[key] for key in _CURVE}} for at, seen in points]
    return after, numbers


def doubling(end: int) -> list[int]:
    """Return 1, 2, 4 and so on, below `end`.

    >>> doubling(10)
    [1, 2, 4, 8]
    """
    return [2**power for power in range(max(0, end - 1).bit_length())]


def _given(stage: LanguageStage, name: str, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the method of a row is called with, and the seconds that its curvature took, which is made once."""
    row, scenario, seed, start = row_named(name), stage.scenario, stage.scenario.seed, stage.canary.start
    whole, model = stage.canary.sequences, stage.target.model
    forget = positions(whole(stage.secrets), start=start)
    width = forget.inputs[0].shape[1]  # type: ignore[index,union-attr]
    found: dict[str, Any] = {"forget": forget}
    if row.method == "fine-tune":
        return found | {"retain": scattered(scenario.kept, _FINE_TUNE, [seed, 2], width)}, {}
    if row.method != "forsaken":
        return found, {}
    if row.preset == "matched":
        count = len(stage.secrets)
        found["targets"] = matched_targets(model, whole(stage.unused[:count]), count, start=start)
    if settings.get("optimiser") == GAUSS_NEWTON:
        data = scattered(scenario.kept, _CURVATURE, [seed, 0])
        curvature = clocked(lambda: Curvature.fit(model, data, rows=len(data), forward=causal))
        return found | {"curvature": curvature.model}, {"curvature_seconds": curvature.seconds}
    found["reference"] = positions(whole(stage.unused[:_UNUSED]), start=start)
    return found | {"retain": scattered(scenario.kept, _RETAIN, [seed, 1], width)}, {}


def scattered(text: Samples, count: int, seed: list[int], width: int | None = None) -> Samples:
    """Return one position each of `count` sequences, of which the first `width` tokens are taken.

    `seed` holds the scenario's seed and a number for the purpose, so that no two seeds share a draw.
    """
    if width is not None:
        text = Samples(text.inputs[:, :width], text.labels[:, :width])  # type: ignore[index,call-overload]
    draw = np.random.default_rng(seed)
    rows = draw.choice(len(text), size=min(count, len(text)), replace=False)
    at = torch.from_numpy(draw.integers(text.inputs.shape[1], size=len(rows)))  # type: ignore[union-attr]
    chosen = text.rows(rows)
    return Samples((chosen.inputs, at), chosen.labels[torch.arange(len(rows)), at])  # type: ignore[index]


def _split(samples: Samples, count: int) -> tuple[Samples, Samples]:
    """Return all but the last `count` rows, and those."""
    first = len(samples) - count
    return samples.rows(np.arange(first)), samples.rows(np.arange(first, len(samples)))
