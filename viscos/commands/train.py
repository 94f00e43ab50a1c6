"""`viscos train`: trains on data with holes, then measures on the test split."""

from __future__ import annotations

import time
from typing import Any

import torch

from viscos import runs
from viscos.commands import floor
from viscos.commands.assemble.fitting import other_imputer
from viscos.commands.assemble.machine import Machine
from viscos.commands.assemble.training import MASKS, Training, training
from viscos.commands.fitting import fit
from viscos.commands.interrupt import held, resumable
from viscos.commands.launch import launch
from viscos.commands.report import hidden_share, save_density, save_grid, save_samples, summary
from viscos.core import atomic
from viscos.core.errors import InputError
from viscos.core.progress import Bar, bar, say
from viscos.core.rng import generator
from viscos.data.mask_files import save_masks
from viscos.report.board import Log
from viscos.runs import checkpoint
from viscos.runs.provenance import provenance
from viscos.runs.trained import model_state
from viscos.train import Report, Trainer
from viscos.train.devices import Devices
from viscos.train.model import Model
from viscos.train.validation import bound


def run(cfg: dict[str, Any]) -> dict[str, Any]:
    """Trains, or goes on with a run; returns the record that `metrics.json` holds."""
    if not cfg["resume"]:
        runs.refuse_training(cfg["run_dir"])
    machine, other = Machine.of(cfg), other_imputer(cfg)
    if other and machine.devices > 1:
        raise InputError(f"devices={machine.devices} share the batches of a flow; another imputer trains on one")
    return launch(fit if other else _run, cfg, machine)


def _run(cfg: dict[str, Any], devices: Devices) -> dict[str, Any]:
    """What every process does; the first one writes and prints."""
    job = training(cfg, devices)
    if devices.global_rank:
        return _follow(job.trainer, job.log_every)
    _announce(job)
    about = provenance(job.settings, devices.device)  # now: the source tree may be another one when the run ends
    with resumable("train", job.run_dir, (job.run_dir / runs.CHECKPOINT).is_file):
        with Log(job.run_dir, job.trainer.step) as log:
            log.text("settings", runs.as_text(job.settings))
            seconds = _train(job, log)
            record = _measure(job, log)
        record |= {"training_seconds": round(seconds, 1), "steps": job.trainer.step, **about}
        atomic.write_json(job.run_dir / runs.RECORD, record)
    say(summary(record))
    print(f"numbers in {job.run_dir / runs.RECORD}; curves: tensorboard --logdir {job.run_dir}")
    return record


def _follow(trainer: Trainer, log_every: int) -> dict[str, Any]:
    """The training in a process that has nothing to write."""
    with held() as interrupted:

        def after(report: Report) -> None:
            if report.step % log_every == 0:
                trainer.certified()  # in every process: all end where it is refused
            if trainer.anywhere(interrupted()):
                trainer.result()
                raise KeyboardInterrupt

        trainer.run(after, lambda epoch: None)
    return {}


def _announce(job: Training) -> None:
    """Saves settings and masks, and says what is about to be trained."""
    runs.save_config(job.run_dir, job.settings)
    for split, observed in job.masks.items():
        save_masks(job.run_dir / MASKS.format(split=split), observed)
    trainer, parameters = job.trainer, sum(p.numel() for p in job.trainer.model.parameters())
    held_back = f" ({len(trainer.data) - trainer.items} more held back)" if trainer.validation else ""
    about = f"{trainer.items} items{held_back}, {trainer.total} steps, {parameters:,} parameters"
    say(f"{about}; run folder {job.run_dir}")
    say(runs.as_text(job.settings), "verbose")
    for split, observed in job.masks.items():
        say(hidden_share(observed, f"{split} items"))
    if job.idle:
        say(job.idle)
    for note in job.test.notes:
        say(note)
    if job.scaling is not None and job.scaling.constant:
        say(f"constant in the training data: {', '.join(job.scaling.constant)}")


