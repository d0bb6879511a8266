"""The curvature of a trained model: how much each direction of its weights changes its answers on the training data.

For one layer let a be its inputs (with a 1 appended where the layer has a bias; for a convolution, the patches that it
sees) and g = ∂⟨v, c(z)⟩/∂(the layer's output), where c(z) are the centred logits and v is a vector of random signs. The
Gauss-Newton matrix of the squared logits is approximated layer by layer by a Kronecker product, as in Martens and
Grosse (2015), "Optimizing Neural Networks with Kronecker-factored Approximate Curvature":

    M = A ⊗ G        A = Σ |g|² a aᵀ / Σ |g|²        G = mean over rows of Σ g gᵀ        sums over rows and positions

δᵀMδ estimates how much a displacement δ of the weights changes the answers on all training rows at once. Only these
sums are kept, never a row.

The inputs are weighted by |g|² because many inputs meet no gradient, such as all positions but one behind a maximum
over positions: what the layer does with those inputs does not reach the answer.

The file reads from the inside out: a sum of outer products (`Moment`), the two sums of one weight (`Factors`), all
weights of a model (`Curvature`), and last the pass over the data that adds to the sums (`_Layers`).
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Mapping, Set
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from forsaken.data.nest import Nest
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError, SettingsError
from forsaken.models.layers import hooked, patches
from forsaken.models.logits import Forward, LinearModel, LogitModel, as_module, centre, evaluation
from forsaken.models.weights import fingerprint
from forsaken.progress import reporter
from forsaken.references.rows import row_hashes
from forsaken.types import Array, Progress, Tick, silent

ROWS = 2500  # about how many rows to pass by default; more rows change the sums little
DENSE = 1200  # the widest vector whose sum is kept as a whole matrix
RANK = 512  # columns of the sketch that replaces a wider matrix
STAGE = "measure the curvature"
_PUBLIC = bytes(32)  # rows are drawn by a hash of their content, so that `without` knows which rows were passed
_BATCH, _BATCH_ON_GPU = 64, 256
_FACTORED = (nn.Linear, LinearModel, nn.Conv1d, nn.Conv2d, nn.Embedding)
_PARTS = ("diagonal", "matrix", "sketch")

Apply: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class Moment:
    """S = Σ x xᵀ over vectors x of one width d; vectors can be added and subtracted.

    Attributes
    ----------
    diagonal : Tensor, shape (d,)
        Σ x², always there.
    matrix : Tensor, shape (d, d), or None
        S itself, where d is at most `DENSE`.
    sketch : Tensor, shape (d, r), or None
        S Ω for a fixed random Ω, where d is larger: `factor` makes a Nyström approximation of S from it. Where matrix
        and sketch are both None, S is diagonal, as for the tokens of an embedding.
    """

    diagonal: Tensor
    matrix: Tensor | None = None
    sketch: Tensor | None = None

    @classmethod
    def zeros(cls, width: int, like: Tensor, *, diagonal: bool = False) -> Moment:
        """Return an empty sum, in float64 for float64 weights and else in float32."""
        kind = torch.float64 if like.dtype == torch.float64 else torch.float32
        zero = like.new_zeros(width, dtype=kind)
        if diagonal:
            return cls(zero)
        if width <= DENSE:
            return cls(zero, matrix=like.new_zeros(width, width, dtype=kind))
        return cls(zero, sketch=like.new_zeros(width, RANK, dtype=kind))

    def add(self, vectors: Tensor, sign: float = 1.0) -> None:
        """Add vectors (n x d), or subtract them where `sign` is -1."""
        vectors = vectors.to(self.diagonal.dtype)
        self.diagonal += sign * vectors.square().sum(0)
        if self.matrix is not None:
            self.matrix.addmm_(vectors.T, vectors, alpha=sign)
        elif self.sketch is not None:
            self.sketch.addmm_(vectors.T, vectors @ _omega(self.sketch), alpha=sign)

    def parts(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the tensors."""
        return self.diagonal, self.matrix, self.sketch

    def map(self, act: Callable[[Tensor], Tensor]) -> Moment:
        """Return the sum with `act` applied to its tensors."""
        return Moment(*(None if part is None else act(part) for part in self.parts()))  # type: ignore[arg-type]

    def factor(self) -> Tensor | None:
        """Return F with F Fᵀ ≈ S, or None where there is no sketch.

        Nyström: S ≈ Y (ΩᵀY)⁻¹ Yᵀ with Y = S Ω, stabilised by a shift of S as in Tropp, Yurtsever, Udell and Cevher
        (2017), "Fixed-rank approximation of a positive-semidefinite matrix from streaming data".
        """
        if self.sketch is None:
            return None
        sketch, omega = self.sketch.double(), _omega(self.sketch).double()
        shift = float(sketch.norm()) * torch.finfo(self.sketch.dtype).eps
        sketch = sketch + shift * omega
        core = omega.T @ sketch
        root = _cholesky((core + core.T) / 2, shift)
        factor: Tensor = torch.linalg.solve_triangular(root, sketch.T, upper=False).T
        return factor.to(self.sketch.dtype)

    def inverse(
        self, divisor: float, damping: float, columns: Tensor | None = None, factor: Tensor | None = None
    ) -> Apply:
        """Return X ↦ X (S/n + λ s̄ I)⁻¹ for n = `divisor`, λ = `damping` and s̄, the mean eigenvalue of S/n.

        Parameters
        ----------
        divisor, damping : float
            n and λ.
        columns : Tensor, optional
            Restricts S to these rows and columns, which are those that X has, in this order.
        factor : Tensor, optional
            The result of `factor`, where it is known already.
        """

        def chosen(values: Tensor) -> Tensor:
            return values if columns is None else values[columns]

        floor = damping * float(self.diagonal.clamp_min(0).mean()) / divisor
        floor = floor if floor > 0 else 1.0  # no vector was added: every direction costs the same
        if self.matrix is None and self.sketch is None:
            spread = chosen(self.diagonal).clamp_min(0) / divisor + floor
            return lambda rows: rows / spread
        if self.matrix is not None:
            whole = self.matrix if columns is None else self.matrix[columns][:, columns]
            inverse = torch.cholesky_inverse(_cholesky(whole / divisor, floor))
            return lambda rows: rows @ inverse
        known = self.factor() if factor is None else factor
        if known is None:
            raise InputError("a moment without a sketch has no factor")
        # S/n + λ s̄ I ≈ R + F Fᵀ, where the diagonal R makes up for what F Fᵀ leaves out of the diagonal of S/n.
        factor = chosen(known) / divisor**0.5
        rest = (chosen(self.diagonal) / divisor - factor.square().sum(1)).clamp_min(0) + floor
        # Woodbury: (R + F Fᵀ)⁻¹ = R⁻¹ − R⁻¹F (I + FᵀR⁻¹F)⁻¹ FᵀR⁻¹
        scaled = factor / rest[:, None]
        core = _cholesky(factor.T @ scaled, 1.0)
        half = torch.linalg.solve_triangular(core, scaled.T, upper=False)
        return lambda rows: rows / rest - (rows @ half.T) @ half


