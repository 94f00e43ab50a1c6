"""What `viscos bench` times, by its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from viscos.commands.assemble.data import Dataset
from viscos.commands.assemble.idle import apart
from viscos.commands.assemble.machine import Machine
from viscos.commands.assemble.masks import Masks, random_masks
from viscos.commands.assemble.measuring import objective_of
from viscos.commands.assemble.saved import PLACE, dataset_of, moved, split_of
from viscos.core.build import build
from viscos.core.choices import choice
from viscos.core.errors import InputError
from viscos.data.incomplete import IncompleteData
from viscos.data.items import Data
from viscos.data.scaling import fit_scaling, standardised
from viscos.flows import Flow
from viscos.inference import Objective
from viscos.linear.gaussian import Gaussian
from viscos.posteriors import Amortised
from viscos.roots import RootFinder
from viscos.runs.trained import load
from viscos.train.model import Model

_TRAIN_ITEMS = 2000
_CENTER = 8  # pixels of a hidden centre, where the images are large enough


@dataclass(frozen=True)
class Benching:
    """A model, items, and the masks and solvers under which they are completed."""

    run_dir: Path
    checkpoint: str | None
    dataset: Dataset
    device: torch.device
    model: Model
    train: Data
    test: Data
    masks: dict[str, Masks]
    """By a label."""
    solvers: dict[str, RootFinder]
    partition: str
    incomplete: IncompleteData
    """The training items of one step, with holes where the flow is trained with them."""
    missing: float
    """Share of them that is hidden."""
    objective: Objective
    batch_size: int
    repeats: int
    seed: int


def benching(cfg: dict[str, Any]) -> Benching:
    """Assembles a benchmark by the checked settings of `viscos bench`."""
    cfg, given = apart(cfg)
    device, seed = Machine.of(cfg).use(), cfg["seed"]
    if cfg["checkpoint"]:
        place = _place(cfg["dataset"], given)
        trained = moved(load(cfg["checkpoint"], device), place)
        dataset, model = dataset_of(trained), trained.model
        splits = (split_of(trained, "train", _TRAIN_ITEMS), split_of(trained, "test", cfg["items"]))
        train, test = (trained.standardised(data) for data in splits)
    else:
        dataset = Dataset(cfg["dataset"])
        train = dataset.load("train", _TRAIN_ITEMS)
        scaling = fit_scaling(train, train.known)
        train, test = (standardised(data, scaling) for data in (train, dataset.load("test", cfg["items"])))
        model = _untrained(cfg["flow"], train).to(device)
    missing = 0.0 if model.flow.trained_by_matching else max(cfg["rates"])  # matching takes complete data
    observed = random_masks(missing, seed).of(train, "train")
    return Benching(
        Path(cfg["run_dir"]),
        cfg["checkpoint"],
        dataset,
        device,
        model,
        train,
        test,
        _masks(cfg, test, seed),
        {name: choice("solver", name, RootFinder) for name in cfg["solvers"]},
        cfg["partition"],
        IncompleteData(train.values, observed, train.labels),
        missing,
        objective_of({"_target_": "viscos.roots.auto"}),
        cfg["batch_size"],
        cfg["repeats"],
        seed,
    )


def _place(dataset: dict[str, Any], given: Sequence[str]) -> dict[str, Any]:
    """What was said of where the data of a run lie now; the other settings of `dataset` are those of other data.

    Raises `InputError` where anything else was said of data or flow.
    """
    where = {name: name.partition(".")[2] for name in given if name in {f"dataset.{key}" for key in PLACE}}
    for name in given:
        part = name.partition(".")[0]
        if part in ("dataset", "flow") and name not in where:
            raise InputError(f"{part}=… is measured where there is no checkpoint; leave it out, or checkpoint=…")
    return {key: dataset[key] for key in where.values()}


def _untrained(flow: dict[str, Any], train: Data) -> Model:
    model = Model(build(flow, Flow, train.shape), Amortised(train.shape), None)
    gaussian = Gaussian.from_incomplete(train.values, train.known, noise=0.05, floor=0.0025)
    model.prepare(train.values, train.known, gaussian)
    return model


def _center(asked: int | None, shape: tuple[int, ...]) -> int:
    """The side of a hidden centre that leaves a part of the image; 0 where there is to be none."""
    if len(shape) != 3:
        if asked:
            raise InputError(f"center={asked} is for images, and these are vectors; leave it out")
        return 0
    side = min(shape[1:])
    if asked is None:
        return min(_CENTER, side // 2)
    if asked >= side:
        raise InputError(f"center={asked} hides all of {shape[1]} × {shape[2]} pixels; give 1 to {side - 1}, or 0")
    return asked


def _masks(cfg: dict[str, Any], test: Data, seed: int) -> dict[str, Masks]:
    masks = {f"{100 * rate:g} %": random_masks(rate, seed) for rate in cfg["rates"]}
    if n := _center(cfg["center"], test.shape):
        masks[f"centre {n} × {n}"] = Masks({"_target_": "viscos.data.masks.CenterMask", "size": n}, seed)
    return masks
