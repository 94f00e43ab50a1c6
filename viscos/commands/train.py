"""`viscos train`: trains on data with holes, then measures on the test split."""

from __future__ import annotations

import time
from typing import Any

import torch

from viscos import runs
from viscos.commands.assemble.fitting import other_imputer
from viscos.commands.assemble.machine import Machine
from viscos.commands.assemble.training import MASKS, Training, training
from viscos.commands.fitting import fit
from viscos.commands.interrupt import held, resumable
from viscos.commands.launch import launch
from viscos.commands.report import hidden_share, save_density, save_grid, save_samples, summary
from viscos.core import atomic
from viscos.core.progress import Bar, bar
from viscos.core.rng import generator
from viscos.data.mask_files import save_masks
from viscos.inference import lower_bound
from viscos.report.board import Log
from viscos.runs import checkpoint
from viscos.runs.provenance import provenance
from viscos.runs.trained import model_state
from viscos.train import Report, Trainer
from viscos.train.devices import Devices


def run(cfg: dict[str, Any]) -> dict[str, Any]:
    """Trains, or goes on with a run; returns the record that `metrics.json` holds."""
    return launch(fit if other_imputer(cfg) else _run, cfg, Machine.of(cfg))


def _run(cfg: dict[str, Any], devices: Devices) -> dict[str, Any]:
    """What every process does; the first one writes and prints."""
    job = training(cfg, devices)
    if devices.global_rank:
        return _follow(job.trainer, job.log_every)
    _announce(job)
    about = provenance(job.settings, devices.device)  # now: the source tree may be another one when the run ends
    with resumable("train", job.run_dir, (job.run_dir / runs.CHECKPOINT).is_file):
        with Log(job.run_dir, job.trainer.step) as log:
            seconds = _train(job, log)
            record = _measure(job, log)
        record |= {"training_seconds": round(seconds, 1), "steps": job.trainer.step, **about}
        atomic.write_json(job.run_dir / "metrics.json", record)
    print(summary(record))
    print(f"figures in {job.run_dir / 'metrics.json'}; curves: tensorboard --logdir {job.run_dir}")
    return record


def _follow(trainer: Trainer, log_every: int) -> dict[str, Any]:
    """The training in a process that has nothing to write."""
    with held() as interrupted:

        def after(report: Report) -> None:
            if report.step % log_every == 0:
                trainer.certify(average=False)
            if trainer.anywhere(interrupted()):
                trainer.certify()
                raise KeyboardInterrupt

        trainer.run(after, lambda epoch: None)
    return {}


def _announce(job: Training) -> None:
    """Saves settings and masks, and says what is about to be trained."""
    runs.save_config(job.run_dir, job.settings)
    for split, observed in job.masks.items():
        save_masks(job.run_dir / MASKS.format(split=split), observed)
    trainer, parameters = job.trainer, sum(p.numel() for p in job.trainer.model.parameters())
    about = f"{len(trainer.data)} items, {trainer.total} steps, {parameters:,} parameters"
    print(f"{about}; run folder {job.run_dir}", flush=True)
    for split, observed in job.masks.items():
        print(hidden_share(observed, f"{split} items"), flush=True)
    if job.idle:
        print(job.idle, flush=True)
    for note in job.test.notes:
        print(note, flush=True)
    if job.scaling is not None and job.scaling.constant:
        print(f"constant in the training data: {', '.join(job.scaling.constant)}", flush=True)


def _train(job: Training, log: Log) -> float:
    """Trains to the end, saving as it goes; returns the seconds that the whole run has taken so far."""
    trainer, began, means = job.trainer, time.monotonic() - job.spent, job.means

    def save(epoch: int = 0) -> None:
        test = job.test
        known = (job.gaussian, means, job.scaling, job.rows)
        parts = model_state(trainer.result(), job.settings, test.shape, test.classes, *known)
        seconds = time.monotonic() - began
        checkpoint.save(job.run_dir / runs.CHECKPOINT, {**parts, "trainer": trainer.state(), "seconds": seconds})

    save()
    with held() as interrupted, bar("training", trainer.total, trainer.step) as progress:

        def after(report: Report) -> None:
            figures = report.loss | report.solver
            if report.step % job.log_every == 0:
                trainer.certify(average=False)
                figures |= _bound(job, report)
                log.scalars("train", figures, report.step)
            shown = ("bound", "residual", "failed", "matching", "nll")
            _show(progress, report, {key: figures[key] for key in shown if key in figures})
            if trainer.anywhere(interrupted()):
                trainer.certify()
                save()
                raise KeyboardInterrupt

        trainer.run(after, save)
    return time.monotonic() - began


def _measure(job: Training, log: Log) -> dict[str, Any]:
    """Measures what was trained; writes pictures and curves; returns the record."""
    model, test, trainer = job.trainer.result(), job.test, job.trainer
    record, first = job.measuring.run(model, test, job.observed, job.parts(model))
    images = len(test.shape) == 3
    if first is not None and images:
        grid = save_grid(job.run_dir / "completions.png", test.values, job.observed, first)
        log.image("test/completions", grid, trainer.step)
    if images and (model.posterior is None or trainer.plan.phases):
        samples = save_samples(job.run_dir / "samples.png", model.flow, test.shape, job.seed)
        log.image("test/samples", samples, trainer.step)
    if test.shape == (2,):
        save_density(job.run_dir / "density.png", model.flow, test, job.scaling)
    log.record("test", record, trainer.step)
    constant = {} if job.scaling is None else {"constant_columns": list(job.scaling.constant)}
    return {"command": "train", "dataset": job.measuring.dataset.name, **record, **constant}


def _show(progress: Bar, report: Report, figures: dict[str, float]) -> None:
    """How far the training is, or the phase that it is in."""
    if report.phase is None:
        return progress.update(report.step + 1, figures)
    if progress.what != report.phase.title:
        progress.begin(report.phase.title, report.phase.steps, report.within)
    progress.update(report.within + 1, figures)


@torch.no_grad()
def _bound(job: Training, report: Report) -> dict[str, float]:
    """The bound (or log p) in nats, by the cheap estimators, for some items of the batch, taken as draws of one."""
    model = job.trainer.model
    learning = "" if report.phase is None else report.phase.name
    # Of a flow that is trained by matching, a log-determinant costs as much as many steps.
    if model.flow.trained_by_matching or learning not in ("", "flow", "bound"):
        return {}
    batch = report.batch.select(torch.arange(min(16, len(report.batch))))
    if bool(batch.observed.all()):
        return {"bound": float(model.flow.log_prob(batch.values).mean())}
    assert model.posterior is not None
    g = generator(job.seed, "monitor", report.step)
    noise = torch.randn((1, *batch.values.shape), generator=g).to(batch.values.device)
    q = model.posterior(batch, model.flow)
    weight, _ = job.trainer.objective.log_weight(model.flow, batch, q, noise, g, exact_below=100)
    return {"bound": float(lower_bound(weight.view(-1, 1)))}
