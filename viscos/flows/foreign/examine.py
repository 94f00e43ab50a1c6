"""Whether a flow of another library is what `Foreign` takes it for.

Found out by evaluating it: that nothing about it is random, that items do not influence each other, that its base is a
diagonal Gaussian, that its log-determinant is that of its Jacobian, and that its two directions are inverse.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from viscos.core.errors import InputError
from viscos.core.precision import tensor_of
from viscos.core.rng import undrawn
from viscos.core.solution import item_dot
from viscos.flows.foreign.source import location_and_scale
from viscos.linear import Jacobian, dense, lanczos_value

if TYPE_CHECKING:
    from viscos.flows.foreign.foreign import Foreign

DENSE_BELOW = 64
"""Entries of an item up to which the dense Jacobian is written out; beyond, its log-determinant is estimated."""
_PROBES = 4
"""Of that estimate, for each item."""
_OFF = 6.0, 0.05
"""What it may be off by: so many standard errors, and so many nats an entry, for what Lanczos steps leave out."""
_STEP = 1e-2
"""Deviation of the steps of a difference quotient."""

_ONCE = (
    "{} can be differentiated only once (an integral or an ODE with a backward pass of its own, as in zuko's CNF, UNAF "
    "and SOSPF), and conditioning differentiates its Jacobian; take another kind of flow"
)


@dataclass(frozen=True)
class Finding:
    """What an examination found, if it found nothing wrong."""

    nothing_finite: bool = False
    """The data were outside of where the model has finite values, so it is still to be examined."""
    exact: bool = False
    """The library's log-determinant is random or lacks its gradient: the dense Jacobian's must take its place."""


def sampled(flow: Foreign, shape: torch.Size) -> Tensor | None:
    """Four samples of the model (4, …), which lie where it is defined; None where its own inverse cannot give any."""
    if not flow.source.invertible:
        return None
    noise, like = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0)), tensor_of(flow)
    noise = noise if like is None else noise.to(like)
    known = any(True for _ in (*flow.parameters(), *flow.buffers()))
    try:
        y = _inverse(flow, noise)
    except InputError:
        if known:
            raise
        y = _inverse(flow, noise.double())  # nothing tells the precision of a function but what it takes
    if y is None:
        flow.source.invertible = False
        return None
    return y if bool(y.isfinite().all()) else None


def _inverse(flow: Foreign, x: Tensor) -> Tensor | None:
    """The data of latents x, by the library's own inverse; None if it has none after all."""
    with unchanged(flow), torch.no_grad():
        try:
            return flow.unverified_inverse(x)
        except InputError as error:
            if isinstance(error.__cause__, NotImplementedError) or "Inverse" in type(error.__cause__).__name__:
                return None
            raise


def examine(flow: Foreign, y: Tensor) -> Finding:
    """Examines the flow at y (B, …), data of the right shape; raises `InputError` for what cannot be conditioned."""
    with unchanged(flow), torch.no_grad():
        first, again = flow.forward_and_ladj(y), flow.forward_and_ladj(y)
    good = first[0].flatten(1).isfinite().all(1) & first[1].isfinite()
    if not bool(good.any()):
        return Finding(nothing_finite=True)
    _refuse_random(flow, first[0][good], again[0][good])
    _refuse_influence(flow, y[good], first[0][good])
    verify_base(flow, y)
    with unchanged(flow):
        return _examine_derivatives(flow, y[good], first[1][good], again[1][good])


@contextmanager
def unchanged(flow: Foreign) -> Iterator[None]:
    """Puts back parameters and buffers that evaluating the model changes, and torch's random numbers.

    What it does not change is not written to: other threads may use the model, and graphs hold its parameters.
    """
    before = {key: value.detach().clone() for key, value in flow.state_dict().items()}
    with undrawn():
        try:
            yield
        finally:
            _restore(flow, before)


@torch.no_grad()
def _restore(flow: Foreign, before: dict[str, Tensor]) -> None:
    for key, value in flow.state_dict().items():
        if not torch.equal(value, before[key]):
            value.copy_(before[key])


