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
from viscos.commands.foreign import Vectors, load_foreign, read_vectors
from viscos.commands.progress import bar
from viscos.commands.report import save_draws, save_grid, summary
from viscos.conditional import Conditional
from viscos.data.datasets import Images
from viscos.data.files import read_images
from viscos.data.masks import mask_hash
from viscos.errors import InputError
from viscos.inference import Completions
from viscos.metrics.rmse import RMSE
from viscos.partition import refuse_singular
from viscos.posteriors import Posterior
from viscos.report.board import Log
from viscos.rng import item_noise
from viscos.solution import Solution
from viscos.trained import Trained, load

TEST_ITEMS = 16
"""Test items to complete unless the settings say how many."""


def run(cfg: dict[str, Any]) -> dict[str, Any]:
    """Fits a posterior to each item, draws completions, saves them; returns the record that `metrics.json` holds."""
    device, run_dir = use_machine(cfg), Path(cfg["run_dir"])
    trained = _trained(cfg, device)
    images, known, observed = _items(trained, cfg)
    trained.model.flow.check(images.values)
    amortised = _posterior(trained, cfg, images.values[:1]) is trained.model.posterior
    if amortised and cfg["partition"] != "same":  # refused before anything is written
        raise InputError("an inference network knows the latent's own partition alone; take partition=same")
    runs.save_config(run_dir, cfg)
    chunks: list[_Chunk] = []
    with Log(run_dir) as log:
        for rows in torch.arange(len(images)).split(cfg["batch_size"]):
            chunks.append(_complete(trained, cfg, images.values[rows], observed[rows], rows, device, log))
        done = _joined([chunk.done for chunk in chunks])
        record = _record(trained, images, known, observed, chunks, done, cfg["seed"], cfg["partition"]) | {
            "seed": cfg["seed"],
            "versions": versions(),
        }
        truth = torch.where(known, images.values, float("nan"))
        before = _before(chunks)
        _save(run_dir, images, truth, observed, before, done)
        log.record("impute", record, cfg["steps"])
        pictures = {} if isinstance(images, Vectors) else _pictures(run_dir, truth, observed, before, done)
        for name, picture in pictures.items():
            log.image(f"impute/{name}", picture, cfg["steps"])
    atomic.write_json(run_dir / "metrics.json", record)
    print(summary(record))
    beside = f", pictures beside it: {', '.join(f'{name}.png' for name in pictures)}" if pictures else ""
    print(f"completions in {run_dir / 'completions.npz'}{beside}")
    return record


def _trained(cfg: dict[str, Any], device: torch.device) -> Trained:
    if cfg.get("flow") is not None:
        return load_foreign(cfg, device)
    if cfg["checkpoint"] is None:
        raise InputError("checkpoint=… is needed: run folder of `viscos train`, or a checkpoint file")
    return load(cfg["checkpoint"], device)


def _pictures(
    run_dir: Path, truth: Tensor, observed: Tensor, before: Completions | None, done: Completions
) -> dict[str, Tensor]:
    return {
        "completions": save_grid(run_dir / "completions.png", truth, observed, done, first=before),
        "draws": save_draws(run_dir / "draws.png", truth[0], observed[0], done.draws[:, 0]),
    }


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
    objective = make_objective(cfg)
    conditional = Conditional(trained.model.flow, batch, posterior, objective, cfg["seed"], cfg["partition"])
    before, first_bound, began = None, None, time.monotonic()
    if posterior is not trained.model.posterior:
        refuse_singular(conditional.conditioning(), cfg["partition"])
        start = Conditional(conditional.flow, batch, posterior, objective, cfg["seed"])
        before, first_bound = start.completions(1, antithetic=True), start.bound(2).cpu()
        began = time.monotonic()
        _fit(conditional, cfg, log, int(rows[0]))
    fitted = time.monotonic()
    done = conditional.completions(cfg["draws"], antithetic=True)
    drawn = time.monotonic()
    bound, condition = conditional.bound(2).cpu(), conditional.conditioning().cpu()
    return _Chunk(done, bound, before, first_bound, condition, fitted - began, drawn - fitted)


def _before(chunks: list[_Chunk]) -> Completions | None:
    """A draw of each item before the fit, if there was one."""
    before = [chunk.before for chunk in chunks if chunk.before is not None]
    return _joined(before) if before else None


def _joined(parts: list[Completions]) -> Completions:
    """The completions of all items; the verdicts stand draw by draw."""
    solution = Solution.joined([p.solution for p in parts], len(parts[0].draws))
    return Completions(torch.cat([p.draws for p in parts], 1), torch.cat([p.latents for p in parts], 1), solution)


