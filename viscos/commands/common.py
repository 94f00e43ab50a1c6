"""What the commands share: device and threads, data and masks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from viscos.core.build import build
from viscos.core.errors import InputError
from viscos.data.images import Images
from viscos.data.items import Data
from viscos.data.sources.registry import load, settings_of
from viscos.data.vectors import Vectors
from viscos.inference import Objective
from viscos.linear import GMRES
from viscos.logdet import Auto
from viscos.metrics.extractor import extractor_for
from viscos.metrics.judge import Judge


def use_machine(cfg: dict[str, Any]) -> torch.device:
    """Sets threads and seed; returns the device."""
    if cfg["threads"]:
        torch.set_num_threads(cfg["threads"])
    torch.manual_seed(cfg["seed"])
    name = cfg["device"]
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device is {name}, but torch sees no GPU here; use device=cpu")
    number = name.partition(":")[2]
    if number and int(number) >= torch.cuda.device_count():
        raise InputError(f"device is {name}, but torch sees {torch.cuda.device_count()} GPU here, numbered from 0")
    return torch.device(name)


def load_data(dataset: dict[str, Any], split: str, limit: int | None) -> Data:
    """The split, or its first `limit` items."""
    name = dataset["name"]
    data = load(name, split, **{key: dataset[key] for key in settings_of(name) if key in dataset})
    if limit is None or limit >= len(data):
        return data
    labels = None if data.labels is None else data.labels[:limit]
    return replace(data, values=data.values[:limit], labels=labels)


def whole_paths(dataset: dict[str, Any]) -> dict[str, Any]:
    """The settings with whole paths: they find the same files from any folder."""
    paths = {key: dataset[key] for key in ("root", "path") if dataset.get(key)}
    return dataset | {key: str(Path(path).expanduser().absolute()) for key, path in paths.items()}


def grey_levels(cfg: dict[str, Any]) -> int:
    """How many a pixel may have; 256 where the settings do not say."""
    return int(cfg["dataset"].get("levels", 256))


def noise_of_training(cfg: dict[str, Any], denoise: bool) -> float:
    """The standard deviation of the noise that a run's settings put on training values, if it is to be taken off."""
    noise = cfg["dataset"].get("noise", 0.0)
    return float(noise) if denoise and noise != "uniform" else 0.0


def make_masks(mask: dict[str, Any], data: Data, seed: int, split: str) -> Tensor:
    """The masks of a split (N, …), bool, true where observed; what the data themselves lack is never observed."""
    if isinstance(data, Vectors) and "columns" in mask:
        mask = mask | {"columns": data.positions(mask["columns"])}
    return build(mask)(data.shape, len(data), seed, split) & data.known


def chosen_mask(cfg: dict[str, Any], usual: float | None = None) -> dict[str, Any] | None:
    """The mask that the settings ask for: a group, or a rate alone; None if neither is given.

    `usual` is the rate of mask=random where none is given.
    """
    mask, rate = cfg.get("mask"), cfg["missing"]
    if mask is None:
        return None if rate is None else {"_target_": "viscos.data.masks.RandomMask", "missing": rate}
    if mask["_target_"].endswith(".RandomMask") and mask["missing"] is None:
        if usual is not None:
            return {**mask, "missing": usual}
        raise InputError("mask=random needs a rate, e.g. missing=0.5")
    if rate is not None and not mask["_target_"].endswith(".RandomMask"):
        raise InputError(f"missing={rate} is for mask=random, and another mask is given too; leave one of them out")
    return mask


def make_objective(cfg: dict[str, Any]) -> Objective:
    """Solver and estimator by the settings; adjoints and probes to a hundredth, below the noise of one probe."""
    lad = build(cfg["lad"]) if cfg.get("lad") else Auto()
    return Objective(build(cfg["solver"]), lad, GMRES(tolerance=1e-2))


def make_judge(
    dataset: dict[str, Any], shape: tuple[int, ...], inception: str | None, device: torch.device
) -> Judge | str:
    """For FID: an extractor for items of `shape`, with all complete training images; or why there is none."""
    extractor = extractor_for(shape, inception)
    if isinstance(extractor, str):
        return extractor
    train = load_data(dataset, "train", None)
    assert isinstance(train, Images)
    return Judge(extractor.to(device), train)