def _omega(sketch: Tensor) -> Tensor:
    """Return the random matrix of a sketch: always the same for its width and rank."""
    return _drawn(*sketch.shape).to(sketch)


@lru_cache(maxsize=4)
def _drawn(width: int, rank: int) -> Tensor:
    return torch.randn(width, rank, generator=torch.Generator().manual_seed(width))


def _cholesky(matrix: Tensor, floor: float) -> Tensor:
    """Return the Cholesky factor of a matrix plus `floor` on its diagonal, or plus more where rounding requires it."""
    eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    for _ in range(8):
        factor: Tensor
        factor, failed = torch.linalg.cholesky_ex(matrix + floor * eye)
        if int(failed) == 0:
            return factor
        floor *= 10
    raise ModelError("the curvature is not finite or far from positive; measure it anew with forsaken.Curvature.fit")


@dataclass(slots=True)
class Factors:
    """The two sides of one weight's curvature: A of the layer's inputs, and G of the gradients at its output.

    Attributes
    ----------
    inputs, outputs : Moment
        The sums of A and G.
    count : float
        Σ |g|², the weights of the vectors in `inputs`. It is 0 where the weight belongs to no factored layer: both
        sides are then sums over the weight's own gradients, as in Gupta, Koren and Singer (2018), "Shampoo", and A is
        divided by its trace.
    bias : str or None
        The name of the bias, whose input is the 1 at the end of a.
    transposed : bool
        Whether the rows of the weight, and not its columns, belong to the inputs, as in an embedding and in the layers
        of GPT-2. Of an embedding A is diagonal.
    """

    inputs: Moment
    outputs: Moment
    count: float = 0.0
    bias: str | None = None
    transposed: bool = False

    @property
    def divisor(self) -> float:
        """What the sum in `inputs` is divided by to give A."""
        return self.count or float(self.inputs.diagonal.sum()) or 1.0

    def map(self, act: Callable[[Tensor], Tensor]) -> Factors:
        """Return the factors with `act` applied to their tensors."""
        return replace(self, inputs=self.inputs.map(act), outputs=self.outputs.map(act))


