"""A training, by the settings of `viscos train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from viscos import runs
from viscos.commands.assemble.data import Dataset
from viscos.commands.assemble.idle import apart, of_training, said
from viscos.commands.assemble.imputers import FromTraining, Parts, complete_gaussian
from viscos.commands.assemble.masks import Masks, masks_of
from viscos.commands.assemble.measuring import Measuring, objective_of
from viscos.commands.assemble.plan import passes, plan_of, settled, started
from viscos.core.build import build
from viscos.core.errors import InputError
from viscos.core.progress import fitting_bar
from viscos.data.incomplete import IncompleteData
from viscos.data.items import Data
from viscos.data.mask_files import load_masks, mask_hash
from viscos.data.rows import remembered
from viscos.data.scaling import Scaling, fit_scaling, standardised
from viscos.data.vectors import Vectors
from viscos.flows import Flow
from viscos.linear.gaussian import Gaussian, observed_mean
from viscos.linear.gaussian_em import em_gaussian
from viscos.metrics.extractor import extractor_for
from viscos.runs import own_files
from viscos.runs.trained import read_state, restore_gaussian
from viscos.train import PhasedTrainer, Trainer
from viscos.train.devices import Devices
from viscos.train.model import Model, build_model
from viscos.train.validation import validation_order

MASKS = "masks_{split}.npz"
"""File of a split's masks in a run folder."""
SPLITS = ("train", "test")


@dataclass(frozen=True)
class Training:
    """A training that can go on: what is trained, what it is measured on, and what is known of the data."""

    settings: dict[str, Any]
    """As a run saves them: those given, with what was null as it suits flow and data."""
    run_dir: Path
    trainer: Trainer
    measuring: Measuring
    test: Data
    observed: Tensor
    """Of the test items (N, …), bool."""
    scaling: Scaling | None
    train: Data | None
    """The training rows of a table as the model takes them, with the cells that its mask hides; for nothing but to
    measure there."""
    rows: Tensor | None
    """Fingerprints of the training rows of a table (N,)."""
    files: dict[str, str | None]
    """The digest of the file or folder of the data, if it is the user's own."""
    gaussian: Gaussian
    """Of the observed training entries."""
    masks: dict[str, Tensor]
    """Those of each split (N, …), bool, true where observed, in the order of its items."""
    log_every: int
    seed: int
    spent: float
    """Seconds that the run has taken before this process."""
    idle: str | None = None
    """A line on settings that were given and have no effect, if there are any."""

    @property
    def learnt(self) -> IncompleteData:
        """What the model learns from: the training data without the items of the validation."""
        return self.trainer.data.first(self.trainer.items)

    @property
    def means(self) -> Tensor:
        """The means of the observed training entries (d,), in the precision of a checkpoint."""
        return observed_mean(self.learnt.values, self.learnt.observed).float().double()

    def parts(self, model: Model) -> Parts:
        """What the imputers that stand beside the model are made of."""
        how, items, floor = self.measuring, self.settings["train_items"], self.settings["gaussian_floor"]
        known = FromTraining(
            self.means.view(self.test.shape),
            self.gaussian,
            lambda: self.learnt,
            lambda: complete_gaussian(how.dataset, items, self.scaling, floor),
        )
        return Parts(known, model, how.objective.solver, how.protocol.noise, self.seed, next(model.parameters()).device)


def training(cfg: dict[str, Any], devices: Devices) -> Training:
    """Assembles a training, or one that goes on, by the checked settings of `viscos train`.

    Raises `InputError` for settings that do not go together, or that do not suit the data.
    """
    cfg, given = apart(cfg)
    run_dir, dataset, masks = Path(cfg["run_dir"]), Dataset(cfg["dataset"]), masks_of(cfg, usual=0.5)
    assert masks is not None  # at the usual rate if at no other
    train, test = splits_of(cfg, dataset, devices)
    extractor_for(test.shape, cfg["inception"])  # refuses before anything is trained
    cfg = {**cfg, "dataset": dataset.saved, "mask": masks.spec, "missing": masks.missing}
    state = read_state(runs.find_checkpoint(run_dir), devices.device) if cfg["resume"] else None
    train, test = as_begun(state, train), as_begun(state, test)
    rows, files = remembered(train), own_files.digests({"dataset": cfg["dataset"]})
    refuse_other_data(state, rows, files)
    observed, test_observed = split_masks(masks, run_dir, train, test, resumed=state is not None)
    saved_masks = dict(zip(SPLITS, (observed, test_observed), strict=True))
    order, learnt = validation_order(len(train), cfg.get("validation", 0), cfg["seed"])
    train, observed = train.at(order), observed[order]
    scaling = fit_scaling(train.at(torch.arange(learnt)), observed[:learnt])
    train, test = standardised(train, scaling), standardised(test, scaling)
    data = IncompleteData(train.values, observed, train.labels, train.groups)
    cfg["dataset"] = passes(cfg["dataset"], learnt, cfg["batch_size"])
    cfg["flow"] = started(cfg["flow"], train.shape, table=scaling is not None)
    flow = build(cfg["flow"], Flow, train.shape)
    hides = not bool(observed.all() and test_observed.all())
    cfg = settled(cfg, train.shape, learnt, matches=flow.trained_by_matching, hides=hides)
    gaussian = gaussian_of(dataset.gaussian_noise, cfg["gaussian_floor"], data.first(learnt), state)
    trainer = trainer_of(cfg, flow, train.classes, data, learnt, hides, gaussian, devices, state)
    measuring = Measuring.of(cfg, dataset, trainer.objective)
    measuring.check(flow)
    return Training(
        {**cfg, "resume": None},
        run_dir,
        trainer,
        measuring,
        test,
        test_observed,
        scaling,
        train if rows is not None else None,
        rows,
        files,
        gaussian,
        saved_masks,
        cfg["log_every"],
        cfg["seed"],
        0.0 if state is None else state.get("seconds", 0.0),
        said(given, of_training(cfg, trainer, hides)),
    )


