"""A run that was trained, and what its settings say of its data."""

from __future__ import annotations

import torch
from torch import Tensor

from viscos.commands.assemble.data import Dataset
from viscos.commands.assemble.imputers import FromTraining, complete_gaussian
from viscos.commands.assemble.masks import Masks
from viscos.commands.assemble.training import MASKS
from viscos.data.incomplete import IncompleteData
from viscos.data.items import Data
from viscos.data.mask_files import load_masks
from viscos.imputers import Imputer
from viscos.runs.trained import Saved, Trained


def dataset_of(trained: Saved) -> Dataset:
    """What the run was trained on."""
    return Dataset(trained.cfg["dataset"])


def noise_of(trained: Saved, denoise: bool) -> float:
    """The standard deviation of the noise that is taken off draws: that of training, if `denoise` asks for it."""
    flow = trained.model.flow if isinstance(trained, Trained) else None
    known = denoise and flow is not None and flow.can_denoise and "dataset" in trained.cfg
    return dataset_of(trained).gaussian_noise if known else 0.0


def test_masks(trained: Saved, masks: Masks | None, test: Data) -> Tensor:
    """Masks of the test items (N, …): those asked for, or those of the run itself."""
    if masks is not None:
        return masks.of(test, "test")
    saved = trained.path.parent / MASKS.format(split="test")
    if saved.is_file():
        observed = load_masks(saved)
        if len(observed) >= len(test) and observed.shape[1:] == torch.Size(test.shape):
            return observed[: len(test)] & test.known
    return Masks(trained.cfg["mask"], trained.cfg["seed"]).of(test, "test")


def from_training(trained: Saved) -> FromTraining:
    """What the run knows of its training data."""

    def data() -> IncompleteData:
        train = dataset_of(trained).load("train", trained.cfg["train_items"])
        saved = trained.path.parent / MASKS.format(split="train")
        masks = Masks(trained.cfg["mask"], trained.cfg["seed"])
        observed = load_masks(saved) if saved.is_file() else masks.of(train, "train")
        return IncompleteData(trained.standardised(train).values, observed, train.labels)

    def complete() -> Imputer:
        items, floor = trained.cfg["train_items"], trained.cfg["gaussian_floor"]
        return complete_gaussian(dataset_of(trained), items, trained.scaling, floor)

    means = trained.means
    shape = tuple(trained.state["shape"])
    known = "dataset" in trained.cfg  # a flow of another library came without
    return FromTraining(
        None if means is None else means.view(shape), trained.gaussian, data if known else None, complete
    )
