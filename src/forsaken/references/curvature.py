"""The curvature of what a model has learnt: by how much each direction of weights changes its answers on all rows.

For a layer with inputs a (a 1 appended where it has a bias; of a convolution the patches that it sees) and gradients
g = ∂⟨v, c(z)⟩/∂(its output), where c(z) are the centred logits and v random signs, the Gauss-Newton matrix of the
squared logits is, layer by layer and approximated by a Kronecker product as in Martens and Grosse (2015),

    M = A ⊗ G        A = Σ |g|² a aᵀ / Σ |g|²        G = mean over rows of Σ g gᵀ        sums over rows and positions

The inputs are weighted by the gradient that meets them: behind a maximum over positions most inputs meet none, and
say nothing about what the layer does.

δᵀMδ estimates by how much a displacement δ of the weights changes the answers on the training data, all rows at once.
Only these sums are kept, no row is.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from forsaken.data.nest import Nest
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError, SettingsError
from forsaken.models.logits import Forward, LinearModel, LogitModel, as_module, evaluation
from forsaken.models.weights import fingerprint
from forsaken.progress import reporter
from forsaken.references.rows import row_hashes
from forsaken.types import Progress, Tick

ROWS = 2500  # rows that the moments are taken over, about; more bring little
DENSE = 1200  # the widest side that is kept as a whole matrix
RANK = 512  # columns of the sketch of a wider side
STAGE = "measure the curvature"
_PUBLIC = bytes(32)  # rows are drawn by a hash, so that a later pass knows which were
_BATCH = {"cpu": 64}
_BATCH_ON_GPU = 256
_LINEAR = (nn.Linear, LinearModel)
_FACTORED = (*_LINEAR, nn.Conv1d, nn.Conv2d, nn.Embedding)

Apply: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class Moment:
    """Σ x xᵀ over vectors x of one width, as a sum that can be added to and subtracted from.

    Attributes
    ----------
    diagonal : Tensor, shape (d,)
        Σ x², in every form.
    matrix : Tensor, shape (d, d), or None
        The sum itself, where d is at most `DENSE`.
    sketch : Tensor, shape (d, r), or None
        (Σ x xᵀ) Ω for a fixed random Ω, where it is wider: a Nyström approximation follows from it. Where both are
        None the sum is diagonal, as for the rows of an embedding.
    """

    diagonal: Tensor
    matrix: Tensor | None = None
    sketch: Tensor | None = None

    @classmethod
    def zeros(cls, width: int, like: Tensor, *, diagonal: bool = False) -> Moment:
        """Return a sum over nothing, in float32 or, for such weights, float64."""
        kind = torch.float64 if like.dtype == torch.float64 else torch.float32
        zero = like.new_zeros(width, dtype=kind)
        if diagonal:
            return cls(zero)
        if width <= DENSE:
            return cls(zero, matrix=like.new_zeros(width, width, dtype=kind))
        return cls(zero, sketch=like.new_zeros(width, RANK, dtype=kind))

    def add(self, rows: Tensor, sign: float = 1.0) -> None:
        """Add, or subtract, vectors (n x d)."""
        rows = rows.to(self.diagonal.dtype)
        self.diagonal += sign * rows.square().sum(0)
        if self.matrix is not None:
            self.matrix.addmm_(rows.T, rows, alpha=sign)
        elif self.sketch is not None:
            self.sketch.addmm_(rows.T, rows @ _omega(self.sketch), alpha=sign)

    def to(self, device: torch.device | str) -> Moment:
        """Return the sum on a device."""
        return Moment(*(None if part is None else part.to(device) for part in self.parts()))  # type: ignore[arg-type]

    def clone(self) -> Moment:
        """Return a copy."""
        return Moment(*(None if part is None else part.clone() for part in self.parts()))  # type: ignore[arg-type]

    def parts(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the tensors."""
        return self.diagonal, self.matrix, self.sketch

    def inverse(
        self, divisor: float, damping: float, columns: Tensor | None = None, factor: Tensor | None = None
    ) -> Apply:
        """Return X ↦ X (S + λ s̄ I)⁻¹ for S, the sum over `divisor`, and s̄, its mean eigenvalue.

        Parameters
        ----------
        divisor : float
            What the sum is divided by.
        damping : float
            λ.
        columns : Tensor, optional
            Restricts S to these rows and columns: what X has, in this order.
        factor : Tensor, optional
            What `factor` returns, where it is known already.
        """
        floor = damping * float(self.diagonal.clamp_min(0).mean()) / divisor
        floor = floor if floor > 0 else 1.0  # a side that no row uses: every direction costs the same
        if self.matrix is None and self.sketch is None:
            spread = _picked(self.diagonal, columns).clamp_min(0) / divisor + floor
            return lambda rows: rows / spread
        if self.matrix is not None:
            whole = self.matrix if columns is None else self.matrix[columns][:, columns]
            inverse = torch.cholesky_inverse(_cholesky(whole / divisor, floor))
            return lambda rows: rows @ inverse
        known = self.factor() if factor is None else factor
        if known is None:
            raise InputError("a moment without a sketch has no factor")
        factor = _picked(known, columns) / divisor**0.5
        rest = (_picked(self.diagonal, columns) / divisor - factor.square().sum(1)).clamp_min(0) + floor
        # Woodbury: (R + F Fᵀ)⁻¹ = R⁻¹ − R⁻¹F (I + FᵀR⁻¹F)⁻¹ FᵀR⁻¹
        scaled = factor / rest[:, None]
        core = _cholesky(factor.T @ scaled, 1.0)
        half = torch.linalg.solve_triangular(core, scaled.T, upper=False)
        return lambda rows: rows / rest - (rows @ half.T) @ half

    def factor(self) -> Tensor | None:
        """Return F with F Fᵀ ≈ Σ x xᵀ (Nyström, as in Tropp et al. 2017); None where there is no sketch."""
        if self.sketch is None:
            return None
        sketch, omega = self.sketch.double(), _omega(self.sketch).double()
        shift = float(sketch.norm()) * torch.finfo(self.sketch.dtype).eps
        sketch = sketch + shift * omega
        core = omega.T @ sketch
        root = _cholesky((core + core.T) / 2, shift)
        factor: Tensor = torch.linalg.solve_triangular(root, sketch.T, upper=False).T
        return factor.to(self.sketch.dtype)


