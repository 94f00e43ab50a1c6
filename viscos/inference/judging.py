"""How a fit is judged: the best q that it has come by, and what should be said of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from viscos.core.counts import percent
from viscos.core.quantiles import variance
from viscos.core.solution import per_item
from viscos.inference.elbo import lower_bound

_LOOKS = 5
_APART = {True: 4, False: 2}  # standard errors of a few draws' weights, exact or not, by which bounds differ
_FEW = 10  # steps below which a fit is looked at in the end alone
_FAILED = 0.03  # share of failed draws that is worth a line


class Best:
    """The parameters with the highest bound so far: of each item by itself, where each has its own."""

    def __init__(self, parameters: Sequence[nn.Parameter], weight: Tensor, each: bool, exact: bool) -> None:
        self.parameters, self.weight, self.each, self.exact = parameters, weight, each, exact
        self.values = [p.detach().clone() for p in parameters]

    @property
    def bound(self) -> Tensor:
        """That of the best (B,)."""
        return lower_bound(self.weight)

    def offer(self, weight: Tensor) -> None:
        """Keeps the present parameters, of log-weights (K, B), for items for which they are better than before."""
        if self.each:
            better = _better(weight, self.weight, self.exact)
        else:
            better = (_total(lower_bound(weight)) > _total(self.bound)).expand(weight.shape[1])
        self.weight = torch.where(better, weight, self.weight)
        for kept, p in zip(self.values, self.parameters, strict=True):
            keep = per_item(better, p) if self.each else better.any()
            kept.copy_(torch.where(keep, p.detach(), kept))

    @torch.no_grad()
    def restore(self) -> None:
        """Puts the best parameters back."""
        for kept, p in zip(self.values, self.parameters, strict=True):
            p.copy_(kept)


def _better(new: Tensor, old: Tensor, exact: bool) -> Tensor:
    """Whether log-weights (K, B) of the same noise, NaN where a draw failed, are those of a better q (B,), bool.

    By their bounds, where these are apart by more than chance; the standard error of the paired differences is itself
    of a few draws. Else by how little the weights vary: they are constant where q is exact, and near there their
    variance is twice the divergence, of which a few draws tell more than of a mean that errs by the root of it. Weights
    that are not `exact` vary by their estimates too, which says nothing of q: the later one is taken then.
    """
    gain, paired = lower_bound(new) - lower_bound(old), new - old
    error = variance(paired).nan_to_num(0).sqrt() / (~paired.isnan()).sum(0).clamp_min(1).sqrt()
    noise = _APART[exact] * error
    steadier = variance(new) < variance(old) if exact else torch.ones_like(gain, dtype=torch.bool)
    return (gain > noise) | ((gain.abs() <= noise) & steadier)


def _total(bound: Tensor) -> Tensor:
    """The sum over items, to which one that is not solved at all adds a loss beyond all others."""
    return bound.nan_to_num(neginf=-1e12).double().sum()


class Looks:
    """The bound as a fit went on."""

    def __init__(self, steps: int) -> None:
        self.steps = {steps * (k + 1) // _LOOKS - 1 for k in range(_LOOKS)} if steps >= _FEW else {steps - 1}
        """After which steps it is looked at."""
        self.bounds: list[Tensor] = []

    def take(self, weight: Tensor) -> dict[str, float]:
        """Takes in log-weights (K, B), NaN where a draw failed; returns their bound as a scalar."""
        bound = lower_bound(weight)
        self.bounds.append(bound)
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

    @staticmethod
    def failing(best: Best) -> str | None:
        """A line if more than a few per cent of the best q's draws fail."""
        failed = float(best.weight.isnan().double().mean())
        if failed <= _FAILED:
            return None
        return (
            f"{percent(failed)} of the draws could not be completed; the bound counts them as draws of weight "
            "zero, and samples leave them out: loosen the solver's tolerance, or take another solver or partition"
        )