def _items(trained: Trained, cfg: dict[str, Any]) -> tuple[Images | Vectors, Tensor, Tensor]:
    """What to complete, where it is known at all, and what is observed of it."""
    mask = chosen_mask(cfg)
    if cfg["input"] is None:
        images = load_images(trained.cfg["dataset"], "test", cfg["items"] or TEST_ITEMS)
        observed = test_masks(trained, cfg, images)
        if bool(observed.all()):
            raise InputError("nothing is hidden under the masks of the run; say what is missing, e.g. mask=center8")
        return images, torch.ones_like(images.values, dtype=torch.bool), observed
    given, known = _given(trained, cfg)
    if mask is None and bool(known.all()):
        raise InputError(f"{cfg['input']} has no holes (NaN); say what is missing, e.g. mask=center8 or mask=file")
    return given, known, known if mask is None else known & make_masks(mask, given, cfg["seed"], "input")


def _given(trained: Trained, cfg: dict[str, Any]) -> tuple[Images | Vectors, Tensor]:
    """The items of `input`, and where they are known."""
    shape = tuple(trained.state["shape"])
    if len(shape) == 3:
        return read_images(cfg["input"], shape, cfg["items"])
    return read_vectors(cfg["input"], trained.model.flow, cfg["items"])


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
    images: Images | Vectors,
    known: Tensor,
    observed: Tensor,
    chunks: list[_Chunk],
    done: Completions,
    seed: int,
    partition: str,
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "command": "impute",
        "checkpoint": str(trained.path),
        "dataset": images.name,
        "items": len(images),
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
        "condition_median": float(condition.median()),
        "condition_largest": float(condition.max()),
        "how": "condition number of G^HH at the datum of the latent zero; a lower bound above 64 hidden entries",
    }
    record |= _bounds(trained, images, observed, chunks)
    hidden = known & ~observed  # where the truth is known and was not used
    if isinstance(images, Vectors) or not bool(hidden.any()):  # the error is in the units of images
        return record
    record["rmse"] = {
        "mean": _rmse(images, hidden, done.mean(), done.ok.any(0)),
        "draw": _rmse(images, hidden, done.draws[0], done.ok[0]),
    }
    before = _before(chunks)
    if before is not None:
        record["rmse"]["first_iteration_draw"] = _rmse(images, hidden, before.draws[0], before.ok[0])
    if trained.baseline is not None:
        noise = item_noise(seed, torch.arange(len(images)), 1, images.shape, images.values)[0]
        record["rmse"] |= {
            "gaussian_mean": _rmse(images, hidden, trained.baseline.conditional(images.values, observed), None),
            "gaussian_draw": _rmse(
                images, hidden, trained.baseline.conditional_sample(images.values, observed, noise), None
            ),
        }
    return record


def _bounds(trained: Trained, images: Images | Vectors, observed: Tensor, chunks: list[_Chunk]) -> dict[str, Any]:
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
        exact = trained.baseline.log_prob_observed(images.values[known], observed[known])
        bound["gaussian_log_prob"] = float(exact.mean())
    unit = "nats an item, a lower bound of log p(y^O) for values in [0, 1]; of the Gaussian, log p(y^O) itself"
    if isinstance(images, Vectors):
        unit = "nats an item, a lower bound of log p(y^O) for values in the units of the flow"
    small = images.values[0].numel() <= trained.model.flow.dense_below
    how = "log-determinants written out" if small else "log-determinants by one probe each, unless H is small"
    return {"bound": bound | {"items": int(known.sum()), "draws": 2, "unit": unit, "how": how}}


def _rmse(images: Images, hidden: Tensor, completed: Tensor, ok: Tensor | None) -> dict[str, Any]:
    rmse = RMSE()
    rmse.update(completed.cpu(), images.values, hidden, None if ok is None else ok.cpu())
    return rmse.record()


def _save(
    run_dir: Path,
    images: Images | Vectors,
    truth: Tensor,
    observed: Tensor,
    before: Completions | None,
    done: Completions,
) -> None:
    arrays: dict[str, Any] = {
        "draws": done.draws.cpu().numpy(),
        "mean": done.mean().cpu().numpy(),
        "observed": observed.numpy(),
        "solved": done.ok.cpu().numpy(),
        "values": torch.where(observed, images.values, float("nan")).numpy(),
        "truth": truth.numpy(),
    }
    if before is not None:
        arrays["first_iteration_draw"] = before.draws[0].cpu().numpy()
    atomic.write(run_dir / "completions.npz", lambda path: np.savez_compressed(path, **arrays))
