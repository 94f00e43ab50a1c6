"""Scores of several draws of each item, which a posterior mean cannot have: energy, coverage, spread over skill.

All three are over hidden entries of which the truth is known, need two independent draws of an item or more, and are
fair to any number of them: right draws score as they would if there were infinitely many. Antithetic pairs are not
independent; of each pair, the scores take the first (`Completions.independent`). Draws of images are clamped to
[0, 1] first, as for the RMSE.

**Energy score** (Gneiting and Raftery 2007, in the fair form of Ferro 2014), with the Euclidean norm over all hidden
entries of an item at once:

    mean_k |y_k − t| − ½ mean_{k≠l} |y_k − y_l|

Its expectation is least for draws of the truth's own law. One fair estimate may be negative.

**Coverage** of central intervals. If the truth t and K draws are exchangeable and have no ties, t lies between the
i-th smallest and the i-th largest draw with probability 1 − 2i/(K + 1), whatever their law. The central 90 % interval
is i = (K + 1)/20; where that is no whole number, the intervals of the whole numbers next to it count in parts, which
gives 90 % exactly, where interpolating between the draws would only be close. Fewer than 19 draws have no such
interval: the widest one takes its place, from the smallest to the largest draw, with its own nominal (K − 1)/(K + 1),
which stands beside the coverage. An interval contains its ends, so that one from 0 to 0 covers a truth of 0: where
values gather at a point, as black pixels do, right draws cover more than the nominal share. Entries that hardly vary
between the items would be covered by anything, and are left out.

**Spread over skill** (Fortin et al. 2014): √((1 + 1/K) · mean s²) over the root of the mean of (ȳ − t)², for the
draws' variance s² (with K − 1) and their mean ȳ. It is 1 for draws of the truth's own law, since then
E (ȳ − t)² = (1 + 1/K) σ²; below 1, draws are too sure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.data.items import Data, Units
from viscos.metrics.ratio import Ratio
from viscos.metrics.rmse import check_batch, known, placed

TAIL = 0.05
"""Probability on each side of the interval of which the coverage is measured."""
LEVEL = 1 - 2 * TAIL
FEWEST = round(1 / TAIL) - 1
"""Draws that such an interval needs."""
VARIES = 0.01
"""Standard deviation above which an entry varies, in the units of the error: a hundredth of a pixel's range."""
INDEPENDENT = "independent draws"
HALVES = "independent draws: the first of each antithetic pair"
"""What draws are, in words."""
ROWS = 4096
"""Items whose values are in float64 at a time."""


def varying(data: Data) -> Tensor:
    """Which entries of an item vary over the items of `data` (*shape), bool: by more than `VARIES`, where known.

    Entries that are known in fewer than two items count as varying, since nobody can tell.
    """
    count, total, squares = (torch.zeros(data.shape, dtype=torch.float64) for _ in range(3))
    for values, there in zip(data.values.split(ROWS), data.known.split(ROWS), strict=True):
        count += there.sum(0)
        total += torch.where(there, values, 0).double().sum(0)
    mean = total / count.clamp(min=1)
    for values, there in zip(data.values.split(ROWS), data.known.split(ROWS), strict=True):
        squares += torch.where(there, values.double() - mean, 0).square().sum(0)
    return (count < 2) | ((squares / (count - 1).clamp(min=1)).sqrt() > VARIES)


