"""Completions that somebody else made, by whatever method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.core.labels import Kind
from viscos.data.sources.array import find, read_arrays
from viscos.imputers.imputer import Imputer
from viscos.inference import Completions

_NAMES = ("draws", "completions")
_BESIDE = ("observed", "antithetic")
"""What else a file of completions may say of them."""


class GivenImputer(Imputer):
    """Returns draws (K, N, …) of the items 0 to N − 1, as the method called `label` gave them.

    A draw that is not finite where the item is hidden counts as failed. With `paired`, draws 2k and 2k + 1 are an
    antithetic pair. `seen` says which entries the method was given (N, …), bool, if that is known. Raises `InputError`
    for an item that is not among them, for another shape, where an observed entry is not as it was given (by more than
    `tolerance`), and for other masks than those of `seen`: such completions are of other items or masks.
    """

    def __init__(
        self, label: str, draws: Tensor, tolerance: float = 1e-3, paired: bool = False, seen: Tensor | None = None
    ) -> None:
        if draws.dim() < 3 or not len(draws) or not draws.is_floating_point():
            are = f"{draws.dtype} of shape {tuple(draws.shape)}"
            raise InputError(f"completions of {label} are {are}; give floating point draws (K, N, …), K at least 1")
        self.name, self.label, self.draws, self.tolerance, self.paired = label, label, draws, tolerance, paired
        self.seen = seen
        # So that a file named as one of this package's imputers has keys of its own.
        self.mean = Kind(f"given_{label}_mean", f"{label}, mean")
        self.draw = Kind(f"given_{label}_draw", f"{label}, one draw")

    @classmethod
    def read(
        cls,
        path: Path,
        standardise: Callable[[Tensor], Tensor] = lambda values: values,
        entries: Callable[[Tensor], Tensor] = lambda mask: mask,
    ) -> GivenImputer:
        """The array `draws` or `completions` of a file, or the only one; called as the file, or as its folder.

        `path` may be a folder of `viscos impute`. An array `observed` says what the method was given. `standardise`
        takes values in the data's own units to those of the batches, `entries` such a mask. Raises `InputError` for a
        file that is not there, or holds no such array.
        """
        if path.is_dir():
            path = path / "completions.npz"
        if not path.is_file():
            raise InputError(f"there is no file of completions {str(path)!r}; give an .npz with draws (K, N, …)")
        arrays = read_arrays(path)
        masks = {name: array for name, array in arrays.items() if name in _BESIDE and len(arrays) > 1}
        found = find({name: arrays[name] for name in arrays if name not in masks}, _NAMES, path, "completions")
        draws = arrays[found]
        if not np.issubdtype(draws.dtype, np.floating):
            raise InputError(f"completions in {path} are {draws.dtype}; give floating point draws (K, N, …)")
        seen = masks.get("observed")
        if seen is not None and seen.dtype != bool:
            raise InputError(f"the masks in {path} are {seen.dtype}; give bool, true where a value was given")
        if seen is not None and seen.shape != draws.shape[1:]:
            raise InputError(f"the masks in {path} have shape {seen.shape}; give {draws.shape[1:]}, or leave them out")
        paired = masks.get("antithetic", np.array(False))
        if paired.dtype != bool or paired.size != 1:
            raise InputError(f"'antithetic' in {path} is {paired.dtype} of shape {paired.shape}; give true or false")
        label = path.parent.name if path.stem == "completions" else path.stem
        return cls(
            label or "other",
            standardise(torch.from_numpy(draws.astype(np.float64 if draws.itemsize > 4 else np.float32))),
            paired=bool(paired.item()),
            seen=None if seen is None else entries(torch.from_numpy(seen)),
        )

    def impute(self, batch: Incomplete, draws: int = 1, seed: int = 0, purpose: str = "item") -> Completions:
        """All draws that there are of each item, whatever number is asked for."""
        self.check(batch)
        done = Completions.checked(self.draws[:, batch.index.cpu()].to(batch.values), batch)
        return replace(done, paired=self.paired)

    def check(self, batch: Incomplete) -> None:
        """Raises `InputError` unless there are draws of the items of `batch`, made from what it observes."""
        if self.draws.shape[2:] != batch.values.shape[1:]:
            seen, wanted = tuple(self.draws.shape), tuple(batch.values.shape[1:])
            whole = ", ".join(map(str, ("K", "N", *wanted)))
            one = "; of one completion of each item, give draws[None]" if self.draws.shape[1:] == wanted else ""
            raise InputError(f"completions of {self.label} have shape {seen}, and should have ({whole}){one}")
        if int(batch.index.max()) >= self.draws.shape[1]:
            raise InputError(
                f"there are completions of {self.draws.shape[1]} items by {self.label}, and item "
                f"{int(batch.index.max())} is asked for; "
                + (f"take items={self.draws.shape[1]}" if self.draws.shape[1] else "give those of the run's items")
            )
        self._check_masks(batch)
        given = self.draws[:, batch.index.cpu()].to(batch.values)
        off = ~((given - batch.values).abs() <= self.tolerance) & batch.observed
        if bool(off.any()):
            item = int(batch.index[int(off.flatten(2).any(2).any(0).nonzero()[0])])
            if bool((off & given.isnan()).any()):
                raise InputError(
                    f"a completion of item {item} by {self.label} is NaN where it is observed; fill in what is "
                    "observed, and leave NaN where nothing was found"
                )
            raise InputError(
                f"a completion of item {item} by {self.label} differs from it where it is observed; "
                "the items and their masks must be those of the run"
            )

    def _check_masks(self, batch: Incomplete) -> None:
        if self.seen is None:
            return
        wanted = (self.draws.shape[1], *batch.values.shape[1:])
        if self.seen.shape != wanted:
            raise InputError(
                f"the masks beside the completions of {self.label} have shape {tuple(self.seen.shape)}; give {wanted}, "
                "or leave them out"
            )
        other = (self.seen[batch.index.cpu()].to(batch.observed.device) != batch.observed).flatten(1).any(1)
        if bool(other.any()):
            raise InputError(
                f"item {int(batch.index[int(other.nonzero()[0])])} was completed by {self.label} under another mask "
                "than that under which it is measured; complete and measure with the same missing, mask and seed"
            )
