"""Completions that somebody else made, by whatever method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.errors import InputError
from viscos.core.labels import Kind
from viscos.data.sources.array import find, read_arrays
from viscos.imputers.imputer import Imputer
from viscos.inference import Completions


class GivenImputer(Imputer):
    """Returns draws (K, N, …) of the items 0 to N − 1, as the method called `label` gave them.

    A draw that is not finite where the item is hidden counts as failed. With `paired`, draws 2k and 2k + 1 are an
    antithetic pair. Raises `InputError` for an item that is not among them, for another shape, or where an observed
    entry is not as it was given (by more than `tolerance`): such completions are of other items or masks.
    """

    def __init__(self, label: str, draws: Tensor, tolerance: float = 1e-3, paired: bool = False) -> None:
        if draws.dim() < 3 or not len(draws) or not draws.is_floating_point():
            seen = f"{draws.dtype} of shape {tuple(draws.shape)}"
            raise InputError(f"completions of {label} are {seen}; give floating point draws (K, N, …), K at least 1")
        self.name, self.label, self.draws, self.tolerance, self.paired = label, label, draws, tolerance, paired
        self.mean = Kind(f"{label}_mean", f"{label}, mean")
        self.draw = Kind(f"{label}_draw", f"{label}, one draw")

    @classmethod
    def read(cls, path: Path, standardise: Callable[[Tensor], Tensor] = lambda values: values) -> GivenImputer:
        """The array `draws` or `completions` of a file, or the only one; called as the file, or as its folder.

        `path` may be a folder of `viscos impute`. `standardise` takes values in the data's own units to those of the
        batches. Raises `InputError` for a file that is not there, or holds no such array.
        """
        if path.is_dir():
            path = path / "completions.npz"
        if not path.is_file():
            raise InputError(f"there is no file of completions {str(path)!r}; give an .npz with draws (K, N, …)")
        arrays = read_arrays(path)
        draws = standardise(torch.from_numpy(arrays[find(arrays, ("draws", "completions"), path, "completions")]))
        label = path.parent.name if path.stem == "completions" else path.stem
        return cls(label or "other", draws, paired="antithetic" in arrays and bool(arrays["antithetic"]))

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
                f"{int(batch.index.max())} is asked for; take items={self.draws.shape[1]}"
            )
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
