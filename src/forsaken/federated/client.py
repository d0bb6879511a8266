"""A node: it trains or forgets as its own store says, and its upload looks the same to the server either way."""

from __future__ import annotations

import copy
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from forsaken._checks import Problems
from forsaken._random import checked_seed
from forsaken.data.samples import Samples
from forsaken.errors import ForsakenError, InputError, ModelError, NotHeldOutError, SettingsError
from forsaken.federated.scaling import Ledger, Terms, Vector, check_alike, norm, plus, within
from forsaken.federated.store import CONFIRMED, FILED, UPLOADED, Erasure, Requests, Upload
from forsaken.models.logits import centre, predict_logits
from forsaken.models.train import loss_of, train
from forsaken.models.weights import fingerprint
from forsaken.recipe import Recipe
from forsaken.references.curvature import Curvature
from forsaken.references.table import References
from forsaken.unlearning.methods import unlearn

MODES = ("exact", "hidden")
ROUNDS = 9  # over which the hidden mode spreads a mask; with the round that takes the cover back there are ten
_DAMPING = 3.0  # of the hidden mode: a mask of less than half the norm (measured: 0.45), which is easier to hide
_LEFT = 0.5  # of the squared distance to the references: with more left, the samples came back
_AMPLITUDES = 0.5, 1.5  # of a layer's cover, drawn anew each time: without that the norms would tell
_COVER = "cover"


def parameters_of(model: nn.Module) -> Vector:
    """Return a copy of the trainable parameters; a model with statistics of its own (batch-norm) is refused."""
    own = dict(model.named_buffers())
    if moving := [name for name, buffer in own.items() if buffer.is_floating_point() and name in model.state_dict()]:
        raise ModelError(
            f"the model keeps statistics that are no parameters ({', '.join(moving[:3])})",
            remedy="use group or layer norm in place of batch-norm: gradients do not update such statistics",
        )
    return {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}