def _train(job: Training, log: Log) -> float:
    """Trains to the end, saving as it goes; returns the seconds that the whole run has taken so far."""
    trainer, began, means = job.trainer, time.monotonic() - job.spent, job.means

    def save(epoch: int = 0) -> None:
        test = job.test
        known = (job.gaussian, means, job.scaling, job.rows)
        result = trainer.result()
        parts = model_state(result, job.settings, test.shape, test.classes, *known)
        progress = {"trainer": trainer.state(result), "seconds": time.monotonic() - began}
        checkpoint.save(job.run_dir / runs.CHECKPOINT, {**parts, "files": job.files, **progress})

    save()
    with held() as interrupted, bar("training", trainer.total, trainer.step) as progress:

        def after(report: Report) -> None:
            scalars = report.loss | report.solver
            if report.step % job.log_every == 0:
                scalars |= _bound(job, report, trainer.certified())
                log.scalars("train", scalars, report.step)
                progress.say(_line(report, scalars), "verbose")
            if report.validation:
                log.scalars("validation", report.validation, report.step)
                progress.say(_line(report, report.validation, "held back: "), "verbose")
            shown = ("bound", "residual", "failed", "matching", "nll")
            held_back = {f"held-back {key}": value for key, value in report.validation.items()}
            _show(progress, report, {key: scalars[key] for key in shown if key in scalars} | held_back)
            if trainer.anywhere(interrupted()):
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
        log.image("pictures/completions", grid, trainer.step)
    if images and (model.posterior is None or trainer.plan.phases):
        samples = save_samples(job.run_dir / "samples.png", model.flow, test.shape, job.seed)
        log.image("pictures/samples", samples, trainer.step)
    if test.shape == (2,):
        save_density(job.run_dir / "density.png", model.flow, test, job.scaling)
    log.hparams(runs.essence(job.settings), "test", record, trainer.step)
    log.text("test", summary(record))
    if trainer.validation is not None:
        record["validation"] = {"items": len(trainer.data) - trainer.items, "best": trainer.validation.record}
        for each in trainer.validation.record:
            after = f"best on the held-back items after {each['best_after_steps']} of {each['ended_after_steps']} steps"
            say(f"{each.get('phase', 'training')}: {after}, {each['loss']:.4g}")
    if (found := _floor(job, model)) is not None:
        record[floor.NAME] = found
        say(floor.line(found))
    constant = {} if job.scaling is None else {"constant_columns": list(job.scaling.constant)}
    return {"command": "train", "dataset": job.measuring.dataset.name, **record, **constant}


def _line(report: Report, scalars: dict[str, float], what: str = "") -> str:
    """What a step is said to have come to."""
    phase = "" if report.phase is None else f" ({report.phase.title})"
    return f"step {report.step}{phase}: {what}" + "  ".join(f"{name} {value:.4g}" for name, value in scalars.items())


def _floor(job: Training, model: Model) -> dict[str, Any] | None:
    """How the model does on cells of a table that training hid, beside simpler imputers."""
    if job.train is None or model.posterior is None:
        return None
    return floor.measured(job.train, job.trainer.data, job.parts(model), job.seed)


def _show(progress: Bar, report: Report, scalars: dict[str, float]) -> None:
    """How far the training is, or the phase that it is in."""
    if report.phase is None:
        return progress.update(report.step + 1, scalars)
    if progress.what != report.phase.title:
        progress.begin(report.phase.title, report.phase.steps, report.within)
    progress.update(report.within + 1, scalars)


@torch.no_grad()
def _bound(job: Training, report: Report, model: Model) -> dict[str, float]:
    """The bound (or log p) of a model in nats of some items of the batch, where it costs little."""
    learning = "" if report.phase is None else report.phase.name
    # Of a flow that is trained by matching, a log-determinant costs as much as many steps.
    if model.flow.trained_by_matching or learning not in ("", "flow", "bound"):
        return {}
    batch = report.batch.select(torch.arange(min(16, len(report.batch))))
    g = generator(job.seed, "monitor", report.step)
    noise = torch.randn((1, *batch.values.shape), generator=g).to(batch.values.device)
    return {"bound": bound(model, job.trainer.objective, batch, noise, g)}