@dataclass
class Scores:
    """Accumulates the three scores. An item with fewer than two draws that were solved is left out and counted."""

    units: Units
    varies: Tensor
    """Entries that the coverage is over (*shape), bool."""
    drawn: str = INDEPENDENT
    """What the draws are, in words, for the record."""
    draws: int = 0
    """The most draws of an item."""
    failed: int = 0
    """Items left out because fewer than two of their draws were solved."""
    failed_draws: int = 0
    """Draws of the other items that were not solved, and are left out."""
    nothing_hidden: int = 0
    """Items left out because nothing of them was hidden."""
    _parts: list[Tensor] = field(default_factory=list, repr=False)
    """(6, b): energy; variance and squared error; hits, entries that vary, and the hits that are nominal."""
    _counted: list[Tensor] = field(default_factory=list, repr=False)
    """Of every item that was given, whether it is counted (B,)."""

    def update(self, draws: Tensor, truth: Tensor, hidden: Tensor, ok: Tensor | None = None) -> None:
        """Adds a batch: independent `draws` (K, B, …) of `truth` (B, …) with holes `hidden` (bool, B, …).

        `ok` (bool, (K, B)) says which draws were solved, by default all. Raises `InputError` if shapes or dtypes do not
        fit, if a hidden truth is not finite or, of an image, outside [0, 1], or if a draw that is said to be ok is not
        finite.
        """
        ok = _draw_mask(ok, draws)
        for draw in draws:
            check_batch(draw, truth, hidden, self.units)
        hidden, solved = hidden.flatten(1), ok.sum(0) >= 2
        if bool((~draws.flatten(2).isfinite() & hidden & ok.unsqueeze(-1)).any()):
            raise InputError("a draw is not finite; mark failed draws as not ok")
        counted = solved & hidden.any(1)
        self._counted.append(counted.cpu())
        self.draws = max(self.draws, len(draws))
        self.failed += int((~solved).sum())
        self.nothing_hidden += int((solved & ~hidden.any(1)).sum())
        self.failed_draws += int((~ok[:, counted]).sum())
        ok, hidden = ok[:, counted], hidden[counted]
        y, t = draws.flatten(2)[:, counted].double(), truth.flatten(1)[counted].double()
        error = (y.clamp(0, 1) if self.units.clamped else y) - t
        error = torch.where(hidden & ok.unsqueeze(-1), error, 0.0)
        vary = hidden & self.varies.flatten().to(hidden.device)
        parts = [_energy(error, ok), *_spread_and_skill(error, ok), *interval_hits(error, ok, vary)]
        self._parts.append(torch.stack(parts).cpu())

    def __len__(self) -> int:
        """Items that were given."""
        return sum(len(part) for part in self._counted)

    @property
    def count(self) -> int:
        """Items counted."""
        return sum(part.shape[1] for part in self._parts)

    @property
    def energy(self) -> Ratio:
        """The mean of the items' energy scores, lower is better."""
        scores = self._joined()[0]
        return Ratio.of(scores, torch.ones_like(scores))

    def energy_beside(self, other: Scores) -> dict[str, Any]:
        """How much larger the energy score is than that of `other` draws of the same items: the mean of the items'
        differences, over those that both count, and its standard error, in which what is common to both is gone.
        """
        apart = self.each_energy - other.each_energy
        apart = apart[apart.isfinite()]
        return {**plain(Ratio.of(apart, torch.ones_like(apart))), "items": len(apart)}

    @property
    def each_energy(self) -> Tensor:
        """The energy score of every item that was given (n,), float64, NaN where it is left out."""
        return placed(self._joined()[0], self._counted)

    @property
    def spread_skill(self) -> Ratio:
        """Pooled over all hidden entries, 1 is best; NaN where the mean of the draws has no error at all."""
        _, spread, skill, *_ = self._joined()
        return Ratio.of(spread, skill).sqrt()

    @property
    def coverage(self) -> Ratio:
        """Share of hidden entries that vary inside the interval; best is `nominal`."""
        *_, hits, entries, _ = self._joined()
        return Ratio.of(hits, entries)

    @property
    def nominal(self) -> float:
        """The coverage of draws of the truth's own law, without ties: 0.9, or less where there are too few draws."""
        *_, entries, nominal = self._joined()
        return Ratio.of(nominal, entries).value

    def records(self) -> dict[str, dict[str, Any]]:
        """The numbers by metric, and how they were computed; plain, and None for what is not known."""
        unit, clamped = self.units.error, ", clamped to [0, 1]" if self.units.clamped else ""
        shared = {
            "items": self.count,
            "draws": self.draws,
            "drawn": self.drawn + clamped,
            "failed_items_left_out": self.failed,
            "failed_draws_left_out": self.failed_draws,
            "items_with_nothing_hidden_left_out": self.nothing_hidden,
        }
        energy, coverage, ratio = self.energy, self.coverage, self.spread_skill
        return {
            "energy": {
                "metric": "energy score",
                "unit": f"{unit}, Euclidean norm over the hidden entries of an item",
                "how": "mean over items of mean |y_k - t| - 1/2 mean over k != l of |y_k - y_l|",
                **plain(energy),
                **shared,
            },
            "coverage": {
                "metric": "coverage of the central interval",
                "unit": f"share of hidden entries whose standard deviation over the items is above {VARIES:g}",
                "how": f"order statistics: the central {LEVEL:g} interval or, below {FEWEST} draws, from "
                "the smallest to the largest; ends count as inside",
                **plain(coverage),
                "nominal": known(self.nominal),
                "entries": int(self._joined()[4].sum()),
                **shared,
            },
            "spread_skill": {
                "metric": "spread over skill",
                "unit": "ratio, 1 if draws spread as the truth does around their mean",
                "how": "sqrt((1 + 1/K) mean variance of K draws) / RMSE of their mean, pooled over hidden entries",
                **plain(ratio),
                **shared,
            },
        }

    def _joined(self) -> Tensor:
        return torch.cat(self._parts, 1) if self._parts else torch.empty(6, 0, dtype=torch.float64)


