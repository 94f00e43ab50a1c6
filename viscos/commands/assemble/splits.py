"""The data and masks of a run that trains: as it begins, or as its checkpoint says that it began."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from viscos import runs
from viscos.commands.assemble.data import Dataset
from viscos.commands.assemble.masks import Masks, masks_of
from viscos.core.errors import InputError
from viscos.data.items import SPLITS, Data
from viscos.data.mask_files import load_masks, mask_hash
from viscos.data.rows import remembered
from viscos.data.scaling import Scaling
from viscos.data.vectors import Vectors
from viscos.metrics.extractor import extractor_for
from viscos.runs import own_files
from viscos.runs.checkpoint import digest
from viscos.runs.trained import read_state
from viscos.train.devices import Devices

MASKS = "masks_{split}.npz"
"""File of a split's masks in a run folder."""
LABELS = "labels"
"""Where the digest of the training labels stands beside those of files."""


@dataclass(frozen=True)
class Begun:
    """What a run knows of its data from its beginning to its end."""

    run_dir: Path
    masks: dict[str, Tensor]
    """Those of each split (N, …), bool, true where observed, in the order of its items."""
    rows: Tensor | None
    """Fingerprints of the training rows of a table (N,)."""
    files: dict[str, str | None]
    """The digest of the file or folder of the data, if it is the user's own, and that of the labels."""
    spent: float
    """Seconds that the run has taken before this process."""


@dataclass(frozen=True)
class Splits:
    """Training and test items as they were read, and the settings by which they were."""

    cfg: dict[str, Any]
    """With the data and the masks as a run saves them."""
    dataset: Dataset
    train: Data
    test: Data
    begun: Begun
    state: dict[str, Any] | None
    """Of the checkpoint that the run goes on from."""


def splits_of(cfg: dict[str, Any], devices: Devices) -> Splits:
    """Reads what the checked settings of `viscos train` name.

    Raises `InputError` where splits do not go together, where nothing is observed, and where a run that goes on finds
    other data or masks than it began with.
    """
    run_dir, dataset, masks = Path(cfg["run_dir"]), Dataset(cfg["dataset"]), masks_of(cfg, usual=0.5)
    assert masks is not None  # at the usual rate if at no other
    train, test = _loaded(cfg, dataset, devices)
    extractor_for(test.shape, cfg["inception"])  # refuses before anything is trained
    cfg = {**cfg, "dataset": dataset.saved, "mask": masks.saved, "missing": masks.missing}
    state = read_state(runs.find_checkpoint(run_dir), devices.device) if cfg["resume"] else None
    train, test = _as_begun(state, train), _as_begun(state, test)
    rows, files = remembered(train), own_files.digests({"dataset": cfg["dataset"]}) | {LABELS: digest(train.labels)}
    refuse_other_data(state, rows, files)
    made = _masks(masks, run_dir, train, test, resumed=state is not None)
    spent = 0.0 if state is None else float(state["seconds"])
    return Splits(cfg, dataset, train, test, Begun(run_dir, made, rows, files, spent), state)


def _loaded(cfg: dict[str, Any], dataset: Dataset, devices: Devices) -> tuple[Data, Data]:
    with devices.rank_zero_first():  # it may have to download them
        train, test = dataset.load("train", cfg["train_items"]), dataset.load("test", cfg["test_items"])
    for split, data in zip(SPLITS, (train, test), strict=True):
        if not len(data):
            raise InputError(f"{dataset.name} has no {split} items; give one at least")
    if train.shape != test.shape:
        raise InputError(f"training images are {train.shape} (channels, height, width) and test images {test.shape}")
    if not train.units.clamped and dataset.noise == "uniform":
        raise InputError("dataset.noise=uniform is for the grey levels of images; give a standard deviation, e.g. 0")
    return train, test


def _as_begun(state: dict[str, Any] | None, data: Data) -> Data:
    """A table with the entries that it had when the run of a checkpoint's state began, as `Scaling.aligned`.

    What a column is may be found out otherwise after a row, which may be one for testing, has changed.
    """
    saved = None if state is None else state["scaling"]
    return Scaling.from_state(saved).aligned(data) if saved is not None and isinstance(data, Vectors) else data


def _masks(masks: Masks, run_dir: Path, train: Data, test: Data, *, resumed: bool) -> dict[str, Tensor]:
    """The masks of both splits; of a run that goes on, they must be those that it saved."""
    made = {split: masks.of(data, split) for split, data in zip(SPLITS, (train, test), strict=True)}
    for split, observed in made.items():
        path = run_dir / MASKS.format(split=split)
        if resumed and mask_hash(load_masks(path)) != mask_hash(observed):
            raise InputError(f"{path} holds other masks than the settings give; the run cannot go on")
    if not bool(made["train"].flatten(1).any()):
        raise InputError("nothing is observed in the training data, so there is nothing to learn from; lower `missing`")
    return made


def refuse_other_data(state: dict[str, Any] | None, rows: Tensor | None, files: dict[str, str | None]) -> None:
    """Raises `InputError` if the rows of a table, or else what is in the file or folder of the data, or the labels, are
    not what they were when the run of a checkpoint's state began.
    """
    if state is None:
        return
    begun, known = state["rows"], {LABELS: files.get(LABELS), **state["files"]}  # an older run did not know its labels
    same = torch.equal(begun.cpu(), rows) if begun is not None and rows is not None else known == files
    if not same or known[LABELS] != files.get(LABELS):
        raise InputError(
            "the training data are others than the run began with, so it cannot go on; dataset.path=… says where those "
            "are now"
        )
