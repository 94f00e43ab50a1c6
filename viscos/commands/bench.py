"""`viscos bench`: times the parts on this machine."""

from __future__ import annotations

from typing import Any

from viscos.commands.assemble.benching import Benching, benching
from viscos.commands.timing import product_row, solver_row, step_row
from viscos.core import atomic
from viscos.core.progress import bar
from viscos.inference.partition import maxvol
from viscos.posteriors import Amortised
from viscos.runs.provenance import machine, versions
from viscos.train.model import Model


def run(cfg: dict[str, Any]) -> dict[str, Any]:
    """Measures; returns the record that `bench.json` holds."""
    job = benching(cfg)
    flow, first = job.model.flow, job.train.values[: job.batch_size].nan_to_num(0).to(job.device)
    record = {
        "dataset": job.dataset.name,
        "checkpoint": job.checkpoint,
        "partition": job.partition,
        "solvers": _solvers(job),
        "products": product_row(flow, first, job.repeats),
        "step": _step(job),
        "machine": machine(job.device),
        "versions": versions(),
    }
    atomic.write_json(job.run_dir / "bench.json", record)
    print(table(record))
    print(f"numbers in {job.run_dir / 'bench.json'}")
    return record


def _solvers(job: Benching) -> list[dict[str, Any]]:
    rows, values = list[dict[str, Any]](), job.test.values.nan_to_num(0).to(job.device)
    with bar("solving", len(job.masks) * len(job.solvers)) as progress:
        for label, masks in job.masks.items():
            observed = masks.of(job.test, "bench").to(job.device)
            flow = maxvol(job.model.flow, values, ~observed) if job.partition == "maxvol" else job.model.flow
            for name, solver in job.solvers.items():
                row = solver_row(flow, values, observed, solver, job.seed)
                rows.append({"missing": label, "solver": name, **row})
                progress.update(len(rows), {"evaluations": row["evaluations"]})
    return rows


def _step(job: Benching) -> dict[str, Any]:
    model = job.model
    if model.posterior is None:
        model = Model(model.flow, Amortised(job.train.shape, gaussian=False).to(job.device), None)
    row = step_row(model, job.incomplete, job.objective, job.batch_size, job.repeats)
    return {"missing": job.missing, **row}


def table(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    masks = list(dict.fromkeys(row["missing"] for row in record["solvers"]))
    cells = {(row["solver"], row["missing"]): row for row in record["solvers"]}
    lines = [f"| evaluations a solve | {' | '.join(masks)} |", "| --- " * (len(masks) + 1) + "|"]
    for solver in dict.fromkeys(row["solver"] for row in record["solvers"]):
        lines.append(f"| {solver} | {' | '.join(_cell(cells[solver, mask]) for mask in masks)} |")
    p, s = record["products"], record["step"]
    on = f"at {100 * s['missing']:g} % missing" if s["missing"] else "on complete data"
    lines += [
        "",
        f"forward pass {1000 * p['forward_seconds']:.1f} ms; in forward passes: linearisation {p['linearize']:.2f}, "
        f"G v {p['G v']:.2f}, Gᵀ u {p['GT u']:.2f}, inverse {p['inverse']:.2f}",
        f"step of training {on}: {s['seconds']:.2f} s, "
        f"{s['forward_passes']:.0f} forward passes; peak memory {s['peak_memory_gib']:.2f} GiB",
    ]
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    text = f"{row['evaluations']:.0f}"
    if row["fallback"]:
        text += f" ({100 * row['fallback']:.0f} % fallback)"
    return text if row["converged"] == 1 else text + f" ({100 * (1 - row['converged']):.0f} % failed)"
