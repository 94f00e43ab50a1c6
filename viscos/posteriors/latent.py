"""What is asked of a distribution over x^H: draws as a function of noise, and their density."""

from __future__ import annotations

import torch
from torch import Tensor


class LatentDistribution:
    """q(x^H | y^O) for a batch, with standard normal noise as the source of its draws.

    Tensors have the full shape of a latent; entries outside H are zero and count for nothing, so items with different
    masks share a batch. Draws stand in a leading axis: noise (K, B, …) gives x (K, B, …).
    """

    hidden: Tensor
    """The mask of H (B, …), bool."""
    start: Tensor | None
    """A guess of the completion (B, …), where a solve may start."""

    def centers(self) -> Tensor:
        """The places x^H (C, B, …) around which it lies."""
        raise NotImplementedError

    def expectation(self) -> Tensor:
        """E_q[x^H] (B, …)."""
        raise NotImplementedError

    def sample(self, noise: Tensor) -> Tensor:
        """x^H (K, B, …), zero outside H, distributed as q where the noise is standard normal."""
        raise NotImplementedError

    def log_prob(self, x: Tensor) -> Tensor:
        """log q(x^H) of latents x (K, B, …), of which only entries on H matter (K, B)."""
        raise NotImplementedError

    def log_prob_of_noise(self, noise: Tensor) -> Tensor:
        """log q(x^H) of the draw that `noise` gives (K, B)."""
        return self.log_prob(self.sample(noise))

    def log_prob_path(self, noise: Tensor, x: Tensor) -> Tensor:
        """log q(x^H) of the draws x that `reparametrised` makes of `noise` (K, B), differentiable through x alone.

        Leaving out the dependence on the parameters themselves, whose expected gradient is zero, takes the noise out
        of the gradient where q is exact ("sticking the landing", Roeder, Wu and Duvenaud, 2017).
        """
        raise NotImplementedError

    def reparametrised(self, noise: Tensor) -> tuple[Tensor, Tensor | None]:
        """Draws x^H (K, B, …) differentiable in the parameters, and what each one counts (K, B), None for 1.

        The mean over the draws of f(x) times what x counts is E_q[f] in expectation, and so is its gradient by all
        parameters.
        """
        return self.sample(noise), None

    def masked(self, v: Tensor) -> Tensor:
        """v on H, zero elsewhere."""
        return torch.where(self.hidden, v, 0)