def verify_base(flow: Foreign, like: Tensor) -> None:
    """Refuses a base that is not the diagonal Gaussian for which `location_and_scale` takes it."""
    base = flow.source.base()
    if base is None:
        return
    kind = f"the base of {flow.source.name}, a {type(base).__name__},"
    noise = torch.randn(8, *like.shape[1:], generator=torch.Generator().manual_seed(1)).to(like)
    try:
        location, scale = (torch.as_tensor(part).to(like) for part in location_and_scale(base))
        z = location + 2 * scale * noise
        # The model's own distributions may check their arguments, and a box refuses what lies outside.
        given = base.log_prob(z)
        normal = torch.distributions.Normal(location.expand_as(z), scale.expand_as(z)).log_prob(z).flatten(1).sum(1)
        same = given.shape == normal.shape and torch.allclose(given.to(normal), normal, rtol=1e-3, atol=1e-3)
    except Exception as error:
        raise InputError(
            f"{kind} cannot be evaluated as a diagonal Gaussian ({type(error).__name__}: {error}); viscos needs a "
            "latent that is normal, with any location and scale, and no context or class"
        ) from error
    if not same:
        raise InputError(
            f"{kind} is not a diagonal Gaussian; viscos needs a latent that is normal, with any location and scale; "
            "train with such a base, or wrap a function that goes on to a normal latent"
        )


def _refuse_random(flow: Foreign, first: Tensor, again: Tensor) -> None:
    if not _close(first, again):
        raise InputError(
            f"{flow.source.name} gives another latent for the same data each time (a dequantising, stochastic or "
            "dropout layer); viscos needs a deterministic bijection, so leave that layer out"
        )


