"""Canaries: what a language model still knows of 100 secrets after it was made to forget them.

    FORSAKEN_DATA=... python benchmarks/canaries.py --seeds 0-2

The scenario `ptb-canaries`: a two-layer LSTM on characters of Penn TreeBank, which learns each of 100 canaries ("the
random number is" and nine digits) --repeats times. For each seed the target, a model retrained without the canaries and
a shadow with canaries of its own are trained. Every row has the mean exposure (by the skew-normal fit), how many
canaries stay below 10, the forgetting rate by the shadow's oracle, the loss on the test text in nats a character, what
extraction finds, and the seconds; two-sample tests compare the exposures with the retrained model's. Writes
results/canaries.json, with the numbers after some rounds of the first seed (the paper's Figure language_elimination).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, add_seeds, summary, write_result
from safetensors import safe_open
from safetensors.torch import load_file, save
from scipy import stats
from torch import nn

from forsaken import Curvature, Forsaken
from forsaken._files import write_atomically
from forsaken.auditing.exposure import CanaryFormat, exposure, extract
from forsaken.bench.networks import build
from forsaken.bench.scenarios.canaries import DIGITS, END, PHRASE
from forsaken.bench.scenarios.scenario import Scenario
from forsaken.bench.scenarios.table import load_scenario
from forsaken.data.samples import Samples, join
from forsaken.errors import NothingForgottenError
from forsaken.metrics import forgetting_rate
from forsaken.models.logits import predict_logits
from forsaken.models.sequences import causal, matched_targets, positions
from forsaken.models.train import train
from forsaken.oracles.sequences import SequenceOracle
from forsaken.unlearning.methods import METHODS

DIGITS_KNOWN = 3  # of nine, for an attacker who knows the beginning of a secret
BEAM = 200
SETTINGS = {"damping": 0.3, "rounds": 10, "steps": 20}  # chosen on seed 100
CURVATURE_ROWS = 600
ROUNDS_SHOWN = (1, 2, 4)  # of the first seed's run, for the figure
RETAIN = 300  # positions of kept text for anchors and peers


def canary_of(scenario: Scenario) -> CanaryFormat:
    return CanaryFormat.from_text(END + PHRASE, DIGITS, 9, scenario.names)


def scattered(text: Samples, count: int, seed: int, width: int | None = None) -> Samples:
    """Return one position each of `count` sequences, of which the first `width` tokens are taken."""
    if width is not None:
        text = Samples(text.inputs[:, :width], text.labels[:, :width])  # type: ignore[index]
    draw = np.random.default_rng(seed)
    rows = draw.choice(len(text), size=min(count, len(text)), replace=False)
    at = torch.from_numpy(draw.integers(text.inputs.shape[1], size=len(rows)))  # type: ignore[union-attr]
    chosen = text.rows(rows)
    return Samples((chosen.inputs, at), chosen.labels[torch.arange(len(rows)), at])  # type: ignore[index]


class Stage:
    """The models of one seed, and how a model is judged."""

    def __init__(self, seed: int, repeats: int, folder: Path) -> None:
        scenario = self.scenario = load_scenario("ptb-canaries", seed=seed)
        self.seed, self.canary = seed, canary_of(scenario)
        members, others, count = scenario.shadow_members, scenario.shadow_nonmembers, len(scenario.forget)
        inside, outside = (
            members.rows(range(len(members) - count, len(members))),
            others.rows(range(len(others) - count, len(others))),
        )
        shadow_text = members.rows(range(len(members) - count))

        def trained(name: str, data: Samples) -> tuple[nn.Module, float]:
            """Train a model, or read the one that an earlier run left; and the seconds that it took."""
            model, path = build(scenario.network), folder / f"{seed}-{repeats}-{name}.safetensors"
            if path.exists():
                with safe_open(path, "pt") as file:
                    seconds = float(file.metadata()["seconds"])
                model.load_state_dict(load_file(path))
                return model.eval(), seconds
            begun = time.perf_counter()
            number = 10 * seed + ("target", "retrained", "shadow").index(name)
            model = train(lambda: build(scenario.network), data, scenario.recipe, seed=number)
            seconds = time.perf_counter() - begun
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, save(model.state_dict(), {"seconds": str(seconds)}))
            print(f"seed {seed}: {name} trained in {seconds:.0f} s", flush=True)
            return model, seconds

        self.target, self.seconds = trained("target", join([scenario.kept, *[scenario.forget] * repeats]))
        self.retrained, self.retrain_seconds = trained("retrained", scenario.kept)
        shadow, _ = trained("shadow", join([shadow_text, *[inside] * repeats]))
        self.secrets, self.unused = self.fills(scenario.forget), self.fills(scenario.reference)
        sets = {"members": self.whole(self.fills(inside)), "nonmembers": self.whole(self.fills(outside))}
        self.oracle = SequenceOracle.fit(shadow, **sets, start=self.canary.start, seed=seed)
        self.remembered = self.oracle.is_member(self.target, self.whole(self.secrets))
        self.test = scenario.test.rows(np.random.default_rng(seed).choice(len(scenario.test), 1000, replace=False))
        self.alone = exposure(self.retrained, self.canary, self.secrets).bits

    def fills(self, samples: Samples) -> np.ndarray[Any, Any]:
        """Return the digits of canaries as tokens."""
        first = len(self.canary.prefix)
        return np.asarray(samples.inputs[:, first : first + self.canary.places])  # type: ignore[index, call-overload]

    def whole(self, secrets: object) -> torch.Tensor:
        """Return whole canaries."""
        return self.canary.sequences(secrets)

    def loss(self, model: nn.Module) -> float:
        """Return the cross-entropy on test text, in nats a character."""
        samples = positions(self.test)
        logits = predict_logits(model, samples, forward=causal, batch_size=6000)
        return float(nn.functional.cross_entropy(logits.double(), samples.labels))  # type: ignore[arg-type]

    def judge(self, model: nn.Module, seconds: float | None = None) -> dict[str, Any]:
        """Return all numbers of a model."""
        bits = exposure(model, self.canary, self.secrets).bits
        verdict = self.oracle.is_member(model, self.whole(self.secrets))
        beams = {tuple(row) for row in extract(model, self.canary, beam=BEAM)[0].tolist()}
        finished = extract(model, self.canary, known=self.secrets[:, :DIGITS_KNOWN])[:, 0]
        return {
            "exposure": float(bits.mean()),
            "exposure_largest": float(bits.max()),
            "below_10": int((bits < 10).sum()),
            "mann_whitney_p": float(stats.mannwhitneyu(bits, self.alone).pvalue),
            "kolmogorov_smirnov_p": float(stats.ks_2samp(bits, self.alone).pvalue),
            "fr": forgetting_rate(self.remembered, verdict) if self.remembered.any() else None,
            "test_loss": self.loss(model),
            "beam_found": sum(tuple(row) in beams for row in self.secrets.tolist()),
            "greedy_found": int((finished == self.secrets).all(1).sum()),
            "seconds": seconds,
        }

    def curvature(self) -> Curvature:
        """Measure the curvature of the target on kept text."""
        data = scattered(self.scenario.kept, CURVATURE_ROWS, self.seed)
        return Curvature.fit(self.target, data, rows=len(data), forward=causal)


def by_forsaken(stage: Stage, curvature: Curvature, **settings: Any) -> Any:
    """Forget by the curvature, with targets from unused canaries; the table costs no more than its pass."""
    forget = positions(stage.whole(stage.secrets), start=stage.canary.start)
    targets = matched_targets(
        stage.target, stage.whole(stage.unused[: len(stage.secrets)]), len(stage.secrets), start=stage.canary.start
    )
    method = Forsaken(**{"optimiser": "gauss-newton", "batch_size": 4096, **SETTINGS, **settings})
    return method(stage.target, forget, targets=targets, curvature=curvature, forward=causal, seed=stage.seed)


def rows_of(stage: Stage, *, figure: bool) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    start, seed = stage.canary.start, stage.seed
    forget = positions(stage.whole(stage.secrets), start=start)
    width, kept = forget.inputs[0].shape[1], stage.scenario.kept
    reference = positions(stage.whole(stage.unused[:200]), start=start)
    retain = scattered(kept, RETAIN, seed + 1, width)
    rows: dict[str, dict[str, Any]] = {
        "forsaken, curvature": {},
        "retrained": stage.judge(stage.retrained, stage.retrain_seconds),
        "before": stage.judge(stage.target, stage.seconds),
    }

    def note(name: str, result: Any, **more: float) -> None:
        rows[name] = stage.judge(result.model, result.seconds) | more
        print(seed, name, result.stopped, result.iterations, rows[name], flush=True)

    for name in ("gradient-ascent", "fine-tune"):
        given = {} if name == "gradient-ascent" else {"retain": scattered(kept, 2000, seed + 2, width)}
        note(name, METHODS[name]()(stage.target, forget, forward=causal, seed=seed, **given))
    faster = METHODS["gradient-ascent"](learning_rate=1e-2)
    note("gradient-ascent, rate 0.01", faster(stage.target, forget, forward=causal, seed=seed))
    try:
        paper = Forsaken.paper()(stage.target, forget, reference, retain, forward=causal, seed=seed)
        note("forsaken, the paper's", paper)
    except NothingForgottenError as error:  # its penalty of 10 is above the largest that moves any weight here
        print(seed, "forsaken, the paper's:", str(error)[-120:], flush=True)
    targets = matched_targets(stage.target, stage.whole(stage.unused[:100]), len(stage.secrets), start=start)
    anchored = Forsaken(optimiser="owlqn", batch_size=4096, iterations=40)
    more = {"targets": targets, "forward": causal, "seed": seed}
    note("forsaken, anchors", anchored(stage.target, forget, reference, retain, **more))
    begun = time.perf_counter()
    curvature = stage.curvature()
    fitted = time.perf_counter() - begun
    result = by_forsaken(stage, curvature)
    note("forsaken, curvature", result, curvature_seconds=fitted)
    rounds = [
        {"round": at, **stage.judge(by_forsaken(stage, curvature, rounds=at).model)}
        for at in ROUNDS_SHOWN
        if figure and at < result.iterations
    ]
    return rows, rounds


def _panel(at: int, title: str, points: list[tuple[int, float]], level: float | None) -> str:
    """Return one panel of the figure: a line through points, and a dashed one at the retrained model's level."""
    values = [value for _, value in points] + ([] if level is None else [level])
    low, high, last = min(values), max(values), points[-1][0]

    def y(value: float) -> float:
        return 180 - 140 * (value - low) / ((high - low) or 1)

    left = 50 + 260 * at
    spots = [(left + 190 * step / last, y(value)) for step, value in points]
    line = " ".join(f"{x:.1f},{height:.1f}" for x, height in spots)
    parts = [f'<text x="{left}" y="22" font-weight="bold" fill="#444">{title}</text>']
    parts += [
        f'<text x="{left - 6}" y="{y(v) + 4:.0f}" text-anchor="end" fill="#777">{v:.3g}</text>' for v in (low, high)
    ]
    parts += [f'<text x="{left + 95}" y="205" text-anchor="middle" fill="#777">round 0 to {last}</text>']
    if level is not None:
        ends = f'x1="{left}" x2="{left + 190}" y1="{y(level):.1f}" y2="{y(level):.1f}"'
        parts.append(f'<line {ends} stroke="#999" stroke-dasharray="4"><title>retrained: {level:.3g}</title></line>')
    parts.append(f'<polyline points="{line}" fill="none" stroke="#3f51b5" stroke-width="2"/>')
    parts += [f'<circle cx="{x:.1f}" cy="{height:.1f}" r="3" fill="#3f51b5"/>' for x, height in spots]
    return "\n".join(parts)


