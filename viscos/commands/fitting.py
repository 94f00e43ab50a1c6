"""`viscos train imputer=…`: trains another imputer than a flow, then measures it on the test split, as a flow is."""

from __future__ import annotations

import time
from typing import Any

from viscos import runs
from viscos.commands.assemble.fitting import Fitting, fitting
from viscos.commands.assemble.training import MASKS
from viscos.commands.interrupt import held, resumable
from viscos.commands.report import hidden_share, save_grid, summary
from viscos.core import atomic
from viscos.core.progress import fitting_bar, say
from viscos.data.mask_files import save_masks
from viscos.report.board import Log
from viscos.runs import checkpoint
from viscos.runs.provenance import provenance
from viscos.train.devices import Devices

SAVED_EVERY = 300.0
"""Seconds between two checkpoints of an imputer that learns for long."""


def fit(cfg: dict[str, Any], devices: Devices) -> dict[str, Any]:
    """Trains, or goes on with a run; returns the record that `metrics.json` holds."""
    job = fitting(cfg, devices)
    runs.save_config(job.run_dir, job.settings)
    for split, observed in job.masks.items():
        save_masks(job.run_dir / MASKS.format(split=split), observed)
    say(f"{job.imputer.label}: {len(job.data)} items; run folder {job.run_dir}")
    for split, observed in job.masks.items():
        say(hidden_share(observed, f"{split} items"))
    if job.idle:
        say(job.idle)
    about = provenance(job.settings, devices.device)  # now: the source tree may be another one when the run ends
    with resumable("train", job.run_dir, (job.run_dir / runs.CHECKPOINT).is_file), Log(job.run_dir) as log:
        if not job.finished:
            _fit(job, log)
        record = _measure(job, log)
    record |= {"training_seconds": round(job.imputer.fit_seconds or 0.0, 1), **about}
    atomic.write_json(job.run_dir / runs.RECORD, record)
    say(summary(record))
    print(f"numbers in {job.run_dir / runs.RECORD}")
    return record


def _fit(job: Fitting, log: Log) -> None:
    """Trains to the end, saving as it goes."""
    began = time.monotonic() - job.spent
    saved = time.monotonic()

    def save(*, finished: bool) -> None:
        nonlocal saved
        checkpoint.save(job.run_dir / runs.CHECKPOINT, job.state(finished, time.monotonic() - began))
        saved = time.monotonic()

    with held() as interrupted, fitting_bar(job.imputer.label) as shown:

        def after(done: int, total: int, scalars: dict[str, float]) -> None:
            shown(done, total, scalars)
            if done % job.log_every == 0:
                log.scalars("train", scalars, done)
            if interrupted() or time.monotonic() - saved > SAVED_EVERY:
                save(finished=False)
            if interrupted():
                raise KeyboardInterrupt

        job.imputer.fit(job.data, job.seed, after)
    job.imputer.fit_seconds = time.monotonic() - began
    save(finished=True)


def _measure(job: Fitting, log: Log) -> dict[str, Any]:
    """Measures what was trained, if anything is hidden; writes pictures and curves; returns the record."""
    record: dict[str, Any] = {}
    if not bool(job.observed.all()):
        record, first = job.measuring.run(job.imputer, job.test, job.observed, job.parts)
        if first is not None and len(job.test.shape) == 3:
            grid = save_grid(job.run_dir / "completions.png", job.test.values, job.observed, first)
            log.image("test/completions", grid, 0)
        log.record("test", record, 0)
    constant = {} if job.scaling is None else {"constant_columns": list(job.scaling.constant)}
    return {"command": "train", "dataset": job.measuring.dataset.name, **record, **constant}