def splits_of(cfg: dict[str, Any], dataset: Dataset, devices: Devices) -> tuple[Data, Data]:
    """Training and test items; raises `InputError` where they do not go together."""
    with devices.rank_zero_first():  # it may have to download them
        train, test = dataset.load("train", cfg["train_items"]), dataset.load("test", cfg["test_items"])
    if train.shape != test.shape:
        raise InputError(f"training images are {train.shape} (channels, height, width) and test images {test.shape}")
    if not train.units.clamped and dataset.noise == "uniform":
        raise InputError("dataset.noise=uniform is for the grey levels of images; give a standard deviation, e.g. 0")
    return train, test


def as_begun(state: dict[str, Any] | None, data: Data) -> Data:
    """A table with the entries that it had when the run of a checkpoint's state began, as `Scaling.aligned`.

    What a column is may be found out otherwise by a later version, or after a row has changed.
    """
    saved = None if state is None else state.get("scaling")
    return Scaling.from_state(saved).aligned(data) if saved is not None and isinstance(data, Vectors) else data


def split_masks(masks: Masks, run_dir: Path, train: Data, test: Data, *, resumed: bool) -> tuple[Tensor, Tensor]:
    """The masks of both splits; of a run that goes on, they must be those that it saved."""
    made = {split: masks.of(data, split) for split, data in zip(SPLITS, (train, test), strict=True)}
    for split, observed in made.items():
        path = run_dir / MASKS.format(split=split)
        if resumed and mask_hash(load_masks(path)) != mask_hash(observed):
            raise InputError(f"{path} holds other masks than the settings give; the run cannot go on")
    if not bool(made["train"].flatten(1).any()):
        raise InputError("nothing is observed in the training data, so there is nothing to learn from; lower `missing`")
    return made["train"], made["test"]


def refuse_other_data(state: dict[str, Any] | None, rows: Tensor | None, files: dict[str, str | None]) -> None:
    """Raises `InputError` if the rows of a table, or else what is in the file or folder of the data, are not what they
    were when the run of a checkpoint's state began; the first checkpoints do not say.
    """
    begun = {} if state is None else state
    if rows is not None and begun.get("rows") is not None:
        same = torch.equal(begun["rows"].cpu(), rows)
    else:
        same = begun.get("files", files) == files
    if not same:
        raise InputError(
            "the training data are others than the run began with, so it cannot go on; dataset.path=… says where those "
            "are now"
        )


def gaussian_of(noise: float, floor: float, data: IncompleteData, state: dict[str, Any] | None = None) -> Gaussian:
    """The Gaussian of the observed entries, or that of `state`; shows a bar if it takes long."""
    if state is not None and (saved := restore_gaussian(state)) is not None:
        return saved
    with fitting_bar("the Gaussian") as progress:
        fitted = em_gaussian(data.values, data.observed, floor, noise, progress=progress)
    # In the precision of a checkpoint, so that a run measures the same before and after it is saved.
    return Gaussian(fitted.mean.float().double(), fitted.covariance.float().double())


def trainer_of(
    cfg: dict[str, Any],
    flow: Flow,
    classes: int,
    data: IncompleteData,
    learnt: int,
    hides: bool,
    gaussian: Gaussian,
    devices: Devices,
    state: dict[str, Any] | None = None,
) -> Trainer:
    """What trains, at its beginning or where `state` left it; from the first `learnt` items of the data."""
    network = None if cfg["teach"] == "none" else cfg["posterior"]
    model = build_model(flow, network, cfg["classifier"], data.shape, classes)
    if state is None:
        first = data.first(learnt)
        model.prepare(torch.where(first.observed, first.values, 0), first.observed, gaussian)
    else:
        model.load_parts(state["parts"])
    plan, objective = plan_of(cfg, learnt, hides, model.posterior), objective_of(cfg["solver"], cfg["lad"])
    made = PhasedTrainer if plan.phases else Trainer
    trainer = made(model.to(devices.device), data, objective, plan, devices, len(data) - learnt)
    if state is not None:
        try:
            trainer.load_state(state["trainer"])
        except InputError:  # which is a ValueError, and says more
            raise
        except (LookupError, TypeError, AttributeError, RuntimeError, ValueError) as error:
            raise InputError(
                f"the checkpoint's state of the training is none ({type(error).__name__}); it may have been edited"
            ) from error
        if trainer.step > trainer.total:
            raise InputError(
                f"these epochs or max_steps are {trainer.total} steps, and the run has done {trainer.step} already"
            )
    return trainer
