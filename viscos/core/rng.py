"""Random numbers that depend on what they are for, not on the order in which they are asked for."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor


def generator(seed: int, *key: int | str) -> torch.Generator:
    """A CPU generator for one purpose, e.g. `generator(seed, "mask", split)`."""
    digest = hashlib.blake2b(repr((int(seed), *key)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def usual_probes() -> torch.Generator:
    """A CPU generator seeded with 0: probes are the same at every call."""
    return torch.Generator().manual_seed(0)


def fresh_probes() -> torch.Generator:
    """A CPU generator whose seed is drawn from torch's global one: probes are new at every call."""
    return torch.Generator().manual_seed(int(torch.randint(2**62, ())))


@contextmanager
def undrawn() -> Iterator[None]:
    """Restores torch's global generators: that of the CPU if anything within drew from it, and CUDA's if in use."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else range(0)
    before, of_devices = torch.get_rng_state(), [torch.cuda.get_rng_state(k) for k in devices]
    try:
        yield
    finally:
        if not torch.equal(torch.get_rng_state(), before):
            torch.set_rng_state(before)
        for k, state in zip(devices, of_devices, strict=True):
            torch.cuda.set_rng_state(state, k)


class ItemGenerators:
    """A generator for each row of a batch of K·B draws, keyed by (seed, item, draw, key), from draw `first` on.

    Probes that it gives make an item's optimisation independent of the batch that it stands in. They are made when they
    are asked for: many a flow knows its log-determinant without.
    """

    def __init__(self, seed: int, index: Tensor, draws: int, key: int, first: int = 0) -> None:
        self._seed, self._index, self._numbers, self._key = seed, index, range(first, first + draws), key

    @cached_property
    def rows(self) -> list[torch.Generator]:
        """One for each draw and item, draws in the outer axis."""
        items = self._index.tolist()
        return [generator(self._seed, "probe", item, k, self._key) for k in self._numbers for item in items]

    @cached_property
    def shared(self) -> torch.Generator:
        """What the rows have in common."""
        return generator(self._seed, "probe", self._key)

    def select(self, rows: Tensor) -> ItemGenerators:
        """Those of some rows, which go on from where they are."""
        chosen = copy.copy(self)
        chosen.rows = [self.rows[row] for row in rows.tolist()]
        return chosen

    def clone_state(self) -> ItemGenerators:
        """Generators that will give the same numbers."""
        twin = copy.copy(self)  # which makes those anew that have not been asked for
        if "rows" in vars(self):
            twin.rows = [row.clone_state() for row in self.rows]
        if "shared" in vars(self):
            twin.shared = self.shared.clone_state()
        return twin


class RowGenerator:
    """Some rows of what a generator gives for a whole batch of `size`.

    The parts that a batch is cut into get the numbers that they would have had in one piece.
    """

    def __init__(self, shared: torch.Generator, size: int, rows: slice | Tensor) -> None:
        self.shared, self.size = shared, size
        self.rows = torch.arange(size)[rows] if isinstance(rows, slice) else rows.cpu()

    def select(self, rows: Tensor) -> RowGenerator:
        """Some of these rows."""
        return RowGenerator(self.shared, self.size, self.rows[rows.cpu()])

    def clone_state(self) -> RowGenerator:
        """A generator that will give the same numbers."""
        return RowGenerator(self.shared.clone_state(), self.size, self.rows)


Generators = torch.Generator | ItemGenerators | RowGenerator
"""Where random numbers come from: one generator for a batch, one for each of its rows, or one for a larger batch."""


def item_uniform(seed: int, index: Tensor, draws: int, purpose: str) -> Tensor:
    """Uniform numbers in [0, 1) (draws, B) in double precision, keyed by (seed, purpose, item); drawn on the CPU."""
    each = [torch.rand(draws, generator=generator(seed, purpose, item), dtype=torch.float64) for item in index.tolist()]
    return torch.stack(each, 1) if each else torch.empty(draws, 0, dtype=torch.float64)


def of_rows(source: Generators, size: int, rows: Tensor) -> Generators:
    """Gives `rows` the numbers that they would get in the whole batch of `size`; `source` itself does not move on."""
    source = source.clone_state()
    return RowGenerator(source, size, rows) if isinstance(source, torch.Generator) else source.select(rows)


def rademacher(like: Tensor, source: Generators, mask: Tensor | None = None) -> Tensor:
    """Independent signs of the shape of `like` (B, …), zero outside `mask`; drawn on the CPU."""
    bits = _drawn(lambda shape, g: torch.randint(0, 2, shape, generator=g), like.shape, source)
    signs = bits.mul_(2).sub_(1).to(like)
    return signs if mask is None else signs * mask


def standard_normal(like: Tensor, source: Generators) -> Tensor:
    """Independent standard normal numbers of the shape of `like` (B, …); drawn on the CPU, in its dtype."""
    return _drawn(lambda shape, g: torch.randn(shape, generator=g, dtype=like.dtype), like.shape, source).to(like)


def uniform(like: Tensor, source: Generators) -> Tensor:
    """A uniform number in [0, 1) for each item of `like` (B,); drawn on the CPU, in its dtype."""
    return _drawn(lambda shape, g: torch.rand(shape, generator=g, dtype=like.dtype), like.shape[:1], source).to(like)


def _drawn(
    draw: Callable[[Sequence[int], torch.Generator], Tensor], shape: Sequence[int], source: Generators
) -> Tensor:
    """Numbers of `shape` (B, …), by `draw` of a shape and a generator."""
    if isinstance(source, ItemGenerators):
        return torch.stack([draw(shape[1:], row) for row in source.rows])
    if isinstance(source, RowGenerator):
        return draw((source.size, *shape[1:]), source.shared)[source.rows]
    return draw(shape, source)


def item_noise(
    seed: int,
    index: Tensor,
    draws: int,
    shape: torch.Size | tuple[int, ...],
    like: Tensor,
    first: int = 0,
    purpose: str = "item",
) -> Tensor:
    """Standard normal noise (draws, B, *shape), keyed by (seed, purpose, item, draw) from draw `first` on.

    An item's draw is the same whatever batch it stands in, and in whatever order. It is drawn on the CPU in the
    dtype of `like`, so that it does not depend on the device either.
    """
    out = torch.empty((draws, len(index), *shape), dtype=like.dtype)
    for j, item in enumerate(index.tolist()):
        for k in range(draws):
            out[k, j].normal_(generator=generator(seed, purpose, item, first + k))
    return out.to(like.device)
