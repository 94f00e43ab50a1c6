"""`viscos impute`: completes items with a trained flow."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from viscos import atomic, runs
from viscos.batch import incomplete
from viscos.build import build
from viscos.commands.common import chosen_mask, load_images, make_masks, make_objective, use_machine, versions
from viscos.commands.eval import test_masks
from viscos.commands.progress import bar
from viscos.commands.report import save_grid, summary
from viscos.conditional import Conditional
from viscos.data.datasets import Images
from viscos.data.files import read_images
from viscos.data.masks import mask_hash
from viscos.errors import InputError
from viscos.inference import Completions
from viscos.metrics.rmse import RMSE
from viscos.posteriors import Posterior
from viscos.report.board import Log
from viscos.solution import Solution
from viscos.trained import Trained, load

TEST_ITEMS = 16
"""Test items to complete unless the settings say how many."""


def run(cfg: dict[str, Any]) -> dict[str, Any]:
    """Fits a posterior to each item, draws completions, saves them; returns the record that `metrics.json` holds."""
    device, run_dir = use_machine(cfg), Path(cfg["run_dir"])
    trained = load(cfg["checkpoint"], device)
    images, known, observed = _items(trained, cfg)
    trained.model.flow.check(images.values)
    _posterior(trained, cfg, images.values[:1])  # refuses before anything is written
    runs.save_config(run_dir, cfg)
    chunks: list[_Chunk] = []
    with Log(run_dir) as log:
        for rows in torch.arange(len(images)).split(cfg["batch_size"]):
            chunks.append(_complete(trained, cfg, images.values[rows], observed[rows], rows, device, log))
        done = _joined([chunk.done for chunk in chunks])
        record = _record(trained, images, known, observed, chunks, done) | {
            "seed": cfg["seed"],
            "versions": versions(),
        }
        truth = torch.where(known, images.values, float("nan"))
        _save(run_dir, images, truth, observed, chunks, done)
        log.record("impute", record, cfg["steps"])
        log.image("impute/completions", save_grid(run_dir / "completions.png", truth, observed, done), cfg["steps"])
    atomic.write_json(run_dir / "metrics.json", record)
    print(summary(record))
    print(f"completions in {run_dir / 'completions.npz'}, picture in {run_dir / 'completions.png'}")
    return record


@dataclass(frozen=True)
class _Chunk:
    """The results of some items."""

    done: Completions
    before: Completions | None
    """A draw from the posterior before it was fitted, if it was."""
    bound: Tensor
    fit_seconds: float
    draw_seconds: float


def _complete(
    trained: Trained,
    cfg: dict[str, Any],
    values: Tensor,
    observed: Tensor,
    rows: Tensor,
    device: torch.device,
    log: Log,
) -> _Chunk:
    batch = incomplete(values, observed, rows).to(device)
    posterior = _posterior(trained, cfg, batch.filled())
    conditional = Conditional(trained.model.flow, batch, posterior, make_objective(cfg), cfg["seed"])
    before, began = None, time.monotonic()
    if posterior is not trained.model.posterior:
        before = conditional.completions(1)
        began = time.monotonic()
        _fit(conditional, cfg, log, int(rows[0]))
    fitted = time.monotonic()
    done = conditional.completions(cfg["draws"], antithetic=True)
    drawn = time.monotonic()
    return _Chunk(done, before, conditional.bound(2), fitted - began, drawn - fitted)


def _joined(parts: list[Completions]) -> Completions:
    """The completions of all items; the verdicts stand draw by draw."""
    draws = len(parts[0].draws)

    def column(name: str) -> Tensor:
        return torch.cat([getattr(p.solution, name).unflatten(0, (draws, -1)) for p in parts], 1).flatten(0, 1)

    solution = Solution(*(column(name) for name in ("value", "status", "residual", "evaluations", "fallback")))
    return Completions(torch.cat([p.draws for p in parts], 1), torch.cat([p.latents for p in parts], 1), solution)


def _items(trained: Trained, cfg: dict[str, Any]) -> tuple[Images, Tensor, Tensor]:
    """What to complete, where it is known at all, and what is observed of it."""
    mask = chosen_mask(cfg)
    if cfg["input"] is None:
        images = load_images(trained.cfg["dataset"], "test", cfg["items"] or TEST_ITEMS)
        observed = test_masks(trained, cfg, images)
        if bool(observed.all()):
            raise InputError("nothing is hidden under the masks of the run; say what is missing, e.g. mask=center8")
        return images, torch.ones_like(images.values, dtype=torch.bool), observed
    images, known = read_images(cfg["input"], tuple(trained.state["shape"]), cfg["items"])
    if mask is None and bool(known.all()):
        raise InputError(f"{cfg['input']} has no holes (NaN); say what is missing, e.g. mask=center8 or mask=file")
    return images, known, known if mask is None else known & make_masks(mask, images, cfg["seed"], "input")


def _posterior(trained: Trained, cfg: dict[str, Any], like: Tensor) -> Posterior:
    """A fresh posterior for each item, or the network that was trained with the flow."""
    if cfg["posterior"]["_target_"].rpartition(".")[2] != "Amortised":
        return build(cfg["posterior"], like)
    if trained.model.posterior is None:
        raise InputError(
            "this flow was trained on complete data and has no inference network; take posterior=householder"
        )
    return trained.model.posterior


def _fit(conditional: Conditional, cfg: dict[str, Any], log: Log, first: int) -> None:
    every = max(1, cfg["steps"] // 10)
    with bar(f"fitting from item {first}" if first else "fitting", cfg["steps"]) as progress:

        def after(step: int, figures: dict[str, float]) -> None:
            if step % every == 0:
                figures = figures | {"bound": float(conditional.bound(1, exact_below=100).nanmean())}
                log.scalars(f"fit/from_{first}", figures, step)
            progress.update(step + 1, {k: v for k, v in figures.items() if k in ("bound", "residual", "failed")})

        conditional.fit(cfg["steps"], learning_rate=cfg["learning_rate"], samples=cfg["samples"], progress=after)


def _record(
    trained: Trained,
    images: Images,
    known: Tensor,
    observed: Tensor,
    chunks: list[_Chunk],
    done: Completions,
) -> dict[str, Any]:
    s = done.solution
    record: dict[str, Any] = {
        "command": "impute",
        "checkpoint": str(trained.path),
        "dataset": images.name,
        "items": len(images),
        "mask_hash": mask_hash(observed),
        "missing": float((~observed).double().mean()),
        "draws": len(done.draws),
        "solver": {
            "evaluations": float(s.evaluations.mean()),
            "fallback": float(s.fallback.double().mean()),
            "failed": float((~s.converged).double().mean()),
            "solves": len(s.status),
        },
        "fit_seconds": round(sum(chunk.fit_seconds for chunk in chunks), 1),
        "draw_seconds": round(sum(chunk.draw_seconds for chunk in chunks), 2),
    }
    bound = torch.cat([chunk.bound for chunk in chunks])
    if bool((~bound.isnan()).any()):
        record["bound"] = {"mean": float(bound.nanmean()), "items": int((~bound.isnan()).sum()), "unit": "nats an item"}
    hidden = known & ~observed  # where the truth is known and was not used
    if bool(hidden.any()):
        record["rmse"] = {
            "mean": _rmse(images, hidden, done.mean(), done.ok.any(0)),
            "draw": _rmse(images, hidden, done.draws[0], done.ok[0]),
        }
        befores = [chunk.before for chunk in chunks if chunk.before is not None]
        if befores:
            before = _joined(befores)
            record["rmse"]["first_iteration_draw"] = _rmse(images, hidden, before.draws[0], before.ok[0])
        if trained.baseline is not None:
            gaussian = trained.baseline.conditional(images.values, observed)
            record["rmse"]["gaussian_mean"] = _rmse(images, hidden, gaussian, None)
    return record


def _rmse(images: Images, hidden: Tensor, completed: Tensor, ok: Tensor | None) -> dict[str, Any]:
    rmse = RMSE()
    rmse.update(completed.cpu(), images.values, hidden, None if ok is None else ok.cpu())
    return rmse.record()


def _save(
    run_dir: Path, images: Images, truth: Tensor, observed: Tensor, chunks: list[_Chunk], done: Completions
) -> None:
    arrays: dict[str, Any] = {
        "draws": done.draws.cpu().numpy(),
        "mean": done.mean().cpu().numpy(),
        "observed": observed.numpy(),
        "solved": done.ok.cpu().numpy(),
        "values": torch.where(observed, images.values, float("nan")).numpy(),
        "truth": truth.numpy(),
    }
    befores = [chunk.before for chunk in chunks if chunk.before is not None]
    if befores:
        arrays["first_iteration_draw"] = _joined(befores).draws[0].cpu().numpy()
    atomic.write(run_dir / "completions.npz", lambda path: np.savez_compressed(path, **arrays))
