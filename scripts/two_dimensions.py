"""Imputers in the plane beside the exact conditional: `python scripts/two_dimensions.py [--datasets moons …]`.

For each data set, a small continuous flow and two inference networks are trained on complete points; then every imputer
draws the hidden coordinate of some test points, the first of one and the second of the next, and the Wasserstein-1
distance of the draws to the exact conditional *of that flow*, by quadrature along the line, goes into
outputs/reference/two_dimensions.json, and one item of each data set into docs/pictures/two_dimensions.png. Data sets
that are not named stay in the record, each method with the commit that measured it; one of other settings is refused.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from arguments import number, started
from torch import Tensor

import viscos
from viscos.commands.report import plane
from viscos.core import atomic
from viscos.core.batch import Incomplete, incomplete
from viscos.core.rng import generator
from viscos.data.masks import any_masks
from viscos.data.sources import toys
from viscos.flows import Flow, continuous
from viscos.imputers import GUIDED, DPSImputer, PLMCMCImputer
from viscos.inference import impute
from viscos.inference.conditional import Conditional
from viscos.posteriors import Amortised, Diagonal, Mixture, Posterior
from viscos.report.conditionals import conditionals, distances, exact_draws, histogram, picture, shown, table
from viscos.report.figures.page import save_png
from viscos.roots import auto
from viscos.runs.provenance import commit, continued, machine, versions

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "outputs" / "reference" / "two_dimensions.json"
DATASETS = ("moons", "pinwheel", "checkerboard")
FIT = {"steps": 120, "learning_rate": 5e-2, "samples": 8}
COMPONENTS = 8
DPS_SCALE = 0.2
"""Of training points, 0.03, 0.1, 0.2, 0.3 and the usual 1, which is made for images, gave mean distances of 0.46, 0.26,
0.23, 0.35 and 1.19: a step has about twice this length, whatever the number of entries."""


def learn(module: torch.nn.Module, loss: Callable[[int], Tensor], steps: int, rate: float) -> None:
    """`steps` of Adam with a rate that falls along a cosine."""
    optimizer = torch.optim.Adam(module.parameters(), rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        optimizer.zero_grad()
        loss(step).backward()
        optimizer.step()
        schedule.step()


def trained_flow(values: Tensor, steps: int) -> Flow:
    """A small continuous flow, by flow matching on points (N, 2)."""
    flow = continuous((2,), steps=4, method="midpoint", width=16, grid=1.3)  # not the defaults: the record is of these
    flow.layers[0].set_moments(values.mean(0), values.std(0))

    def loss(step: int) -> Tensor:
        g = generator(0, "flow", step)
        rows = torch.randint(len(values), (256,), generator=g)
        return flow.matching_loss(values[rows], g).mean()

    learn(flow, loss, steps, 5e-3)
    return flow.requires_grad_(False)


def taught(flow: Flow, components: int, steps: int) -> Posterior:
    """An inference network by regression on samples of the flow itself, masked afresh, and their latents.

    Samples of the data would teach the conditional of the data, which the flow's is only as far as the flow is right.
    """
    network = Amortised((2,), width=16, gaussian=False, held_out=0.0, regressed=True, components=components)
    latents = torch.randn(5000, 2, generator=generator(0, "samples"))
    found = flow.to_data(latents)
    latents, values = latents[found.converged], found.value[found.converged]

    def loss(step: int) -> Tensor:
        g = generator(0, "teach", step)
        rows = torch.randint(len(values), (256,), generator=g)
        batch = incomplete(values[rows], any_masks((2,), len(rows), g))
        return network.teach(batch, latents[rows], flow) / max(1, int(batch.hidden.sum()))

    learn(network, loss, steps, 5e-3)
    return network.requires_grad_(False)


Draw = Callable[[Incomplete, int], Tensor]
"""From a batch of N items and a number K to K completions of each (K, N, 2), NaN where one failed."""


def methods(flow: Flow, steps: int) -> dict[str, Draw]:
    """Every imputer, by the name that the table gives it."""

    def fitted(batch: Incomplete, make: Callable[[Tensor], Posterior]) -> Conditional:
        return viscos.condition(flow, batch.filled(), batch.observed, posterior=make(batch.filled())).fit(**FIT)

    def by_fit(make: Callable[[Tensor], Posterior]) -> Draw:
        return lambda batch, draws: fitted(batch, make).sample(draws)

    def refined(make: Callable[[Tensor], Posterior]) -> Draw:
        return lambda batch, draws: fitted(batch, make).refine("sir", draws, proposals=4 * draws).draws

    def by_network(components: int) -> Draw:
        return lambda batch, draws: impute(flow, taught(flow, components, steps), batch, auto(), draws=draws).draws

    found = {
        "viscos, diagonal": by_fit(Diagonal),
        "viscos, mixture": by_fit(lambda like: Mixture(like, COMPONENTS)),
        "viscos, diagonal, resampled": refined(Diagonal),
        "viscos, amortised": by_network(1),
        "viscos, amortised mixture": by_network(COMPONENTS),
    }
    for kind in (*GUIDED, PLMCMCImputer):
        other = {"scale": DPS_SCALE} if kind is DPSImputer else {}
        found[kind.label] = lambda batch, draws, kind=kind, other=other: kind(flow, **other).impute(batch, draws).draws
    return found


def measured(name: str, args: argparse.Namespace, old: dict[str, Any]) -> dict[str, Any]:
    """One data set's part of the record, of which `old` is what there is already."""
    torch.manual_seed(0)
    make = getattr(toys, name)
    values, test = make("train").values, make("test").values[: args.items]
    flow = trained_flow(values, args.steps)
    hidden = 1 - torch.arange(len(test)) % 2
    batch = incomplete(test, torch.nn.functional.one_hot(1 - hidden, 2).bool())
    grids, exact = conditionals(plane(flow, make("test"), None), test, hidden)
    rows = torch.arange(len(test))
    best = exact_draws(grids, exact, hidden, args.draws, generator(0, "exact"))
    item = int(distances(grids, exact, hidden, best.mean(0).expand(args.draws, -1)).argmax())  # the widest
    panel = shown(grids[hidden[item]], exact[item])

    def scored(draws: Tensor, seconds: float) -> dict[str, Any]:
        found = distances(grids, exact, hidden, draws)
        found = found[found.isfinite()]
        return {
            "distance": float(found.mean()),
            "error": float(found.std() / len(found) ** 0.5) if len(found) > 1 else None,
            "failed": float((~draws.isfinite()).double().mean()),
            "seconds": round(seconds, 1),
            "histogram": histogram(draws[:, item], panel),
            "commit": commit(),
        }

    results = {}
    for label, draw in methods(flow, args.steps // 2).items():
        if args.methods and label not in args.methods:
            results |= {key: value for key, value in old.get("methods", {}).items() if key == label}
            continue
        start = time.process_time()
        drawn = draw(batch, args.draws)[:, rows, hidden]
        results[label] = scored(drawn, time.process_time() - start)
        print(f"{name}: {label} {results[label]['distance']:.4f}, {results[label]['seconds']} s", flush=True)
    return {"methods": results | {"exact draws": scored(best, 0.0)}, "shown": panel | {"item": item}}


def kept(old: dict[str, Any]) -> dict[str, Any]:
    """The data sets of a record, of which every method has the commit that measured it: once, a record had one."""
    sets: dict[str, Any] = old.get("datasets", {})
    for each in sets.values():
        for found in each["methods"].values():
            found.setdefault("commit", old.get("commit"))
    return sets


def main() -> None:
    """Measures, writes the record and the picture, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="*", default=DATASETS, choices=DATASETS, help="measured anew")
    parser.add_argument(
        "--methods", nargs="*", help="by the table's names: measured anew, of others what there is; exact draws always"
    )
    parser.add_argument("--items", type=number, default=8, help="test points")
    parser.add_argument("--draws", type=number, default=1000, help="of each")
    parser.add_argument(
        "--steps", type=number, default=1500, help="of the flow's training, half as many of a network's"
    )
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "pictures" / "two_dimensions.png")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    size = {"items": args.items, "draws": args.draws, "steps": args.steps, "fit": FIT, "components": COMPONENTS}
    known = list(methods(continuous((2,)), args.steps))
    if unknown := set(args.methods or ()) - set(known):
        parser.error(f"there is no method {sorted(unknown)[0]!r}; choose from {'; '.join(known)}")
    sets = kept(continued(args.record, size))
    record = {"settings": size, "versions": versions(), "machine": machine(torch.device("cpu")), "datasets": sets}
    for name in args.datasets:
        sets[name] = measured(name, args, sets.get(name, {}))
        record["datasets"] = {key: sets[key] for key in DATASETS if key in sets}
        atomic.write_json(args.record, record)
    save_png(picture(record), args.picture)
    print(table(record))


if __name__ == "__main__":
    started(main)
