"""What a command shows of its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from viscos.core.counts import percent
from viscos.core.rng import generator
from viscos.core.solution import per_item
from viscos.data.items import Data
from viscos.data.scaling import Scaling
from viscos.data.vectors import Vectors
from viscos.flows import Flow
from viscos.inference import Completions
from viscos.report.advice import verdicts
from viscos.report.calibrated import calibration_lines
from viscos.report.checked import check_lines
from viscos.report.completions import completions_table, costs_table, scores_table, why_no_fid
from viscos.report.density import Plane
from viscos.report.grid import completion_grid, draws_grid, image_grid, save_png
from viscos.report.trust import trust_lines

_ITEMS, _DRAWS = 16, 4
"""Of a picture of completions."""
_POINTS = 500
"""Test points that a density is drawn with."""
_ROWS = 4096
"""Points whose density is computed together."""


def hidden_share(observed: Tensor, what: str) -> str:
    """A line: the mean share of hidden entries of `observed` (N, …), bool, and how many items lack all or nothing."""
    shares = (~observed).flatten(1).double().mean(1)
    line = f"{what}: {100 * float(shares.mean()):.3g} % of the entries are hidden"
    for share, how in ((0, "without a hole"), (1, "hidden entirely")):
        if count := int((shares == share).sum()):
            which = "all are" if count == len(shares) else f"{count} of {len(shares)} {'is' if count == 1 else 'are'}"
            line += f"; {which} {how}"
    return line


def save_grid(
    path: Path,
    truth: Tensor,
    observed: Tensor,
    done: Completions,
    first: Completions | None = None,
) -> Tensor:
    """Writes originals, masked images, independent draws and means as a PNG; returns the picture (3, H, W).

    `truth` is NaN where not even the original is known. Before the draws stands one of `first`, from before a posterior
    was fitted, if there is one.
    """
    n = min(_ITEMS, done.draws.shape[1])
    shown = done.independent()[0][:_DRAWS, :n].cpu()
    if first is not None:
        shown = torch.cat([first.draws[:1, :n].cpu(), shown])
    grid = completion_grid(truth[:n], observed[:n], shown, done.mean()[:n].cpu())
    save_png(path, grid)
    return grid


def save_draws(path: Path, truth: Tensor, observed: Tensor, draws: Tensor) -> Tensor:
    """Writes one image (C, H, W), the same masked, and all its draws (K, C, H, W) as a PNG; returns the picture.

    Antithetic draws stand side by side, in pairs.
    """
    grid = draws_grid(truth, observed, draws)
    save_png(path, grid)
    return grid


def save_density(path: Path, flow: Flow, test: Data, scaling: Scaling | None) -> bool:
    """Writes the density of a flow over the plane as a PNG, with test points, if there are any without holes.

    Says so where matplotlib is not there. Returns whether there is a picture.
    """
    try:
        from viscos.report import figures
    except ModuleNotFoundError as error:
        print(f"no {path.name}: pictures of densities need {error.name}: pip install 'viscos[figures]'")
        return False
    drawn = plane(flow, test, scaling)
    if not len(drawn.points):
        return False
    figures.save_png(figures.density(drawn), path)
    return True


def plane(flow: Flow, test: Data, scaling: Scaling | None) -> Plane:
    """The density of a flow over the plane, and some test points without holes.

    Its coordinates are in the data's own units, of a column by its logarithm in units of that.
    """
    whole = test.values[test.known.all(1)][:_POINTS]
    names = test.columns if isinstance(test, Vectors) and test.columns else ("first coordinate", "second coordinate")
    if scaling is None:
        return Plane(lambda y: _log_prob(flow, y), whole, names)
    return Plane(
        lambda y: _log_prob(flow, scaling.standardise(y)) - scaling.log_scale,
        scaling.restore(whole).float(),
        names,
        scaling.scheme.encode,
    )


@torch.no_grad()
def _log_prob(flow: Flow, y: Tensor) -> Tensor:
    like = next(flow.parameters())
    return torch.cat([flow.log_prob(part.to(like)).cpu() for part in y.split(_ROWS)])


def save_samples(path: Path, flow: Flow, shape: tuple[int, ...], seed: int) -> Tensor:
    """Writes 64 unconditional samples of the flow as a PNG; returns the picture. A sample that failed is red."""
    like = next(flow.parameters())
    noise = torch.randn(64, *shape, generator=generator(seed, "samples")).to(like)
    found = flow.to_data(noise)
    grid = image_grid(torch.where(per_item(found.converged, noise), found.value, float("nan")))
    save_png(path, grid)
    return grid


def summary(record: dict[str, Any]) -> str:
    """The main numbers of a record, a line each, and last what should not be overlooked."""
    lines = completions_table(record) + scores_table(record) + costs_table(record)
    if reason := why_no_fid(record):
        lines.append(f"FID                         none: {reason}")
    for entry in filter(None, (record.get("accuracy"), record.get("accuracy_latents"))):
        classifier = entry.get("classifier", "trained along")
        lines.append(f"accuracy                    {entry['value']:.4f}, of the classifier {classifier}")
    if record.get("bound"):
        bound = record["bound"]
        of = f"{bound['items']} items"
        if bound.get("unsolved_items"):
            of += f"; −∞ for {bound['unsolved_items']} more, of which no draw was solved"
        lines.append(f"bound                       {_nats(bound['mean'])} nats an item ({of})")
        for key, label in (("first_iteration", "before fitting"), ("gaussian_log_prob", "Gaussian, exact")):
            if key in bound:
                lines.append(f"  {label:<26}{_nats(bound[key])}")
    if record.get("bits_per_dim"):
        lines.append(f"bits per dimension          {record['bits_per_dim']['value']:.3f}")
    if record.get("log_likelihood"):
        entry = record["log_likelihood"]
        lines.append(f"log-likelihood              {entry['value']:.4f} nats an item ({entry['items']} items)")
    if record.get("solver") and record["solver"]["evaluations"]:
        s = record["solver"]
        anew = f"{percent(s['drawn_anew'])} were drawn anew, " if s.get("drawn_anew") else ""
        lines.append(
            f"solver                      {s['evaluations']:.1f} evaluations a draw, "
            f"{percent(s['fallback'])} needed the fallback, {anew}{percent(s['failed'])} failed"
        )
        if s.get("reduction_by_first_solver") is not None and s["fallback"]:
            lines.append(
                f"  the first solver took {100 * s['reduction_by_first_solver']:.0f} % of the residual away; "
                f"the fallback took {s['fallback_steps']:.1f} steps"
            )
    return "\n".join(lines + calibration_lines(record) + check_lines(record) + trust_lines(record) + verdicts(record))


def _nats(value: float) -> str:
    """A few digits of what is some hundreds for an image, and about one for a point."""
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"
