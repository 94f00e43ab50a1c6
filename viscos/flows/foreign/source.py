"""What `Foreign` needs of a model of another library, and functions as such a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from viscos.core.errors import InputError


class Source:
    """A trained flow of another library."""

    name = "the model"
    """What messages call it."""
    hint = ""
    """What messages about an error of the model add."""
    invertible = True
    """Whether the library has f in closed form, or its own way to find it."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def evaluate(self, y: Tensor) -> tuple[Any, Any]:
        """z (B, …) and log|det ∂z/∂y| (B,), as the library gives them."""
        raise NotImplementedError

    def latent(self, y: Tensor) -> Any:
        """z (B, …) alone."""
        return self.evaluate(y)[0]

    def to_data(self, z: Tensor) -> Any:
        """y (B, …) of z."""
        raise NotImplementedError

    def base(self) -> Any:
        """The base distribution; None: standard normal."""
        return None

    def shape(self) -> torch.Size | None:
        """The shape of an item, where the library knows it."""
        return None

    def modules(self) -> list[nn.Module]:
        """What holds parameters."""
        return [self.model]


class Functions(Source):
    """Two functions: y ↦ (z, log|det ∂z/∂y|), and z ↦ y if there is one."""

    def __init__(self, to_latent: Callable[..., Any], to_data: Callable[..., Any] | None, base: Any) -> None:
        super().__init__(to_latent)
        self.inverse, self.invertible = to_data, to_data is not None
        self.given = Gaussian(*base) if isinstance(base, (tuple, list)) else base
        self.name = str(getattr(to_latent, "__qualname__", type(to_latent).__name__))

    def evaluate(self, y: Tensor) -> tuple[Any, Any]:
        found = self.model(y)
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise InputError(f"{self.name} returned {kind_of(found)}; it must return (x, log|det ∂x/∂y|)")
        return found[0], found[1]

    def to_data(self, z: Tensor) -> Any:
        assert self.inverse is not None
        return self.inverse(z)

    def base(self) -> Any:
        return self.given

    def modules(self) -> list[nn.Module]:
        """The functions that are modules or methods of modules; others keep their parameters to themselves."""
        found = [getattr(part, "__self__", part) for part in (self.model, self.inverse, self.given)]
        return list({id(part): part for part in found if isinstance(part, nn.Module)}.values())


class Gaussian(nn.Module):
    """A diagonal Gaussian that moves with the module that holds it."""

    loc: Tensor
    log_scale: Tensor

    def __init__(self, loc: Any, scale: Any) -> None:
        super().__init__()
        scale = torch.as_tensor(scale)
        if not bool((scale > 0).all()):
            raise InputError(f"the scale of base=(location, scale) must be positive, got {scale.min().item():.4g}")
        self.register_buffer("loc", torch.as_tensor(loc).detach().clone())
        self.register_buffer("log_scale", scale.detach().log())

    def log_prob(self, z: Tensor) -> Tensor:
        """The log-density (B,)."""
        each = torch.distributions.Normal(self.loc, self.log_scale.exp()).log_prob(z)
        return each.flatten(1).sum(1)


def location_and_scale(base: Any) -> tuple[Any, Any]:
    """What the location and scale of a base would be if it is a diagonal Gaussian; `verify_base` finds out whether."""
    if isinstance(base, torch.distributions.Distribution):
        return base.mean, base.stddev
    for location, log_scale in (("loc", "log_scale"), ("mean_", "log_std_")):
        if isinstance(getattr(base, log_scale, None), Tensor):
            return getattr(base, location), getattr(base, log_scale).exp()
    return 0.0, 1.0


def kind_of(value: Any) -> str:
    """What messages say of a value that is none of what was wanted."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    size = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    return f"an object of type {type(value).__name__}{size}"
