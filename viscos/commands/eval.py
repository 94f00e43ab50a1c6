"""`viscos eval`: measures a trained model on its test split."""

from __future__ import annotations

from typing import Any

import torch

from viscos import runs
from viscos.commands import items
from viscos.commands.assemble.evaluation import Evaluation, evaluation
from viscos.commands.report import hidden_share, save_grid, summary
from viscos.core import atomic
from viscos.core.progress import note, say
from viscos.imputers import ViscosImputer
from viscos.metrics.simulated import simulated
from viscos.report.board import Log
from viscos.report.calibrated import save_calibration
from viscos.runs.provenance import provenance


def run(cfg: dict[str, Any]) -> dict[str, Any]:
    """Measures; returns the record that `metrics.json` holds."""
    runs.refuse_taken(cfg["run_dir"], "eval")
    job = evaluation(cfg)
    note(job.test.notes)
    say(hidden_share(job.observed, "test items"))
    if job.idle:
        say(job.idle)
    runs.save_config(job.run_dir, job.settings)
    found = job.measuring.run(job.subject, job.test, job.observed, job.parts, job.given)
    made = provenance(job.described, job.parts.device) | {"seed": job.seed}
    about = {"command": "eval", "checkpoint": runs.absolute(job.trained.path), "dataset": job.measuring.dataset.name}
    record = about | found.record | simulated_record(job)
    with Log(job.run_dir) as log:
        log.record("test", record, 0)
        if found.first is not None and len(job.test.shape) == 3:
            grid = save_grid(job.run_dir / "completions.png", job.test.values, job.observed, found.first)
            log.image("pictures/completions", grid, 0)
        if (picture := save_calibration(job.run_dir / "calibration.png", record)) is not None:
            log.image("pictures/calibration", picture, 0)
    items.save(job.run_dir, job.test, job.observed, found.per_item)
    atomic.write_json(job.run_dir / runs.RECORD, record | made)
    say(summary(record))
    print(f"numbers in {job.run_dir / runs.RECORD}")
    return record


def simulated_record(job: Evaluation) -> dict[str, Any]:
    """Simulation-based calibration of a model's posterior, under the masks of the first items, in turn if few."""
    model, measuring, observed = job.parts.model, job.measuring, job.observed
    if not (job.calibration and measuring.of_model) or model is None or model.posterior is None or bool(observed.all()):
        return {}
    imputer = ViscosImputer(model.flow, model.posterior, measuring.objective.solver)
    masks = observed[torch.arange(measuring.protocol.interval_items) % len(observed)]
    return {"simulated": simulated(model.flow, imputer, masks, job.seed, measuring.protocol.batch_size)}
