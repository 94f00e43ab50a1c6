"""`viscos impute`: completes items with a trained flow."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from viscos import runs
from viscos.commands.choice import Choice
from viscos.commands.common import (
    chosen_mask,
    load_data,
    make_masks,
    make_objective,
    noise_of_training,
    use_machine,
)
from viscos.commands.eval import test_masks
from viscos.commands.foreign import load_foreign
from viscos.commands.progress import bar
from viscos.commands.report import save_draws, save_grid, summary
from viscos.core import atomic
from viscos.core.batch import incomplete
from viscos.core.errors import InputError
from viscos.core.solution import Solution
from viscos.data.items import Data
from viscos.data.masks import mask_hash
from viscos.data.sources.files import read_images
from viscos.data.sources.table import Rows, read_rows
from viscos.inference import Completions
from viscos.inference.conditional import Conditional, check_partition
from viscos.inference.partition import refuse_singular
from viscos.linear.principal import longest
from viscos.metrics.rmse import known
from viscos.metrics.tally import Tally
from viscos.posteriors import PerItem
from viscos.report.board import Log
from viscos.runs.provenance import versions
from viscos.runs.trained import Trained, load
from viscos.scores import add_completions, add_gaussian

TEST_ITEMS = 16
"""Test items to complete unless the settings say how many."""


def run(cfg: dict[str, Any]) -> dict[str, Any]:
    """Fits a posterior to each item, draws completions, saves them; returns the record that `metrics.json` holds."""
    device, run_dir = use_machine(cfg), Path(cfg["run_dir"])
    trained = _trained(cfg, device)
    items = _items(trained, cfg)
    data, observed = trained.standardised(items.data), items.observed
    trained.model.flow.check(data.values)
    choice = Choice(trained, cfg)
    posterior = choice.posterior(data.values[:1])
    check_partition(cfg["partition"], posterior)  # before anything is written
    if line := choice.line(posterior):
        print(line, flush=True)
    runs.save_config(run_dir, cfg)
    chunks: list[_Chunk] = []
    with Log(run_dir) as log:
        for rows in torch.arange(len(data)).split(cfg["batch_size"]):
            chunks.append(_complete(choice, data.values[rows], observed[rows], rows, device, log))
        done = _joined([chunk.done for chunk in chunks])
        record = _record(trained, data, items, chunks, done, cfg["seed"], cfg["partition"]) | {
            "fit": choice.record(posterior),
            "noise_taken_off": _noise(trained, cfg),
            "seed": cfg["seed"],
            "versions": versions(),
        }
        before = _before(chunks)
        files = _save(run_dir, trained, items, before, done)
        log.record("impute", record, choice.steps)
        pictures = _pictures(run_dir, items, before, done) if len(data.shape) == 3 else {}
        for name, picture in pictures.items():
            log.image(f"impute/{name}", picture, choice.steps)
            files.append(f"{name}.png")
    atomic.write_json(run_dir / "metrics.json", record)
    print(summary(record))
    print(f"completions in {run_dir / 'completions.npz'}" + (f", beside it {', '.join(files)}" if files else ""))
    return record


def _trained(cfg: dict[str, Any], device: torch.device) -> Trained:
    if cfg.get("flow") is not None:
        return load_foreign(cfg, device)
    if cfg["checkpoint"] is None:
        raise InputError("checkpoint=… is needed: run folder of `viscos train`, or a checkpoint file")
    return load(cfg["checkpoint"], device)


def _pictures(run_dir: Path, items: _Items, before: Completions | None, done: Completions) -> dict[str, Tensor]:
    truth, observed = items.truth, items.observed
    return {
        "completions": save_grid(run_dir / "completions.png", truth, observed, done, first=before),
        "draws": save_draws(run_dir / "draws.png", truth[0], observed[0], done.draws[:, 0]),
    }


@dataclass(frozen=True)
class _Items:
    """What is to be completed, in its own units."""

    data: Data
    known: Tensor
    """Where there is a value at all (N, …), bool."""
    observed: Tensor
    """Where it is used (N, …), bool."""
    rows: Rows | None = None
    """The table that the items are from, if they are from a file with one."""

    @property
    def truth(self) -> Tensor:
        """(N, …), NaN where not even the original is known."""
        return torch.where(self.known, self.data.values, float("nan"))


@dataclass(frozen=True)
class _Chunk:
    """The results of some items."""

    done: Completions
    bound: Tensor
    """Of each item (b,)."""
    before: Completions | None
    """A draw from the posterior before it was fitted, if it was, of the same noise as the first in `done`."""
    first_bound: Tensor | None
    """The bound before the posterior was fitted (b,)."""
    condition: Tensor
    """About the condition number of G^HH (b,)."""
    fit_seconds: float
    draw_seconds: float


def _complete(choice: Choice, values: Tensor, observed: Tensor, rows: Tensor, device: torch.device, log: Log) -> _Chunk:
    trained, cfg = choice.trained, choice.cfg
    batch = incomplete(values, observed, rows).to(device)
    posterior = choice.posterior(batch.filled())
    objective = make_objective(cfg)
    fits = posterior is not choice.network
    taught = choice.taught_there(batch) if fits else None
    guess = choice.guess(batch, taught) if fits else None
    if cfg["partition"] == "maxvol":
        most = longest(batch.hidden.flatten(1))
        print(f"linearising the flow for {len(rows)} items, a product for each hidden entry, up to {most}", flush=True)
    noise = _noise(trained, cfg)
    settings = (cfg["seed"], cfg["partition"], guess, noise)
    conditional = Conditional(trained.model.flow, batch, posterior, objective, *settings)
    before, first_bound, began = None, None, time.monotonic()
    if fits or not trained.model.flow.dear:
        refuse_singular(conditional.conditioning(), cfg["partition"])
    if taught is not None:  # after the guess, which would move the mean to its own latent
        assert isinstance(posterior, PerItem)
        posterior.begin(taught)
    if fits:
        start = Conditional(conditional.flow, batch, posterior, objective, cfg["seed"], noise=noise)
        before, first_bound = start.completions(1, antithetic=True), start.bound(2).cpu()
        began = time.monotonic()
        _fit(conditional, choice, log, int(rows[0]))
    fitted = time.monotonic()
    done = conditional.completions(cfg["draws"], antithetic=True)
    drawn = time.monotonic()
    if fits or not trained.model.flow.dear:
        bound, condition = conditional.bound(2).cpu(), conditional.conditioning().cpu()
    else:  # each costs more than all draws together, which take milliseconds
        bound = condition = torch.full((len(rows),), float("nan"))
    return _Chunk(done, bound, before, first_bound, condition, fitted - began, drawn - fitted)


def _before(chunks: list[_Chunk]) -> Completions | None:
    """A draw of each item before the fit, if there was one."""
    before = [chunk.before for chunk in chunks if chunk.before is not None]
    return _joined(before) if before else None


def _joined(parts: list[Completions]) -> Completions:
    """The completions of all items; the verdicts stand draw by draw."""
    solution = Solution.joined([p.solution for p in parts], len(parts[0].draws))
    return Completions(torch.cat([p.draws for p in parts], 1), torch.cat([p.latents for p in parts], 1), solution)


def _items(trained: Trained, cfg: dict[str, Any]) -> _Items:
    mask, shape, data, rows = chosen_mask(cfg), tuple(trained.state["shape"]), None, None
    example = "mask=center8" if len(shape) == 3 else "missing=0.3"
    if cfg["input"] is None:
        data = load_data(trained.cfg["dataset"], "test", cfg["items"] or TEST_ITEMS)
        observed = test_masks(trained, cfg, data)
        if bool(observed.all()):
            raise InputError(f"nothing is hidden under the masks of the run; say what is missing, e.g. {example}")
        return _Items(data, data.known, observed)
    if len(shape) == 1:
        rows = read_rows(cfg["input"], trained.columns, shape[0], cfg["items"])
        data, known = rows.data, rows.data.known
    else:
        data, known = read_images(cfg["input"], shape, cfg["items"])
    if mask is None and bool(known.all()):
        raise InputError(f"{cfg['input']} has no holes (NaN); say what is missing, e.g. {example} or mask=file")
    observed = known if mask is None else known & make_masks(mask, data, cfg["seed"], "input")
    return _Items(data, known, observed, rows)


def _noise(trained: Trained, cfg: dict[str, Any]) -> float:
    """The standard deviation of the noise that is taken off draws."""
    known = trained.model.flow.denoises and "dataset" in trained.cfg
    return noise_of_training(trained.cfg, cfg["denoise"]) if known else 0.0


def _fit(conditional: Conditional, choice: Choice, log: Log, first: int) -> None:
    every = max(1, choice.steps // 10)
    with bar(f"fitting from item {first}" if first else "fitting", choice.steps) as progress:

        def after(step: int, figures: dict[str, float]) -> None:
            if step % every == 0:
                figures = figures | {"bound": float(conditional.bound(1, exact_below=100).nanmean())}
                log.scalars(f"fit/from_{first}", figures, step)
            progress.update(step + 1, {k: v for k, v in figures.items() if k in ("bound", "residual", "failed")})

        conditional.fit(
            choice.steps, learning_rate=choice.cfg["learning_rate"], samples=choice.cfg["samples"], progress=after
        )


def _record(
    trained: Trained,
    data: Data,
    items: _Items,
    chunks: list[_Chunk],
    done: Completions,
    seed: int,
    partition: str,
) -> dict[str, Any]:
    observed = items.observed
    record: dict[str, Any] = {
        "command": "impute",
        "checkpoint": str(trained.path),
        "dataset": data.name,
        "items": len(data),
        "mask_hash": mask_hash(observed),
        "missing": float((~observed).double().mean()),
        "draws": len(done.draws),
        "solver": done.solution.record(),
        "fit_seconds": round(sum(chunk.fit_seconds for chunk in chunks), 1),
        "draw_seconds": round(sum(chunk.draw_seconds for chunk in chunks), 2),
    }
    condition = torch.cat([chunk.condition for chunk in chunks])
    record["partition"] = {
        "kind": partition,
        "condition_median": known(float(condition.median())),
        "condition_largest": known(float(condition.max())),
        "how": "condition number of G^HH where the fit begins; a lower bound above 64 hidden entries",
    }
    record |= _bounds(trained, data, observed, chunks)
    hidden = items.known & ~observed  # where the truth is known and was not used
    if not bool(hidden.any()):
        return record
    rows, before, tally = torch.arange(len(data)), _before(chunks), Tally(data, "the items are too few")
    add_completions(tally, done, hidden, rows)
    if before is not None:
        tally.update("first_iteration_draw", before.draws[0].cpu(), hidden, rows, before.ok[0].cpu())
    if trained.baseline is not None:
        add_gaussian(tally, trained.baseline, incomplete(data.values, observed, rows), hidden, seed, done)
    return record | {metric: figures for metric, figures in tally.record().items() if metric != "fid"}


def _bounds(trained: Trained, data: Data, observed: Tensor, chunks: list[_Chunk]) -> dict[str, Any]:
    """The bound after the fit and before it, over the items where both are known, and the Gaussian's log p(y^O)."""
    last = torch.cat([chunk.bound for chunk in chunks]).double()
    firsts = [chunk.first_bound for chunk in chunks if chunk.first_bound is not None]
    first = torch.cat(firsts).double() if firsts else None
    known = ~last.isnan() if first is None else ~(last.isnan() | first.isnan())
    if not bool(known.any()):
        return {}
    bound: dict[str, Any] = {"mean": float(last[known].mean())}
    if first is not None:
        bound["first_iteration"] = float(first[known].mean())
    if trained.baseline is not None:
        exact = trained.baseline.log_prob_observed(data.values[known], observed[known])
        bound["gaussian_log_prob"] = float(exact.mean())
    unit = f"nats an item, a lower bound of log p(y^O) for {data.units.values}; of the Gaussian, log p(y^O) itself"
    small = data.values[0].numel() <= trained.model.flow.dense_below
    how = "log-determinants written out" if small else "log-determinants by one probe each, unless H is small"
    return {"bound": bound | {"items": int(known.sum()), "draws": 2, "unit": unit, "how": how}}


def _save(run_dir: Path, trained: Trained, items: _Items, before: Completions | None, done: Completions) -> list[str]:
    """Writes the completions in the data's own units; returns the names of the files beside `completions.npz`."""
    scaling, values, observed = trained.scaling, items.data.values, items.observed

    def own(y: Tensor) -> Tensor:
        y = y.cpu() if scaling is None else scaling.restore(y)
        return torch.where(observed, values, y.to(values.dtype))

    mean = own(done.mean())
    arrays: dict[str, Any] = {
        "draws": own(done.draws).numpy(),
        "mean": mean.numpy(),
        "observed": observed.numpy(),
        "solved": done.ok.cpu().numpy(),
        "values": torch.where(observed, values, float("nan")).numpy(),
        "truth": items.truth.numpy(),
    }
    if before is not None:
        arrays["first_iteration_draw"] = own(before.draws[0]).numpy()
    atomic.write(run_dir / "completions.npz", lambda path: np.savez_compressed(path, **arrays))
    if items.rows is None or items.rows.sheet is None:
        return []
    items.rows.sheet.write(run_dir / "completed.csv", items.rows.names, mean, observed)
    return ["completed.csv"]
