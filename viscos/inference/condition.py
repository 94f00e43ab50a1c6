"""`viscos.condition`: from a flow and an observation to the conditional distribution."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from viscos.core.batch import Incomplete, incomplete
from viscos.core.choices import choice
from viscos.core.counts import count
from viscos.core.errors import InputError
from viscos.core.precision import full_precision, tensor_of
from viscos.flows.flow import Flow
from viscos.flows.foreign.wrap import wrap
from viscos.inference import Objective
from viscos.inference.conditional import Conditional
from viscos.inference.terms import Values, as_tensor, taken
from viscos.logdet import LogDetEstimator
from viscos.posteriors import PerItem, Posterior
from viscos.roots import RootFinder

_UNSETTLED = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._BatchNorm)


@full_precision()
@torch.inference_mode(False)
def condition(
    flow: Flow | Any,
    y: Values,
    observed: Values | None = None,
    *,
    posterior: str | Posterior = "householder",
    solver: str | RootFinder = "auto",
    lad: str | LogDetEstimator = "auto",
    partition: str = "same",
    guess: Values | None = None,
    index: Values | None = None,
    seed: int = 0,
    noise: float = 0.0,
    scaling: tuple[Values, Values] | None = None,
) -> Conditional:
    """The flow's conditional distribution given a partial observation.

    `flow` is a flow of viscos, or a model of another library, which is wrapped (`viscos.flows.wrap`), and stays in
    evaluation mode.
    `y` (B, …) has NaN where hidden, or anything, where `observed` is given: bool, (B, …) or of the shape of one item.
    A tensor has the dtype of the flow, and gives tensors. Anything else, such as a numpy array, is taken in the dtype
    of the flow and gives arrays of its own dtype; observed entries come back bit for bit.
    `scaling` is (center, scale), one number for each entry of an item: `y`, and what comes back, are in units of their
    own, of which the flow sees (y − center) / scale.

    `posterior`, `solver` and `lad` are names (`diagonal`, `householder`, `full`, `mixture`; `auto`, `anderson`,
    `newton_krylov`, `path`, `paper`; `auto`, `exact`, `clade`, `nlade`) or objects. `partition` says which latents go
    with the hidden entries: those of the `same` coordinates, or for flows without residual structure (couplings,
    autoregressive flows) `maxvol`, see `viscos.inference.partition`. `guess` (B, …) holds a first completion where `y`
    has holes; the posterior's mean begins at its latent, instead of at the prior's, zero, and there the latents of
    `maxvol` are chosen. `index` (B,) numbers the items; with `seed` it keys their random numbers. `noise` is the
    standard deviation of the noise that the flow was trained with, which a continuous flow takes off its draws. Raises
    `InputError` if the observation does not fit the flow.

    Example:

        >>> flow = viscos.flows.iresnet((2,), start="none")
        >>> posterior = viscos.condition(flow, torch.tensor([[0.5, torch.nan]])).fit(steps=20)
        >>> posterior.sample(16).shape
        torch.Size([16, 1, 2])
    """
    if not isinstance(flow, Flow):
        flow = wrap(flow, as_tensor(y, "y").shape[1:])
    values, terms = taken(y, observed, tensor_of(flow), scaling)
    if values.dtype in (torch.float16, torch.bfloat16):
        raise InputError(f"y is {values.dtype}, in which no solve can be trusted; take y.float() and flow.float()")
    flow.fits(values)
    batch = incomplete(values, terms.observed, _numbers(index, values))
    seed = count(seed, "seed", 0)
    if not noise >= 0:
        raise InputError(f"noise is {noise}; give the standard deviation of the noise of training, 0 or more")
    if guess is not None and not (isinstance(guess, Tensor) and scaling is None):
        guess = terms.inside(as_tensor(guess, "guess"), batch.values)
    _check(flow, batch, guess)
    objective = Objective(
        choice("solver", solver, RootFinder)
        if isinstance(solver, str)
        else _object("solver", solver, "solve", "tolerance"),
        choice("lad", lad, LogDetEstimator) if isinstance(lad, str) else _object("lad", lad, "surrogate"),
    )
    if isinstance(posterior, str):
        posterior = choice("posterior", posterior, PerItem, batch.filled())
    if not isinstance(posterior, Posterior):
        raise InputError(f"posterior is {posterior!r}; give a name, or a Posterior of viscos.posteriors")
    posterior.check(values.shape[1:])
    _check_alike("posterior", posterior, values)
    return Conditional(flow, batch, posterior, objective, seed, partition, guess, noise, terms)


def _check(flow: Flow, batch: Incomplete, guess: Tensor | None) -> None:
    """Raises `InputError` for items that the flow does not take, and warns of a model that could not be examined."""
    if not len(batch):
        raise InputError("y has no items; give one or more")
    # A wrapped model is examined where all entries are numbers.
    flow.check(batch.filled(guess if guess is not None and guess.shape == batch.values.shape else 0.0))
    _check_alike("flow", flow, batch.values)
    _check_settled(flow)
    if guess is None and not flow.unexamined():
        _check_start(flow, batch)
    if flow.unexamined():
        warnings.warn(
            "the model has no finite latents where the holes of y are zero, so nothing says whether it is a bijection "
            "with the log-determinant that it gives; give a guess where it is defined",
            stacklevel=3,
        )


def _check_settled(flow: Flow) -> None:
    """Raises `InputError` for layers that are another function at every call."""
    for name, module in flow.named_modules():
        if module.training and isinstance(module, _UNSETTLED):
            raise InputError(
                f"{name} of the flow, a {type(module).__name__}, is in training mode, in which it is another function "
                "at every call; call flow.eval() before"
            )


@torch.no_grad()
def _check_start(flow: Flow, batch: Incomplete) -> None:
    """Raises `InputError` if the flow has no latent of any item with zeros in its holes, where solves begin.

    A single item without one fails by itself.
    """
    holes = batch.hidden.flatten(1).any(1)
    lost = ~flow.to_latent(batch.filled()).isfinite().flatten(1).all(1)
    if bool(holes.any()) and bool(lost[holes].all()):
        raise InputError(
            "the flow has no finite latent of an item with zeros in its holes, where solves begin: it has to be "
            "defined everywhere; take a logit or a logarithm out of it, and apply that to the data"
        )


def _check_alike(name: str, module: torch.nn.Module, values: Tensor) -> None:
    """Raises `InputError` unless the first parameter or buffer has dtype and device of the observation.

    Others are its affair.
    """
    first = tensor_of(module)
    if first is not None and (first.dtype, first.device) != (values.dtype, values.device):
        raise InputError(
            f"y is {values.dtype} on {values.device}, the {name} is of {first.dtype} on {first.device}; "
            "convert one of them, with .to(dtype, device)"
        )


def _object(name: str, value: Any, *needs: str) -> Any:
    """`value`, unless it is no object that has what it `needs`."""
    if isinstance(value, type) or not all(hasattr(value, need) for need in needs):
        raise InputError(f"{name} is {value!r}; give a name, or an object that has {' and '.join(needs)}")
    return value


def _numbers(index: Values | None, values: Tensor) -> Tensor | None:
    if index is None:
        return None
    index = as_tensor(index, "index")
    if index.shape != values.shape[:1] or index.dtype != torch.int64:
        raise InputError(
            f"index must be int64, one number for each of {len(values)} items, got {index.dtype} {tuple(index.shape)}"
        )
    return index.to(values.device)