Sums: TypeAlias = tuple[dict[str, Factors], dict[str, Tensor]]


@dataclass(slots=True, eq=False, repr=False)
class Curvature:
    """How much each direction of a model's weights changes its answers on its training data. See `fit`.

    It holds sums over all rows that were passed, and no row. The sums still tell something about the data as a whole:
    protect them as you protect the model.

    Attributes
    ----------
    factors : dict of str to Factors
        By the name of the weight. The weights of norm layers are left out: unlearning does not change them.
    diagonals : dict of str to Tensor
        Σ g² for parameters of one dimension that belong to no factored layer.
    rows : int
        How many rows were passed.
    share : float
        The share of the data that was drawn: a row is drawn if a hash of its content, as a number in [0, 1), is below.
    weights : str
        The fingerprint of the model's weights.
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
            The trained model; it is not changed.
        data : inputs, or pair (inputs, labels)
            Everything that it was trained on.
        rows : int
            About how many rows to pass.
        forward : callable, optional
            See `forsaken.unlearn`.
        batch_size : int, optional
            The rows of one forward and backward pass.
        progress : bool or callable
            Show a bar, or call a function with each `Tick`.

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
        hashes = row_hashes(samples, _PUBLIC)
        places = _uniform(hashes)
        share = max(min(1.0, int(rows) / len(samples)), float(np.nextafter(places.min(), 1.0)))  # one row at least
        drawn = np.flatnonzero(places < share)
        with reporter(progress) as report:
            factors, diagonals = _summed(module, samples, drawn, hashes, forward, batch_size, report)
        if not factors and not diagonals:
            raise ModelError(
                "the model has no trainable weight outside of its norm layers, so there is no curvature to "
                "measure; set requires_grad on the weights that may change"
            )
        return cls(factors, diagonals, len(drawn), share, fingerprint(module))

    def without(self, before: object, after: object, samples: object, *, forward: Forward | None = None) -> Curvature:
        """Return the curvature without some of its rows, for the weights of `after`.

        The terms of these rows are subtracted exactly, computed with the model `before` as they were when they were
        added. The terms of the other rows remain those of `before`.
        """
        old, new = as_module(before), as_module(after)
        self.check(old)
        given = Samples.read(samples, "samples", labels=False)
        hashes = row_hashes(given, _PUBLIC)
        drawn = np.flatnonzero(_uniform(hashes) < self.share)
        sums: Sums = (
            {name: each.map(torch.clone) for name, each in self.factors.items()},
            {name: each.clone() for name, each in self.diagonals.items()},
        )
        if len(drawn):
            # a parameter that was frozen or thawed since then does not change which sums there are
            sums = _summed(old, given, drawn, hashes, forward, None, silent, subtract_from=sums, names=self.names)
        return Curvature(*sums, self.rows - len(drawn), self.share, fingerprint(new))

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
        """Return X ↦ X (A + λāI)⁻¹ for a weight; `columns` restricts A, as in `Moment.inverse`.

        Everything that does not depend on `columns` is computed once and kept.
        """
        key = ("inputs", name, damping, device)
        if columns is None and key in self._prepared:
            found: Apply = self._prepared[key]
            return found
        own = self.factors[name]
        inputs = own.inputs.map(lambda part: part.to(device))
        factor = self._prepared.get(("factor", name, device))
        if factor is None:
            factor = self._prepared["factor", name, device] = inputs.factor()
        inverse = inputs.inverse(own.divisor, damping, columns, factor)
        if columns is None:
            self._prepared[key] = inverse
        return inverse

    def divide_outputs(self, name: str, damping: float, device: torch.device) -> Apply:
        """Return X ↦ X (G + λḡI)⁻¹ for a weight; it is computed once and kept."""
        key = ("outputs", name, damping, device)
        if key not in self._prepared:
            outputs = self.factors[name].outputs.map(lambda part: part.to(device))
            self._prepared[key] = outputs.inverse(max(1, self.rows), damping)
        found: Apply = self._prepared[key]
        return found

    @property
    def bytes(self) -> int:
        """The memory of the sums."""
        return sum(part.nbytes for part in self.to_tensors()[0].values())

    @property
    def names(self) -> frozenset[str]:
        """The parameters whose curvature is known, which are those that unlearning may change."""
        biases = {each.bias for each in self.factors.values() if each.bias is not None}
        return frozenset({*self.factors, *self.diagonals, *biases})

    def __repr__(self) -> str:
        return f"Curvature({len(self.names)} parameters, {self.rows} rows, {self.bytes / 2**20:.1f} MiB)"

    def to_tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the sums as named tensors, and everything else as JSON can hold it; see `from_tensors`."""
        tensors: dict[str, Tensor] = {}
        told: dict[str, Any] = {"rows": self.rows, "share": self.share, "weights": self.weights, "factors": {}}
        for at, (name, each) in enumerate(sorted(self.factors.items())):
            told["factors"][name] = {"at": at, "count": each.count, "bias": each.bias, "transposed": each.transposed}
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
        """Read what `to_tensors` returned; a `ValueError` or a `LookupError` means that it is damaged."""
        left = dict(tensors)

        def moment(start: str) -> Moment:
            parts = [left.pop(f"{start}.{part}", None) for part in _PARTS]
            if parts[0] is None:
                raise LookupError(f"{start}.diagonal is not there")
            width = len(parts[0]) if parts[0].dim() == 1 else -1
            for part, tensor, shape in zip(_PARTS, parts, ((width,), (width, width), (width, RANK)), strict=True):
                if tensor is not None and tuple(tensor.shape) != shape:
                    raise ValueError(f"{start}.{part} has shape {tuple(tensor.shape)}")
                if tensor is not None and not bool(torch.isfinite(tensor).all()):
                    raise ValueError(f"{start}.{part} is not finite")
            return Moment(*parts)  # type: ignore[arg-type]

        try:
            factors = {}
            for name, about in told["factors"].items():
                sides = moment(f"{about['at']}.inputs"), moment(f"{about['at']}.outputs")
                transposed = bool(about["transposed"] if "transposed" in about else about["embedding"])  # as of 0.1
                own = Factors(*sides, float(about["count"]), about["bias"], transposed)
                diagonal = own.inputs.matrix is None and own.inputs.sketch is None
                if not 0 <= own.count < math.inf or not isinstance(own.bias, str | None) or diagonal > transposed:
                    raise ValueError(f"the header of {name} is not that of a curvature")
                factors[str(name)] = own
            diagonals = {str(name): left.pop(f"{at}.squares") for at, name in enumerate(list(told["diagonals"]))}
            rows, share, weights = told["rows"], float(told["share"]), told["weights"]
        except (TypeError, AttributeError) as error:
            raise ValueError(f"the header of the curvature has another form ({type(error).__name__})") from error
        if any(part.dim() != 1 or not bool(torch.isfinite(part).all()) for part in diagonals.values()):
            raise ValueError("squares that are not finite")
        if left:
            raise ValueError("it holds a tensor of a curvature that is not known")
        if type(rows) is not int or rows < 0 or not 0 < share <= 1 or not isinstance(weights, str):
            raise ValueError("the header of the curvature has other values")
        return cls(factors, diagonals, rows, share, weights)


