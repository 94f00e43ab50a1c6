"""Which entries are observed, by the settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from viscos.commands.assemble.paths import whole
from viscos.core.build import build, makes
from viscos.core.errors import InputError
from viscos.data.items import Data
from viscos.data.masks import FileMask, Mask, RandomMask
from viscos.data.vectors import Vectors

RANDOM = "viscos.data.masks.RandomMask"


@dataclass(frozen=True)
class Masks:
    """A kind of mask, for any split of any data."""

    spec: dict[str, Any]
    """Its plain description."""
    seed: int

    @property
    def saved(self) -> dict[str, Any]:
        """Its description as a run saves it, which finds the same file from any folder."""
        return whole(self.spec, ("path",))

    def of(self, data: Data, split: str) -> Tensor:
        """The masks of a split (N, …), bool, true where observed; what the data themselves lack is never observed."""
        spec = self.spec
        if not isinstance(data, Vectors):
            return build(spec, Mask)(data.shape, len(data), self.seed, split) & data.known
        if "columns" in spec:
            spec = spec | {"columns": data.positions(spec["columns"])}
        columns = build(spec, Mask)((1 + data.groups[-1],), len(data), self.seed, split)
        return columns[:, list(data.groups)] & data.known

    @property
    def from_file(self) -> bool:
        """Whether they stand in a file, or in a folder of files."""
        return makes(self.spec, FileMask)

    def of_picture(self, name: str, picture: Path, size: tuple[int, int], item: tuple[int, ...]) -> Tensor | None:
        """The mask of a user's picture of `size` (height, width), from a file: (H, W), bool.

        None if the masks are of the items that a model sees. Raises `InputError` for a file that is neither.
        """
        mask = build(self.spec, Mask)
        return mask.of_picture(name, picture, size, item) if isinstance(mask, FileMask) else None

    def over_picture(self, name: str, size: tuple[int, int], item: tuple[int, ...]) -> Tensor:
        """A mask of any kind at a picture's own size (height, width): what of it is observed (H, W), bool."""
        return build(self.spec, Mask)((item[0], *size), 1, self.seed, f"input {name}")[0].all(0)

    @property
    def missing(self) -> float | None:
        """The share that random masks hide; None for others."""
        return self.spec.get("missing")


def random_masks(missing: float, seed: int) -> Masks:
    """Each entry hidden with probability `missing`."""
    return Masks({"_target_": RANDOM, "missing": missing}, seed)


def masks_of(cfg: dict[str, Any], usual: float | None = None) -> Masks | None:
    """The masks that the settings ask for: by a group, or by a rate alone; None if neither is given.

    `usual` is the rate of mask=random where none is given. Raises `InputError` for both, or for mask=random alone.
    """
    mask, rate, seed = cfg.get("mask"), cfg["missing"], cfg["seed"]
    if mask is None:
        return None if rate is None else random_masks(rate, seed)
    random = makes(mask, RandomMask)
    if random and mask["missing"] is None:
        if usual is not None:
            return Masks({**mask, "missing": usual}, seed)
        raise InputError("mask=random needs a rate, e.g. missing=0.5")
    if random and rate is not None and rate != mask["missing"]:
        raise InputError(f"missing={rate} and mask.missing={mask['missing']} are two rates; leave one of them out")
    if rate is not None and not random:
        raise InputError(f"missing={rate} is for mask=random, and another mask is given too; leave one of them out")
    return Masks(mask, seed)
