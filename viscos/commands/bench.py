"""`viscos bench`: times the parts on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from viscos.commands.common import load_data, make_masks, make_objective, use_machine
from viscos.commands.progress import bar
from viscos.commands.timing import product_row, solver_row, step_row
from viscos.core import atomic
from viscos.core.build import build
from viscos.data.incomplete import IncompleteData
from viscos.data.items import Data
from viscos.data.scaling import fit_scaling, standardised
from viscos.inference.conditional import SOLVERS
from viscos.inference.partition import maxvol
from viscos.linear.gaussian import Gaussian
from viscos.posteriors import Amortised
from viscos.runs.provenance import machine, versions
from viscos.runs.trained import load
from viscos.train.model import Model


def run(cfg: dict[str, Any]) -> dict[str, Any]:
    """Measures; returns the record that `bench.json` holds."""
    device, run_dir = use_machine(cfg), Path(cfg["run_dir"])
    if cfg["checkpoint"]:
        trained = load(cfg["checkpoint"], device)
        model, dataset = trained.model, trained.cfg["dataset"]
    else:
        model, dataset = None, cfg["dataset"]
    train = load_data(dataset, "train", 2000)
    scaling = trained.scaling if cfg["checkpoint"] else fit_scaling(train, train.known)
    train, test = (standardised(data, scaling) for data in (train, load_data(dataset, "test", cfg["items"])))
    model = model or _untrained(cfg, train).to(device)
    record = {
        "dataset": dataset["name"],
        "checkpoint": cfg["checkpoint"],
        "partition": cfg["partition"],
        "solvers": _solvers(cfg, model, test, device),
        "products": product_row(model.flow, train.values[: cfg["batch_size"]].nan_to_num(0).to(device), cfg["repeats"]),
        "step": _step(cfg, model, train),
        "machine": machine(device),
        "versions": versions(),
    }
    atomic.write_json(run_dir / "bench.json", record)
    print(table(record))
    print(f"figures in {run_dir / 'bench.json'}")
    return record


def _untrained(cfg: dict[str, Any], train: Data) -> Model:
    model = Model(build(cfg["flow"], train.shape), Amortised(train.shape), None)
    gaussian = Gaussian.from_incomplete(train.values, train.known, noise=0.05, floor=0.0025)
    model.prepare(train.values, train.known, gaussian)
    return model


def _solvers(cfg: dict[str, Any], model: Model, test: Data, device: torch.device) -> list[dict[str, Any]]:
    masks: dict[str, dict[str, Any]] = {
        f"{100 * rate:g} %": {"_target_": "viscos.data.masks.RandomMask", "missing": rate} for rate in cfg["rates"]
    }
    if cfg["center"] and len(test.shape) == 3:
        n = cfg["center"]
        masks[f"centre {n} × {n}"] = {"_target_": "viscos.data.masks.CenterMask", "size": n}
    rows, values = list[dict[str, Any]](), test.values.nan_to_num(0).to(device)
    with bar("solving", len(masks) * len(cfg["solvers"])) as progress:
        for label, mask in masks.items():
            observed = make_masks(mask, test, cfg["seed"], "bench").to(device)
            flow = maxvol(model.flow, values, ~observed) if cfg["partition"] == "maxvol" else model.flow
            for name in cfg["solvers"]:
                row = solver_row(flow, values, observed, SOLVERS[name](), cfg["seed"])
                rows.append({"missing": label, "solver": name, **row})
                progress.update(len(rows), {"evaluations": row["evaluations"]})
    return rows


def _step(cfg: dict[str, Any], model: Model, train: Data) -> dict[str, Any]:
    rate = 0.0 if model.flow.matches else max(cfg["rates"])  # matching takes complete data
    mask = {"_target_": "viscos.data.masks.RandomMask", "missing": rate}
    data = IncompleteData(train.values, make_masks(mask, train, cfg["seed"], "train"), train.labels)
    if model.posterior is None:
        posterior = Amortised(train.shape, gaussian=False)
        model = Model(model.flow, posterior.to(next(model.parameters()).device), None)
    objective = make_objective({"solver": {"_target_": "viscos.roots.auto"}})
    return {"missing": rate, **step_row(model, data, objective, cfg["batch_size"], cfg["repeats"])}


def table(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    masks = list(dict.fromkeys(row["missing"] for row in record["solvers"]))
    cells = {(row["solver"], row["missing"]): row for row in record["solvers"]}
    lines = [f"| evaluations a solve | {' | '.join(masks)} |", "| --- " * (len(masks) + 1) + "|"]
    for solver in dict.fromkeys(row["solver"] for row in record["solvers"]):
        lines.append(f"| {solver} | {' | '.join(_cell(cells[solver, mask]) for mask in masks)} |")
    p, s = record["products"], record["step"]
    lines += [
        "",
        f"forward pass {1000 * p['forward_seconds']:.1f} ms; in forward passes: linearisation {p['linearize']:.2f}, "
        f"G v {p['G v']:.2f}, Gᵀ u {p['GT u']:.2f}, inverse {p['inverse']:.2f}",
        f"step of training at {100 * s['missing']:g} % missing: {s['seconds']:.2f} s, "
        f"{s['forward_passes']:.0f} forward passes; peak memory {s['peak_memory_gib']:.2f} GiB",
    ]
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    text = f"{row['evaluations']:.0f}"
    if row["fallback"]:
        text += f" ({100 * row['fallback']:.0f} % fallback)"
    return text if row["converged"] == 1 else text + f" ({100 * (1 - row['converged']):.0f} % failed)"
