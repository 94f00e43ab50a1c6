"""A training, by the settings of `viscos train`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from viscos.commands.assemble.idle import apart, of_training, said
from viscos.commands.assemble.imputers import FromTraining, Parts, complete_gaussian
from viscos.commands.assemble.job import Job
from viscos.commands.assemble.measuring import Measuring, objective_of
from viscos.commands.assemble.plan import passes, plan_of, settled, started
from viscos.commands.assemble.splits import splits_of
from viscos.core.build import build
from viscos.core.errors import InputError
from viscos.core.precision import device_of
from viscos.core.progress import patient_bar
from viscos.data.incomplete import IncompleteData
from viscos.data.items import Data
from viscos.data.scaling import fit_scaling, standardised
from viscos.flows import Flow
from viscos.linear.gaussian import Gaussian, observed_mean
from viscos.linear.gaussian_em import em_gaussian
from viscos.runs.trained import restore_gaussian
from viscos.train import PhasedTrainer, Trainer
from viscos.train.devices import Devices
from viscos.train.model import Model, build_model
from viscos.train.validation import validation_order


@dataclass(frozen=True)
class Training(Job):
    """The training of a flow and its posterior."""

    trainer: Trainer
    gaussian: Gaussian
    """Of the observed training entries."""
    train: Data | None
    """The training rows of a table as the model takes them, with the cells that its mask hides; for nothing but to
    measure there."""

    @property
    def about(self) -> str:
        """What is trained, and from how much, in a line."""
        trainer, parameters = self.trainer, sum(p.numel() for p in self.trainer.model.parameters())
        held_back = f" ({len(trainer.data) - trainer.items} more held back)" if trainer.validation else ""
        return f"{trainer.items} items{held_back}, {trainer.total} steps, {parameters:,} parameters"

    @property
    def step(self) -> int:
        """Steps that were made."""
        return self.trainer.step

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
            lambda: self.gaussian.without_noise(how.dataset.gaussian_noise, floor),
            lambda: self.learnt,
            lambda: complete_gaussian(how.dataset, items, self.scaling, floor),
        )
        return Parts(known, model, how.objective.solver, how.protocol.noise, self.seed, device_of(model))


def training_of(cfg: dict[str, Any], devices: Devices) -> Training:
    """Assembles a training, or one that goes on, by the checked settings of `viscos train`.

    Raises `InputError` for settings that do not go together, or that do not suit the data.
    """
    cfg, given = apart(cfg)
    splits = splits_of(cfg, devices)
    cfg, train, test, state = dict(splits.cfg), splits.train, splits.test, splits.state
    order, learnt = validation_order(len(train), cfg["validation"], cfg["seed"])
    train, observed = train.at(order), splits.begun.masks["train"][order]
    scaling = fit_scaling(train.at(torch.arange(learnt)), observed[:learnt])
    train, test = standardised(train, scaling), standardised(test, scaling)
    data = IncompleteData(train.values, observed, train.labels, train.groups)
    cfg["dataset"] = passes(cfg["dataset"], learnt, cfg["batch_size"])
    cfg["flow"] = started(cfg["flow"], train.shape, table=scaling is not None)
    flow = build(cfg["flow"], Flow, train.shape)
    hides = not all(bool(mask.all()) for mask in splits.begun.masks.values())
    cfg = settled(cfg, train.shape, learnt, matches=flow.trained_by_matching, hides=hides)
    gaussian = gaussian_of(splits.dataset.gaussian_noise, cfg["gaussian_floor"], data.first(learnt), state)
    trainer = trainer_of(cfg, flow, train.classes, data, learnt, hides, gaussian, devices, state)
    measuring = Measuring.of(cfg, splits.dataset, trainer.objective)
    measuring.check(flow, test)
    table = train if splits.begun.rows is not None else None
    idle = said(given, of_training(cfg, trainer, hides))
    about = ({**cfg, "resume": None}, splits.begun, test, train.classes, scaling, measuring, idle)
    return Training(*about, trainer, gaussian, table)


def gaussian_of(
    noise: float, floor: float, data: IncompleteData, state: dict[str, Any] | None = None, patience: float = 3.0
) -> Gaussian:
    """The Gaussian of the observed entries, or that of `state`; shows a bar after `patience` seconds."""
    if state is not None and (saved := restore_gaussian(state)) is not None:
        return saved
    with patient_bar("fitting the Gaussian", patience) as progress:
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