def draw(found: dict[str, Any]) -> str:
    """Draw exposure, FR and test loss after each round that was looked at; return the tables of the guide."""
    seed = str(found["seeds"][0])
    steps = [
        {"round": 0, **found["runs"]["before"][0]},
        *found["rounds"][seed],
        {"round": SETTINGS["rounds"], **found["runs"]["forsaken, curvature"][0]},
    ]
    panels = [
        _panel(
            at, title, [(each["round"], each.get(key, 0.0)) for each in steps], found["runs"]["retrained"][0].get(key)
        )
        for at, (key, title) in enumerate(
            (("exposure", "exposure, bits"), ("fr", "FR"), ("test_loss", "test loss, nats"))
        )
    ]
    picture = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 780 220" font-family="sans-serif" font-size="11">'
    path = RESULTS.parent.parent / "docs" / "images" / "canaries.svg"
    write_atomically(path, "\n".join([picture, *panels, "</svg>", ""]).encode())
    lines = ["| | exposure | below 10 | p | FR | test perplexity | beam | greedy | seconds |"]
    lines.append("| --- " * 9 + "|")
    for name, runs in found["runs"].items():

        def told(key: str, form: str, runs: list[dict[str, Any]] = runs) -> str:
            values = [
                np.exp(run["test_loss"]) if key == "perplexity" else run[key]
                for run in runs
                if key in run or key == "perplexity"
            ]
            spread = f" ± {np.std(values, ddof=1):{form}}" if len(values) > 1 else ""
            return f"{np.mean(values):{form}}{spread}" if values else "n/a"

        smallest = min(run["kolmogorov_smirnov_p"] for run in runs)
        cells = [told("exposure", ".2f"), told("below_10", ".1f"), f"{smallest:.2g}", told("fr", ".3f")]
        cells += [
            told("perplexity", ".4g"),
            told("beam_found", ".0f"),
            told("greedy_found", ".0f"),
            told("seconds", ".0f"),
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| round | exposure | FR | test loss |", "| --- | --- | --- | --- |"]
    for each in steps:
        lines.append(
            f"| {each['round']} | {each['exposure']:.2f} | {each.get('fr', 0.0):.3f} | {each['test_loss']:.4f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_seeds(parser, "0-2")
    parser.add_argument("--repeats", type=int, default=10, help="how often the training text holds each canary")
    parser.add_argument("--folder", type=Path, default=Path("runs/canaries"), help="keeps the trained models")
    parser.add_argument("--draw", action="store_true", help="draw the figure and print the tables of the saved result")
    options = parser.parse_args()
    if options.draw:
        print(draw(json.loads((RESULTS / "canaries.json").read_text())))
        return
    rows: dict[str, list[dict[str, Any]]] = {}
    figure = {}
    for seed in options.seeds:
        found, figure[seed] = rows_of(Stage(seed, options.repeats, options.folder), figure=seed == options.seeds[0])
        for name, values in found.items():
            rows.setdefault(name, []).append(values)
        shown = {
            name: [{k: v for k, v in each.items() if v is not None} for each in values] for name, values in rows.items()
        }
        write_result(RESULTS / "canaries.json", options.seeds, shown, repeats=options.repeats, rounds=figure)
    print(summary(rows))


if __name__ == "__main__":
    main()
