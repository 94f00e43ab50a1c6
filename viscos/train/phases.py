"""Training in phases: which follow which, and how long each is."""

from __future__ import annotations

import math
from dataclasses import dataclass

NAMES = ("prediction", "flow", "posterior", "redrawing", "bound", "tempering")
"""`prediction`: held-out entries teach the inference network to predict. `flow`: the flow learns from complete items,
or from completions. `posterior`: q learns from pairs of masked items and their latents. `redrawing`: completions are
drawn anew. `bound`: all learn from the bound. `tempering`: the width of q is corrected."""


@dataclass(frozen=True)
class Phase:
    """A part of a training run in which one thing is learnt."""

    name: str
    """One of `NAMES`."""
    steps: int
    rate: float = 1.0
    """Of the learning rate."""
    round: int = 0
    """Of expectation–maximisation: 0 before the first redrawing."""

    @property
    def title(self) -> str:
        """What a progress bar calls it."""
        return f"{self.name} {self.round}" if self.round else self.name


def on_complete_data(steps: int) -> tuple[Phase, ...]:
    """`steps` for the flow, and half as many for the inference network."""
    return Phase("flow", steps), Phase("posterior", math.ceil(steps / 2))


def on_incomplete_data(
    steps: int, *, prediction: int, rounds: int, redrawing: int, tempering: int = 0, bound: bool = False
) -> tuple[Phase, ...]:
    """Monte-Carlo expectation–maximisation (Wei and Tanner, 1990) after a start from the network's own predictions.

    `steps` for the flow at first and half as many in each of the `rounds`, in which `redrawing` batches of items are
    completed anew; the posterior has half of the flow's steps each time, and the bound, if asked for, in the end too.
    At last as many batches as `tempering` says correct the posterior's width. Completions are drawn without that: to
    temper in every round was tried, and its completions were harder to solve for and no better.
    """
    half, quarter = math.ceil(steps / 2), math.ceil(steps / 4)
    phases = [Phase("prediction", prediction), Phase("flow", steps), Phase("posterior", half)]
    for k in range(1, rounds + 1):
        phases.append(Phase("redrawing", redrawing, round=k))
        phases += [Phase("flow", half, 0.5, k), Phase("posterior", quarter, 0.5, k)]
    if bound:
        phases.append(Phase("bound", half, 0.2))
    if tempering:
        phases.append(Phase("tempering", tempering))
    return tuple(phases)
