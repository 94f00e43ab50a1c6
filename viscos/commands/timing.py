"""Measurements of the parts: evaluations of the solvers, products with the Jacobian, one step of training."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from viscos.core.rng import item_noise
from viscos.data.incomplete import IncompleteData
from viscos.flows import Flow
from viscos.inference import Objective, complete
from viscos.roots import RootFinder
from viscos.train import Plan, Report, Trainer
from viscos.train.model import Model


def _now() -> float:
    """Seconds, once a GPU has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


@torch.no_grad()
def solver_row(flow: Flow, values: Tensor, observed: Tensor, solver: RootFinder, seed: int) -> dict[str, float]:
    """Network evaluations of one solver, for latents x^H drawn from the prior (B, …)."""
    x = item_noise(seed, torch.arange(len(values)), 1, values.shape[1:], values)[0]
    began = _now()
    solution = complete(flow, values, ~observed, x, solver).solution
    return {
        "evaluations": float(solution.evaluations.mean()),
        "converged": float(solution.converged.double().mean()),
        "fallback": float(solution.fallback.double().mean()),
        "seconds": _now() - began,
    }


@torch.no_grad()
def product_row(flow: Flow, y: Tensor, repeats: int) -> dict[str, float]:
    """Times of a linearisation and of products with G and Gᵀ, in forward passes (medians of interleaved timings)."""
    _, G = flow.linearize(y)
    v = torch.randn_like(y)
    parts: dict[str, Callable[[], object]] = {
        "forward": lambda: flow.to_latent(y),
        "linearize": lambda: flow.linearize(y),
        "G v": lambda: G.mv(v),
        "GT u": lambda: G.rmv(v),
        "inverse": lambda: flow.to_data(v),
    }
    times: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(repeats + 1):
        for name, part in parts.items():
            began = _now()
            part()
            times[name].append(_now() - began)
    medians = {name: statistics.median(t[1:]) for name, t in times.items()}  # the first is warm-up
    forward = medians.pop("forward")
    return {"forward_seconds": forward, **{name: t / forward for name, t in medians.items()}}


def step_row(model: Model, data: IncompleteData, objective: Objective, batch_size: int, repeats: int) -> dict[str, Any]:
    """One optimisation step in seconds and forward passes; peak memory, of the process or on the GPU, in GiB."""
    trainer = Trainer(model, data, objective, Plan(repeats + 2, batch_size, 1e-4, max_steps=repeats + 2))
    stamps, forwards, solver = [_now()], [], {}

    def after(report: Report) -> None:
        solver.update(report.solver)
        stamps.append(_now())
        with torch.no_grad():
            model.flow.to_latent(report.batch.filled())
        forwards.append(_now() - stamps[-1])
        stamps.append(_now())

    trainer.run(after, lambda epoch: None)
    steps = [b - a for a, b in zip(stamps[::2], stamps[1::2], strict=False)][2:]
    seconds, forward = statistics.median(steps), statistics.median(forwards[2:])
    on_gpu = trainer.devices.device.type == "cuda"
    used = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peak = used / 2**30
    return {"seconds": seconds, "forward_passes": seconds / forward, "peak_memory_gib": peak, **solver}
