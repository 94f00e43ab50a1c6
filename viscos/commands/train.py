"""`viscos train`: trains on data with holes, then measures on the test split."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from viscos import runs
from viscos.commands.common import (
    chosen_mask,
    grey_levels,
    load_data,
    make_judge,
    make_masks,
    make_objective,
    noise_of_training,
    whole_paths,
)
from viscos.commands.interrupt import held
from viscos.commands.launch import launch
from viscos.commands.plan import plan_of, settled
from viscos.commands.progress import Bar, bar
from viscos.commands.report import save_density, save_grid, save_samples, summary
from viscos.core import atomic
from viscos.core.build import build
from viscos.core.errors import InputError
from viscos.core.rng import generator
from viscos.data.incomplete import IncompleteData
from viscos.data.items import Data
from viscos.data.masks import load_masks, mask_hash, save_masks
from viscos.data.scaling import Scaling, fit_scaling, standardised
from viscos.evaluate import Protocol, evaluate
from viscos.inference import Objective
from viscos.linear.gaussian import Gaussian, observed_mean
from viscos.linear.gaussian_em import PASSES, em_gaussian
from viscos.metrics.extractor import extractor_for
from viscos.report.board import Log
from viscos.runs import checkpoint
from viscos.runs.provenance import provenance
from viscos.runs.trained import model_state, restore_gaussian
from viscos.train import PhasedTrainer, Report, Trainer
from viscos.train.devices import Devices
from viscos.train.model import Model, build_model


def run(cfg: dict[str, Any]) -> dict[str, Any]:
    """Trains, or goes on with a run; returns the record that `metrics.json` holds."""
    return launch(_run, cfg)


def _run(cfg: dict[str, Any], devices: Devices) -> dict[str, Any]:
    """What every process does; the first one writes and prints."""
    device, run_dir = devices.device, Path(cfg["run_dir"])
    cfg = {**cfg, "mask": chosen_mask(cfg, usual=0.5)}
    cfg["missing"] = cfg["mask"].get("missing")
    with devices.rank_zero_first():  # it may have to download them
        train = load_data(cfg["dataset"], "train", cfg["train_items"])
        test = load_data(cfg["dataset"], "test", cfg["test_items"])
    if train.shape != test.shape:
        raise InputError(f"training images are {train.shape} (channels, height, width) and test images {test.shape}")
    if not train.units.clamped and cfg["dataset"]["noise"] == "uniform":
        raise InputError("dataset.noise=uniform is for the grey levels of images; give a standard deviation, e.g. 0")
    cfg["dataset"] = whole_paths(cfg["dataset"])
    extractor_for(test.shape, cfg["inception"])  # refuses before anything is trained
    state = checkpoint.load(runs.find_checkpoint(run_dir), device) if cfg["resume"] else None
    observed, test_observed = _masks(cfg, run_dir, train, test)
    scaling = fit_scaling(train, observed)
    train, test = standardised(train, scaling), standardised(test, scaling)
    data = IncompleteData(train.values, observed, train.labels)
    hides = not bool(observed.all() and test_observed.all())
    flow = build(cfg["flow"], train.shape)
    cfg = settled(cfg, matches=flow.matches, hides=hides)
    model = build_model(cfg, train.shape, train.classes, cfg["teach"] != "none", flow)
    gaussian = _gaussian(cfg, data, state)
    if state is None:
        model.prepare(torch.where(data.observed, data.values, 0), data.observed, gaussian)
    else:
        model.load_parts(state["parts"])
    plan = plan_of(cfg, len(data), hides)
    made = PhasedTrainer if plan.phases else Trainer
    trainer = made(model.to(device), data, make_objective(cfg), plan, devices)
    if state is not None:
        trainer.load_state(state["trainer"])
        if trainer.step > trainer.total:
            raise InputError(
                f"these epochs or max_steps are {trainer.total} steps, and the run has done {trainer.step} already"
            )
    if devices.global_rank:
        return _follow(trainer)
    runs.save_config(run_dir, cfg | {"resume": None})
    for split, mask in (("train", observed), ("test", test_observed)):
        save_masks(run_dir / f"masks_{split}.npz", mask)
    print(f"{len(data)} items, {trainer.total} steps, {_count(model)} parameters; run folder {run_dir}", flush=True)
    if scaling is not None and scaling.constant:
        print(f"constant in the training data: {', '.join(scaling.constant)}", flush=True)
    spent = 0.0 if state is None else state.get("seconds", 0.0)
    try:
        return _go(cfg, run_dir, trainer, gaussian, scaling, test, test_observed, spent)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; `viscos train resume={run_dir}` goes on") from None


def _follow(trainer: Trainer) -> dict[str, Any]:
    """The training in a process that has nothing to write."""
    with held() as interrupted:

        def after(report: Report) -> None:
            if trainer.anywhere(interrupted()):
                raise KeyboardInterrupt

        trainer.run(after, lambda epoch: None)
    return {}


def _go(
    cfg: dict[str, Any],
    run_dir: Path,
    trainer: Trainer,
    gaussian: Gaussian,
    scaling: Scaling | None,
    test: Data,
    observed: Tensor,
    spent: float,
) -> dict[str, Any]:
    model, began = trainer.model, time.monotonic() - spent
    means = observed_mean(trainer.data.values, trainer.data.observed).float().double()  # as a checkpoint has them
    about = provenance(cfg, trainer.devices.device)  # now: the source tree may be another one when the run ends

    def save(epoch: int = 0) -> None:
        parts = model_state(trainer.result(), cfg, test.shape, test.classes, gaussian, means, scaling)
        seconds = time.monotonic() - began
        checkpoint.save(run_dir / runs.CHECKPOINT, {**parts, "trainer": trainer.state(), "seconds": seconds})

    save()
    with Log(run_dir, trainer.step) as log:
        with held() as interrupted, bar("training", trainer.total, trainer.step) as progress:

            def after(report: Report) -> None:
                shown = {}
                if report.step % cfg["log_every"] == 0:
                    shown = _bound(model, trainer.objective, report, cfg["seed"])
                    log.scalars("train", report.loss | report.solver | shown, report.step)
                shown |= {key: report.solver[key] for key in ("residual", "failed") if key in report.solver}
                shown |= {key: report.loss[key] for key in ("matching", "nll") if key in report.loss}
                _show(progress, report, shown)
                if trainer.anywhere(interrupted()):
                    save()
                    raise KeyboardInterrupt

            trainer.run(after, save)
        seconds = time.monotonic() - began
        record = _measure(cfg, run_dir, trainer, gaussian, means, test, observed, log)
    if test.shape == (2,):
        save_density(run_dir / "density.png", trainer.result().flow, test, scaling)
    if scaling is not None:
        record["constant_columns"] = list(scaling.constant)
    record |= {
        "training_seconds": round(seconds, 1),
        "steps": trainer.step,
        **about,
    }
    atomic.write_json(run_dir / "metrics.json", record)
    print(summary(record))
    print(f"figures in {run_dir / 'metrics.json'}; curves: tensorboard --logdir {run_dir}")
    return record


def _measure(
    cfg: dict[str, Any],
    run_dir: Path,
    trainer: Trainer,
    gaussian: Gaussian,
    means: Tensor,
    test: Data,
    observed: Tensor,
    log: Log,
) -> dict[str, Any]:
    noise = noise_of_training(cfg, cfg["denoise"])
    protocol = Protocol(cfg["draws"], cfg["batch_size"], cfg["seed"], levels=grey_levels(cfg), noise=noise)
    device = next(trainer.model.parameters()).device
    judge = make_judge(cfg["dataset"], test.shape, cfg["inception"], device)
    with bar("measuring", len(test)) as progress:
        record, first = evaluate(
            trainer.result(),
            test,
            observed,
            trainer.objective,
            protocol,
            baseline=gaussian,
            means=means,
            judge=judge,
            progress=progress.update,
        )
    images = len(test.shape) == 3
    if first is not None and images:
        grid = save_grid(run_dir / "completions.png", test.values, observed, first)
        log.image("test/completions", grid, trainer.step)
    if images and (trainer.model.posterior is None or trainer.plan.phases):
        samples = save_samples(run_dir / "samples.png", trainer.result().flow, test.shape, cfg["seed"])
        log.image("test/samples", samples, trainer.step)
    log.record("test", record, trainer.step)
    return {"command": "train", "dataset": cfg["dataset"]["name"], **record}


def _masks(cfg: dict[str, Any], run_dir: Path, train: Data, test: Data) -> tuple[Tensor, Tensor]:
    """The masks of both splits; of a run that goes on, they must be those that it saved."""
    masks = []
    for split, data in (("train", train), ("test", test)):
        made, path = make_masks(cfg["mask"], data, cfg["seed"], split), run_dir / f"masks_{split}.npz"
        if cfg["resume"] and mask_hash(load_masks(path)) != mask_hash(made):
            raise InputError(f"{path} holds other masks than the settings give; the run cannot go on")
        masks.append(made)
    if not bool(masks[0].flatten(1).any()):
        raise InputError("nothing is observed in the training data, so there is nothing to learn from; lower `missing`")
    return masks[0], masks[1]


def _gaussian(cfg: dict[str, Any], data: IncompleteData, state: dict[str, Any] | None) -> Gaussian:
    if state is not None and (saved := restore_gaussian(state)) is not None:
        return saved
    noise = cfg["dataset"]["noise"]
    spread = 0.0 if noise == "uniform" else float(noise)
    with ExitStack() as shown:
        began, bars = time.monotonic(), list[Bar]()

        def progress(done: int, figures: dict[str, float]) -> None:
            if not bars and time.monotonic() - began > 3:  # most fits are over before anyone wonders
                bars.append(shown.enter_context(bar("fitting the Gaussian", PASSES)))
            for each in bars:
                each.update(done, figures)

        fitted = em_gaussian(data.values, data.observed, cfg["gaussian_floor"], spread, progress=progress)
    # In the precision of a checkpoint, so that a run measures the same before and after it is saved.
    return Gaussian(fitted.mean.float().double(), fitted.covariance.float().double())


def _show(progress: Bar, report: Report, figures: dict[str, float]) -> None:
    """How far the training is, or the phase that it is in."""
    if report.phase is None:
        return progress.update(report.step + 1, figures)
    if progress.what != report.phase.title:
        progress.begin(report.phase.title, report.phase.steps, report.within)
    progress.update(report.within + 1, figures)


@torch.no_grad()
def _bound(model: Model, objective: Objective, report: Report, seed: int) -> dict[str, float]:
    """The bound (or log p) in nats, by the cheap estimators, on some items of the batch."""
    learning = "" if report.phase is None else report.phase.name
    if model.flow.matches or learning not in ("", "flow", "bound"):  # a log-determinant costs as much as many steps
        return {}
    batch = report.batch.select(torch.arange(min(16, len(report.batch))))
    if bool(batch.observed.all()):
        return {"bound": float(model.flow.log_prob(batch.values).mean())}
    assert model.posterior is not None
    g = generator(seed, "monitor", report.step)
    noise = torch.randn((1, *batch.values.shape), generator=g).to(batch.values.device)
    q = model.posterior(batch, model.flow)
    weight, _ = objective.log_weight(model.flow, batch, q, noise, g, exact_below=100)
    return {"bound": float(weight.nanmean())}


def _count(model: Model) -> str:
    return f"{sum(p.numel() for p in model.parameters()):,}"
