"""SISA-DP, read as private training: constituents trained by DP-SGD through Opacus."""

from __future__ import annotations

import hashlib
import importlib
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from forsaken._random import Purpose, generator, torch_seed
from forsaken.data.samples import Samples
from forsaken.errors import ModelError, NonFiniteError, SettingsError
from forsaken.models.logits import caller
from forsaken.models.train import Training, rate_at, take, usable_device
from forsaken.recipe import Recipe
from forsaken.unlearning.base import About
from forsaken.unlearning.settings import number
from forsaken.unlearning.sisa.method import EnsembleState, Sisa, SisaEnsemble
from forsaken.unlearning.sisa.shards import ShardedData, SliceStage, labels_of
from forsaken.unlearning.sisa.training import StageTrainer

_MOMENTUM = 0.9
_UNFIT = "the network cannot be trained by DP-SGD ({}); use sisa or sisa-dp"


@dataclass(frozen=True, kw_only=True)
class SisaDpSgd(Sisa):
    """SISA whose constituents are trained by DP-SGD, so that the ensemble is (ε, δ)-private given the shards.

    Every step draws each row of the stage by chance, cuts each sample's gradient to the norm `clip` and adds noise to
    their sum (Abadi et al., "Deep Learning with Differential Privacy", 2016), by Opacus with ghost clipping. The noise
    is found such that all stages of a shard together spend ε: they compose one after the other, while shards are
    disjoint and cost nothing beside each other. Batch-norm, which lets samples see each other, becomes group-norm.

    Parameters
    ----------
    epsilon, delta : float
        What the training of the ensemble may spend; δ should be well below one over the number of samples.
    clip : float
        The largest norm of a sample's gradient.

    Notes
    -----
    What holds is (ε, δ) given how rows were assigned to shards, for one row of its shard being there or not. It does
    not hold between data sets of n and n + 1 rows, since every row is then assigned anew, nor for replacing a row,
    which moves a step by up to 2·clip. A request trains the touched shards again from a checkpoint, with fresh
    noise in every stage whose rows are others than before, and both models have been seen: the samples left in such
    a shard have spent more than ε, and `epsilon_spent` tells how much, from the accountant over all steps of this
    model and those that it came from. Requests made of one and the same model do not count each other; who
    publishes both results has spent more. Which rows were forgotten is not hidden. Random numbers come from torch's
    own generator by the seed, so keep the seed secret.
    """

    about: ClassVar[About] = About(
        summary="SISA whose constituents are trained by DP-SGD, at ε = 16 over all slices",
        paper='Bourtoule et al., IEEE S&P 2021, with Abadi et al., "Deep Learning with Differential Privacy", CCS 2016',
        needs=("forget (rows of the training data)",),
        upfront="trains the model itself, privately, as an ensemble, and keeps checkpoints on disk; needs Opacus",
    )

    epsilon: float = number(16.0, "ε that training spends, over all slices", least=1e-2, most=200.0)
    delta: float = number(1e-5, "δ that training spends", least=1e-15, most=0.5)
    clip: float = number(1.0, "the largest norm of a sample's gradient", least=1e-9)

    def _trainer(self, training: Training, sharded: ShardedData) -> StageTrainer:
        recipe = training.recipe
        unused = [name for name in ("augmentation", "clip") if getattr(recipe, name) is not None]
        if unused:
            raise SettingsError(
                f"the recipe has {' and '.join(unused)}, which DP-SGD does not use; leave it out (the norm of each "
                "sample's gradient is bounded by the method's own clip)"
            )
        # Shards differ by a row or two: the one that asks for the most noise decides for all.
        plans = {
            private_plan(sizes, sizes, recipe.epochs, recipe.batch_size)
            for sizes in (tuple(int(size) for size in counts.cumsum()) for counts in sharded.assigned)
        }
        noise = max(noise_for(plan, self.epsilon, self.delta) for plan in plans)
        return PrivateTrainer(training, noise, self.clip)

    def epsilon_spent(self, model: SisaEnsemble) -> float:
        """Return ε at the method's δ for the samples of the shard that has spent most, over all of its trainings."""
        return self._spent(model.ensemble_state)

    def _spent(self, ensemble_state: EnsembleState) -> float:
        trainer, found = ensemble_state.trainer, set()
        for counts, trainings in zip(ensemble_state.sharded.assigned, ensemble_state.trainings, strict=True):
            sizes = tuple(int(size) for size in counts.cumsum())
            stages = trainer.plan(sizes, sizes)
            found.add(tuple(stage for first in trainings for stage in stages[first - 1 :]))
        return max(spent(stages, _noise(trainer), self.delta) for stages in found)

    def _facts_of_variant(self, ensemble_state: EnsembleState) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "epsilon_spent": self._spent(ensemble_state),
            "noise_multiplier": _noise(ensemble_state.trainer),
        }

    def _notes_of_variant(self, facts: Mapping[str, Any]) -> list[str]:
        if facts["epsilon_spent"] <= self.epsilon:
            return []
        return [
            f"the samples left in the shards that were trained again have spent ε = {facts['epsilon_spent']:.2f} at "
            f"δ = {self.delta:g}, not {self.epsilon:g}: the model before and this one together tell more than each"
        ]


