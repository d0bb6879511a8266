"""The memory of a quasi-Newton method: pairs of steps and changes of the gradient, and what they say of curvature."""

from __future__ import annotations

import torch
from torch import Tensor

CURVATURE = 1e-10  # a pair is kept if sᵀy > CURVATURE yᵀy


class History:
    """The last m pairs (s, y) over the working set, and the inverse Hessian that they imply.

    Preallocated as one (2m, capacity) matrix: m rows of s, m rows of y. The two-loop recursion is done in matrix
    form (Byrd, Nocedal and Schnabel 1994), so that a direction reads the matrix twice and no more:

        H v = γ v + Sᵀa + Yᵀb,   u = R⁻¹ S v,   a = R⁻ᵀ (D u + γ Y Yᵀ u − γ Y v),   b = −γ u

    with R the upper triangle of S Yᵀ, D its diagonal and γ = sᵀy / yᵀy of the newest pair.
    """

    def __init__(self, length: int, like: Tensor) -> None:
        self.length = length
        self.size = like.numel()
        self.pairs = like.new_empty(2 * length, 2 * self.size)  # room to grow; untouched memory costs nothing
        self.pairs[:, : self.size] = 0
        self.order: list[int] = []  # slots from the oldest to the newest pair
        small = {"dtype": torch.float64, "device": like.device}
        self.products = torch.zeros(2 * length, length, **small)  # type: ignore[call-overload]

    def __len__(self) -> int:
        return len(self.order)

    def clear(self) -> None:
        """Forget all pairs."""
        self.order.clear()

    def grow(self, size: int) -> None:
        """Make room for a larger working set; old pairs are zero on the newcomers."""
        if size > self.pairs.shape[1]:
            wider = self.pairs.new_empty(len(self.pairs), 2 * size)
            wider[:, : self.size] = self.pairs[:, : self.size]
            self.pairs = wider
        self.pairs[:, self.size : size] = 0
        self.size = size

    def shrink(self, kept: Tensor) -> None:
        """Keep only the coordinates at `kept`; pairs whose curvature goes with the others are dropped."""
        m = self.length
        self.pairs = self.pairs[:, : self.size].index_select(1, kept)
        self.size = len(kept)
        self.products = (self.pairs @ self.pairs[m:].T).double()
        curved = (self.products[:m].diagonal() > CURVATURE * self.products[m:].diagonal()).tolist()
        self.order = [slot for slot in self.order if curved[slot]]

    def add(self, s: Tensor, y: Tensor) -> None:
        """Put a pair in the place of the oldest."""
        m = self.length
        slot = self.order.pop(0) if len(self.order) == m else min(set(range(m)) - set(self.order))
        self.pairs[slot, : self.size] = s
        self.pairs[m + slot, : self.size] = y
        self.order.append(slot)
        column = (self.pairs[:, : self.size] @ y).double()
        self.products[:, slot] = column  # s_i · y_slot, then y_i · y_slot
        self.products[m:, slot] = self.products[m + slot, :] = column[m:]

    def times(self, vector: Tensor) -> Tensor:
        """Return H · vector; the vector itself where there is no pair."""
        if not self.order:
            return vector.clone()
        m = self.length
        kept = torch.tensor(self.order, device=vector.device)
        pairs = self.pairs[:, : self.size]
        onto = (pairs @ vector).double()
        crossed = self.products[kept][:, kept]  # S Yᵀ
        inner = self.products[m + kept][:, kept]  # Y Yᵀ
        upper, newest = crossed.triu(), len(self.order) - 1
        gamma = crossed[newest, newest] / inner[newest, newest]
        u = torch.linalg.solve_triangular(upper, onto[kept, None], upper=True)
        middle = crossed.diagonal()[:, None] * u + gamma * (inner @ u - onto[m + kept, None])
        a = torch.linalg.solve_triangular(upper.T, middle, upper=False)
        weights = torch.zeros(2 * m, dtype=torch.float64, device=vector.device)
        weights[kept], weights[m + kept] = a[:, 0], -gamma * u[:, 0]
        return torch.addmv(vector * gamma.to(vector.dtype), pairs.T, weights.to(vector.dtype))