@dataclass(eq=False)
class Node:
    """One client of the federation, with its own data, references and store.

    Parameters
    ----------
    model : Module
        The network; its weights are replaced by the server's in every round.
    data : pair (inputs, labels)
        The node's rows. Requests name them by their numbers, so their order must not change.
    folder : Path
        Where the store of requests lies.
    recipe : Recipe, optional
        The local training of a round, whose pseudo-gradient θ − θ_local is the upload. Without it the upload is the
        gradient over all rows (FedSGD).
    references : References, optional
        What models that never saw a row say of it: from the node's own folds (`References.fit`), or claimed. Without
        references the node trains, and refuses requests.
    mode : str
        "exact": the mask in one round, in place of the ordinary upload. "hidden": added to it, over nine rounds.
    seed : int
        Decides the local training.
    """

    model: nn.Module
    data: Samples
    folder: Path
    recipe: Recipe | None = None
    references: References | None = None
    mode: Literal["exact", "hidden"] = "exact"
    seed: int = 0
    requests: Requests = field(init=False)

    def __post_init__(self) -> None:
        found = Problems("Node")
        found.choice("mode", self.mode, MODES)
        found.report()
        self.seed = checked_seed(self.seed)
        self.data = Samples.read(self.data, "data")
        if self.data.labels is None:
            raise InputError("data has no labels", field="data", expected="a pair (inputs, labels)")
        parameters_of(self.model)
        self.requests = Requests(self.folder)
        named = [row for each in self.requests.all() for row in each.rows]
        if named and max(named) >= len(self.data):
            raise InputError(
                f"a request names row {max(named)}, but the node has {len(self.data)} rows",
                field="data",
                remedy="give the rows as they were when the request was filed, in their order",
            )
        self.requests.register(len(self.data), self._without_reference())

    def _without_reference(self) -> list[int]:
        if self.references is None:
            return list(range(len(self.data)))
        try:
            self.references.logits(self.data.inputs)
        except NotHeldOutError as error:
            return sorted(error.rows)
        return []

    def kept(self) -> Samples:
        """Return the rows that no request names: what the node still trains on."""
        gone = [row for each in self.requests.all() for row in each.rows]
        return self.data.rows(np.setdiff1d(np.arange(len(self.data)), gone))

    # --- one round ---------------------------------------------------------------------------------------------------

    def round(self, theta: Vector, terms: Terms, moments: Curvature | None = None) -> tuple[Vector, str]:
        """Return this node's upload of a round and its token.

        Parameters
        ----------
        theta : dict of str to Tensor
            The server's weights.
        terms : Terms
            What the server announced.
        moments : Curvature, optional
            The curvature summed over all nodes; by default that of this node's rows.
        """
        self._load(theta)
        self._settle(terms)
        self._check()
        token, kept = secrets.token_hex(8), self.kept()
        noise = self._cover(terms, token)
        upload = self._forget(terms, token, kept, moments, noise)
        if upload is None:
            upload = self._ordinary(kept, terms)
            if noise:
                upload = plus(_cut(upload, terms.bound / terms.effect(len(self.data)) - norm(noise)), noise)
        return upload, token

    def moments(self, theta: Vector) -> Curvature:
        """Return the curvature of the server's weights over the rows that this node keeps."""
        self._load(theta)
        if not len(self.kept()):
            raise InputError("every row of this node is in a request", field="moments", remedy="ask the other nodes")
        return Curvature.fit(self.model, self.kept().inputs, rows=len(self.data))

    def _load(self, theta: Vector) -> None:
        own = dict(self.model.named_parameters())
        check_alike(theta, {name: weight for name, weight in own.items() if weight.requires_grad}, "the server's model")
        with torch.no_grad():
            for name, value in theta.items():
                own[name].copy_(value)
        self.model.eval()

    def _ordinary(self, kept: Samples, terms: Terms) -> Vector:
        start = parameters_of(self.model)
        if not len(kept):  # all rows are in requests: there is nothing to learn from
            return {name: torch.zeros_like(part) for name, part in start.items()}
        # A server that adds up sums gets this node's mean times its number of rows, of which requests change nothing.
        size = float(len(self.data)) if terms.rule == "sum" else 1.0
        if self.recipe is None:
            work = copy.deepcopy(self.model)
            loss_of(work(kept.inputs), kept.labels).backward()  # type: ignore[arg-type, no-untyped-call]
            return {name: size * weight.grad for name, weight in work.named_parameters() if weight.grad is not None}
        seed = (self.seed * 1_000_003 + terms.step) % 2**32
        local = train(lambda: self.model, kept, self.recipe, seed=seed)
        end = dict(local.named_parameters())
        return {name: size * (weight - end[name].detach()) for name, weight in start.items()}

    # --- requests ----------------------------------------------------------------------------------------------------

    def _settle(self, terms: Terms) -> None:
        """Bring every ledger to the step of this round, by the tokens that the server counted."""
        self._settle_cover(terms)
        store, pending = self.requests, self.requests.open_upload()
        for each in store.all():
            if each.ledger.step > terms.step:
                store.confirm(each.id, Ledger(step=terms.step), "the server went back to an earlier model")
            elif pending is not None and pending.request == each.id:
                self._settle_upload(each, pending, terms)
            elif each.state == UPLOADED:
                store.advance(each.id, each.ledger.at(terms.step, terms))
        for each in store.all():
            if each.state == UPLOADED and each.ledger.settled(terms):
                store.confirm(each.id, each.ledger, f"the weights of round {terms.step + 1} hold the whole mask")

    def _settle_upload(self, request: Erasure, pending: Upload, terms: Terms) -> None:
        counted = pending.token in terms.counted
        if not counted and terms.step - pending.step > terms.horizon:
            self.requests.confirm(request.id, Ledger(step=terms.step), "too long ago for the server to say")
            return
        ledger = request.ledger.at(pending.step, terms)
        ledger = ledger.after(pending.gradient, terms) if counted else ledger
        self.requests.settle(pending, ledger.at(terms.step, terms), counted=counted)

    def _check(self) -> None:
        """Look whether the samples of confirmed requests are forgotten; file those again that are not."""
        for each in self.requests.all():
            if each.state == CONFIRMED:
                try:
                    left = self._distance(each)
                except ForsakenError as error:
                    self.requests.fail(each.id, str(error))
                    continue
                told = f"{left:.4g} of the squared distance to the references, {each.distance or left:.4g} at first"
                if each.distance is None or left <= _LEFT * each.distance:
                    self.requests.check(each.id, told)
                else:
                    self.requests.refile(each.id, told)

    def _distance(self, request: Erasure) -> float:
        samples = Samples(self.data.rows(request.rows).inputs)
        said = predict_logits(self.model, samples).double()
        return float((centre(said) - centre(self._references().logits(samples).double())).square().mean())

    def _references(self) -> References:
        if self.references is None:
            raise InputError(
                "this node has no references",
                field="references",
                remedy="fit them on the node's own rows, or hand in claimed ones",
            )
        return self.references

    def _forget(
        self, terms: Terms, token: str, kept: Samples, moments: Curvature | None, noise: Vector
    ) -> Vector | None:
        """Return the upload of the oldest open request, or None where there is none or it cannot be done."""
        for each in self.requests.all():
            if each.state in (FILED, UPLOADED):
                try:
                    mask = self.requests.mask(each.id) if each.state == UPLOADED else None
                    mask = self._mask(each, kept, moments) if mask is None else mask
                except ForsakenError as error:
                    self.requests.fail(each.id, str(error))
                    continue
                if mask is not None:
                    return self._with_mask(self.requests.get(each.id), mask, terms, token, kept, noise)
        return None

    def _mask(self, request: Erasure, kept: Samples, moments: Curvature | None) -> Vector | None:
        """Find the mask of a request and keep it; None where the samples are not memorised."""
        table, samples = self._references(), Samples(self.data.rows(request.rows).inputs)
        if moments is None and not len(kept):
            raise InputError(
                "every row of this node is in a request, so that none is left to hold the other answers in place",
                field="moments",
                remedy="let the server share the moments of all nodes (moments = 10 in the run's configuration)",
            )
        if moments is None:
            moments = Curvature.fit(self.model, kept.inputs)
        settings: dict[str, Any] = {"damping": _DAMPING} if self.mode == "hidden" else {}
        curvature = replace(moments, weights=fingerprint(self.model))
        before = parameters_of(self.model)
        done = unlearn(self.model, samples, references=table, curvature=curvature, seed=self.seed, **settings)
        if done.stopped == "not-memorised":
            self.requests.check(request.id, "the model answers the samples as the references do already")
            return None
        after = dict(done.model.named_parameters())
        mask = {name: weight - after[name].detach() for name, weight in before.items()}
        self.requests.begin(request.id, mask, self._distance(request))
        return mask

    def _with_mask(
        self, request: Erasure, mask: Vector, terms: Terms, token: str, kept: Samples, noise: Vector
    ) -> Vector:
        size, ledger = len(self.data), replace(request.ledger, step=terms.step)
        whole = 1 - ledger.applied
        first = self.mode == "exact" and ledger.applied == 0
        base = {name: torch.zeros_like(part) for name, part in mask.items()} if first else self._ordinary(kept, terms)
        share = whole if self.mode == "exact" else min(whole, 1 / ROUNDS)
        if self.mode == "hidden" and noise and not terms.cover:
            share = 0.0  # the round that takes the cover back would hide less
        unit = terms.factor(1.0, size)
        most = terms.bound / terms.effect(size)
        # Leave room for the mask, or a tight bound would never let it through.
        base = _cut(base, (most - norm(noise)) / 2)
        base = plus(base, noise) if noise else base
        factor = within(base, mask, unit * ledger.gradient(share, terms), most)
        self.requests.uploaded(Upload(token, request.id, terms.step, factor / unit), ledger)
        return plus(base, mask, factor)

    # --- cover -------------------------------------------------------------------------------------------------------

    def _cover(self, terms: Terms, token: str) -> Vector:
        """Return fresh noise, less the noise of this node that the server's weights hold; empty without cover.

        All of it must be within the bound: the server would shorten a longer upload, and no later one would take back
        what arrived.
        """
        inside, like, effect = self._inside(), parameters_of(self.model), terms.effect(len(self.data))
        if not terms.cover and inside is None:
            return {}
        # In a round that takes no noise back there is as much fresh noise as other rounds have of both.
        fresh = {
            "seed": secrets.randbits(63),
            "deviation": terms.cover * (2**0.5 if inside is None else 1.0),
            "effect": effect,
        }
        noise = _noise(like, fresh)
        if inside is not None:
            noise = plus(noise, _noise(like, inside), -inside["effect"] / effect)
        if (moved := effect * norm(noise)) > terms.bound:
            raise SettingsError(
                f"the cover of this node would move the weights by {moved:.3g}, and bound is {terms.bound:.3g}",
                field="cover",
                expected="noise that is within the bound, with room for a mask",
                remedy="let the run's configuration have a smaller cover or a larger bound",
            )
        self.requests.remember(_COVER, {"inside": inside, "token": token, "step": terms.step, "fresh": fresh})
        return noise

    def _inside(self) -> dict[str, Any] | None:
        """Return the noise of this node that the server's weights hold."""
        found: dict[str, Any] | None = (self.requests.fact(_COVER) or {}).get("inside")
        return found

    def _settle_cover(self, terms: Terms) -> None:
        told: dict[str, Any] = self.requests.fact(_COVER) or {}
        if "token" in told:
            counted = told["token"] in terms.counted
            inside = told["fresh"] if counted else told.get("inside")
            if inside is not None and not inside["deviation"]:
                inside = None
            # Too long ago for the server to say, or it went back to an earlier model: which noise its weights hold is
            # not known, and to take back the wrong one would add to it.
            if not counted and not 0 <= terms.step - told.get("step", terms.step) <= terms.horizon:
                inside = None
            self.requests.remember(_COVER, {"inside": inside})


def _cut(vector: Vector, most: float) -> Vector:
    """Return a vector, shortened to a norm of `most` where it is longer."""
    long = norm(vector)
    return vector if long <= most else {name: part * (most / long) for name, part in vector.items()}


def _noise(like: Vector, told: dict[str, Any]) -> Vector:
    """Return the noise that a seed and a deviation stand for: normal, each layer with an amplitude of its own."""
    draw = torch.Generator().manual_seed(told["seed"])
    low, high = _AMPLITUDES

    def layer(part: Tensor) -> Tensor:
        amplitude = low + (high - low) * float(torch.rand(1, generator=draw))
        return torch.randn(part.shape, generator=draw) * (amplitude * float(told["deviation"]))

    return {name: layer(like[name]) for name in sorted(like)}
