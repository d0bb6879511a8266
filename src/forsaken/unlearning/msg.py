"""MSG: masked small gradients. What neither side needs is drawn anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from forsaken._random import Purpose, generator
from forsaken.errors import ModelError
from forsaken.unlearning.base import About, Details, Request, class_count, labelled
from forsaken.unlearning.descent import Descent, descent_run, fresh, kernels, loss_gradient
from forsaken.unlearning.settings import number


@dataclass(frozen=True, kw_only=True)
class Msg(Descent):
    """Draw anew the weights of each convolution where the gradient of CE(retain) − CE(D) is smallest, and repair.

    That retain sample is as large as D, or all of the retain data where there are fewer. The repair is fine-tuning on
    all retain data with a smaller gradient on every weight that was not drawn anew, in dense layers too. An entry of
    the NeurIPS 2023 unlearning challenge, as Cadet, Borovykh, Malekzadeh, Ahmadi-Abhari and Haddadi describe it in
    "Deep Unlearn: Benchmarking Machine Unlearning", 2024. New weights come from ``training=`` of the call where it is
    given, or from the layers' own `reset_parameters`. The other settings are those of `Descent`.

    Parameters
    ----------
    share : float
        The share of each convolution's weights that is drawn anew.
    rest : float
        What the gradient of all other weights is multiplied by in the repair.
    """

    about: ClassVar[About] = About(
        summary="draws anew the convolution weights with the smallest gradients, and repairs on retain data",
        paper='NeurIPS 2023 unlearning challenge; Cadet et al., "Deep Unlearn: Benchmarking Machine Unlearning", 2024',
        needs=("forget with labels", "retain with labels", "a network with convolutions"),
        uses=("training",),
    )

    share: float = number(0.3, "the share of each convolution's weights that is drawn anew", most=1.0)
    rest: float = number(0.1, "what the gradient of all other weights is multiplied by", most=1.0)

    def run(self, student: nn.Module, request: Request) -> Details:
        """Draw weights of `student` anew and repair it. See `Unlearner.run`."""
        named = kernels(student)
        classes = class_count(student, request)
        kept, gone = labelled(request, "retain", classes), labelled(request, "forget", classes)
        drawn = generator(request.seed, Purpose.SALIENCY_ROWS).permutation(len(kept))[: len(gone)]
        terms = [(1.0, kept.rows(drawn)), (-1.0, gone)]
        gradient = loss_gradient(student, request, terms, self.batch_size)
        chosen = {name: smallest(gradient[name], self.share) for name in named}
        self._draw(student, request, named, chosen)
        with descent_run(self, student, request) as run:
            data = run.place(kept)

            def weaken(*_: Any) -> None:
                for name, weight in run.weights.items():
                    if weight.grad is not None:
                        slow = weight.grad * self.rest
                        weight.grad = torch.where(chosen[name], weight.grad, slow) if name in chosen else slow

            run.optimiser.register_step_pre_hook(weaken)
            for _ in run.epochs(self.epochs * run.steps(data)):
                for batch in run.batches(data):
                    loss = cross_entropy(run.logits(batch), batch.labels)
                    run.step(loss, anchor=loss)
        facts = {"redrawn": sum(int(part.sum()) for part in chosen.values()), "convolutions": len(named)}
        return run.details(facts, passes=1)

    def _draw(
        self, student: nn.Module, request: Request, named: dict[str, nn.Parameter], chosen: dict[str, Tensor]
    ) -> None:
        network, old = fresh(student, request.training, request.seed)
        new = dict(network.named_parameters())
        for name, weight in named.items():
            if name in old or name not in new or new[name].shape != weight.shape:
                raise ModelError(
                    f"{name} cannot be drawn anew: it has no reset_parameters, or training builds another network; "
                    "give training=Training(build, recipe) of the network that the model is"
                )
            with torch.no_grad():
                weight.copy_(torch.where(chosen[name], new[name], weight))


def smallest(gradient: Tensor, share: float) -> Tensor:
    """Return where the `share` of the entries lies whose magnitude is smallest; exactly so many, ties in order.

    >>> smallest(torch.tensor([[3.0, -1.0], [0.5, -4.0]]), 0.5)
    tensor([[False,  True],
            [ True, False]])
    """
    flat = gradient.abs().reshape(-1)
    chosen = torch.zeros_like(flat, dtype=torch.bool)
    chosen[flat.argsort(stable=True)[: round(share * flat.numel())]] = True
    return chosen.view(gradient.shape)
