"""Calibration of draws: coverage at several levels, the continuous ranked probability score, and ranks of the truth.

If the truth and K draws are exchangeable, as for right draws, the rank of the truth among them is uniform over 0 to K
(Talts et al., 2018, Validating Bayesian inference algorithms with simulation-based calibration), and the truth lies in
the central interval of level 1 − 2t with that probability (`viscos.metrics.calibration`). Ranks that gather at both
ends are of draws that are too sure, ranks in the middle of draws that are not sure enough, ranks at one end of a bias.

The histogram is over all hidden entries that vary. Those of an item depend on each other, so the chi-square test has
one entry of each item, chosen at random. Where draws tie with the truth, the ranks that it may have share its count.

**CRPS** (Gneiting and Raftery, 2007, in the fair form of Ferro, 2014), entry by entry: mean |y_k − t| less half the
mean of |y_k − y_l| over k ≠ l; of one number it is the energy score.
"""

from __future__ import annotations

from typing import Any

import torch
from scipy.stats import chi2
from torch import Tensor

from viscos.core.rng import generator
from viscos.data.items import Data
from viscos.imputers import Imputer
from viscos.inference import Completions
from viscos.metrics.calibration import interval_hits, plain, varying
from viscos.metrics.metric import Metric, Truth
from viscos.metrics.ratio import Ratio
from viscos.metrics.rmse import known

LEVELS = (0.5, 0.9, 0.95)
"""Of the central intervals."""
DRAWS = 39
"""Of which all three are exact: the first, the second and the tenth draw from either end."""
_BINS = 10


class Ranks:
    """Accumulates the ranks, hits and scores of one imputer. An item of which a draw failed is left out, and counted.

    `varies` (*shape), bool, says which entries count; draws are clamped to [0, 1] first if `clamped`.
    """

    def __init__(self, varies: Tensor, clamped: bool) -> None:
        self.varies, self.clamped = varies.flatten(), clamped
        self.failed = self.draws = self._seen = 0
        self.counts: Tensor | None = None
        """Of the ranks 0 to K, over all entries."""
        self.one: Tensor | None = None
        """The same of one entry an item."""
        self._parts: list[Tensor] = []

    def update(self, draws: Tensor, truth: Tensor, hidden: Tensor, ok: Tensor) -> None:
        """Adds independent `draws` (K, B, …) of `truth` (B, …) with holes `hidden`, bool; `ok` (K, B), bool."""
        counted = hidden.flatten(1) & self.varies
        numbers = torch.arange(self._seen, self._seen + len(counted))
        self._seen += len(counted)
        whole = ok.all(0)
        self.failed += int((~whole & counted.any(1)).sum())
        keep = whole & counted.any(1)
        self.draws = max(self.draws, len(draws))
        if not bool(keep.any()) or len(draws) < 2:
            return
        y, t, counted = draws.flatten(2)[:, keep].double(), truth.flatten(1)[keep].double(), counted[keep]
        error = torch.where(counted, (y.clamp(0, 1) if self.clamped else y) - t, 0)
        shares = _ranks(error)  # (K + 1, b, d)
        each = torch.where(counted, shares, 0)
        one = torch.stack([_any(row, int(i)) for row, i in zip(counted, numbers[keep], strict=True)])
        whole_counts, one_counts = each.sum((1, 2)), shares[:, torch.arange(len(one)), one].sum(1)
        self.counts = whole_counts if self.counts is None else self.counts + whole_counts
        self.one = one_counts if self.one is None else self.one + one_counts
        hits = [interval_hits(error, ok[:, keep], counted, (1 - level) / 2) for level in LEVELS]
        crps = torch.where(counted, _crps(error), 0).sum(1)
        rows = [crps, hits[0][1], *(hit for hit, _, _ in hits), *(nominal for _, _, nominal in hits)]
        self._parts.append(torch.stack(rows))

    @property
    def items(self) -> int:
        """How many there are so far."""
        return sum(part.shape[1] for part in self._parts)

    def record(self) -> dict[str, Any]:
        """The numbers and how they were computed; plain, and None for what is not known."""
        found: dict[str, Any] = {"items": self.items, "draws": self.draws, "failed_items_left_out": self.failed}
        if self.counts is None or self.one is None:
            return found
        crps, entries, *rest = torch.cat(self._parts, 1)
        found["crps"] = plain(Ratio.of(crps, entries))
        for level, hits, nominal in zip(LEVELS, rest[:3], rest[3:], strict=True):
            best = {"nominal": known(Ratio.of(nominal, entries).value)}
            found[f"coverage_{round(100 * level)}"] = plain(Ratio.of(hits, entries)) | best
        statistic, p_value, bins = uniformity(self.one)
        return found | {
            "entries": int(entries.sum()),
            "ranks": [round(float(count), 3) for count in self.counts],
            "chi_square": {"value": statistic, "p_value": p_value, "bins": bins},
            "how": "ranks 0 to K of the truth among K independent draws, over hidden entries that vary; chi-square of "
            "one entry of each item",
        }


class Calibration(Metric):
    """Coverage at three levels, CRPS and the ranks of the truth, of imputers that draw."""

    draws = DRAWS

    def __init__(self, test: Data) -> None:
        self._varies, self._units = varying(test), test.units
        self.each: dict[str, Ranks] = {}

    def update(self, imputer: Imputer | type[Imputer], done: Completions, truth: Truth) -> None:
        if imputer.draw is None:
            return
        draws, ok = done.independent()
        mine = self.each.setdefault(imputer.draw.key, Ranks(self._varies, self._units.clamped))
        mine.update(draws.cpu(), truth.values, truth.hidden, ok.cpu())

    def record(self) -> dict[str, Any]:
        unit = {"unit_of_crps": self._units.error}
        return {"calibration": {kind: ranks.record() | unit for kind, ranks in self.each.items()}}


def uniformity(counts: Tensor) -> tuple[float | None, float | None, int]:
    """Pearson's chi-square of ranks 0 to K in as many bins as ten or fewer go into K + 1, its p-value, and the bins.

    None for both where a bin would have fewer than five of them.
    """
    total, places = float(counts.sum()), len(counts)
    bins = max(n for n in range(1, _BINS + 1) if places % n == 0)
    if bins < 2 or total < 5 * bins:
        return None, None, bins
    binned = counts.view(bins, -1).sum(1)
    statistic = float((binned - total / bins).square().sum() * bins / total)
    return statistic, float(chi2.sf(statistic, bins - 1)), bins


def _ranks(error: Tensor) -> Tensor:
    """What each rank has of each entry (K + 1, b, d), for errors (K, b, d): one, shared out among ties."""
    low, high = (error < 0).sum(0), (error <= 0).sum(0)
    place = torch.arange(len(error) + 1).view(-1, 1, 1)
    return ((place >= low) & (place <= high)).double() / (high - low + 1)


def _crps(error: Tensor) -> Tensor:
    """The fair score of each entry (b, d). With y sorted, Σ_{k<l} |y_k − y_l| = Σ_i (2i − K − 1) y_i."""
    count = len(error)
    weight = 2 * torch.arange(1, count + 1, dtype=error.dtype).view(-1, 1, 1) - count - 1
    apart = (weight * error.sort(0)[0]).sum(0)
    return error.abs().mean(0) - apart / (count * (count - 1))


def _any(counted: Tensor, item: int) -> Tensor:
    """The number of an entry of those that count (d,), chosen at random by the item's place among all."""
    places = counted.nonzero().flatten()
    return places[torch.randint(len(places), (), generator=generator(0, "rank", item))]
