"""Trained models, from checkpoints and to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from viscos import runs
from viscos.core.build import allowing
from viscos.core.errors import InputError
from viscos.data.items import Data
from viscos.data.scaling import Scaling, standardised
from viscos.linear.gaussian import Gaussian
from viscos.runs import checkpoint
from viscos.train.model import Model, build_model


@dataclass(frozen=True)
class Trained:
    """A model read back from a checkpoint: `model.flow`, `model.posterior`, `model.classifier`."""

    model: Model
    cfg: dict[str, Any]
    state: dict[str, Any]
    path: Path

    @cached_property
    def gaussian(self) -> Gaussian | None:
        """The Gaussian that was fitted to the observed training entries."""
        return restore_gaussian(self.state)

    @property
    def means(self) -> Tensor | None:
        """The means of the observed training entries (d,), float64; the Gaussian's, where the checkpoint has none."""
        fitted = self.state.get("gaussian")
        return None if fitted is None else fitted.get("observed_mean", fitted["mean"]).cpu().double()

    @property
    def scaling(self) -> Scaling | None:
        """The scaling of a table's columns by the observed training entries; the model takes what it standardises."""
        saved = self.state.get("scaling")
        return None if saved is None else Scaling.from_state(saved)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of a table's columns, in the order of the flow's entries; none for other data."""
        return () if self.scaling is None else self.scaling.columns

    def standardised(self, data: Data) -> Data:
        """The data as the model takes them, in its dtype."""
        data = standardised(data, self.scaling)
        like = next(self.model.flow.parameters(), data.values)
        return replace(data, values=data.values.to(like.dtype))


def load(path: str | Path, device: torch.device | str = "cpu", allow: Sequence[str] = ()) -> Trained:
    """The model of a run folder or checkpoint file, on `device`, ready for use.

    `allow` holds names of modules or packages outside viscos that the checkpoint may name; they are imported and run.
    Raises `InputError` if there is no checkpoint, it cannot be read, or it names other code.
    """
    file = runs.find_checkpoint(path)
    state = checkpoint.load(file, device)
    try:
        cfg, shape = state["config"], tuple(state["shape"])
        network = None if state["parts"]["posterior"] is None else cfg["posterior"]
        with allowing(allow):
            model = build_model(cfg["flow"], network, cfg["classifier"], shape, state["classes"])
    except KeyError as error:
        raise InputError(f"{str(file)!r} lacks {error}; it is not a checkpoint of `viscos train`") from error
    model.load_parts(state["parts"])
    return Trained(model.to(device).eval(), cfg, state, file)


def model_state(
    model: Model,
    cfg: dict[str, Any],
    shape: tuple[int, ...],
    classes: int,
    gaussian: Gaussian,
    means: Tensor,
    scaling: Scaling | None = None,
) -> dict[str, Any]:
    """What `load` needs, in plain containers."""
    kept = {key: value for key, value in cfg.items() if key not in ("run_dir", "resume", "allow")}
    fitted = {"mean": gaussian.mean.float().cpu(), "covariance": gaussian.covariance.float().cpu()}
    fitted["observed_mean"] = means.float().cpu()
    return {
        "config": kept,
        "shape": list(shape),
        "classes": classes,
        "parts": model.parts(),
        "gaussian": fitted,
        "scaling": None if scaling is None else scaling.state(),
    }


def restore_gaussian(state: dict[str, Any]) -> Gaussian | None:
    """The Gaussian of a checkpoint."""
    fitted = state.get("gaussian")
    return None if fitted is None else Gaussian(fitted["mean"].cpu().double(), fitted["covariance"].cpu().double())
