"""A training on rows of a table that Python holds: `viscos train`'s own settings, without its folder and its report."""

from __future__ import annotations

import math
from importlib.resources import files

import torch
import yaml

from viscos.commands.assemble.plan import settled
from viscos.commands.assemble.training import gaussian_of, trainer_of
from viscos.core.choices import choice, description
from viscos.core.progress import bar
from viscos.data.incomplete import IncompleteData
from viscos.flows import Flow
from viscos.imputers import FlowImputer
from viscos.linear.gaussian import Gaussian
from viscos.train import Report, Trainer
from viscos.train.devices import OneDevice
from viscos.train.model import Model


def trained_on_rows(
    data: IncompleteData, flow: str, steps: int, seed: int, verbose: bool
) -> tuple[Model, Gaussian, FlowImputer]:
    """What `viscos train dataset=table` makes of standardised rows (N, d) by its own settings, in phases of `steps`.

    Returns the model, the Gaussian of the rows and what completes them. Raises `InputError` for another flow.
    """
    cfg = yaml.safe_load(files("viscos.configs").joinpath("train.yaml").read_text(encoding="utf-8"))
    cfg |= {part: description(part, "auto") for part in ("solver", "lad")}
    cfg |= {"posterior": description("posterior", "amortised"), "dataset": description("dataset", "table")}
    passes = max(1, math.ceil(steps / math.ceil(len(data) / cfg["batch_size"])))
    cfg |= {"teach": "regression", "epochs": passes, "max_steps": steps, "seed": seed}
    made = choice("flow", flow, Flow, data.shape)
    hides = not bool(data.observed.all())
    cfg = settled(cfg, matches=made.trained_by_matching, hides=hides)
    noise = float(cfg["dataset"]["noise"])
    gaussian = gaussian_of(noise, cfg["gaussian_floor"], data)
    trainer = trainer_of(cfg, made, 0, data, len(data), hides, gaussian, OneDevice(torch.device("cpu")))
    _run(trainer, verbose)
    model = trainer.result().eval()
    assert model.posterior is not None  # it was taught by regression
    return model, gaussian, FlowImputer(model.flow, model.posterior, trainer.objective.solver, noise)


def _run(trainer: Trainer, verbose: bool) -> None:
    if not verbose:
        return trainer.run(lambda report: None, lambda epoch: None)
    with bar("training", trainer.total) as line:

        def after(report: Report) -> None:
            line.update(report.step + 1, {key: report.loss[key] for key in ("matching", "nll") if key in report.loss})

        trainer.run(after, lambda epoch: None)