@dataclass(slots=True)
class Factors:
    """The two sides of one weight's curvature: A of the inputs, G of the gradients.

    Attributes
    ----------
    inputs, outputs : Moment
        Sums over rows.
    count : float
        The sum of the weights of the vectors in `inputs`. 0 where both sides come from the gradients of the weight
        itself (Gupta et al. 2018, "Shampoo"): A is then divided by its trace.
    bias : str or None
        The name of the bias that is the last of the inputs.
    embedding : bool
        Whether the rows of the weight, not its columns, are the inputs.
    """

    inputs: Moment
    outputs: Moment
    count: float = 0.0
    bias: str | None = None
    embedding: bool = False

    @property
    def divisor(self) -> float:
        """What `inputs` is divided by."""
        return self.count or float(self.inputs.diagonal.sum()) or 1.0

    def moved(self, device: torch.device | str) -> Factors:
        """Return the factors on a device."""
        return replace(self, inputs=self.inputs.to(device), outputs=self.outputs.to(device))

    def clone(self) -> Factors:
        """Return a copy."""
        return replace(self, inputs=self.inputs.clone(), outputs=self.outputs.clone())


@dataclass(slots=True, eq=False, repr=False)
class Curvature:
    """By how much each direction of weights changes a model's answers on its training data. See `fit`.

    It holds sums over all rows that were passed and no row; still, whoever has it knows something of the data as a
    whole: keep it as the model is kept.

    Attributes
    ----------
    factors : dict of str to Factors
        By the name of the weight. Weights of norm layers are not there: they stay as they are.
    diagonals : dict of str to Tensor
        Σ g² for parameters of one dimension that belong to no factored layer.
    rows : int
        How many rows were passed.
    share : float
        The share of the data that was drawn; a hash of a row's content tells whether it was.
    weights : str
        The fingerprint of the weights.
    """

    factors: dict[str, Factors]
    diagonals: dict[str, Tensor]
    rows: int
    share: float
    weights: str
    _prepared: dict[Any, Any] = field(default_factory=dict, init=False)

    @classmethod
    def fit(
        cls,
        model: object,
        data: object,
        *,
        rows: int = ROWS,
        forward: Forward | None = None,
        batch_size: int | None = None,
        progress: bool | Progress = False,
    ) -> Curvature:
        """Measure the curvature in one pass over (some of) the training data. No labels are needed.

        Parameters
        ----------
        model : Module or estimator
            The trained model, left as it is.
        data : inputs, or pair (inputs, labels)
            Everything that it was trained on.
        rows : int
            About how many rows to pass.
        forward : callable, optional
            See `forsaken.unlearn`.
        batch_size : int, optional
            Rows in a pass.
        progress : bool or callable
            Show a bar, or tell a function of each `Tick`.

        Examples
        --------
        >>> curvature = Curvature.fit(nn.Linear(3, 2), torch.eye(3))
        >>> curvature.rows, sorted(curvature.factors)
        (3, ['weight'])
        """
        if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 1:
            raise SettingsError(f"rows is {rows!r}, expected how many rows to pass: a whole number >= 1")
        module = as_module(model)
        samples = Samples.read(data, "data", labels=False)
        share = min(1.0, int(rows) / len(samples))
        found = cls({}, {}, 0, share, fingerprint(module))
        with reporter(progress) as report:
            found._pass(module, samples, forward, batch_size, report, sign=1)
        if not found.factors and not found.diagonals:
            raise ModelError(
                "the model has no trainable weight outside of its norm layers, so that there is no curvature to "
                "measure; set requires_grad on the weights that may change"
            )
        return found

    def without(self, before: object, after: object, samples: object, *, forward: Forward | None = None) -> Curvature:
        """Return the curvature without some of the rows, for the weights of `after`.

        The rows' share is subtracted exactly, as `before` gives it; that of the other rows is as it was with `before`.
        """
        old, new = as_module(before), as_module(after)
        self.check(old)
        given = Samples.read(samples, "samples", labels=False)
        factors = {name: each.clone() for name, each in self.factors.items()}
        diagonals = {name: each.clone() for name, each in self.diagonals.items()}
        found = Curvature(factors, diagonals, self.rows, self.share, self.weights)
        found._pass(old, given, forward, None, lambda _: None, sign=-1)
        found.weights = fingerprint(new)
        return found

    def check(self, model: nn.Module) -> str:
        """Return the fingerprint of a model's weights, or raise an error if the curvature is that of other weights."""
        own = fingerprint(model)
        if own != self.weights:
            raise InputError(
                f"the curvature was measured for other weights ({self.weights[:12]}..., the model has {own[:12]}...)",
                field="curvature",
                remedy="measure it anew with forsaken.Curvature.fit(model, data), or give the table of this model",
            )
        return own

    def divide_inputs(self, name: str, damping: float, device: torch.device, columns: Tensor | None = None) -> Apply:
        """Return X ↦ X (A + λā)⁻¹ for a weight; `columns` restricts A, as in `Moment.inverse`.

        What is the same for every request is computed once.
        """
        key = ("inputs", name, damping, device)
        if columns is None and key in self._prepared:
            found: Apply = self._prepared[key]
            return found
        own = self.factors[name]
        factor = self._prepared.get(("factor", name, device))
        if factor is None:
            factor = self._prepared["factor", name, device] = own.inputs.to(device).factor()
        inverse = own.inputs.to(device).inverse(own.divisor, damping, columns, factor)
        if columns is None:
            self._prepared[key] = inverse
        return inverse

    def divide_outputs(self, name: str, damping: float, device: torch.device) -> Apply:
        """Return X ↦ X (G + λḡ)⁻¹ for a weight, computed once."""
        key = ("outputs", name, damping, device)
        if key not in self._prepared:
            self._prepared[key] = self.factors[name].outputs.to(device).inverse(max(1, self.rows), damping)
        found: Apply = self._prepared[key]
        return found

    @property
    def bytes(self) -> int:
        """How much memory the sums take."""
        parts = [
            part for each in self.factors.values() for side in (each.inputs, each.outputs) for part in side.parts()
        ]
        return sum(part.nbytes for part in (*parts, *self.diagonals.values()) if part is not None)

    @property
    def names(self) -> frozenset[str]:
        """The parameters whose curvature is known: those that may change."""
        biases = {each.bias for each in self.factors.values() if each.bias is not None}
        return frozenset({*self.factors, *self.diagonals, *biases})

    def __repr__(self) -> str:
        return f"Curvature({len(self.names)} parameters, {self.rows} rows, {self.bytes / 2**20:.1f} MiB)"

    def to_tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return everything as named tensors and as what JSON can hold; see `from_tensors`."""
        tensors: dict[str, Tensor] = {}
        told: dict[str, Any] = {"rows": self.rows, "share": self.share, "weights": self.weights, "factors": {}}
        for at, (name, each) in enumerate(sorted(self.factors.items())):
            told["factors"][name] = {"at": at, "count": each.count, "bias": each.bias, "embedding": each.embedding}
            for side, moment in (("inputs", each.inputs), ("outputs", each.outputs)):
                for part, tensor in zip(_PARTS, moment.parts(), strict=True):
                    if tensor is not None:
                        tensors[f"{at}.{side}.{part}"] = tensor.detach().cpu().contiguous()
        told["diagonals"] = sorted(self.diagonals)
        for at, name in enumerate(told["diagonals"]):
            tensors[f"{at}.squares"] = self.diagonals[name].detach().cpu().contiguous()
        return tensors, told

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], told: Mapping[str, Any]) -> Curvature:
        """Read what `to_tensors` returned; a `ValueError` or `LookupError` tells of damage."""
        try:
            return cls._read(tensors, told)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"what is told of the curvature is of another kind ({error})") from error

    @classmethod
    def _read(cls, tensors: Mapping[str, Tensor], told: Mapping[str, Any]) -> Curvature:
        used: set[str] = set()

        def moment(start: str) -> Moment:
            found = {part: tensors[f"{start}.{part}"] for part in _PARTS if f"{start}.{part}" in tensors}
            used.update(f"{start}.{part}" for part in found)
            return _checked(Moment(found["diagonal"], found.get("matrix"), found.get("sketch")), start)

        factors = {
            str(name): Factors(
                moment(f"{about['at']}.inputs"),
                moment(f"{about['at']}.outputs"),
                float(about["count"]),
                about["bias"],
                bool(about["embedding"]),
            )
            for name, about in told["factors"].items()
        }
        diagonals = {str(name): tensors[f"{at}.squares"] for at, name in enumerate(list(told["diagonals"]))}
        for name, each in factors.items():
            wide = each.inputs.matrix is None and each.inputs.sketch is None
            if not 0 <= each.count < math.inf or not isinstance(each.bias, str | None) or wide != each.embedding:
                raise ValueError(f"what is told of {name} is no curvature's")
        if any(part.dim() != 1 or not bool(torch.isfinite(part).all()) for part in diagonals.values()):
            raise ValueError("squares that are not finite")
        used.update(f"{at}.squares" for at in range(len(diagonals)))
        rows, share, weights = told["rows"], told["share"], told["weights"]
        if set(tensors) - used:
            raise ValueError("it holds a tensor of a curvature that is not known")
        if type(rows) is not int or rows < 0 or not 0 < float(share) <= 1 or not isinstance(weights, str):
            raise ValueError("what is told of the curvature is no curvature's")
        return cls(factors, diagonals, rows, float(share), weights)

    def _pass(
        self,
        module: nn.Module,
        samples: Samples,
        forward: Forward | None,
        batch_size: int | None,
        progress: Progress,
        *,
        sign: int,
    ) -> None:
        """Add the moments of those samples that are drawn, or subtract them."""
        hashes = row_hashes(samples, _PUBLIC)
        places = _uniform(hashes)
        if sign > 0:  # at least one row is drawn
            self.share = max(self.share, float(np.nextafter(places.min(), 1.0)))
        drawn = np.flatnonzero(places < self.share)
        if not len(drawn):
            return
        work = copy.deepcopy(module)
        trainable = {name for name, weight in work.named_parameters() if weight.requires_grad}
        adapter = LogitModel(work.requires_grad_(False), forward)
        with evaluation(adapter), torch.enable_grad():
            pass_ = _Pass.of(adapter, samples.rows(drawn[:2]), trainable)
            if sign > 0:
                self.factors, self.diagonals = pass_.zeros()
            else:
                self._move(adapter.device)
            size = batch_size or _BATCH.get(adapter.device.type, _BATCH_ON_GPU)
            step = 1 if pass_.others else size  # the gradient of such a weight is needed row by row
            for done in range(0, len(drawn), step):
                rows = drawn[done : done + step]
                pass_.add(self, samples.rows(rows).inputs, hashes[rows], sign)
                progress(Tick(STAGE, min(done + step, len(drawn)), len(drawn)))
        self.rows += sign * len(drawn)
        self._move("cpu")  # on a GPU they would take its memory until the next request

    def _move(self, device: torch.device | str) -> None:
        self.factors = {name: each.moved(device) for name, each in self.factors.items()}
        self.diagonals = {name: each.to(device) for name, each in self.diagonals.items()}


_PARTS = ("diagonal", "matrix", "sketch")


@dataclass(frozen=True, slots=True)
class _Pass:
    """Which weights of a model are factored by the layers they belong to, and which by their own gradients.

    Attributes
    ----------
    layers : dict of str to Module
        Layers that are called, by the name of their weight.
    biases : dict of str to str
        The names of their biases, where these may change.
    others : dict of str to Parameter
        Weights that no such call shows: of recurrent layers, of attention's joint projection, or shared ones.
    """

    adapter: LogitModel
    layers: dict[str, nn.Module]
    biases: dict[str, str]
    others: dict[str, nn.Parameter]

    @classmethod
    def of(cls, adapter: LogitModel, few: Samples, trainable: set[str]) -> _Pass:
        """Find out by calling the model on a few samples."""
        model = adapter.model
        owners: dict[int, int] = {}
        for _, weight in model.named_parameters(remove_duplicate=False):
            owners[id(weight)] = owners.get(id(weight), 0) + 1
        wanted, fixed = {}, set()
        for name, layer in model.named_modules():
            start = f"{name}." if name else ""
            if "norm" in type(layer).__name__.lower():
                fixed |= {f"{start}{own}" for own, _ in layer.named_parameters(recurse=False)}
            plain = isinstance(layer, _FACTORED) and getattr(layer, "groups", 1) == 1
            plain = plain and getattr(layer, "padding_mode", "zeros") == "zeros"
            plain = plain and not isinstance(getattr(layer, "padding", 0), str)
            if plain and f"{start}weight" in trainable and owners[id(layer.weight)] == 1:
                wanted[f"{start}weight"] = layer
        called: set[int] = set()
        with torch.no_grad(), _hooked(wanted.values(), lambda layer, *_: called.add(id(layer))):
            adapter(adapter.place(few.inputs))
        layers = {name: layer for name, layer in wanted.items() if id(layer) in called}
        biases = {
            name: f"{name.removesuffix('weight')}bias"
            for name, layer in layers.items()
            if not isinstance(layer, nn.Embedding) and f"{name.removesuffix('weight')}bias" in trainable
        }
        taken = {*layers, *biases.values(), *fixed}
        others = {name: weight for name, weight in model.named_parameters() if name in trainable and name not in taken}
        return cls(adapter, layers, biases, others)

    def zeros(self) -> tuple[dict[str, Factors], dict[str, Tensor]]:
        """Return sums over nothing."""
        factors = {}
        for name, layer in self.layers.items():
            weight: Tensor = layer.weight  # type: ignore[assignment]
            if isinstance(layer, nn.Embedding):
                tokens, width = weight.shape
                sides = Moment.zeros(tokens, weight, diagonal=True), Moment.zeros(width, weight)
                factors[name] = Factors(*sides, embedding=True)
                continue
            bias = self.biases.get(name)
            width = weight[0].numel() + (bias is not None)
            factors[name] = Factors(Moment.zeros(width, weight), Moment.zeros(len(weight), weight), bias=bias)
        for name, weight in self.others.items():
            if weight.dim() > 1:
                factors[name] = Factors(Moment.zeros(weight[0].numel(), weight), Moment.zeros(len(weight), weight))
        single = {name: weight for name, weight in self.others.items() if weight.dim() < 2}
        return factors, {
            name: Moment.zeros(weight.numel(), weight, diagonal=True).diagonal for name, weight in single.items()
        }

    def add(self, table: Curvature, inputs: Nest, hashes: np.ndarray[Any, Any], sign: int) -> None:
        """Add the moments of a batch to the sums of `table`, or subtract them."""
        seen: list[tuple[str, Tensor, Tensor]] = []
        named = {id(layer): name for name, layer in self.layers.items()}

        def note(layer: nn.Module, given: tuple[Tensor, ...], keywords: dict[str, Tensor], output: Tensor) -> None:
            first = given[0] if given else next(iter(keywords.values()))
            seen.append((named[id(layer)], first.detach(), output))

        free = [*self.others.values(), *(layer.weight for layer in self.layers.values())]
        for weight in free:
            weight.requires_grad_(True)
        with _hooked(self.layers.values(), note):
            logits = self.adapter(self.adapter.place(inputs))
        centred = logits - logits.mean(1, keepdim=True)
        signs = torch.from_numpy(_signs(hashes, logits.shape[1])).to(centred)
        wanted = [*(output for *_, output in seen), *self.others.values()]
        if not wanted:
            return
        found = torch.autograd.grad((signs * centred).sum(), wanted, allow_unused=True)
        for (name, given, _), gradient in zip(seen, found[: len(seen)], strict=True):
            if gradient is not None:
                self._layer(table.factors[name], name, given, gradient, sign)
        for name, gradient in zip(self.others, found[len(seen) :], strict=True):
            if gradient is None:
                continue
            if gradient.dim() < 2:
                table.diagonals[name] += sign * gradient.reshape(-1).to(table.diagonals[name]).square()
                continue
            matrix = gradient.reshape(len(gradient), -1)
            table.factors[name].inputs.add(matrix, sign)
            table.factors[name].outputs.add(matrix.T, sign)

    def _layer(self, own: Factors, name: str, given: Tensor, gradient: Tensor, sign: int) -> None:
        layer = self.layers[name]
        if isinstance(layer, nn.Conv1d | nn.Conv2d):
            gradient = gradient.flatten(2).transpose(1, 2)
        gradients = gradient.reshape(-1, gradient.shape[-1])
        weights = gradients.square().sum(1)
        met = weights.nonzero()[:, 0]
        gradients, weights = gradients[met], weights[met]
        own.outputs.add(gradients, sign)
        own.count += sign * float(weights.sum())
        if isinstance(layer, nn.Embedding):
            own.inputs.diagonal.index_add_(0, given.reshape(-1)[met], (sign * weights).to(own.inputs.diagonal))
            return
        vectors = _patches(layer, given.to(gradient.dtype))[met]
        if own.bias is not None:
            vectors = torch.cat([vectors, vectors.new_ones(len(vectors), 1)], 1)
        own.inputs.add(vectors * weights.sqrt()[:, None], sign)


def _patches(layer: nn.Module, given: Tensor) -> Tensor:
    """Return the vectors that a layer multiplies with its weight: rows, or the patches that a convolution sees."""
    if isinstance(layer, nn.Conv1d):
        flat = unfold(
            given.unsqueeze(2),
            (1, *layer.kernel_size),
            dilation=(1, *layer.dilation),
            padding=(0, *layer.padding),
            stride=(1, *layer.stride),
        )
    elif isinstance(layer, nn.Conv2d):
        flat = unfold(given, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
    else:
        return given.reshape(-1, given.shape[-1])
    return flat.transpose(1, 2).reshape(-1, flat.shape[1])


def _picked(values: Tensor, columns: Tensor | None) -> Tensor:
    return values if columns is None else values[columns]


def _omega(sketch: Tensor) -> Tensor:
    """Return the random matrix of a sketch: the same for each width and rank."""
    return _drawn(*sketch.shape).to(sketch)


@lru_cache(maxsize=4)
def _drawn(width: int, rank: int) -> Tensor:
    return torch.randn(width, rank, generator=torch.Generator().manual_seed(width))


def _cholesky(matrix: Tensor, floor: float) -> Tensor:
    """Return the Cholesky factor of a matrix plus `floor` on its diagonal, or more where rounding asks for it."""
    eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    for _ in range(8):
        factor: Tensor
        factor, failed = torch.linalg.cholesky_ex(matrix + floor * eye)
        if int(failed) == 0:
            return factor
        floor *= 10
    raise ModelError("the curvature is not finite or far from positive; measure it anew with forsaken.Curvature.fit")


def _uniform(hashes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a number in [0, 1) for each hash."""
    return np.ascontiguousarray(hashes[:, :8]).view(np.uint64)[:, 0] / 2.0**64


