"""`viscos train`: trains on data with holes, then measures on the test split."""

from __future__ import annotations

from typing import Any

from viscos import runs
from viscos.commands import fitting, items, training
from viscos.commands.assemble.fitting import fitting_of, other_imputer
from viscos.commands.assemble.job import Job
from viscos.commands.assemble.machine import Machine
from viscos.commands.assemble.measuring import Measured
from viscos.commands.assemble.splits import MASKS
from viscos.commands.assemble.training import Training, training_of
from viscos.commands.interrupt import resumable
from viscos.commands.launch import launch
from viscos.commands.report import hidden_share, save_grid, summary
from viscos.core import atomic
from viscos.core.errors import InputError
from viscos.core.progress import note, say
from viscos.data.mask_files import save_masks
from viscos.report.board import Log
from viscos.runs.provenance import provenance
from viscos.train.devices import Devices


def run(cfg: dict[str, Any]) -> dict[str, Any]:
    """Trains, or goes on with a run; returns the record that `metrics.json` holds."""
    if not cfg["resume"]:
        runs.refuse_taken(cfg["run_dir"], "train")
    machine = Machine.of(cfg)
    if machine.devices > 1 and other_imputer(cfg):
        raise InputError(f"devices={machine.devices} share the batches of a flow; another imputer trains on one")
    with runs.alone(cfg["run_dir"]):
        return launch(_run, cfg, machine)


def _run(cfg: dict[str, Any], devices: Devices) -> dict[str, Any]:
    """What every process does; the first one writes and prints."""
    job = fitting_of(cfg, devices) if other_imputer(cfg) else training_of(cfg, devices)
    if devices.global_rank:
        assert isinstance(job, Training)
        return training.follow(job)
    _announce(job)
    about = provenance(job.settings, devices.device)  # now: the source tree may be another one when the run ends
    with resumable("train", job.run_dir, (job.run_dir / runs.CHECKPOINT).is_file):
        with Log(job.run_dir, job.step) as log:
            log.text("settings", runs.as_text(job.settings))
            if isinstance(job, Training):
                seconds, found = training.learn(job, log), training.measure(job, log)
            else:
                seconds, found = fitting.learn(job, log), fitting.measure(job)
            _show(job, log, found)
        items.save(job.run_dir, job.test, job.observed, found.per_item)
        constant = {} if job.scaling is None else {"constant_columns": list(job.scaling.constant)}
        record = {"command": "train", "dataset": job.measuring.dataset.name, **found.record, **constant}
        record |= {"training_seconds": round(seconds, 1), **about}
        atomic.write_json(job.run_dir / runs.RECORD, record)
    say(summary(record))
    print(f"numbers in {job.run_dir / runs.RECORD}; curves: tensorboard --logdir {job.run_dir}")
    return record


def _announce(job: Job) -> None:
    """Saves settings and masks, and says what is about to be trained."""
    runs.save_config(job.run_dir, job.settings)
    for split, observed in job.begun.masks.items():
        save_masks(job.run_dir / MASKS.format(split=split), observed)
    say(f"{job.about}; run folder {job.run_dir}")
    say(runs.as_text(job.settings), "verbose")
    for split, observed in job.begun.masks.items():
        say(hidden_share(observed, f"{split} items"))
    if job.idle:
        say(job.idle)
    note(job.test.notes)
    if job.scaling is not None and job.scaling.constant:
        say(f"constant in the training data: {', '.join(job.scaling.constant)}")


def _show(job: Job, log: Log, found: Measured) -> None:
    """What was measured, where TensorBoard finds it, with a picture of the first completions."""
    if found.first is not None and len(job.test.shape) == 3:
        grid = save_grid(job.run_dir / "completions.png", job.test.values, job.observed, found.first)
        log.image("pictures/completions", grid, job.step)
    log.hparams(runs.essence(job.settings), "test", found.record, job.step)
    log.text("test", summary(found.record))
