"""Random numbers that depend on what they are for, not on the order in which they are asked for."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def generator(seed: int, *key: int | str) -> torch.Generator:
    """A CPU generator for one purpose, e.g. `generator(seed, "mask", split)`."""
    digest = hashlib.blake2b(repr((int(seed), *key)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def item_noise(
    seed: int, index: Tensor, draws: int, shape: torch.Size | tuple[int, ...], like: Tensor, first: int = 0
) -> Tensor:
    """Standard normal noise (draws, B, *shape), keyed by (seed, item, draw).

    An item's draw is the same whatever batch it stands in, and in whatever order. It is drawn on the CPU in the
    dtype of `like`, so that it does not depend on the device either.
    """
    out = torch.empty((draws, len(index), *shape), dtype=like.dtype)
    for j, item in enumerate(index.tolist()):
        for k in range(draws):
            out[k, j].normal_(generator=generator(seed, "item", item, first + k))
    return out.to(like.device)