def plain(ratio: Ratio) -> dict[str, float | None]:
    """A ratio as a record has it, None for what is not known."""
    return {"value": known(ratio.value), "standard_error": known(ratio.standard_error)}


def _draw_mask(ok: Tensor | None, draws: Tensor) -> Tensor:
    """Which of `draws` (K, B, …) count (K, B), bool; all by default."""
    if ok is None:
        return torch.ones(draws.shape[:2], dtype=torch.bool, device=draws.device)
    if ok.dtype != torch.bool or ok.shape != draws.shape[:2]:
        wanted = tuple(draws.shape[:2])
        raise InputError(f"ok is {ok.dtype} of shape {tuple(ok.shape)}; give one bool for each draw, {wanted}")
    return ok.to(draws.device)


def _energy(error: Tensor, ok: Tensor) -> Tensor:
    """The fair energy score (b,) of errors (K, b, d), zero where a draw is not `ok` (K, b) or an entry not hidden."""
    weight, count = ok.double(), ok.sum(0).double()
    far = (weight * error.norm(dim=2)).sum(0) / count
    each = error.transpose(0, 1).contiguous()
    # Not by inner products, in which the distance of two like draws would drown.
    apart = torch.cdist(each, each, compute_mode="donot_use_mm_for_euclid_dist")
    pairs = torch.einsum("kb,lb,bkl->b", weight, weight, apart)
    return far - 0.5 * pairs / (count * (count - 1))


def _spread_and_skill(error: Tensor, ok: Tensor) -> tuple[Tensor, Tensor]:
    """(1 + 1/K) s² and (ȳ − t)², both summed over an item's entries (b,)."""
    weight, count = ok.double().unsqueeze(-1), ok.sum(0).double()
    mean = (weight * error).sum(0) / count.unsqueeze(-1)
    squares = (weight * (error - mean).square()).sum((0, 2))
    return (1 + 1 / count) * squares / (count - 1), mean.square().sum(1)


def interval_hits(error: Tensor, ok: Tensor, counted: Tensor, tail: float = TAIL) -> tuple[Tensor, Tensor, Tensor]:
    """How many of the `counted` entries (bool, (b, d)) are covered, of how many, and how many should be (b,).

    The i-th smallest of K draws is at or below the truth if at most K − i are above it, and the i-th largest likewise.
    """
    count = ok.sum(0).double()
    place = tail * (count + 1)
    order = place.floor().clamp(min=1)
    part = (place - order).clamp(min=0)
    solved = ok.unsqueeze(-1)
    outside = torch.maximum(((error < 0) & solved).sum(0), ((error > 0) & solved).sum(0))
    room = (count - order).unsqueeze(-1)
    inside = torch.lerp((outside <= room).double(), (outside <= room - 1).double(), part.unsqueeze(-1))
    entries = counted.sum(1).double()
    nominal = 1 - 2 * (order + part) / (count + 1)
    return torch.where(counted, inside, 0.0).sum(1), entries, nominal * entries
