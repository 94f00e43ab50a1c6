"""How a fit is judged: the best q that it has come by, and what should be said of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from viscos.core.solution import per_item
from viscos.inference.elbo import lower_bound

_LOOKS = 5
_FEW = 10  # steps below which a fit is looked at in the end alone
_FAILED = 0.03  # share of failed draws that is worth a line


class Best:
    """The parameters with the highest bound so far: of each item by itself, where each has its own."""

    def __init__(self, parameters: Sequence[nn.Parameter], bound: Tensor, each: bool) -> None:
        self.parameters, self.bound, self.each = parameters, bound, each
        self.values = [p.detach().clone() for p in parameters]

    def offer(self, bound: Tensor) -> None:
        """Keeps the present parameters of items whose `bound` (B,) is higher than any before."""
        if self.each:
            better = bound > self.bound
        else:
            better = (_total(bound) > _total(self.bound)).expand_as(bound)
        self.bound = torch.where(better, bound, self.bound)
        for kept, p in zip(self.values, self.parameters, strict=True):
            keep = per_item(better, p) if self.each else better.any()
            kept.copy_(torch.where(keep, p.detach(), kept))

    @torch.no_grad()
    def restore(self) -> None:
        """Puts the best parameters back."""
        for kept, p in zip(self.values, self.parameters, strict=True):
            p.copy_(kept)


def _total(bound: Tensor) -> Tensor:
    """The sum over items, to which one that is not solved at all adds a loss beyond all others."""
    return bound.nan_to_num(neginf=-1e12).double().sum()


class Looks:
    """The bound as a fit went on."""

    def __init__(self, steps: int) -> None:
        self.steps = {steps * (k + 1) // _LOOKS - 1 for k in range(_LOOKS)} if steps >= _FEW else {steps - 1}
        """After which steps it is looked at."""
        self.bounds: list[Tensor] = []
        self.failed = 0.0

    def take(self, weight: Tensor) -> dict[str, float]:
        """Takes in log-weights (K, B), NaN where a draw failed; returns their bound as a figure."""
        bound = lower_bound(weight)
        self.bounds.append(bound)
        self.failed = float(weight.isnan().double().mean())
        return {"bound": float(bound[bound.isfinite()].mean())}

    def rising(self, best: Best, hidden: Tensor) -> str | None:
        """A line if the bound still rose to its best over the last two fifths, by 0.1 nats and 0.01 a hidden entry."""
        if len(self.bounds) < _LOOKS:
            return None
        rise = self.bounds[-1] - self.bounds[-3]
        known = rise.isfinite() & (self.bounds[-1] >= best.bound)
        slack = 0.1 + 0.01 * hidden.flatten(1).sum(1)
        if not bool(known.any()) or not float((rise - slack)[known].mean()) > 0:
            return None
        return (
            f"the bound was still rising when the fit ended, by {float(rise[known].mean()):.3g} nats an item over the "
            "last two fifths of the steps: fit again, or with more steps or a larger learning_rate"
        )

    def failing(self) -> str | None:
        """A line if more than a few per cent of the draws failed in the end."""
        if self.failed <= _FAILED:
            return None
        return (
            f"{100 * self.failed:.2g} % of the draws could not be completed; the bound counts them as draws of weight "
            "zero, and samples leave them out: loosen the solver's tolerance, or take another solver or partition"
        )
