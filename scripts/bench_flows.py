"""Flows side by side: `python scripts/bench_flows.py RUN [RUN …] [--rates 0.5 0.9] [--items 8]`.

For each run of `viscos train` and each `--solver`: network evaluations a solve, the share of solves that fell back on
Newton–Krylov and the share that failed, for latents drawn from the prior; and what a product with G costs. The
latents that go with hidden entries are chosen by `maxvol` where the run's folder is followed by `:maxvol`.
"""

from __future__ import annotations

import argparse

import torch
from arguments import number, share, started

from viscos.commands.assemble.data import Dataset
from viscos.commands.assemble.masks import Masks
from viscos.commands.timing import product_row, solver_row
from viscos.core.choices import choice, names
from viscos.inference.partition import maxvol
from viscos.roots import RootFinder
from viscos.runs.trained import load


def row(run: str, rates: list[float], items: int, solver: str, repeats: int) -> str:
    """A line of the table."""
    folder, _, partition = run.partition(":")
    trained = load(folder, torch.device("cpu"))
    flow, name = trained.model.flow, str(trained.cfg["flow"]["_target_"]).rpartition(".")[2]
    if trained.cfg["flow"].get("implicit"):
        name = "implicit"
    test = trained.standardised(Dataset(trained.cfg["dataset"]).load("test", items))
    values, cells = test.values.nan_to_num(0), list[str]()
    for rate in rates:
        mask = {"_target_": "viscos.data.masks.RandomMask", "missing": rate}
        observed = Masks(mask, 0).of(test, "bench")
        ready = maxvol(flow, values, ~observed) if partition == "maxvol" else flow
        found = solver_row(ready, values, observed, choice("solver", solver, RootFinder), seed=0)
        shares = (100 * found["fallback"], 100 * (1 - found["converged"]))
        cells += [f"{found['evaluations']:.0f}", *(f"{share:.0f} %" for share in shares)]
    p = product_row(flow, values, repeats)
    cells += [f"{1000 * p['forward_seconds'] / len(values):.2f}", f"{p['G v']:.2f}", f"{p['GT u']:.2f}"]
    return f"| {name} | {partition or 'same'} | {solver} | {' | '.join(cells)} |"


def main() -> None:
    """Prints the table, a line as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, or RUN:maxvol")
    parser.add_argument("--rates", nargs="+", type=share, default=[0.5, 0.9], help="shares of hidden entries")
    parser.add_argument("--items", type=number, default=8, help="test items to solve")
    parser.add_argument("--solver", nargs="+", choices=names("solver"), default=["auto"], help="a line for each")
    parser.add_argument("--repeats", type=number, default=5, help="timings; the median is reported")
    parser.add_argument("--threads", type=number, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    heads = [f"{100 * rate:g} %: {what}" for rate in args.rates for what in ("evaluations", "fallback", "failed")]
    heads = ["flow", "partition", "solver", *heads, "forward, ms an item", "G v", "Gᵀ u"]
    print(f"| {' | '.join(heads)} |\n{'| --- ' * len(heads)}|")
    for run in args.runs:
        for solver in args.solver:
            print(row(run, args.rates, args.items, solver, args.repeats), flush=True)


if __name__ == "__main__":
    started(main)