def needs_single_rows(model: object, data: object, *, forward: Forward | None = None) -> bool:
    """Return whether the sums of some weights need the gradients of each row by itself: a much longer pass.

    These are the weights of recurrent layers, of attention's joint projection, of exported programs, and weights that
    layers share.

    >>> needs_single_rows(nn.Linear(3, 2), torch.eye(3)), needs_single_rows(nn.Bilinear(3, 3, 2), torch.eye(3),
    ...     forward=lambda model, rows: model(rows, rows))
    (False, True)
    """
    work = copy.deepcopy(as_module(model))
    trainable = {name for name, weight in work.named_parameters() if weight.requires_grad}
    adapter = LogitModel(work.requires_grad_(False), forward)
    with evaluation(adapter):
        return bool(_Layers.of(adapter, Samples.read(data, "data", labels=False).rows([0]), trainable).others)


def _summed(
    module: nn.Module,
    samples: Samples,
    drawn: Array,
    hashes: Array,
    forward: Forward | None,
    batch_size: int | None,
    progress: Progress,
    *,
    subtract_from: Sums | None = None,
    names: Set[str] | None = None,
) -> Sums:
    """Return the sums over the samples at `drawn`, or other sums from which these samples are subtracted.

    `names` are the parameters that have sums, by default those that can be trained.
    """
    work = copy.deepcopy(module)
    trainable = {name for name, weight in work.named_parameters() if weight.requires_grad} if names is None else names
    adapter = LogitModel(work.requires_grad_(False), forward)
    # cuDNN has no backward pass for recurrent layers in evaluation mode; the native kernels have.
    recurrent = any(isinstance(part, nn.RNNBase) for part in work.modules())
    kernels = torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext()
    with evaluation(adapter), torch.enable_grad(), kernels:
        layers = _Layers.of(adapter, samples.rows(drawn[:2]), trainable)
        sums = layers.zeros() if subtract_from is None else _moved(subtract_from, adapter.device)
        sign = 1 if subtract_from is None else -1
        size = batch_size or (_BATCH if adapter.device.type == "cpu" else _BATCH_ON_GPU)
        step = 1 if layers.others else size  # the gradients of `others` are needed row by row
        for done in range(0, len(drawn), step):
            rows = drawn[done : done + step]
            layers.add(sums, samples.rows(rows).inputs, hashes[rows], sign)
            progress(Tick(STAGE, min(done + step, len(drawn)), len(drawn)))
    return sums