@dataclass(frozen=True, slots=True)
class PrivateTrainer:
    """Trains a stage by DP-SGD, with as much noise in every stage."""

    training: Training
    noise: float
    clip: float

    def plan(self, sizes: tuple[int, ...], assigned: tuple[int, ...]) -> tuple[SliceStage, ...]:
        """Return the stages, as long as when the rows were assigned."""
        return private_plan(sizes, assigned, self.training.recipe.epochs, self.training.recipe.batch_size)

    def seeds(self, sharded: ShardedData, shard: int) -> tuple[int, ...]:
        """Return a seed for each stage that follows its rows.

        Noise that two trainings share would cancel in the difference of their models, and the accountant counts on
        noise that they do not share. Stages with the same rows have the same seed, so that going on from a checkpoint
        still gives what training from the beginning does.
        """
        digest, found = hashlib.blake2b(digest_size=16), []
        for slice_, seed in enumerate(sharded.stage_seeds(shard), start=1):
            for at in np.flatnonzero((sharded.shard == shard) & (sharded.slice == slice_)):
                digest.update(sharded.keys[at])
            rows = int.from_bytes(digest.copy().digest(), "big")
            found.append(int(generator(seed, Purpose.DP_ROWS, rows).integers(2**32)))
        return tuple(found)

    def build(self) -> nn.Module:
        """Return a new network that DP-SGD can train: group-norm in place of batch-norm."""
        validator = opacus("opacus.validators").ModuleValidator
        network: nn.Module = validator.fix(self.training.build())
        wrong = validator.validate(network.train(), strict=False)
        if wrong:
            raise ModelError(_UNFIT.format(wrong[0]))
        return network

    def train_stage(self, network: nn.Module, data: Samples, stage: SliceStage, seed: int) -> nn.Module:
        """Train the network for one stage; a step takes each row with the chance `stage.rate`."""
        recipe, place = self.training.recipe, usable_device(self.training.device)
        weights = [weight for weight in network.parameters() if weight.requires_grad]
        plain = _optimiser(weights, recipe)
        noise = torch.Generator(place).manual_seed(int(generator(seed, Purpose.DP_NOISE).integers(2**63)))
        optimiser = opacus("opacus.optimizers").DPOptimizerFastGradientClipping(
            plain,
            noise_multiplier=self.noise,
            max_grad_norm=self.clip,
            expected_batch_size=stage.batch,
            loss_reduction="mean",
            generator=noise,
        )
        labels = labels_of(data)
        with torch_seed(seed), _watched(network.train(), self.clip) as module:
            logits_of = caller(module)
            for step in range(stage.steps):
                for group in plain.param_groups:
                    group["lr"] = recipe.learning_rate * rate_at(recipe, step, stage.steps)
                rows = torch.nonzero(torch.rand(len(data)) < stage.rate).flatten().to(place)
                optimiser.zero_grad()
                if len(rows):
                    each = _losses(logits_of(take(data.inputs, rows)), labels[rows])
                    _backward(module, optimiser, each)
                else:  # nobody was drawn, and the noise must not tell
                    for weight in weights:
                        weight.grad = torch.zeros_like(weight)
                optimiser.step()
        if not all(bool(torch.isfinite(weight).all()) for weight in weights):
            raise NonFiniteError("private training gave NaN or infinite weights; lower the recipe's learning_rate")
        for weight in weights:
            weight.grad = None
        return network.eval()


def _noise(trainer: StageTrainer) -> float:
    return trainer.noise if isinstance(trainer, PrivateTrainer) else 0.0


