"""`viscos impute`: completes items with a trained flow."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from viscos import runs
from viscos.commands.assemble.imputing import Imputing, imputing
from viscos.commands.interrupt import held, resumable
from viscos.commands.report import hidden_share, save_draws, save_grid, summary
from viscos.commands.results import Results, joined, record_of, save
from viscos.commands.shards import Shards, has_shards
from viscos.commands.trust import drawn
from viscos.core import atomic
from viscos.core.batch import Incomplete, incomplete
from viscos.core.errors import InputError
from viscos.core.progress import bar, say
from viscos.imputers import Imputer
from viscos.inference.conditional import Conditional
from viscos.inference.partition import refuse_singular
from viscos.linear.principal import longest
from viscos.posteriors import PerItem
from viscos.report.board import Log


def run(cfg: dict[str, Any]) -> dict[str, Any]:
    """Fits a posterior to each item, draws completions, saves them; returns the record that `metrics.json` holds.

    Batches are kept in the run folder as they are done, and a run that was ended goes on after the last of them.
    """
    if (record := _finished(Path(cfg["run_dir"]), resumed=bool(cfg["resume"]))) is not None:
        return record
    _keep(Path(cfg["run_dir"]), overwrite=cfg["overwrite"] or bool(cfg["resume"]))
    job = imputing(cfg)
    if job.imputer is None and (line := job.choice.line(job.posterior(job.data.values[:1]))):
        say(line)
    for note in job.data.notes:
        say(note)
    say(hidden_share(job.items.observed, "items"))
    if job.idle:
        say(job.idle)
    shards = Shards(job)
    runs.save_config(job.run_dir, job.settings | {"resume": None})
    with resumable("impute", job.run_dir, lambda: has_shards(job.run_dir)), Log(job.run_dir) as log:
        record = _save(job, joined(_batches(job, shards, log)), log)
        shards.remove()
    return record


def _finished(run_dir: Path, *, resumed: bool) -> dict[str, Any] | None:
    """The record of a run that is to go on, and has nothing left to do."""
    path = run_dir / "metrics.json"
    if not resumed or not path.is_file() or has_shards(run_dir):
        return None
    print(f"the run is finished; completions in {run_dir / 'completions.npz'}")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def _keep(run_dir: Path, *, overwrite: bool) -> None:
    """Raises `InputError` for a folder with completions, unless they may go."""
    if (run_dir / "completions.npz").exists() and not overwrite:
        raise InputError(f"{run_dir} holds completions already; leave the folder to viscos, or say overwrite=true")


def _batches(job: Imputing, shards: Shards, log: Log) -> list[Results]:
    """The results of all batches, those that are there already and those that are not."""
    parts = []
    with held() as interrupted:
        for rows in torch.arange(len(job.data)).split(job.batch_size):
            first = int(rows[0])
            part = shards.get(first)
            if part is None:
                part = _complete(job, rows, log)
                shards.save(first, part)
            parts.append(part)
            if interrupted():
                raise KeyboardInterrupt
    return parts


def _save(job: Imputing, done: Results, log: Log) -> dict[str, Any]:
    """Writes the results; returns their record."""
    record = record_of(job, done)
    files = save(job, done)
    steps = 0 if job.imputer else job.choice.steps
    log.record("impute", record, steps)
    for name, picture in _pictures(job, done).items():
        log.image(f"impute/{name}", picture, steps)
        files.append(f"{name}.png")
    atomic.write_json(job.run_dir / "metrics.json", record)
    say(summary(record))
    print(f"completions in {job.run_dir / 'completions.npz'}" + (f", beside it {', '.join(files)}" if files else ""))
    return record


def _complete(job: Imputing, rows: Tensor, log: Log) -> Results:
    batch = incomplete(job.data.values[rows], job.items.observed[rows], rows).to(job.device)
    if job.imputer is not None:
        return _by_imputer(job.imputer, batch, job)
    posterior, flow = job.posterior(batch.filled()), job.trained.model.flow
    fits = posterior is not job.choice.network
    taught = job.choice.taught_there(batch) if fits else None
    guess = job.choice.guess(batch, taught) if fits else None
    _announce(job, batch)
    conditional = Conditional(flow, batch, posterior, job.objective, job.seed, job.partition, guess, job.noise)
    before, first_bound, began = None, None, time.monotonic()
    if fits or not flow.deep:
        refuse_singular(conditional.conditioning(), job.partition)
    if taught is not None:  # after the guess, which would move the mean to its own latent
        assert isinstance(posterior, PerItem)
        posterior.begin(taught)
    if fits:
        start = Conditional(conditional.flow, batch, posterior, job.objective, job.seed, noise=job.noise)
        before, first_bound = start.completions(1, antithetic=True), start.bound(2).cpu()
        began = time.monotonic()
        _fit(job, conditional, log, int(rows[0]))
    fitted = time.monotonic()
    done, diagnosis = drawn(job, conditional)
    ended = time.monotonic()
    bound = condition = torch.full((len(rows),), float("nan"))
    affordable = fits or not flow.deep  # else each costs more than all draws together
    if affordable:
        condition = conditional.conditioning().cpu()
    if diagnosis is not None:
        bound = diagnosis.bound.cpu()
    elif affordable:
        bound = conditional.bound(2).cpu()
    return Results(done, bound, before, first_bound, condition, fitted - began, ended - fitted, diagnosis)


def _by_imputer(imputer: Imputer, batch: Incomplete, job: Imputing) -> Results:
    """The completions of another imputer than a flow with its posterior: there is no bound, and nothing is fitted."""
    began = time.monotonic()
    done = imputer.impute(batch, job.draws, job.seed)
    done.solution.status.cpu()  # waits for the device
    unknown = torch.full((len(batch),), float("nan"))
    return Results(done, unknown, None, None, unknown, 0.0, time.monotonic() - began)


def _announce(job: Imputing, batch: Incomplete) -> None:
    if job.partition == "maxvol":
        most = longest(batch.hidden.flatten(1))
        items = f"linearising the flow for {len(batch)} items"
        say(f"{items}, a product for each hidden entry, up to {most}")


def _fit(job: Imputing, conditional: Conditional, log: Log, first: int) -> None:
    steps = job.choice.steps
    every = max(1, steps // 10)
    with bar(f"fitting from item {first}" if first else "fitting", steps) as progress:

        def after(step: int, scalars: dict[str, float]) -> None:
            if step % every == 0 or "bound" in scalars:
                log.scalars(f"fit/from_{first}", scalars, step)
            progress.update(step + 1, {k: v for k, v in scalars.items() if k in ("bound", "residual", "failed")})

        with warnings.catch_warnings(record=True) as remarks:
            warnings.simplefilter("always", UserWarning)  # torch and others warn of what is no matter of a fit
            conditional.fit(steps, learning_rate=job.learning_rate, samples=job.samples, progress=after)
    for remark in remarks:
        print(f"warning: {remark.message}", flush=True)


def _pictures(job: Imputing, done: Results) -> dict[str, Tensor]:
    if len(job.data.shape) != 3 or job.items.pictures:  # which have an overview of their own
        return {}
    truth, observed, draws = job.items.truth, job.items.observed, done.draws
    return {
        "completions": save_grid(job.run_dir / "completions.png", truth, observed, draws, first=done.before),
        "draws": save_draws(job.run_dir / "draws.png", truth[0], observed[0], draws.draws[:, 0]),
    }
