"""Trained models, and other imputers that learnt, from checkpoints and to them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from viscos import runs
from viscos.core.build import allowing, build
from viscos.core.errors import InputError
from viscos.data.columns import Column, Scheme
from viscos.data.items import Data
from viscos.data.scaling import Scaling, standardised
from viscos.imputers import Imputer
from viscos.inference.conditional import Conditional
from viscos.inference.terms import Values
from viscos.linear.gaussian import Gaussian
from viscos.logdet import LogDetEstimator
from viscos.posteriors import Posterior
from viscos.roots import RootFinder
from viscos.runs import checkpoint
from viscos.runs.conditioning import condition_run
from viscos.train.model import Model, build_model
from viscos.train.noise import deviation

_NONE = type(None)
_Kinds = Mapping[str, tuple[type, ...]]
_ENTRIES: _Kinds = {"config": (dict,), "shape": (list, tuple), "classes": (int,)}
_OF_MODEL: _Kinds = {"parts": (dict,)}
_OF_IMPUTER: _Kinds = {"imputer": (dict,)}
_SETTINGS: _Kinds = {"flow": (dict,), "posterior": (dict, _NONE), "classifier": (str,)}
_SCALING: _Kinds = {"scheme": (list,), "constant": (list,), "low": (Tensor,), "high": (Tensor,), "span": (Tensor,)}
_FURTHER: _Kinds = {"dataset": (dict,), "mask": (dict, _NONE), "seed": (int,), "train_items": (int, _NONE)}


@dataclass(frozen=True, kw_only=True, repr=False)
class Saved:
    """What a run has left of its training."""

    cfg: dict[str, Any]
    state: dict[str, Any]
    path: Path

    def __repr__(self) -> str:
        items = " × ".join(map(str, self.state["shape"]))
        return f"{type(self).__name__}({str(self.path)!r}, items of {items})"

    @cached_property
    def gaussian(self) -> Gaussian | None:
        """The Gaussian that was fitted to the observed training entries."""
        return restore_gaussian(self.state)

    @cached_property
    def clean_gaussian(self) -> Gaussian | None:
        """The same without the noise on training values, as other imputers and the flow's draws are."""
        return None if self.gaussian is None else self.gaussian.without_noise(self.noise, self.cfg["gaussian_floor"])

    @cached_property
    def record(self) -> dict[str, Any] | None:
        """What was measured at the end of the training; None where it did not come to its end, or has not yet.

        A run that goes on has a checkpoint of other steps than its record, until that is written anew.
        """
        steps = self.state.get("trainer", {}).get("step")
        try:
            found = json.loads((self.path.parent / runs.RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and found.get("steps", steps) == steps else None

    @property
    def means(self) -> Tensor | None:
        """The means of the observed training entries (d,), float64."""
        fitted = self.state.get("gaussian")
        return None if fitted is None else fitted["observed_mean"].cpu().double()

    @cached_property
    def scaling(self) -> Scaling | None:
        """The scaling of a table's columns by the observed training entries; the model takes what it standardises."""
        saved = self.state.get("scaling")
        return None if saved is None else Scaling.from_state(saved)

    @property
    def rows(self) -> Tensor | None:
        """Fingerprints of the rows of a table that the run was trained on (N,), int64; None for other data."""
        saved = self.state.get("rows")
        return None if saved is None else saved.cpu()

    @property
    def scheme(self) -> Scheme:
        """The columns that vectors stand for; plain numbers without names, where they are of no table."""
        plain = Scheme(tuple(Column(str(place)) for place in range(math.prod(self.state["shape"]))))
        return plain if self.scaling is None else self.scaling.scheme

    @property
    def noise(self) -> float:
        """The standard deviation of the noise on training values; 0 where there was none, or dequantisation."""
        return deviation(self.cfg.get("dataset", {}).get("noise", 0.0))

    def taken_off(self, denoise: bool) -> float:
        """The standard deviation of the noise that is taken off draws: that of training, if `denoise` asks for it.

        0 where there is no flow that can.
        """
        return 0.0

    def standardised(self, data: Data) -> Data:
        """The data as what was trained takes them."""
        return standardised(data, self.scaling)


@dataclass(frozen=True, kw_only=True, repr=False)
class Trained(Saved):
    """A model read back from a checkpoint: `model.flow`, `model.posterior`, `model.classifier`."""

    model: Model

    def condition(
        self,
        y: Values,
        observed: Values | None = None,
        *,
        posterior: str | Posterior = "auto",
        solver: str | RootFinder = "auto",
        lad: str | LogDetEstimator = "auto",
        partition: str = "same",
        index: Values | None = None,
        seed: int = 0,
        denoise: bool = True,
    ) -> Conditional:
        """The run's conditional distribution given a partial observation, in the units of the run's data.

        `y` (B, …) and `observed` are as in `viscos.condition`: tensors or arrays, NaN where hidden. Images are of
        values in [0, 1]. Rows of a table are in the table's own units, and so is what comes back; of a data frame the
        run's columns are taken by name. A column of more than two categories is an entry for each of them, one that was
        learnt by its logarithm an entry of logarithms (`scaling.scheme.encode` makes entries, `decode` numbers). An
        array with as many numbers as there are columns has those of the columns, and so has such a mask; what comes
        back is of entries.

        `posterior` is `auto`, the inference network that was taught with the flow, or if there is none `householder`;
        `network` or `amortised`, that network; or as in `viscos.condition`. A posterior of each item begins where the
        network has it, or at the completion of the run's Gaussian; `fit` goes on from there. With `denoise` the noise
        of training is taken off draws, where the flow can. The rest is as in `viscos.condition`.

        Raises `InputError` for values out of the run's units, columns that are not there, and what does not fit.

        Example:

            >>> viscos.load("outputs/train/<run>").condition(rows).summary()
        """
        return condition_run(
            self.model.flow,
            self.model.posterior,
            self.gaussian,
            self.scaling,
            y,
            observed,
            posterior,
            solver=solver,
            lad=lad,
            partition=partition,
            index=index,
            seed=seed,
            noise=self.taken_off(denoise),
        )

    def taken_off(self, denoise: bool) -> float:
        return self.noise if denoise and self.model.flow.can_denoise else 0.0

    def standardised(self, data: Data) -> Data:
        """The data as the model takes them, in its dtype."""
        data = super().standardised(data)
        like = next(self.model.flow.parameters(), data.values)
        return replace(data, values=data.values.to(like.dtype))


@dataclass(frozen=True, kw_only=True, repr=False)
class Fitted(Saved):
    """Another imputer that has learnt, read back from a checkpoint."""

    imputer: Imputer


def load(path: str | Path, device: torch.device | str = "cpu", allow: Sequence[str] = ()) -> Trained:
    """The model of a run folder or checkpoint file, on `device`, ready for use.

    Raises `InputError` as `load_any` does, and if another imputer was trained than a flow with its posterior. `allow`
    is as there.
    """
    found = load_any(path, device, allow)
    if isinstance(found, Fitted):
        raise InputError(f"the run {str(path)!r} trained no flow: it holds {found.imputer.label}")
    return found


def load_any(path: str | Path, device: torch.device | str = "cpu", allow: Sequence[str] = ()) -> Trained | Fitted:
    """What a run folder or checkpoint file holds, on `device`, ready for use.

    `allow` holds names of modules or packages outside viscos that the checkpoint may name; they are imported and run.
    Raises `InputError` if there is no checkpoint, it cannot be read, or it names other code.
    """
    file = runs.find_checkpoint(path)
    state = read_state(file, device)
    cfg = state["config"]
    if "imputer" in state:
        with allowing(allow):
            imputer = build(cfg["imputer"], Imputer).to(device)
        restore(imputer, state["imputer"], file)
        return Fitted(imputer=imputer, cfg=cfg, state=state, path=file)
    network = None if state["parts"].get("posterior") is None else cfg["posterior"]
    try:
        with allowing(allow):
            model = build_model(cfg["flow"], network, cfg["classifier"], tuple(state["shape"]), state["classes"])
    except (TypeError, AttributeError, ArithmeticError, LookupError) as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"no model can be made from the settings in {str(file)!r} ({what})") from error
    model.load_parts(state["parts"])
    return Trained(model=model.to(device).eval(), cfg=cfg, state=state, path=file)


def restore(imputer: Imputer, state: dict[str, Any], file: Path) -> None:
    """Gives an imputer the state in a checkpoint; raises `InputError` for one that it cannot have."""
    try:
        imputer.load_state(state)
    except (LookupError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{str(file)!r} holds no state of {imputer.label} ({type(error).__name__}); it may have been edited"
        ) from error


def read_state(file: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The state in a checkpoint of `viscos train`; raises `InputError` for one that lacks something, or is of nonsense.

    What is left out of it then are the weights, which `Model.load_parts` checks, and what the settings mean.
    """
    state = checkpoint.load(file, device)
    of_imputer = "imputer" in state
    _check_entries(file, "", state, {**_ENTRIES, **(_OF_IMPUTER if of_imputer else _OF_MODEL)})
    _check_entries(file, "config.", state["config"], _OF_IMPUTER if of_imputer else _SETTINGS)
    there = {key: kinds for key, kinds in _FURTHER.items() if key in state["config"]}
    _check_entries(file, "config.", state["config"], there)
    shape, fitted, scaling = state["shape"], state.get("gaussian"), state.get("scaling")
    d = math.prod(shape)
    if not all(type(length) is int and length > 0 for length in shape):
        raise InputError(f"{str(file)!r} has shape {shape}, which is none of an item; it may have been edited")
    if fitted is not None:
        _check_numbers(file, "gaussian", fitted, {"mean": (d,), "covariance": (d, d), "observed_mean": (d,)})
    if scaling is not None:
        _check_numbers(file, "scaling", scaling, {"center": (d,), "scale": (d,)})
        _check_entries(file, "scaling.", scaling, _SCALING)
    return state


def _check_entries(file: Path, prefix: str, entries: Any, kinds: _Kinds) -> None:
    entries = entries if isinstance(entries, dict) else {}
    for key, wanted in kinds.items():
        if key not in entries:
            raise InputError(f"{str(file)!r} lacks {prefix + key!r}; it is not a checkpoint of `viscos train`")
        if type(entries[key]) not in wanted:
            seen = type(entries[key]).__name__
            raise InputError(f"{str(file)!r} holds a {seen} as {prefix + key!r}; it may have been edited")


def _check_numbers(file: Path, name: str, entries: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    for key, shape in shapes.items():
        value = entries.get(key) if isinstance(entries, dict) else None
        if not isinstance(value, Tensor) or tuple(value.shape) != shape or not bool(value.isfinite().all()):
            raise InputError(f"{str(file)!r} has no finite {name}.{key} of shape {shape}; it may have been edited")


def model_state(
    model: Model,
    cfg: dict[str, Any],
    shape: tuple[int, ...],
    classes: int,
    gaussian: Gaussian,
    means: Tensor,
    scaling: Scaling | None = None,
    rows: Tensor | None = None,
) -> dict[str, Any]:
    """What `load` needs, in plain containers."""
    fitted = {"mean": gaussian.mean.float().cpu(), "covariance": gaussian.covariance.float().cpu()}
    fitted["observed_mean"] = means.float().cpu()
    return {**_about(cfg, shape, classes, scaling, rows), "parts": model.parts(), "gaussian": fitted}


def imputer_state(
    imputer: Imputer,
    cfg: dict[str, Any],
    shape: tuple[int, ...],
    classes: int,
    scaling: Scaling | None = None,
    rows: Tensor | None = None,
) -> dict[str, Any]:
    """The same of another imputer; `load_any` needs it."""
    return {**_about(cfg, shape, classes, scaling, rows), "imputer": imputer.state()}


def _about(
    cfg: dict[str, Any], shape: tuple[int, ...], classes: int, scaling: Scaling | None, rows: Tensor | None
) -> dict[str, Any]:
    return {
        "config": {key: value for key, value in cfg.items() if key not in ("run_dir", "resume", "allow")},
        "shape": list(shape),
        "classes": classes,
        "scaling": None if scaling is None else scaling.state(),
        "rows": rows,
    }


def restore_gaussian(state: dict[str, Any]) -> Gaussian | None:
    """The Gaussian of a checkpoint."""
    fitted = state.get("gaussian")
    return None if fitted is None else Gaussian(fitted["mean"].cpu().double(), fitted["covariance"].cpu().double())
