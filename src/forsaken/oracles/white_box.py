"""The white-box membership oracle: small networks over losses, outputs and gradients (Nasr et al. 2019).

One component network a signal, fully connected for vectors and a convolution for gradient matrices, an encoder of ten
units over all of them, and one probability.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from forsaken._checks import Problems
from forsaken._files import write_atomically
from forsaken._random import checked_seed, torch_seed
from forsaken._untrusted import UnreadableError, parse_json, read_safetensors
from forsaken.errors import OracleError
from forsaken.models.logits import Forward
from forsaken.models.train import usable_device
from forsaken.oracles.base import Oracle
from forsaken.oracles.signals import GradientFactors, Labels, Signals, join_signals, signals
from forsaken.types import Array, Progress, Tick, silent

_FORMAT = "forsaken.white-box-oracle"
_VERSION = "1"
_CODE = 10  # units of the encoder's output (the paper's appendix on the white-box oracle)
_KERNELS, _HIDDEN, _WIDTH, _DROPOUT = 16, 64, 32, 0.2
_FAR = 10.0  # standard deviations at which inputs are clipped
_RATE, _DECAY, _BATCH, _EPOCHS, _PATIENCE = 1e-3, 1e-3, 64, 100, 12
_HELD_OUT = 0.2  # the share of both sets that decides when to stop
_LEAST = 10
_STAGE = "fit the white-box oracle"


class _Network(nn.Module):
    """Encodes signals as ten numbers between 0 and 1, and gives the log-odds of membership from those."""

    def __init__(self, shapes: Mapping[str, Sequence[Any]]) -> None:
        super().__init__()
        self.vectors = nn.ModuleList(_component(width) for width in shapes["vectors"])
        # A kernel spans one row of the gradient, the weights of one unit, as in Nasr et al.; on an outer product that
        # is a product with the layer's inputs alone, so that no matrix is ever made.
        self.kernels = nn.ModuleList(nn.Linear(columns, _KERNELS, bias=False) for _, columns in shapes["gradients"])
        self.shifts = nn.ParameterList(torch.zeros(_KERNELS) for _ in shapes["gradients"])
        self.matrices = nn.ModuleList(_component(rows * _KERNELS) for rows, _ in shapes["gradients"])
        parts = len(shapes["vectors"]) + len(shapes["gradients"])
        self.encoder = nn.Sequential(
            nn.Linear(parts * _WIDTH, _HIDDEN), nn.ReLU(), nn.Dropout(_DROPOUT), nn.Linear(_HIDDEN, _CODE), nn.Sigmoid()
        )
        self.verdict = nn.Linear(_CODE, 1)
        for at, width in enumerate(shapes["vectors"]):
            self.register_buffer(f"mean_{at}", torch.zeros(width))
            self.register_buffer(f"scale_{at}", torch.ones(width))

    def standardise(self, seen: Signals) -> None:
        """Set the mean and the standard deviation of each column to those of the training signals."""
        for at, vector in enumerate(seen.vectors):
            spread = vector.std(0, correction=0)
            getattr(self, f"mean_{at}").copy_(vector.mean(0))
            getattr(self, f"scale_{at}").copy_(torch.where(spread > 1e-6, spread, 1.0))

    def encode(self, seen: Signals) -> Tensor:
        """Return the code (n x 10) of each sample."""
        found = []
        for at, (part, vector) in enumerate(zip(self.vectors, seen.vectors, strict=True)):
            apart = (vector - getattr(self, f"mean_{at}")) / getattr(self, f"scale_{at}")
            found.append(part(apart.clamp(-_FAR, _FAR)))
        for kernels, shift, part, gradient in zip(
            self.kernels, self.shifts, self.matrices, seen.gradients, strict=True
        ):
            found.append(part(_convolved(kernels, gradient, shift).relu().flatten(1)))
        code: Tensor = self.encoder(torch.cat(found, dim=1))
        return code

    def forward(self, seen: Signals) -> Tensor:
        """Return the log-odds of membership."""
        odds: Tensor = self.verdict(self.encode(seen)).squeeze(1)
        return odds


def _convolved(kernels: nn.Module, gradient: GradientFactors, shift: Tensor) -> Tensor:
    scale = math.sqrt(gradient.errors.shape[2] * gradient.inputs.shape[2])  # entries of a matrix of norm one are small
    return torch.einsum("npo,npk->nok", gradient.errors * scale, kernels(gradient.inputs)) + shift


def _component(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, _HIDDEN), nn.ReLU(), nn.Dropout(_DROPOUT), nn.Linear(_HIDDEN, _WIDTH), nn.ReLU()
    )


class WhiteBoxOracle(Oracle):
    """White-box membership oracle of one model. Higher scores mean member.

    Its signals are the loss, the label, and the outputs and gradients of the last layers, sorted so that they do not
    depend on the order of a model's hidden units. It can therefore judge other models of the same shape, such as one
    that has forgotten or was retrained, as far as these are like the model that it was fitted on.

    Examples
    --------
    >>> import numpy as np
    >>> from forsaken.bench.networks import mlp
    >>> draw = np.random.default_rng(0)
    >>> inside, outside = ((draw.normal(size=(40, 5)), draw.integers(3, size=40)) for _ in range(2))
    >>> oracle = WhiteBoxOracle.fit(mlp((5, 8, 3)), members=inside, nonmembers=outside)
    >>> oracle.encode(mlp((5, 8, 3)), outside).shape
    (40, 10)
    """

    def __init__(self, network: nn.Module, shapes: Mapping[str, Sequence[Any]], *, layers: int, labels: Labels) -> None:
        self._network = network.eval()
        self._shapes = dict(shapes)
        self.layers = layers
        self.labels = labels

    @classmethod
    def fit(
        cls,
        model: object,
        *,
        members: object,
        nonmembers: object,
        layers: int = 1,
        labels: Labels = "given",
        forward: Forward | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
        progress: Progress = silent,
    ) -> WhiteBoxOracle:
        """Learn from a model how the signals of its members differ from those of non-members.

        Parameters
        ----------
        model : Module or estimator
            The target itself (as Nasr et al. do, with some of its members known) or a shadow.
        members, nonmembers : pair, Dataset or DataLoader
            What the model was and was not trained on, with labels. Both sets have the same total weight. Give both
            sets the same kinds of samples in the same shares, or the oracle learns to tell the kinds apart.
        layers : 1 or 2
            How many of the last dense or convolutional layers it looks at.
        labels : "given" or "predicted"
            Whether the loss is taken under the samples' own labels or under the model's predictions; in the second
            case labels are ignored.
        forward : callable, optional
            How to call a model whose output is not the logits themselves.
        seed : int
            Decides initial weights, order, dropout and which samples are held out.
        device : str or device
            Where the oracle's own networks are trained; the model stays where it is.
        progress : callable
            Called after each epoch.
        """
        problems = Problems("WhiteBoxOracle")
        problems.whole("layers", layers, least=1, most=2)
        problems.choice("labels", labels, get_args(Labels))
        problems.report()
        start, place = checked_seed(seed), usable_device(device)
        seen = {
            name: signals(model, data, name, layers=layers, labels=labels, forward=forward)
            for name, data in (("members", members), ("nonmembers", nonmembers))
        }
        for name, part in seen.items():
            if len(part) < _LEAST:
                raise OracleError(f"{len(part)} {name}, expected {_LEAST} or more; give more samples")
        inside, outside = seen["members"], seen["nonmembers"]
        _check_shapes(inside.shapes(), outside.shapes())
        truth = torch.tensor([1.0, 0.0]).repeat_interleave(torch.tensor([len(inside), len(outside)]))
        with torch_seed(start):
            network = _fitted(join_signals([inside, outside]).to(place), truth.to(place), progress)
        return cls(network, inside.shapes(), layers=layers, labels=labels)

    def score(self, model: object, samples: object, *, forward: Forward | None = None) -> Array:
        """Return the probability of membership of each sample, a float64 array. Higher means member."""
        return self._asked(lambda seen: self._network(seen).double().sigmoid(), model, samples, forward)

    def encode(self, model: object, samples: object, *, forward: Forward | None = None) -> Array:
        """Return the encoder's ten units for each sample (n x 10, from 0 to 1), for a picture of what it sees."""
        network: Any = self._network
        return self._asked(lambda seen: network.encode(seen).double(), model, samples, forward)

    def _asked(self, act: Any, model: object, samples: object, forward: Forward | None) -> Array:
        seen = signals(model, samples, "samples", layers=self.layers, labels=self.labels, forward=forward)
        _check_shapes(self._shapes, seen.shapes())
        place = next(self._network.parameters()).device
        with torch.no_grad():
            parts = [act(seen.rows(rows).to(place)).cpu() for rows in torch.split(torch.arange(len(seen)), 512)]
        return torch.cat(parts).numpy()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the oracle as safetensors."""
        about = {"layers": self.layers, "labels": self.labels, "shapes": self._shapes}
        header = {"format": _FORMAT, "version": _VERSION, "oracle": json.dumps(about)}
        state = {name: value.cpu().contiguous() for name, value in self._network.state_dict().items()}
        return write_atomically(path, safetensors.torch.save(state, metadata=header))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> WhiteBoxOracle:
        """Read an oracle that `save` wrote. Nothing is unpickled."""
        try:
            header, state = read_safetensors(path)
        except (UnreadableError, OSError) as error:
            raise OracleError(f"cannot read {path} as a white-box oracle: {error}; give a file of its save") from error
        if header.get("format") != _FORMAT:
            raise OracleError(f"{path} is not a white-box oracle; expected a file that WhiteBoxOracle.save wrote")
        if header.get("version") != _VERSION:
            raise OracleError(f"{path} has version {header.get('version')!r}, this package reads {_VERSION!r}")
        try:
            about = parse_json(header["oracle"])
            network = _from_file(about, state)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise OracleError(f"{path} is damaged: its networks cannot be read; fit the oracle again") from error
        place = usable_device(device)
        return cls(network.to(place), about["shapes"], layers=about["layers"], labels=about["labels"])


def _from_file(about: Mapping[str, Any], state: Mapping[str, Tensor]) -> _Network:
    layers, shapes = about["layers"], about["shapes"]
    counts = len(shapes["vectors"]), len(shapes["gradients"])
    if layers not in (1, 2) or about["labels"] not in get_args(Labels) or counts != (2 + layers, layers):
        raise ValueError("settings")
    if any(value.dtype != torch.float32 or not bool(value.isfinite().all()) for value in state.values()):
        raise ValueError("weights")
    with torch.device("meta"):  # so that a file cannot ask for more memory than it takes itself
        network = _Network(shapes)
    network.load_state_dict(state, assign=True)
    return network


def _fitted(seen: Signals, truth: Tensor, progress: Progress) -> _Network:
    """Train until the loss on a held-out part has not improved for some epochs; return the best network."""
    held = torch.zeros(len(seen), dtype=torch.bool)
    for side in (0.0, 1.0):
        rows = (truth.cpu() == side).nonzero()[:, 0]
        held[rows[torch.randperm(len(rows))[: round(_HELD_OUT * len(rows))]]] = True
    train, apart = (part.nonzero()[:, 0].to(truth.device) for part in (~held, held))
    # Equal total weights, or the verdict would follow the sizes of the two sets.
    weights = torch.where(truth > 0, 0.5 / truth.mean(), 0.5 / (1 - truth.mean()))
    network = _Network(seen.shapes()).to(truth.device)
    network.standardise(seen.rows(train))
    optimiser = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)

    def loss(rows: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(network(seen.rows(rows)), truth[rows], weights[rows])

    best, lowest, since = {}, math.inf, 0
    for epoch in range(1, _EPOCHS + 1):
        network.train()
        for rows in torch.split(train[torch.randperm(len(train)).to(train.device)], _BATCH):
            optimiser.zero_grad()
            loss(rows).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        network.eval()
        with torch.no_grad():
            found = float(loss(apart))
        since += 1
        if found < lowest:
            best, lowest, since = {name: value.clone() for name, value in network.state_dict().items()}, found, 0
        progress(Tick(_STAGE, epoch, _EPOCHS))
        if since == _PATIENCE:
            break
    if not best:
        raise OracleError("the white-box oracle's loss is not finite; are the model's outputs?")
    network.load_state_dict(best)
    return network.eval()


def _check_shapes(known: Mapping[str, Sequence[Any]], found: Mapping[str, Sequence[Any]]) -> None:
    if dict(known) != dict(found):
        raise OracleError(
            f"the oracle knows signals of shapes {dict(known)}, but the model has {dict(found)}; fit an oracle on a "
            "model of this shape"
        )
