"""How far the completions of an item can be trusted: what importance weights say, and one word for it.

The weights are w = p(y) / q(y^H) of draws of q, see `Objective.log_weight`. They say how far q is from the flow's own
conditional p(y^H | y^O); nothing here knows whether the flow is right about the data. And they are blind where q never
draws: a mode that no draw has reached leaves no trace in them. One such mode is looked for: that of other completions
of the latents that were drawn, see `viscos.inference.elsewhere`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from viscos.core.counts import percent

GOOD, FAIR, DOUBTFUL = "good", "fair", "doubtful"
WORDS = (GOOD, FAIR, DOUBTFUL)

_K = 0.5, 0.7
"""Pareto k̂ below which draws are good, and fair: Yao, Vehtari, Simpson and Gelman (2018, Yes, but did it work?
Evaluating variational inference). Below 0.7 the error of a weighted mean falls with the number of draws at a
practical rate (Vehtari et al., 2024)."""
_EVEN = 0.97
"""Effective share above which weights are as good as even. Total variation is below a tenth there, and k̂, which knows
no scale, is of what rounding does to them."""
_DRAWS = 6
"""Draws from which on that tells something: weights of fewer are even by chance, and that of one always is."""
_SHARE = 0.8, 0.5
"""Effective draws of one draw of q. ESS/K is about 1/(1 + χ²), with χ² the divergence of p from q (Agapiou et al.,
2017), and total variation is at most ½ √χ²: at most a quarter, and half, of the mass of q stand in the wrong place."""
_OF_REFINED = 1.0, 0.5
"""Effective proposals of one refined draw: with fewer than one, draws are the same proposal again."""
_FAILED = 0.03, 0.1
"""Share of the draws that may fail; a choice of ours."""
_ELSEWHERE = 0.02, 0.1
"""Share of the conditional that may be on other completions of the draws' latents, by a few looks that find too little
rather than too much: so much of the mass is never drawn. A choice of ours."""
_ERROR = 0.3, 1.0
"""Standard deviation in nats of the error of estimated log-weights; a choice of ours. Normal errors of so many nats
alone take the effective share to exp(−σ²): 0.91 and 0.37."""
LIMITS = {
    "pareto_k": _K,
    "effective_share_of_draws": _SHARE,
    "effective_proposals_a_refined_draw": _OF_REFINED,
    "failed": _FAILED,
    "elsewhere": _ELSEWHERE,
    "error_of_log_weights": _ERROR,
}
"""Where good ends, and where fair ends."""


@dataclass(frozen=True)
class Diagnosis:
    """What the weights of K draws of q say of each item."""

    bound: Tensor
    """The bound of log p(y^O) in nats (B,), −∞ where no draw was solved."""
    evidence: Tensor
    """log of the mean weight in nats (B,), between the bound and log p(y^O); their distance is about KL(q‖p)."""
    pareto_k: Tensor
    """k̂ of the weights (B,); NaN where too few draws have a weight, 0 where weights are the same whatever q is."""
    effective: Tensor
    """Kish's effective sample size (B,), of K."""
    failed: Tensor
    """Share of the draws whose solve failed (B,); they count as draws of weight zero."""
    residual: Tensor
    """The largest residual of the draws that were solved (B,), in the units of the tolerance; NaN where none was."""
    error: Tensor
    """Standard deviation of the error of a log-weight in nats (B,): 0 where log-determinants are written out."""
    draws: int
    """K."""
    refined: int = 0
    """Draws that were made of these, if they are proposals (`viscos.inference.refine`)."""
    distinct: Tensor | None = None
    """How many different proposals those draws are (B,), int64."""
    acceptance: Tensor | None = None
    """Share of the proposals that a chain stepped to (B,), if there was one."""
    elsewhere: Tensor = field(kw_only=True)
    """Share of the flow's conditional on other completions of the draws' latents than were found (B,), as far as they
    were looked for (`viscos.inference.elsewhere`); NaN where they were not."""

    def verdicts(self) -> list[tuple[str, str]]:
        """A word for each item, `good`, `fair` or `doubtful`, and its reason: the first of the worst."""
        return [self._verdict(item) for item in range(len(self.bound))]

    @property
    def words(self) -> list[str]:
        """Those of the verdicts."""
        return [word for word, _ in self.verdicts()]

    def _verdict(self, item: int) -> tuple[str, str]:
        failed, error = float(self.failed[item]), float(self.error[item])
        k, effective, elsewhere = (float(v[item]) for v in (self.pareto_k, self.effective, self.elsewhere))
        if effective == 0:
            return DOUBTFUL, "none of the draws could be completed"
        size = f"effective sample size {effective:.3g} of {self.draws}"
        if self.refined:
            share, limits, why = effective / self.refined, _OF_REFINED, f"{size} proposals for {self.refined} draws"
        else:
            share, limits, why = effective / self.draws, _SHARE, size
        even = effective > _EVEN * self.draws and self.draws >= _DRAWS
        tests = [
            (_below(error, _ERROR), f"log-determinants are estimated, to ±{error:.2g} nats"),
            (0 if even else _below(k, _K), "too few draws have a weight for k̂" if math.isnan(k) else f"k̂ = {k:.2f}"),
            (_below(-share, (-limits[0], -limits[1])), why),
            (_below(failed, _FAILED), f"{percent(failed)} of the draws failed"),
            (
                0 if math.isnan(elsewhere) else _below(elsewhere, _ELSEWHERE),
                f"{percent(elsewhere)} of the conditional, or more, is on other completions of the draws' latents",
            ),
        ]
        worst = max(level for level, _ in tests)
        reason = next(reason for level, reason in tests if level == worst)
        good = why if math.isnan(k) else f"k̂ = {k:.2f}, {why}"
        return WORDS[worst], reason if worst else good

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {word}" for word, n in self.counts().items())
        return f"Diagnosis of {len(self.bound)} items by {self.draws} draws each: {counts}"

    def select(self, rows: Tensor) -> Diagnosis:
        """That of the items at `rows`, int64 or bool."""
        tensors = {name: value[rows.cpu()] for name, value in self.state().items() if isinstance(value, Tensor)}
        changed: dict[str, Any] = tensors
        return replace(self, **changed)

    def counts(self) -> dict[str, int]:
        """How many items there are of each word."""
        words = self.words
        return {word: words.count(word) for word in WORDS}

    def first_doubtful(self) -> tuple[int, str] | None:
        """The number of the first doubtful item in the batch, and the reason."""
        each = [(item, reason) for item, (word, reason) in enumerate(self.verdicts()) if word == DOUBTFUL]
        return each[0] if each else None

    def state(self) -> dict[str, Any]:
        """The tensors, on the CPU, and numbers; plain."""
        flat = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value.cpu() if isinstance(value, Tensor) else value for name, value in flat.items()}

    @staticmethod
    def joined(parts: Sequence[Diagnosis]) -> Diagnosis:
        """The diagnosis of several batches, each by as many draws, on the CPU."""
        first = parts[0].state()
        tensors = [name for name, value in first.items() if isinstance(value, Tensor)]
        return Diagnosis(**(first | {name: torch.cat([part.state()[name] for part in parts]) for name in tensors}))


def _below(value: float, limits: tuple[float, float]) -> int:
    """0, 1 or 2: how many of the two limits a value is not below; NaN is below none."""
    return sum(not value <= limit if limit < 0 else not value < limit for limit in limits)
