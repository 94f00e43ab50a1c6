"""Data by the settings of a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from viscos.commands.assemble.paths import whole
from viscos.data.items import Data
from viscos.data.sources.registry import load_described
from viscos.train.noise import deviation


@dataclass(frozen=True)
class Dataset:
    """A data set, by its settings."""

    settings: dict[str, Any]

    @property
    def saved(self) -> dict[str, Any]:
        """The settings with whole paths, so that they find the same files from any folder."""
        return whole(self.settings, ("root", "path"))

    @property
    def name(self) -> str:
        """The name by which it is chosen."""
        return str(self.settings["name"])

    @property
    def levels(self) -> int:
        """How many grey levels a pixel may have; 256 where the settings do not say."""
        return int(self.settings.get("levels", 256))

    @property
    def noise(self) -> float | str:
        """The standard deviation of the noise on training values, or `uniform`."""
        noise: float | str = self.settings.get("noise", 0.0)
        return noise

    @property
    def gaussian_noise(self) -> float:
        """The standard deviation of the noise on training values, 0 where they are dequantised instead."""
        return deviation(self.noise)

    @property
    def augment(self) -> list[str]:
        """How training images are moved about."""
        kinds = self.settings.get("augment", "none")
        return [] if kinds == "none" else [kinds] if isinstance(kinds, str) else kinds

    def load(self, split: str, limit: int | None = None) -> Data:
        """The split, or its first `limit` items; raises `InputError` as `viscos.data.sources.registry.load` does."""
        data = load_described(self.settings, split)
        if limit is None or limit >= len(data):
            return data
        return data.at(slice(limit))
