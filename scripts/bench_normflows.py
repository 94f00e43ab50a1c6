"""Our residual flow against normflows', side by side: `python scripts/bench_normflows.py [--batch 64] [--repeats 7]`.

Same architecture (8 blocks of 3-1-3 convolutions on 4 × 14 × 14, 32 channels, coefficient 0.9), the same 8 terms of the
series with one probe, the same batch, one thread. Times are medians of interleaved runs; memory is the growth of the
peak of a process of its own that does one thing. normflows saves memory by taking the gradient in the forward pass
(`reduce_memory`), its default; it is timed without it too. The two inverses stop by their own rules, so the last column
says how far latents are off after them.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from arguments import number, started
from torch import Tensor

SHAPE, HIDDEN, BLOCKS, TERMS, COEFFICIENT = (4, 14, 14), 32, 8, 8, 0.9
KINDS = ("viscos", "normflows", "normflows, reduce_memory=False")


Parts = tuple[Callable[[Tensor], None], Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]


def ours() -> Parts:
    """A step of training, the inverse, and the forward pass."""
    from viscos.flows import Flow, Residual, Series
    from viscos.flows.layers.branch import conv_branch

    branches = [conv_branch(SHAPE[0], HIDDEN, SHAPE[1:], "lipswish", COEFFICIENT) for _ in range(BLOCKS)]
    flow = Flow([Residual(branch, Series(terms=TERMS)) for branch in branches], SHAPE)
    optimizer = torch.optim.Adam(flow.parameters(), 1e-3)
    probes = torch.Generator().manual_seed(0)

    def step(y: Tensor) -> None:
        optimizer.zero_grad()
        x, surrogate = flow.forward_and_ladj_surrogate(y, probes)
        (-(flow.base_log_prob(x) + surrogate).mean()).backward()
        optimizer.step()
        flow.renormalize(1)

    def inverse(x: Tensor) -> Tensor:
        return flow.to_data(x).raise_if_failed()

    return step, inverse, flow.to_latent


def theirs(
    reduce_memory: bool,
) -> Parts:
    """The same of normflows."""
    import normflows as nf

    channels, kernels = [SHAPE[0], HIDDEN, HIDDEN, SHAPE[0]], [3, 1, 3]
    flows = [
        nf.flows.Residual(
            nf.nets.LipschitzCNN(channels, kernels, COEFFICIENT, max_lipschitz_iter=1, init_zeros=False),
            n_power_series=TERMS,
            reduce_memory=reduce_memory,
        )
        for _ in range(BLOCKS)
    ]
    model = nf.NormalizingFlow(nf.distributions.DiagGaussian(SHAPE, trainable=False), flows)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def latent(y: Tensor) -> Tensor:
        for flow in reversed(model.flows):
            y = y + flow.iresblock.nnet(y)
        return y

    def step(y: Tensor) -> None:
        optimizer.zero_grad()
        model.forward_kld(y).backward()
        optimizer.step()
        nf.utils.update_lipschitz(model, 1)

    def inverse(x: Tensor) -> Tensor:
        with torch.no_grad():
            for flow in model.flows:
                x = flow.iresblock.inverse(x)
        return x

    return step, inverse, latent


def made(kind: str) -> Parts:
    """The functions of a kind."""
    return ours() if kind == "viscos" else theirs("False" not in kind)


def times(batch: int, repeats: int) -> dict[tuple[str, str], float]:
    """Medians in seconds."""
    y = torch.randn(batch, *SHAPE, generator=torch.Generator().manual_seed(0))
    parts = {}
    for kind in KINDS:
        step, inverse, latent = made(kind)
        parts[kind, "step"], parts[kind, "inverse"] = step, inverse
        parts[kind, "forward"] = torch.no_grad()(latent)
    found: dict[tuple[str, str], list[float]] = {key: [] for key in parts}
    for _ in range(repeats + 1):
        for key, part in parts.items():
            began = time.perf_counter()
            part(y)
            found[key].append(time.perf_counter() - began)
    return {key: statistics.median(values[1:]) for key, values in found.items()}  # the first is warm-up


def peak(kind: str, batch: int) -> float:
    """Growth of the resident memory of this process in a step, in MiB (Linux)."""
    step = made(kind)[0]
    y = torch.randn(batch, *SHAPE)
    step(y[:1])  # optimiser's state, libraries
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = _status("VmRSS")
    step(y)
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def accuracy(kind: str, batch: int) -> float:
    """The largest max |g(f(x)) − x| of an item."""
    x = torch.randn(batch, *SHAPE, generator=torch.Generator().manual_seed(1))
    _, inverse, latent = made(kind)
    with torch.no_grad():
        return float((latent(inverse(x)) - x).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=number, default=64)
    parser.add_argument("--repeats", type=number, default=7)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if args.peak:
        print(peak(args.peak, args.batch))
        return
    seconds = times(args.batch, args.repeats)
    print("| | forward, s | training step, s | its peak memory, MiB | inverse, s | off by |\n" + "| --- " * 6 + "|")
    for kind in KINDS:
        command = [sys.executable, __file__, "--batch", str(args.batch), "--peak", kind]
        memory = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        row = [f"{seconds[kind, what]:.3f}" for what in ("forward", "step", "inverse")]
        print(f"| {kind} | {row[0]} | {row[1]} | {memory:.0f} | {row[2]} | {accuracy(kind, args.batch):.0e} |")


if __name__ == "__main__":
    started(main)
