"""`viscos.condition`: from a flow and an observation to the conditional distribution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from viscos.core.batch import incomplete
from viscos.core.choices import choice
from viscos.core.errors import InputError
from viscos.flows.flow import Flow
from viscos.flows.foreign.wrap import wrap
from viscos.inference import Objective
from viscos.inference.conditional import Conditional
from viscos.logdet import LogDetEstimator
from viscos.posteriors import PerItem, Posterior
from viscos.roots import RootFinder


@torch.inference_mode(False)
def condition(
    flow: Flow | Any,
    y: Tensor,
    observed: Tensor,
    *,
    posterior: str | Posterior = "householder",
    solver: str | RootFinder = "auto",
    lad: str | LogDetEstimator = "auto",
    partition: str = "same",
    guess: Tensor | None = None,
    index: Tensor | None = None,
    seed: int = 0,
    noise: float = 0.0,
) -> Conditional:
    """The flow's conditional distribution given a partial observation.

    `flow` is a flow of viscos, or what `viscos.flows.wrap` makes one of.
    `y` (B, …) with anything where hidden; `observed` bool, (B, …) or of the shape of one item. `posterior`, `solver`
    and `lad` are names (`diagonal`, `householder`, `full`; `auto`, `anderson`, `newton_krylov`, `path`, `paper`;
    `auto`, `exact`, `clade`, `nlade`) or objects. `partition` says which latents go with the hidden entries: those of
    the `same` coordinates, or for flows without residual structure (couplings, autoregressive flows) `maxvol`, see
    `viscos.inference.partition`. `guess` (B, …) holds a first completion where `y` has holes; the posterior's mean
    begins at its latent, instead of at the prior's, zero, and there the latents of `maxvol` are chosen. `index`
    (B,) numbers the items; with `seed` it keys their random numbers. `noise` is the standard deviation of the noise
    that the flow was trained with, which a continuous flow takes off its draws. Raises `InputError` if the
    observation does not fit the flow.

    Example:

        >>> flow = viscos.flows.iresnet((2,), start="none")
        >>> y, observed = torch.tensor([[0.5, 0.0]]), torch.tensor([[True, False]])
        >>> posterior = viscos.condition(flow, y, observed).fit(steps=20)
        >>> posterior.sample(16).shape
        torch.Size([16, 1, 2])
    """
    if not isinstance(y, Tensor) or not isinstance(observed, Tensor):
        raise InputError(f"y and observed must be tensors, got {type(y).__name__} and {type(observed).__name__}")
    if not isinstance(flow, Flow):
        flow = wrap(flow, y.shape[1:])
    if y.dtype in (torch.float16, torch.bfloat16):
        raise InputError(f"y is {y.dtype}, in which no solve can be trusted; take y.float() and flow.float()")
    flow.check(y)
    if index is not None and (index.shape != y.shape[:1] or index.dtype != torch.int64):
        raise InputError(
            f"index must be int64, one number for each of {len(y)} items, got {index.dtype} {tuple(index.shape)}"
        )
    batch = incomplete(y, observed, index)
    objective = Objective(
        choice("solver", solver, RootFinder) if isinstance(solver, str) else solver,
        choice("lad", lad, LogDetEstimator) if isinstance(lad, str) else lad,
    )
    if isinstance(posterior, str):
        posterior = choice("posterior", posterior, PerItem, batch.filled())
    posterior.check(y.shape[1:])
    return Conditional(flow, batch, posterior, objective, seed, partition, guess, noise)