def _optimiser(weights: list[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
    rate, decay = recipe.learning_rate, recipe.weight_decay
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(weights, rate, momentum=_MOMENTUM, nesterov=True, weight_decay=decay)
    return torch.optim.Adam(weights, rate, weight_decay=decay)


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return one loss a sample."""
    each = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return each.view(len(labels), -1).mean(1)


def _backward(module: Any, optimiser: Any, each: Tensor) -> None:
    clipping = opacus("opacus.utils.fast_gradient_clipping_utils")
    clipping.DPTensorFastGradientClipping(module, optimiser, each, "mean").backward()


@contextmanager
def _watched(network: nn.Module, clip: float) -> Iterator[Any]:
    """Let Opacus watch the layers, and take its hooks off again."""
    sampling = opacus("opacus.grad_sample")
    with warnings.catch_warnings():
        # torch tells about hooks on inputs without gradients, which are the data themselves
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        try:
            module = sampling.GradSampleModuleFastGradientClipping(
                network, max_grad_norm=clip, use_ghost_clipping=True, loss_reduction="mean"
            )
        except NotImplementedError as error:
            raise ModelError(_UNFIT.format(error)) from error
        try:
            yield module
        finally:
            module.to_standard_module()


# Orders of the Rényi divergence. Any set gives a valid bound; at ε near 16 the best order lies between 2 and 4, and
# the many fractions that Opacus tries by itself take it half a minute for one shard.
ORDERS = (1.1, 1.25, 1.5, 2.0, 2.25, 2.5, 2.75, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)
_GRID = 4  # sampling rates an octave
_SLACK = 1e-3  # how much more noise than the budget asks for, relative


def opacus(part: str = "opacus") -> Any:
    """Return a module of Opacus, or raise a `SettingsError` that says how to install it."""
    try:
        return importlib.import_module(part)
    except ImportError as error:
        raise SettingsError(
            "DP-SGD needs Opacus, which is not installed; run: pip install 'forsaken[dp]' (or pip install opacus)"
        ) from error


def private_plan(sizes: Sequence[int], assigned: Sequence[int], epochs: int, batch: int) -> tuple[SliceStage, ...]:
    """Return the stages of a shard for DP-SGD, where each step draws each row with the same chance.

    Chances and steps follow the rows first assigned, not those that are left: what a step may reveal must not depend on
    who was forgotten. Chances lie on a coarse grid (at most 19 % more than batch / rows), since each other one costs
    the accountant time.

    >>> [(stage.rate, stage.steps) for stage in private_plan([8, 16, 24], [8, 16, 24], epochs=4, batch=8)]
    [(1.0, 2), (0.5, 4), (0.3535533905932738, 6)]
    """
    share = 2 * epochs / (len(assigned) + 1)
    due, stages = 0.0, []
    for rows, at_first in zip(sizes, assigned, strict=True):
        due += share * at_first
        rate = 2.0 ** (-math.floor(_GRID * math.log2(max(1.0, at_first / batch))) / _GRID)
        steps = max(0, round(due / (rate * at_first)))
        due -= steps * rate * at_first
        expected = max(1, round(rate * at_first))
        stages.append(SliceStage(rows, expected, steps, round(steps * rate * rows), rate))
    return tuple(stages)


def history(stages: Iterable[SliceStage], noise: float) -> list[tuple[float, float, int]]:
    """Return what Opacus's accountant takes: noise multiplier, sampling rate and steps, one entry a rate."""
    steps: dict[float, int] = {}
    for stage in stages:
        if stage.steps:
            steps[stage.rate] = steps.get(stage.rate, 0) + stage.steps
    return [(noise, rate, count) for rate, count in steps.items()]


def spent(stages: Iterable[SliceStage], noise: float, delta: float) -> float:
    """Return ε after these stages, by Opacus's Rényi accountant; they compose one after the other."""
    accountant = opacus("opacus.accountants").RDPAccountant()
    accountant.history = history(stages, noise)
    if not accountant.history:
        return 0.0
    with warnings.catch_warnings():
        # far from the budget the best order lies outside; the bound holds all the same
        warnings.filterwarnings("ignore", message="Optimal order is the")
        return float(accountant.get_epsilon(delta, alphas=list(ORDERS)))


def noise_for(stages: Sequence[SliceStage], epsilon: float, delta: float) -> float:
    """Return the noise multiplier at which all stages of a shard together spend ε at most, and nearly that."""

    def excess(log_noise: float) -> float:
        return spent(stages, math.exp(log_noise), delta) - epsilon

    low = high = 0.0
    while excess(low) < 0:
        low -= 1.0
    while excess(high) > 0:
        high += 1.0
        if high > 15:
            raise SettingsError(f"ε = {epsilon:g} at δ = {delta:g} is too little for any noise; raise epsilon or delta")
    root: float = brentq(excess, low, high, xtol=_SLACK / 2) if low < high else high
    return math.exp(root + _SLACK)
