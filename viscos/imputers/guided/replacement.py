"""Replacement with resampling: RePaint."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.labels import Kind
from viscos.flows.flow import Flow
from viscos.imputers.guided.walk import GuidedImputer, Walk, ancestral, angles


class ReplacementImputer(GuidedImputer):
    """RePaint (Lugmayr et al., 2022, algorithm 1): at each time, noisy ones of the truth replace observed entries.

    From θ to θ' < θ, hidden entries make an ancestral step (Song et al., 2021, equations 12 and 16 with η = 1),

        z' = û cos θ' + ε̂ √(sin² θ' − σ²) + σ n,    σ² = (sin² θ' / sin² θ) (1 − cos² θ / cos² θ'),

    and observed ones are u cos θ' + n sin θ'; then z' is taken back to θ by fresh noise, `resamplings` times in all.
    The paper: 250 steps, each made 10 times (in jumps of 10).
    """

    name, label = "repaint", "RePaint"
    mean = Kind("repaint_mean", "RePaint, mean")
    draw = Kind("repaint_draw", "RePaint, one draw")

    def __init__(self, of: Flow, steps: int = 30, resamplings: int = 5, noise: float = 0.0) -> None:
        super().__init__(of, noise)
        if steps < 1 or resamplings < 1:
            raise InputError(f"repaint: steps is {steps} and resamplings {resamplings}; give 1 or more of each")
        self.steps, self.resamplings = steps, resamplings

    def walk(self, walk: Walk) -> Tensor:
        z, numbers = walk.noise(0), itertools.count(1)
        for here, there in itertools.pairwise(angles(self.steps)):
            rounds = self.resamplings if there > 0 else 1
            for k in range(rounds):
                known = walk.target * math.cos(there) + walk.noise(next(numbers)) * math.sin(there)
                moved = ancestral(walk, walk.denoiser.both(z, here), here, there, next(numbers))
                below = torch.where(walk.observed, known, moved)
                if k + 1 < rounds:
                    share = math.cos(here) / math.cos(there)
                    z = share * below + math.sqrt(max(0.0, 1 - share**2)) * walk.noise(next(numbers))
            z = below
        return z