def _refuse_influence(flow: Foreign, y: Tensor, x: Tensor) -> None:
    """An item must have the same latent in any batch, also in the first that the model gets."""
    some = max(1, len(y) // 2)
    with unchanged(flow), torch.no_grad():
        apart = flow(y[:some])
    if not _close(x[:some], apart):
        raise InputError(
            f"{flow.source.name} gives an item another latent in another batch: a batch norm takes the batch's own "
            "statistics, or a layer that initialises itself by its first batch was never trained; load the trained "
            "weights before wrapping, and give such layers fixed statistics"
        )


def _examine_derivatives(flow: Foreign, y: Tensor, ladj: Tensor, again: Tensor) -> Finding:
    _refuse_once_differentiable(flow, y)
    random = not _close(ladj, again)
    d = y.shape[1:].numel()
    if d <= DENSE_BELOW:
        exact = random or _examine_ladj(flow, y, ladj)
    elif random:
        raise InputError(
            f"log|det| of {flow.source.name} is a random estimate; items of {d} entries need a deterministic one (up "
            f"to {DENSE_BELOW}, viscos writes the Jacobian out)"
        )
    else:
        exact = False
        _refuse_far_ladj(flow, y, ladj)
        _refuse_no_gradient(flow, y)
    _refuse_wrong_inverse(flow, y)
    return Finding(exact=exact)


def _refuse_once_differentiable(flow: Foreign, y: Tensor) -> None:
    """uᵀ (G v) by differentiating twice must be (Gᵀ u)ᵀ v by differentiating once."""
    u, v = (torch.randn(y.shape, generator=torch.Generator().manual_seed(seed)).to(y) for seed in (2, 3))
    with torch.enable_grad():
        x = flow(y.detach().requires_grad_(True))
    if not x.requires_grad:
        raise InputError(
            f"what {flow.source.name} returns carries no gradient; conditioning differentiates it, so leave out "
            "torch.no_grad, detach and numpy"
        )
    try:
        G = Jacobian(flow, y)
        twice, once = item_dot(u, G.mv(v)), item_dot(G.rmv(u), v)
    except RuntimeError as error:
        raise InputError(f"{_ONCE.format(flow.source.name)} ({' '.join(str(error).split())[:120]})") from error
    if not _near(twice, once):
        raise InputError(_ONCE.format(flow.source.name))


def _examine_ladj(flow: Foreign, y: Tensor, ladj: Tensor) -> bool:
    """Refuses a log-determinant that is not the Jacobian's; true if it is, and only its gradient is not."""
    jacobian = dense(Jacobian(flow, y), y)
    exact = torch.linalg.slogdet(jacobian)[1]
    if not bool(exact.isfinite().all()):
        raise InputError(f"the Jacobian of {flow.source.name} is singular, so it is not a bijection where it was tried")
    if not _near(ladj, exact):
        raise InputError(_wrong_ladj(flow, y, ladj, exact))
    return not _gradients_agree(flow, y)


def _refuse_far_ladj(flow: Foreign, y: Tensor, ladj: Tensor) -> None:
    """Refuses a log-determinant of many entries that is far from an estimate of the Jacobian's."""
    jacobian, generator = Jacobian(flow, y), torch.Generator().manual_seed(4)
    found = torch.stack([lanczos_value(jacobian, y, generator) for _ in range(_PROBES)]).double()
    off = found - ladj
    if not bool(found.isfinite().all()):
        return  # nearly singular where it was tried, so that an estimate says nothing
    errors, nats = _OFF
    allowed = errors * float(off.std()) / off.numel() ** 0.5 + nats * y.shape[1:].numel()
    if abs(float(off.mean())) > allowed:
        name = flow.source.name
        raise InputError(
            f"log|det| of {name} is not that of its Jacobian ({float(ladj.mean()):.4g}, and the Jacobian's is about "
            f"{float(found.mean()):.4g}): return log|det ∂x/∂y|, one number an item, of data to latent"
        )


def _refuse_no_gradient(flow: Foreign, y: Tensor) -> None:
    """Refuses a log-determinant that varies, and has no gradient in the data."""
    y = y.detach().requires_grad_()
    with torch.enable_grad():
        ladj = flow.forward_and_ladj(y)[1]
        gradient = torch.autograd.grad(ladj.sum(), y, allow_unused=True)[0] if ladj.requires_grad else None
    if gradient is not None and bool(gradient.any()):
        return
    step = _STEP * torch.randn(y.shape, generator=torch.Generator().manual_seed(5)).to(y)
    with torch.no_grad():
        moved = flow.forward_and_ladj(y + step)[1] - flow.forward_and_ladj(y - step)[1]
    if bool((moved.abs() > 1e-4 * ladj.abs().clamp_min(1)).any()):
        raise InputError(
            f"log|det| of {flow.source.name} varies with the data and has no gradient; conditioning differentiates it, "
            "so leave out detach and torch.no_grad"
        )


def _wrong_ladj(flow: Foreign, y: Tensor, ladj: Tensor, exact: Tensor) -> str:
    name, seen = flow.source.name, f"{float(ladj[0]):.4g}, and the Jacobian's is {float(exact[0]):.4g}"
    if _near(-ladj, exact):
        return f"log|det| of {name} has the wrong sign ({seen}): return log|det ∂x/∂y|, of data to latent"
    if flow.source.invertible:
        other = torch.linalg.slogdet(dense(Jacobian(_differentiable_inverse(flow), y), y))[1]
        if _near(ladj, other) or _near(ladj, -other):
            return f"log|det| of {name} is that of to_data at the same point ({seen}): the directions are swapped"
    return f"log|det| of {name} is not that of its Jacobian ({seen}): return log|det ∂x/∂y|, one number an item"


def _differentiable_inverse(flow: Foreign) -> Any:
    def to_data(x: Tensor) -> Any:
        location, scale = flow._base(x)
        return flow.source.to_data(location + scale * x)

    return to_data


def _gradients_agree(flow: Foreign, y: Tensor) -> bool:
    """Whether log|det G| of the library has the gradient, in y, of the dense Jacobian's."""
    y = y.detach().requires_grad_()
    with torch.enable_grad():
        own, exact = flow.forward_and_ladj(y)[1], flow._written_out(y)[1]
        pair = [
            torch.autograd.grad(value.sum(), y, allow_unused=True)[0] if value.requires_grad else None
            for value in (own, exact)
        ]
    given, wanted = (torch.zeros_like(y) if g is None else g for g in pair)
    return _near(given, wanted)


def _refuse_wrong_inverse(flow: Foreign, y: Tensor) -> None:
    if not flow.source.invertible:
        return
    with torch.no_grad():
        back = flow.unverified_inverse(flow(y))
    error = (back - y).abs().flatten(1).amax(1)
    # A library's own iteration may be rough, and `to_data` then goes on from it; a wrong function is off by far.
    if bool((error > 0.1 * y.abs().flatten(1).amax(1).clamp_min(1)).all()):
        raise InputError(
            f"to_data of {flow.source.name} is not the inverse of to_latent: data come back off by up to "
            f"{float(error.max()):.3g}; give the inverse of the same map, or leave it out"
        )


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-3)


def _near(given: Tensor, wanted: Tensor) -> bool:
    share = 1e-2 if wanted.dtype == torch.float32 else 1e-3
    return bool(((given - wanted).abs() <= share * wanted.abs().clamp_min(1)).all())