def _signs(hashes: np.ndarray[Any, Any], classes: int) -> np.ndarray[Any, Any]:
    """Return random signs (rows x classes) that follow from the rows' content, so that a later pass finds them."""
    size = -(-classes // 8)
    digests = b"".join(hashlib.shake_256(row.tobytes()).digest(size) for row in hashes)
    bits = np.unpackbits(np.frombuffer(digests, dtype=np.uint8).reshape(len(hashes), size), axis=1)[:, :classes]
    return 2.0 * bits.astype(np.float64) - 1.0


def _checked(moment: Moment, name: str) -> Moment:
    width = moment.diagonal.shape[0] if moment.diagonal.dim() == 1 else -1
    shapes = {"matrix": (width, width), "sketch": (width, RANK)}
    for part, shape in shapes.items():
        tensor: Tensor | None = getattr(moment, part)
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name}.{part} has shape {tuple(tensor.shape)}")
    if any(part is not None and not bool(torch.isfinite(part).all()) for part in moment.parts()):
        raise ValueError(f"{name} is not finite")
    return moment


@contextmanager
def _hooked(layers: Iterable[nn.Module], note: Callable[..., object]) -> Iterator[None]:
    handles = [
        layer.register_forward_hook(lambda *given: (note(*given), None)[1], with_kwargs=True) for layer in layers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
