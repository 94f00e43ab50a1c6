"""MisGAN's algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.core.labels import Kind
from viscos.core.rng import generator, item_noise
from viscos.data.incomplete import IncompleteData
from viscos.imputers.learned import LearnedImputer, Rows, check_counts, check_positive, descend, seeded
from viscos.imputers.misgan.networks import MisGAN, critic_loss, masked


class MisGANImputer(LearnedImputer):
    """Completes by MisGAN (Li, Jiang and Marlin, 2019, algorithms 1 and 2), fully connected.

    With D_x, D_m, D_i the critics of masked data, of masks and of completed data, in the order of real and made,

        L_x = E D_x(f(x, m)) − E D_x(f(G_x, G_m)),    L_m = E D_m(m) − E D_m(G_m),    L_i = E D_i(G_x) − E D_i(G_i),

    G_x makes L_x + β L_i small, G_m L_m + α L_x, and G_i L_i, after every `critics` steps in which each critic makes
    its own large, less a penalty on its gradient (WGAN-GP). Images are taken as they are, vectors in standard units.

    Published: up to 1,000 epochs of batches of 64, α = β = 0.1, five steps of critics to one of the others, rates of
    1e-4 and of 2e-4 for the imputer and its critic, noise of 128 numbers, generators of widths 256 and 512, an imputer
    of the width of an item that does not see m.

    It is slow, and until it has converged of no use: on 1,000 rows of three correlated normal columns, 30 % hidden, its
    mean is behind mean imputation after 1,000 steps of the generators, and a tenth off the exact mean's RMSE after
    2,000. At the length of the defaults it has not converged on pictures.
    """

    name, label = "misgan", "MisGAN"
    mean = Kind("misgan_mean", "MisGAN, mean")
    draw = Kind("misgan_draw", "MisGAN, one draw")

    def __init__(
        self,
        epochs: int = 200,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        imputer_rate: float = 2e-3,
        critics: int = 3,
        alpha: float = 0.1,
        beta: float = 0.1,
        noise: int = 32,
        widths: Sequence[int] = (64, 128),
        imputer_width: int | None = 128,
        sees_mask: bool = True,
    ) -> None:
        super().__init__()
        check_counts("misgan", epochs=epochs, batch_size=batch_size, critics=critics, noise=noise)
        check_counts("misgan", imputer_width=imputer_width or 1, widths=min(widths, default=1))
        check_positive("misgan", learning_rate=learning_rate, imputer_rate=imputer_rate)
        if alpha < 0 or beta < 0:
            raise InputError(f"misgan: alpha is {alpha} and beta {beta}; give weights of 0 or more")
        self.epochs, self.batch_size, self.critics = epochs, batch_size, critics
        self.learning_rate, self.imputer_rate, self.alpha, self.beta = learning_rate, imputer_rate, alpha, beta
        self.noise, self.widths, self.imputer_width, self.sees_mask = noise, tuple(widths), imputer_width, sees_mask
        self.networks: MisGAN | None = None
        self.teachers = dict[str, Adam]()

    def units(self, data: IncompleteData) -> Rows:
        if len(data.shape) != 3:
            return Rows.of(data)
        size = data.values.shape[1:].numel()
        return Rows(torch.Size(data.shape), torch.zeros(size), torch.ones(size))

    def steps(self, items: int) -> int:
        """Steps are those of the generators, each after `critics` batches."""
        return max(1, self.epochs * items // (self.batch_size * self.critics))

    def begin(self, rows: Tensor, observed: Tensor) -> None:
        self._make(rows.shape[1])

    def _make(self, d: int) -> None:
        assert self.rows is not None
        unit = len(self.rows.shape) == 3
        made = MisGAN(d, self.noise, self.widths, self.imputer_width or d, unit, self.sees_mask).to(self.device)
        self.networks, betas = made, (0.5, 0.9)
        self.teachers = {
            "critics": Adam(self._critics(made), self.learning_rate, betas),
            "generators": Adam(made.generators(), self.learning_rate, betas),
            "imputer": Adam(made.imputer.parameters(), self.imputer_rate, betas),
        }

    def _critics(self, networks: MisGAN) -> list[dict[str, Any]]:
        """The parameters of the critics, each with the rate of what it judges."""
        rates = {"imputer": self.imputer_rate}
        return [
            {"params": list(critic.parameters()), "lr": rates.get(key, self.learning_rate)}
            for key, critic in networks.critics.items()
        ]

    def advance(self, rows: Tensor, observed: Tensor) -> dict[str, float]:
        random = generator(self.seed, self.name, self.step)
        scalars = {}
        for _ in range(self.critics):
            scalars = self._teach_critics(*self._batch(rows, observed, random), random)
        self._teach_generators(*self._batch(rows, observed, random), random)
        return scalars

    def _batch(self, rows: Tensor, observed: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
        index = torch.randint(len(rows), (self.batch_size,), generator=random).to(rows.device)
        return rows[index], observed[index].to(rows)

    def _made(self, x: Tensor, m: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """G_x, G_m and G_i, each of noise of its own."""
        assert self.networks is not None
        shapes = ((len(x), self.noise), (len(x), self.noise), x.shape)
        z, e, omega = (torch.randn(shape, generator=random).to(x) for shape in shapes)
        return self.networks.items(z), self.networks.masks(e), self.networks.completed(x, m, omega)

    def _teach_critics(self, x: Tensor, m: Tensor, random: torch.Generator) -> dict[str, float]:
        assert self.networks is not None
        with torch.no_grad():
            items, masks, completed = self._made(x, m, random)
        pairs = {"data": (masked(x, m), masked(items, masks)), "mask": (m, masks), "imputer": (items, completed)}
        losses = {}
        for key, (real, made) in pairs.items():
            mix = torch.rand((len(x), 1), generator=random).to(x)
            losses[key] = critic_loss(self.networks.critics[key], real, made, mix)
        descend(self.teachers["critics"], sum(losses.values(), x.new_zeros(())))
        return {key: float(loss.detach()) for key, loss in losses.items()}

    def _teach_generators(self, x: Tensor, m: Tensor, random: torch.Generator) -> None:
        """A step of both generators and one of the imputer; terms of their losses in which they are not are left out.

        What is α L_x for G_m is L_x for G_x, and L_i reaches G_x by what it generates alone.
        """
        networks = self.networks
        assert networks is not None
        items, masks, completed = self._made(x, m, random)
        data, mask, imputer = (networks.critics[key] for key in ("data", "mask", "imputer"))
        of_items = -data(masked(items, masks.detach())).mean() + self.beta * imputer(items).mean()
        of_masks = -mask(masks).mean() - self.alpha * data(masked(items.detach(), masks)).mean()
        descend(self.teachers["generators"], of_items + of_masks)
        descend(self.teachers["imputer"], -imputer(completed).mean())

    def complete(self, rows: Tensor, batch: Incomplete, draws: int, seed: int, purpose: str) -> Tensor:
        assert self.networks is not None
        m = batch.observed.flatten(1).to(rows)
        noise = item_noise(seed, batch.index, draws, rows.shape[1:], rows, purpose=purpose)
        return torch.stack([self.networks.completed(rows, m, omega) for omega in noise])

    def end(self) -> None:
        self.teachers = {}

    def parts(self) -> dict[str, Any]:
        assert self.networks is not None
        parts: dict[str, Any] = {"networks": self.networks.state_dict()}
        return parts | {key: teacher.state_dict() for key, teacher in self.teachers.items()}

    def take(self, parts: dict[str, Any], d: int) -> None:
        with seeded(0):
            self._make(d)
        assert self.networks is not None
        self.networks.load_state_dict(parts["networks"])
        if "critics" not in parts:
            return self.end()
        for key, teacher in self.teachers.items():
            teacher.load_state_dict(parts[key])
