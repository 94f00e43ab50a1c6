"""`viscos impute`: completes items with a trained flow."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from viscos import runs
from viscos.commands.assemble.imputing import Imputing, imputing
from viscos.commands.assemble.machine import Machine
from viscos.commands.completing.batches import Pass, complete
from viscos.commands.completing.check import NAME as CHECK
from viscos.commands.completing.check import measured, second_pass
from viscos.commands.completing.check import save as save_check
from viscos.commands.completing.results import Results, joined, record_of, save
from viscos.commands.completing.shards import Shards
from viscos.commands.interrupt import held, resumable
from viscos.commands.launch import launch
from viscos.commands.report import hidden_share, save_draws, save_grid, summary
from viscos.core import atomic
from viscos.core.errors import InputError
from viscos.core.progress import note, patient_bar, say, set_verbosity
from viscos.imputers import quiet
from viscos.report.board import Log
from viscos.train.devices import Devices


def run(cfg: dict[str, Any]) -> dict[str, Any]:
    """Fits a posterior to each item, draws completions, saves them; returns the record that `metrics.json` holds.

    Batches are shared out among the processes of `devices`, and kept in the run folder as they are done; a run that was
    ended goes on after the last of them.
    """
    run_dir = Path(cfg["run_dir"])
    if not cfg["resume"]:
        runs.refuse_taken(run_dir, "impute")
    if (record := _finished(run_dir, resumed=bool(cfg["resume"]))) is not None:
        return record
    with runs.alone(run_dir):
        _keep(run_dir, overwrite=cfg["overwrite"] or bool(cfg["resume"]))
        launch(_run, cfg, Machine.of(cfg))
    return _record(run_dir)  # whose size is that of the table: too long for the pipe between two processes


def _run(cfg: dict[str, Any], devices: Devices) -> dict[str, Any]:
    """What every process does; the first one prints, and puts together what all have completed."""
    first = devices.global_rank == 0
    if not first:
        set_verbosity("quiet")
    job = imputing(cfg, devices.device)
    if first:
        _announce(job)
    again = second_pass(job)
    with devices.rank_zero_first():  # it removes what is there of another job
        passes = [Pass(job, Shards(job))]
        if again is not None:
            passes.append(Pass(again, Shards(again, CHECK), CHECK, refuses=False))
    if (batches := len(passes[0].starts)) < devices.world_size:
        say(f"devices={devices.world_size}, but batches: {batches}; lower batch_size to give each a share")
    if job.check is not None and again is None:
        say("no column with holes has a known cell to hide: how far off the completions are cannot be seen")
    if first:
        if not job.settings["resume"]:
            (job.run_dir / runs.RECORD).unlink(missing_ok=True)  # of a run that is overwritten, which has finished
        runs.save_config(job.run_dir, job.settings | {"resume": None})
    with resumable("impute", job.run_dir, lambda: runs.has_shards(job.run_dir)), ExitStack() as opened:
        log = opened.enter_context(Log(job.run_dir)) if first else None
        with held(_said_once()) if first else held() as interrupted:
            for each in passes:
                _batches(each, devices, log, interrupted)
        if log is not None:
            _save(job, again, [joined(each.shards.all(each.starts)) for each in passes], log)
            passes[0].shards.remove()
    return {}


def _said_once() -> Callable[[int], None]:
    """Says at the first signal why the run does not end at once: a batch may take long, and has to be whole."""
    told = list[int]()

    def hear(number: int) -> None:
        if not told:
            say("ending after this batch; Ctrl-C again ends at once, without it", "quiet")
        told.append(number)

    return hear


def _finished(run_dir: Path, *, resumed: bool) -> dict[str, Any] | None:
    """The record of a run that is to go on, and has nothing left to do."""
    if not resumed or not (run_dir / runs.RECORD).is_file() or runs.has_shards(run_dir):
        return None
    print(f"the run is finished; completions in {run_dir / runs.COMPLETIONS}")
    return _record(run_dir)


def _record(run_dir: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run_dir / runs.RECORD).read_text(encoding="utf-8"))
    return record


def _keep(run_dir: Path, *, overwrite: bool) -> None:
    """Raises `InputError` for a folder with completions, unless they may go."""
    if (run_dir / runs.COMPLETIONS).exists() and not overwrite:
        raise InputError(f"{run_dir} holds completions already; leave the folder to viscos, or say overwrite=true")


def _announce(job: Imputing) -> None:
    """Says what is about to be completed, and how."""
    if job.imputer is None and (line := job.choice.line(job.posterior(job.data.values[:1]))):
        say(line)
    note(job.data.notes)
    say(hidden_share(job.items.observed, "items"))
    if job.idle:
        say(job.idle)


def _batches(each: Pass, devices: Devices, log: Log | None, interrupted: Callable[[], bool]) -> None:
    """Completes the batches that are not done yet, one in each process at a time.

    A process that is to end lets the others know, so that all end with whole batches. Raises `KeyboardInterrupt` then.
    """
    left = [first for first in each.starts if not each.shards.has(first)]
    devices.anywhere(False)  # else a slow process might see as done what a fast one has just done
    doing = "completing" if each.refuses else "completing again, to measure"
    with nullcontext(quiet) if each.job.fits else patient_bar(doing) as progress:  # each fit has a bar of its own
        for place in range(0, len(left), devices.world_size):
            for first in left[place + devices.global_rank : place + devices.global_rank + 1]:
                rows = torch.arange(first, min(first + each.job.batch_size, len(each.job.data)))
                each.shards.save(first, complete(each, rows, log))
            done = len(each.starts) - len(left) + min(place + devices.world_size, len(left))
            progress(min(done * each.job.batch_size, len(each.job.data)), len(each.job.data), {})
            if devices.anywhere(interrupted()):
                raise KeyboardInterrupt


def _save(job: Imputing, again: Imputing | None, done: list[Results], log: Log) -> None:
    """Writes the results, of the completion and of the second pass if there was one, and their record."""
    record = record_of(job, done[0])
    files = save(job, done[0])
    if again is not None:
        record |= measured(job, again, done[1])
        files.append(save_check(job, record))
    steps = 0 if job.imputer else job.choice.steps
    log.record("impute", record, steps)
    for name, picture in _pictures(job, done[0]).items():
        log.image(f"impute/{name}", picture, steps)
        files.append(f"{name}.png")
    atomic.write_json(job.run_dir / runs.RECORD, record)
    say(summary(record))
    print(f"completions in {job.run_dir / runs.COMPLETIONS}" + (f", beside it {', '.join(files)}" if files else ""))


def _pictures(job: Imputing, done: Results) -> dict[str, Tensor]:
    if len(job.data.shape) != 3 or job.items.pictures:  # which have an overview of their own
        return {}
    truth, observed, draws = job.items.truth, job.items.observed, done.draws
    return {
        "completions": save_grid(job.run_dir / "completions.png", truth, observed, draws, first=done.before),
        "draws": save_draws(job.run_dir / "draws.png", truth[0], observed[0], draws.draws[:, 0]),
    }
