"""How much memory and time a request takes in a model of GPT-2 small's size: 124 million parameters from a config.

`python benchmarks/memory.py` builds a sequence classifier with random weights, measures the curvature on some texts of
random tokens, and runs one request of 20 records by the curvature solver, in a process of its own, one thread. The peak
of the resident memory is that of the whole process (getrusage); `before` is the peak before the request began, with
torch, the model and its curvature loaded. Random weights memorise nothing, so the targets are the logits of a second
model of the same config and another seed, as far away as references are. Result file: results/memory.json. One run.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2ForSequenceClassification

import forsaken
from forsaken.bench.networks import vgg16
from forsaken.models.logits import LogitModel
from forsaken.models.weights import changes
from forsaken.provenance import provenance
from forsaken.unlearning.forsaken.gauss_newton import Linearised, Metric

HERE = Path(__file__).parent
SIZES = {  # name: layers, width, vocabulary
    "gpt2-small": (12, 768, 50_257),
    "50M": (6, 640, 32_000),
    "tiny": (2, 64, 500),
}


def peak() -> int:
    """Return the largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def build(size: str, seed: int) -> GPT2ForSequenceClassification:
    layers, width, words = SIZES[size]
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=words, n_positions=1024, n_embd=width, n_layer=layers, n_head=width // 64, num_labels=4,
        pad_token_id=0,
    )  # fmt: skip
    return GPT2ForSequenceClassification(config).eval()


def measure(size: str, records: int, kept: int, length: int, rounds: int) -> dict[str, object]:
    """Return what one request took."""
    draw = torch.Generator().manual_seed(100)
    words = SIZES[size][2]
    tokens = torch.randint(1, words, (kept + records, length), generator=draw)
    with torch.no_grad():  # what a model that never saw the records says of them; it is gone before the measurement
        targets = build(size, 101)(input_ids=tokens[kept:]).logits
    model = build(size, 100)
    model_bytes = sum(weight.nbytes for weight in model.parameters())
    loaded = peak()
    start = time.perf_counter()
    curvature = forsaken.Curvature.fit(model, {"input_ids": tokens[:kept]})
    curvature_seconds, curvature_peak = time.perf_counter() - start, peak()
    start, processor = time.perf_counter(), time.process_time()
    found = forsaken.unlearn(
        model,
        {"input_ids": tokens[kept:]},
        targets=targets,
        curvature=curvature,
        optimiser="gauss-newton",
        rounds=rounds,
    )
    seconds, processor_seconds = time.perf_counter() - start, time.process_time() - processor
    moved = [name for name, (count, _) in changes(model, found.model).items() if count]
    return {
        "size": size,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "model_bytes": model_bytes,
        "records": records,
        "tokens_a_record": length,
        "rows_of_the_curvature": kept,
        "curvature_seconds": curvature_seconds,
        "curvature_peak_bytes": curvature_peak,
        "curvature_peak_over_model": curvature_peak / model_bytes,
        "loaded_peak_bytes": loaded,
        "seconds": seconds,
        "processor_seconds": processor_seconds,
        "method_seconds": found.seconds,
        "peak_bytes": peak(),
        "peak_over_model": peak() / model_bytes,
        "stopped": found.stopped,
        "rounds": found.iterations,
        "distance_before": found.details.facts["distance_before"],
        "distance_after": found.details.facts["distance_after"],
        "frozen": len(found.details.facts["left"]),
        "parameters_moved": moved,
        "moved_share": found.density,
        "runs": 1,
        "command": f"python benchmarks/memory.py --size {size} --records {records} --kept {kept} --length {length}",
        "provenance": provenance(),
    }


def fixed_costs(records: int) -> dict[str, float]:
    """Return the processor seconds of a request in a VGG-16 outside its passes, and in them: medians of three.

    What the curvature takes to be inverted and multiplied counts with the passes. The weights are random, and every
    answer is to be halved.
    """
    draw = torch.Generator().manual_seed(100)
    torch.manual_seed(100)
    model = vgg16(10, batch_norm=False)[1:].eval()  # without the layer that scales pixels
    pictures = torch.randn(64 + records, 3, 32, 32, generator=draw)
    curvature = forsaken.Curvature.fit(model, pictures[:64])
    with torch.no_grad():
        targets = model(pictures[64:]) / 2
    spent, deep = 0.0, False

    def timed(function):
        def call(*given, **named):
            nonlocal spent, deep
            if deep:  # a pass inside a pass
                return function(*given, **named)
            start, deep = time.process_time(), True
            try:
                return function(*given, **named)
            finally:
                spent, deep = spent + time.process_time() - start, False

        return call

    for kind, names in {
        Linearised: ("at", "transposed", "product"),
        Metric: ("__init__", "divide"),
        LogitModel: ("forward",),
    }.items():
        for name in names:
            setattr(kind, name, timed(getattr(kind, name)))
    outside, inside = [], []
    for _ in range(4):
        spent, start = 0.0, time.process_time()
        forsaken.unlearn(model, pictures[64:], targets=targets, curvature=curvature, rounds=1)
        inside.append(spent)
        outside.append(time.process_time() - start - spent)
    size = sum(weight.numel() for weight in model.parameters())
    return {
        "parameters": size,
        "outside_passes": statistics.median(outside[1:]),
        "in_passes": statistics.median(inside[1:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="gpt2-small")
    parser.add_argument("--records", type=int, default=20)
    parser.add_argument("--kept", type=int, default=64, help="rows that the curvature is measured on")
    parser.add_argument("--rounds", type=int, default=30, help="the most rounds; 1 suffices for the peak of the memory")
    parser.add_argument("--fixed", action="store_true", help="time a request outside its passes, in a VGG-16, instead")
    parser.add_argument("--length", type=int, default=64, help="tokens a record")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "memory.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.fixed:
        print(json.dumps(fixed_costs(given.records), indent=1))
        return
    found = measure(given.size, given.records, given.kept, given.length, given.rounds)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "parameters_moved"}, indent=1))


if __name__ == "__main__":
    main()
