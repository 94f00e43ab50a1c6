"""What a run of `viscos impute` left, as figures need it."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from viscos import runs
from viscos.core.errors import InputError


@dataclass(frozen=True)
class Completed:
    """N items and K completions of each, pixels in [0, 1]."""

    truth: Tensor
    """(N, C, H, W), NaN where not even the original is known."""
    observed: Tensor
    """(N, C, H, W), bool, true where known to the method."""
    draws: Tensor
    """(K, N, C, H, W), independent of each other, NaN where a solve failed."""
    first: Tensor | None
    """(N, C, H, W), a draw from the posterior before it was fitted; None for an inference network."""

    @classmethod
    def read(cls, run: str | Path) -> Completed:
        """Reads those of a run folder; raises `InputError` if it is none of `viscos impute`."""
        arrays = load(Path(run).expanduser() / runs.COMPLETIONS, ("truth", "observed", "draws", "antithetic"))
        if arrays["truth"].dim() != 4:
            raise InputError(f"{run} completes vectors, and this figure is of images; take name=density")
        draws = arrays["draws"][:: 2 if arrays["antithetic"] else 1]
        return cls(arrays["truth"], arrays["observed"], draws, arrays.get("first_iteration_draw"))


def load(path: Path, needed: tuple[str, ...]) -> dict[str, Tensor]:
    """The arrays of a file, `needed` among them; raises `InputError` if it is not there or lacks one."""
    try:
        with np.load(path) as file:
            arrays = {name: torch.from_numpy(file[name]) for name in file.files if file[name].dtype.kind in "bif"}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read; give a run folder of `viscos impute`") from error
    for name in needed:
        if name not in arrays:
            raise InputError(f"{path} lacks the array {name!r}; give a run folder of `viscos impute`, made anew")
    return arrays
