"""`viscos eval`: measures a trained model on its test split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from viscos import runs
from viscos.commands.common import (
    chosen_mask,
    grey_levels,
    load_data,
    make_judge,
    make_masks,
    make_objective,
    noise_of_training,
    use_machine,
)
from viscos.commands.progress import bar
from viscos.commands.report import save_grid, summary
from viscos.core import atomic
from viscos.core.errors import InputError
from viscos.data.items import Data
from viscos.data.masks import load_masks
from viscos.evaluate import Protocol, evaluate
from viscos.report.board import Log
from viscos.runs.provenance import versions
from viscos.runs.trained import Trained, load


def run(cfg: dict[str, Any]) -> dict[str, Any]:
    """Measures; returns the record that `metrics.json` holds."""
    device, run_dir = use_machine(cfg), Path(cfg["run_dir"])
    trained = load(cfg["checkpoint"], device)
    test = trained.standardised(load_data(trained.cfg["dataset"], "test", cfg["items"] or trained.cfg["test_items"]))
    observed = test_masks(trained, cfg, test)
    if trained.model.posterior is None and not bool(observed.all()):
        raise InputError("this flow was trained on complete data and has no inference network; use `viscos impute`")
    judge = make_judge(trained.cfg["dataset"], test.shape, cfg["inception"], device)
    runs.save_config(run_dir, cfg)
    noise = noise_of_training(trained.cfg, cfg["denoise"])
    protocol = Protocol(cfg["draws"], cfg["batch_size"], cfg["seed"], levels=grey_levels(trained.cfg), noise=noise)
    with bar("measuring", len(test)) as progress:
        record, first = evaluate(
            trained.model,
            test,
            observed,
            make_objective(cfg),
            protocol,
            baseline=trained.baseline,
            means=trained.means,
            judge=judge,
            progress=progress.update,
        )
    record = {"command": "eval", "checkpoint": str(trained.path), "dataset": trained.cfg["dataset"]["name"], **record}
    with Log(run_dir) as log:
        log.record("test", record, 0)
        if first is not None and len(test.shape) == 3:
            log.image("test/completions", save_grid(run_dir / "completions.png", test.values, observed, first), 0)
    atomic.write_json(run_dir / "metrics.json", record | {"seed": cfg["seed"], "versions": versions()})
    print(summary(record))
    print(f"figures in {run_dir / 'metrics.json'}")
    return record


def test_masks(trained: Trained, cfg: dict[str, Any], test: Data) -> Tensor:
    """The masks that the settings ask for, or those of the run itself."""
    mask = chosen_mask(cfg)
    if mask is not None:
        return make_masks(mask, test, cfg["seed"], "test")
    saved = trained.path.parent / "masks_test.npz"
    if saved.is_file():
        observed = load_masks(saved)
        if len(observed) >= len(test) and observed.shape[1:] == torch.Size(test.shape):
            return observed[: len(test)] & test.known
    return make_masks(trained.cfg["mask"], test, trained.cfg["seed"], "test")