def _moved(sums: Sums, device: torch.device | str) -> Sums:
    factors, diagonals = sums
    moved = {name: each.map(lambda part: part.to(device)) for name, each in factors.items()}
    return moved, {name: each.to(device) for name, each in diagonals.items()}


@dataclass(frozen=True, slots=True)
class _Layers:
    """The weights of a model by the way their sums are measured.

    Attributes
    ----------
    layers : dict of str to Module
        By the name of their weight: layers whose inputs and output gradients a hook sees.
    biases : dict of str to str
        By the name of their weight: the biases of these layers, where they may change.
    others : dict of str to Parameter
        Weights that no hook shows: those of recurrent layers, of attention's joint projection, and shared ones. Their
        sums are made of their own gradients.
    """

    adapter: LogitModel
    layers: dict[str, nn.Module]
    biases: dict[str, str]
    others: dict[str, nn.Parameter]

    @classmethod
    def of(cls, adapter: LogitModel, few: Samples, trainable: Set[str]) -> _Layers:
        """Sort the trainable weights of a model; a call with a few samples shows which layers are called."""
        model = adapter.model
        owners: dict[int, int] = {}
        for _, weight in model.named_parameters(remove_duplicate=False):
            owners[id(weight)] = owners.get(id(weight), 0) + 1
        wanted, fixed = {}, set()
        for name, layer in model.named_modules():
            start = f"{name}." if name else ""
            if "norm" in type(layer).__name__.lower():
                fixed |= {f"{start}{own}" for own, _ in layer.named_parameters(recurse=False)}
            plain = (isinstance(layer, _FACTORED) or _is_transposed(layer)) and getattr(layer, "groups", 1) == 1
            plain = plain and getattr(layer, "padding_mode", "zeros") == "zeros"
            plain = plain and not isinstance(getattr(layer, "padding", 0), str)
            if plain and f"{start}weight" in trainable and owners[id(layer.weight)] == 1:
                wanted[f"{start}weight"] = layer
        called: set[int] = set()
        with torch.no_grad(), hooked(wanted.values(), lambda layer, *_: called.add(id(layer))):
            adapter(adapter.place(few.inputs))
        layers = {name: layer for name, layer in wanted.items() if id(layer) in called}
        biases = {
            name: f"{name.removesuffix('weight')}bias"
            for name, layer in layers.items()
            if not isinstance(layer, nn.Embedding) and f"{name.removesuffix('weight')}bias" in trainable
        }
        taken = {*layers, *biases.values(), *fixed}
        others = {name: weight for name, weight in model.named_parameters() if name in trainable and name not in taken}
        for weight in (*others.values(), *(layer.weight for layer in layers.values())):
            weight.requires_grad_(True)
        return cls(adapter, layers, biases, others)

    def zeros(self) -> Sums:
        """Return empty sums for all weights."""
        factors, diagonals = {}, {}
        for name, layer in self.layers.items():
            weight: Tensor = layer.weight  # type: ignore[assignment]
            if isinstance(layer, nn.Embedding):
                tokens, width = weight.shape
                sides = Moment.zeros(tokens, weight, diagonal=True), Moment.zeros(width, weight)
                factors[name] = Factors(*sides, transposed=True)
                continue
            bias, transposed = self.biases.get(name), _is_transposed(layer)
            inputs, outputs = weight.shape if transposed else (weight[0].numel(), len(weight))
            sides = Moment.zeros(inputs + (bias is not None), weight), Moment.zeros(outputs, weight)
            factors[name] = Factors(*sides, bias=bias, transposed=transposed)
        for name, weight in self.others.items():
            if weight.dim() > 1:
                factors[name] = Factors(Moment.zeros(weight[0].numel(), weight), Moment.zeros(len(weight), weight))
            else:
                diagonals[name] = Moment.zeros(weight.numel(), weight, diagonal=True).diagonal
        return factors, diagonals

    def add(self, sums: Sums, inputs: Nest, hashes: Array, sign: int) -> None:
        """Add the terms of a batch to the sums, or subtract them: one forward and one backward pass."""
        factors, diagonals = sums
        seen: list[tuple[str, Tensor, Tensor]] = []
        named = {id(layer): name for name, layer in self.layers.items()}

        def note(layer: nn.Module, given: tuple[Tensor, ...], keywords: dict[str, Tensor], output: Tensor) -> None:
            first = given[0] if given else next(iter(keywords.values()))
            if output.requires_grad:  # a part of the model may be called under torch.no_grad
                seen.append((named[id(layer)], first.detach(), output))

        with hooked(self.layers.values(), note):
            logits = self.adapter(self.adapter.place(inputs))
        centred = centre(logits)
        signs = torch.from_numpy(_signs(hashes, logits.shape[1])).to(centred)
        wanted = [*(output for *_, output in seen), *self.others.values()]
        if not wanted or not logits.requires_grad:
            return
        # g = ∂⟨v, c(z)⟩/∂(output of each layer), and the same for the weights in `others`
        found = torch.autograd.grad((signs * centred).sum(), wanted, allow_unused=True)
        for (name, given, _), gradient in zip(seen, found[: len(seen)], strict=True):
            if gradient is not None:
                _add_layer(factors[name], self.layers[name], given, gradient, sign)
        for name, slope in zip(self.others, found[len(seen) :], strict=True):
            if slope is None:
                continue
            gradient = slope.to_dense() if slope.is_sparse else slope
            if gradient.dim() < 2:
                diagonals[name] += sign * gradient.reshape(-1).to(diagonals[name]).square()
                continue
            matrix = gradient.reshape(len(gradient), -1)
            factors[name].inputs.add(matrix, sign)
            factors[name].outputs.add(matrix.T, sign)


