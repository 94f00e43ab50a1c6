"""The gradient of a step, from micro-batches and the shares of several processes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.rng import RowGenerator, generator
from viscos.posteriors.holdout import hold_out, holdout_errors
from viscos.train.devices import Devices
from viscos.train.loss import HeldOut, Pairs, Part, Scalars, merged
from viscos.train.model import Model
from viscos.train.plan import Plan


class Gradients:
    """Leaves gradients in the parameters of `model`; `loss` is `viscos.train.loss.Loss`, wrapped for the devices.

    The random numbers of a step are those of its whole batch, however many devices and micro-batches share it.
    """

    def __init__(self, model: Model, loss: Any, plan: Plan, devices: Devices, groups: Tensor | None = None) -> None:
        self.model, self._loss, self.plan, self.devices = model, loss, plan, devices
        self.groups = groups
        """Of each entry of a vector: those of a group are held out together."""

    def joint(self, batch: Incomplete, step: int, complete: bool = False, counts: Tensor | None = None) -> Scalars:
        """Leaves the gradient of the mean over the batch's solved items; returns the numbers of the batch.

        With `complete`, of a batch without holes from which the flow alone learns; where that is matched to it, its
        entries are weighted by `counts` (B, …).
        """
        mine = merged(self._backward(list(self.parts(batch, step, complete, counts))))
        rows = self.devices.gather_rows(list(mine.values()))
        whole = merged([dict(zip(mine, row, strict=True)) for row in rows])
        if 0 < whole["solved"] < len(batch):  # the parts are weighted as if all were solved, which they cannot know
            for p in self.model.parameters():
                if p.grad is not None:
                    p.grad.mul_(len(batch) / whole["solved"])
        return whole

    def _backward(self, parts: Sequence[Part] | Sequence[HeldOut] | Sequence[Pairs]) -> list[Scalars]:
        """Adds the gradient of the parts' losses, summed; returns their numbers."""
        records = []
        for k, part in enumerate(parts):
            with self.devices.no_backward_sync(self._loss, enabled=k + 1 < len(parts)):
                loss, scalars = self._loss(part)
                self.devices.backward(loss)
            records.append(scalars())
        return records

    def held_out(self, batch: Incomplete, step: int) -> Scalars:
        """Adds the gradient of ½ |H| log MSE at held-out entries, the mean being over the whole batch.

        Returns that, and the numbers of a classifier that sees what is predicted, over this process's items.
        """
        network = self.model.posterior
        assert network is not None
        sparser = hold_out(batch, network.held_out, generator(self.plan.seed, "holdout", step), self.groups)
        count = int((batch.observed & sparser.hidden).sum())
        if not count:
            return {"holdout": 0.0}
        scale = 0.5 * max(int(batch.hidden.sum()), count) / len(batch)  # a batch without holes teaches as well
        shares = self._shares(len(batch))
        total = None
        if len(batch) > shares[0].stop - shares[0].start:  # a logarithm of a sum: its parts need to know the whole
            with torch.no_grad():
                mine = sum(float(holdout_errors(network, batch.select(r), sparser.select(r))[0]) for r in shares)
            total = sum(row[0] for row in self.devices.gather_rows([mine if self._has_share(len(batch)) else 0.0]))
        share = self.devices.world_size if self._has_share(len(batch)) else 0.0
        records = self._backward(
            [HeldOut(batch.select(r), sparser.select(r), share * scale, share / len(batch), total) for r in shares]
        )
        errors = sum(record["errors"] for record in records) if total is None else total
        scalars = {"holdout": scale * math.log(max(errors / count, 1e-12))}
        if all("hits" in record for record in records):
            items = sum(r.stop - r.start for r in shares)
            scalars["cross_entropy"] = sum(record["cross_entropy"] for record in records) / items
            scalars["accuracy"] = sum(record["hits"] for record in records) / items
        return scalars

    def _has_share(self, size: int) -> bool:
        """Whether a batch of `size` has an item for this process."""
        return bool(_shares(size, self.devices.world_size, self.devices.global_rank, 1))

    def _shares(self, size: int) -> list[slice]:
        """The rows of this process's micro-batches; one that gets none takes part all the same, with no weight."""
        shares = _shares(size, self.devices.world_size, self.devices.global_rank, self.plan.accumulate)
        return shares or [slice(0, 1)]

    def parts(self, batch: Incomplete, step: int, complete: bool, counts: Tensor | None = None) -> Iterator[Part]:
        """This process's share of a batch, in micro-batches."""
        size, seed = len(batch), self.plan.seed
        noise = torch.randn(batch.values.shape, generator=generator(seed, "draw", step), dtype=batch.values.dtype)
        per_item = self.devices.world_size / size  # gradients are averaged over the processes, and should be added
        for rows in self._shares(size):
            probes = generator(seed, "probe", step)
            yield Part(
                batch.select(rows),
                noise[rows].to(batch.values.device),
                probes if rows == slice(0, size) else RowGenerator(probes, size, rows),
                per_item if self._has_share(size) else 0.0,
                complete or self.model.posterior is None,
                None if counts is None else counts[rows],
            )

    def regression(self, batch: Incomplete, latents: Tensor) -> Scalars:
        """Leaves the gradient of −log q(x^H | y^O) an entry; returns that, over the whole batch."""
        hidden = max(1, int(batch.hidden.sum()))
        share = self.devices.world_size if self._has_share(len(batch)) else 0.0
        per_entry, per_item = share / hidden, share / len(batch)
        latents = latents.to(batch.values.device)
        pairs = [Pairs(batch.select(r), latents[r], per_entry, per_item) for r in self._shares(len(batch))]
        records = self._backward(pairs)
        mine = [sum(r[key] for r in records) if share else 0.0 for key in ("nll", "hits")]
        nll, hits = map(sum, zip(*self.devices.gather_rows(mine), strict=True))
        known = self.model.latent_classifier is not None and batch.label is not None
        return {"nll": nll / hidden} | ({"accuracy_latents": hits / len(batch)} if known else {})


def _shares(size: int, processes: int, rank: int, parts: int) -> list[slice]:
    """The rows of a batch that process number `rank` computes on, in `parts` parts or fewer."""
    first, last = size * rank // processes, size * (rank + 1) // processes
    bounds = [first + (last - first) * k // parts for k in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds) if a < b]
