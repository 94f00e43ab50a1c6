"""A flow, its inference network and its classifier learn, and are measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from viscos import runs
from viscos.commands.assemble import floor
from viscos.commands.assemble.measuring import Measured
from viscos.commands.assemble.training import Training
from viscos.commands.interrupt import SAVED_EVERY, held
from viscos.commands.report import save_density, save_samples
from viscos.core.progress import Bar, bar, say
from viscos.core.rng import generator
from viscos.report.board import Log
from viscos.runs import checkpoint
from viscos.runs.trained import model_state
from viscos.train import Report
from viscos.train.model import Model
from viscos.train.phases import Phase
from viscos.train.validation import bound


def follow(job: Training) -> dict[str, Any]:
    """The training in a process that has nothing to write."""
    _steps(job, lambda report, model: None, lambda result: None)
    return {}


def learn(job: Training, log: Log) -> float:
    """Trains to the end, saving as it goes; returns the seconds that it has taken, in all processes."""
    trainer, began, means = job.trainer, time.monotonic() - job.begun.spent, job.means

    def save(result: Model) -> None:
        test = job.test
        known = (job.gaussian, means, job.scaling, job.begun.rows)
        parts = model_state(result, job.settings, test.shape, job.classes, *known)
        progress = {"trainer": trainer.state(result), "seconds": time.monotonic() - began}
        checkpoint.save(job.run_dir / runs.CHECKPOINT, {**parts, "files": job.begun.files, **progress})

    save(trainer.result())
    with bar("training", trainer.total, trainer.step) as progress:

        def see(report: Report, model: Model | None) -> None:
            scalars = report.loss | report.solver
            if model is not None:
                scalars |= _bound(job, report, model)
                log.scalars("train", scalars, report.step)
                progress.say(_line(report, scalars), "verbose")
            if report.validation:
                log.scalars("validation", report.validation, report.step)
                progress.say(_line(report, report.validation, "held back: "), "verbose")
            shown = ("bound", "residual", "failed", "matching", "nll")
            seen = {key: scalars[key] for key in shown if key in scalars}
            seen |= {f"held-back {key}": value for key, value in report.validation.items()}
            _show(progress, report, trainer.plan.phases, seen)

        _steps(job, see, save)
    return time.monotonic() - began


def measure(job: Training, log: Log) -> Measured:
    """Measures what was trained on the test split; draws pictures."""
    model, test, trainer = job.trainer.result(), job.test, job.trainer
    found = job.measuring.run(model, test, job.observed, job.parts(model))
    record = found.record
    if len(test.shape) == 3 and (model.posterior is None or trainer.plan.phases):
        samples = save_samples(job.run_dir / "samples.png", model.flow, test.shape, job.seed)
        log.image("pictures/samples", samples, trainer.step)
    if test.shape == (2,):
        save_density(job.run_dir / "density.png", model.flow, test, job.scaling)
    if trainer.validation is not None:
        record["validation"] = {"items": len(trainer.data) - trainer.items, "best": trainer.validation.record}
        for each in trainer.validation.record:
            after = f"best on the held-back items after {each['best_after_steps']} of {each['ended_after_steps']} steps"
            say(f"{each.get('phase', 'training')}: {after}, {each['loss']:.4g}")
    if (beside := _floor(job, model)) is not None:
        record[floor.NAME] = beside
        _add_to_checkpoint(job, {floor.NAME: beside})
        say(floor.line(beside))
    record["steps"] = trainer.step
    return found


def _add_to_checkpoint(job: Training, found: dict[str, Any]) -> None:
    """Adds what was found at the end to the checkpoint, which completes by it wherever it is copied to."""
    path = job.run_dir / runs.CHECKPOINT
    checkpoint.save(path, checkpoint.load(path) | found)


def _steps(job: Training, see: Callable[[Report, Model | None], None], save: Callable[[Model], None]) -> None:
    """Trains to the end; every process does, and so all end where one is interrupted or a flow is refused.

    `see` gets the report of each step, and the model after each `log_every`; `save` gets what the training has come to,
    after an epoch, where that takes long within it, and before it is interrupted.
    """
    trainer, saved = job.trainer, time.monotonic()

    def keep() -> None:
        nonlocal saved
        save(trainer.result())
        saved = time.monotonic()

    with held() as interrupted:

        def after(report: Report) -> None:
            see(report, trainer.certified() if report.step % job.log_every == 0 else None)
            ends, waits = interrupted(), time.monotonic() - saved > SAVED_EVERY
            if trainer.devices.anywhere(ends or waits):
                keep()
                if trainer.devices.anywhere(ends):
                    raise KeyboardInterrupt

        trainer.run(after, lambda epoch: keep())


def _line(report: Report, scalars: dict[str, float], what: str = "") -> str:
    """What a step is said to have come to."""
    phase = "" if report.phase is None else f" ({report.phase.title})"
    return f"step {report.step}{phase}: {what}" + "  ".join(f"{name} {value:.4g}" for name, value in scalars.items())


def _floor(job: Training, model: Model) -> dict[str, Any] | None:
    """How the model does on cells of a table that training hid, beside simpler imputers."""
    if job.train is None or model.posterior is None:
        return None
    return floor.measured(job.train, job.trainer.data, job.parts(model), job.seed)


def _show(progress: Bar, report: Report, phases: Sequence[Phase], scalars: dict[str, float]) -> None:
    """How far the training is, or the phase that it is in."""
    if report.phase is None:
        return progress.update(report.step + 1, scalars)
    title = f"{report.phase.title} ({phases.index(report.phase) + 1} of {len(phases)})"
    if progress.what != title:
        progress.begin(title, report.phase.steps, report.within)
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