def _add_layer(own: Factors, layer: nn.Module, given: Tensor, gradient: Tensor, sign: int) -> None:
    """Add one call of a layer: g gᵀ to G and |g|² a aᵀ to A, over rows and positions."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        gradient = gradient.flatten(2).transpose(1, 2)
    gradients = gradient.reshape(-1, gradient.shape[-1])
    weights = gradients.square().sum(1)
    met = weights.nonzero()[:, 0]
    gradients, weights = gradients[met], weights[met]
    own.outputs.add(gradients, sign)
    own.count += sign * float(weights.sum())
    if isinstance(layer, nn.Embedding):  # a is one-hot at the token, so A is diagonal
        own.inputs.diagonal.index_add_(0, given.reshape(-1)[met], (sign * weights).to(own.inputs.diagonal))
        return
    vectors = _vectors(layer, given.to(gradient.dtype))[met]
    if own.bias is not None:
        vectors = torch.cat([vectors, vectors.new_ones(len(vectors), 1)], 1)
    own.inputs.add(vectors * weights.sqrt()[:, None], sign)


def _is_transposed(layer: nn.Module) -> bool:
    """Return whether a layer is a linear one of Transformers' GPT-2, whose weight is inputs x outputs."""
    return type(layer).__name__ == "Conv1D" and isinstance(getattr(layer, "weight", None), Tensor)


def _vectors(layer: nn.Module, given: Tensor) -> Tensor:
    """Return the vectors that a layer multiplies with its weight: rows, or the patches that a convolution sees."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        given = patches(layer, given).transpose(1, 2)
    return given.reshape(-1, given.shape[-1])


def _uniform(hashes: Array) -> Array:
    """Return a number in [0, 1) for each hash."""
    return np.ascontiguousarray(hashes[:, :8]).view(np.uint64)[:, 0] / 2.0**64


def _signs(hashes: Array, classes: int) -> Array:
    """Return v: random signs (rows x classes) that follow from the rows' content, so that `without` repeats them."""
    size = -(-classes // 8)
    digests = b"".join(hashlib.shake_256(row.tobytes()).digest(size) for row in hashes)
    bits = np.unpackbits(np.frombuffer(digests, dtype=np.uint8).reshape(len(hashes), size), axis=1)[:, :classes]
    return 2.0 * bits.astype(np.float64) - 1.0
