"""Training on several devices is training on one; lower precision stays where it does no harm."""

from __future__ import annotations

import copy
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import waited
from test_average import CASES, in_double
from test_train import PLAN, fresh, pictures, run, state

import viscos.flows
from viscos.cli import main
from viscos.commands.assemble.machine import Machine
from viscos.commands.launch import launch
from viscos.core.errors import InputError
from viscos.data.incomplete import IncompleteData
from viscos.flows import Residual
from viscos.runs import checkpoint
from viscos.train import Trainer

fabric = pytest.importorskip("viscos.train.fabric", exc_type=ImportError)

SHARED = {name: CASES[name] for name in ("clade", "auto", "failures", "augmented", "held out", "complete")}
SHARED |= {
    "micro-batches": dict(accumulate=2, batch_size=8, ema=0.9),
    "a last batch of one item": dict(CASES["held out"], batch_size=19, max_steps=2, pretrain=1),
}


def train(case, devices=None):
    """Gradient norms and solver's figures of every step, and the state after the last."""
    trainer = in_double(**{"batch_size": 8} | case, devices=devices)
    reports = run(trainer)
    final = {name: mark(tensor) for name, tensor in state(trainer).items()}
    return [report.loss["gradient"] for report in reports], [report.solver for report in reports], final


def mark(tensor):
    """A number that no two tensors share; the tensors themselves would fill the pipe between the processes."""
    flat = tensor.double().flatten()
    return float(flat @ torch.linspace(1, 2, len(flat), dtype=torch.float64))


def every_case(devices):
    """What a process does in the test below."""
    torch.set_num_threads(1)
    assert devices.world_size == 2
    assert devices.anywhere(devices.global_rank == 1) and not devices.anywhere(False)
    return {name: train(case, devices) for name, case in SHARED.items()}


def test_a_process_waits_for_another_as_long_as_it_takes():
    """Batches of fits, which are shared out, may differ by hours; torch would give up after half an hour."""
    assert fabric.FabricDevices(torch.device("cpu"), 2).strategy._timeout > timedelta(days=30)


def test_a_process_leaves_its_group():
    """The threads of a group that an interpreter finds at its end may abort it, after all was done."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        alone = fabric.FabricDevices(torch.device("cpu"), 1)
        assert alone.launch(lambda devices, factor: factor * devices.world_size, 3) == 3
        assert not torch.distributed.is_initialized()
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_are_one():
    """The same gradients, in double precision to rounding, and so the same parameters after an epoch."""
    together = fabric.FabricDevices(torch.device("cpu"), 2).launch(every_case)
    for name, case in SHARED.items():
        gradients, solver, final = train({key: value for key, value in case.items() if key != "accumulate"})
        assert together[name][0] == pytest.approx(gradients, rel=1e-7), name
        for mine, whole in zip(together[name][1], solver, strict=True):
            for key in mine.keys() - {"products"}:  # as many as the slowest item of a share needs
                assert mine[key] == pytest.approx(whole[key], rel=1e-5, nan_ok=True), (name, key)
        for key, tensor in final.items():
            assert together[name][2][key] == pytest.approx(tensor, rel=1e-6, abs=1e-6), (name, key)


# ------------------------------------------------------------------------------------------------------------ precision


def lowered(precision, plan=PLAN, **settings):
    """A trainer of the tests' small model, on a CPU, where a lower precision saves nothing but can be looked at."""
    usual = fresh(*pictures()[:2], plan=plan, **settings)
    for layer in usual.model.flow.layers:
        if isinstance(layer, Residual):
            layer.exact_below = 0  # small items are exact, and in full precision
    if precision == 32:
        return usual
    devices = fabric.FabricDevices(torch.device("cpu"), 1, precision)
    return Trainer(usual.model, usual.data, usual.objective, plan, devices)


@pytest.mark.parametrize(("precision", "error"), [("bf16-mixed", 0.1), ("16-mixed", 0.01)])
@pytest.mark.parametrize("incomplete", [True, False], ids=["bound", "likelihood"])
def test_lower_precision_of_the_gradient(precision, error, incomplete):
    exact, lower = (lowered(kind, incomplete=incomplete) for kind in (32, precision))
    if not incomplete:
        for trainer in (exact, lower):
            trainer.data = IncompleteData(pictures()[0], torch.ones(20, 1, 4, 4, dtype=torch.bool))
    gradients = []
    for trainer in (exact, lower):
        trainer.gradients.joint(trainer.seen(next(trainer._remaining())), trainer.step)
        trainer.devices.clip_gradients(trainer._loss, trainer._stepper, max_norm=1e9, error_if_nonfinite=False)
        gradients.append(torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]))
    assert 1e-5 < float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) < error


def test_what_has_no_lower_precision():
    for flow in (viscos.flows.realnvp((8, 4, 4)), viscos.flows.iresnet((4,), start="none")):
        with pytest.raises(InputError, match="precision=32"):
            flow.autocast(torch.bfloat16)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_what_stays_in_full_precision(precision):
    """Solves, log-determinants, bounds, power iterations: all that is not a gradient."""
    trainer, values = lowered(precision), pictures()[0]
    reports = run(trainer)
    assert all(report.solver["failed"] == 0 and report.solver["residual"] <= 1e-3 for report in reports)
    assert sum(report.loss["skipped"] for report in reports) <= 2
    flow, twin = trainer.model.flow, copy.deepcopy(trainer.model.flow)
    twin.autocast(None)
    with torch.no_grad():
        assert torch.equal(flow.log_prob(values), twin.log_prob(values))
        assert torch.equal(flow.to_data(values).value, twin.to_data(values).value)
        assert flow.lipschitz() == twin.lipschitz()
    for a, b in zip(maps(flow), maps(twin), strict=True):
        assert a.sigma().dtype == torch.float32 and torch.equal(a.effective(), b.effective())
    lower, full = flow.to_latent(values), twin.to_latent(values)  # with a gradient
    assert lower.dtype == torch.float32 and 0 < float((lower - full).detach().abs().max()) < 0.05


def maps(flow):
    """The bounded maps of a flow's branches."""
    return [linear for layer in flow.layers if isinstance(layer, Residual) for linear in layer.branch.maps]


def test_a_run_in_float16_goes_on_exactly(tmp_path):
    whole, first, second = (lowered("16-mixed") for _ in range(3))
    whole.devices.scaler.set_growth_interval(2), first.devices.scaler.set_growth_interval(2)
    reports = run(whole)
    assert sum(report.loss["skipped"] for report in reports) < len(reports)
    run(first, 3)
    checkpoint.save(tmp_path / "a.pt", {"parts": first.result().parts(), "trainer": first.state()})
    saved = checkpoint.load(tmp_path / "a.pt")
    second.model.load_parts(saved["parts"])
    second.load_state(saved["trainer"])
    run(second)
    assert all(torch.equal(value, state(second)[name]) for name, value in state(whole).items())
    assert second.devices.scaler.state_dict() == whole.devices.scaler.state_dict()
    assert whole.devices.scaler.get_scale() > 2**8


# ------------------------------------------------------------------------------------------------------------- refusals

USUAL = {
    "devices": 1,
    "precision": 32,
    "device": "cpu",
    "threads": 1,
    "seed": 0,
    "batch_size": 64,
    "accumulate": 1,
}


def both(settings):
    """Settings, and the machine that they mean."""
    return USUAL | settings, Machine.of(USUAL | settings)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"precision": "bf16-mixed"}, "precision=bf16-mixed is for a GPU"),
        ({"devices": 3, "batch_size": 2}, "batch_size=2 is less than devices=3 times accumulate=1; each part"),
        ({"devices": 2, "batch_size": 3, "accumulate": 2}, "batch_size=3 is less than devices=2 times accumulate=2"),
        ({"accumulate": 65}, "batch_size=64 is less than devices=1 times accumulate=65"),
    ],
)
def test_refusals(settings, says):
    with pytest.raises(InputError, match=re.escape(says)):
        launch(lambda cfg, devices: pytest.fail("it must not start"), *both(settings))


def test_refusals_on_a_machine_with_one_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for device, says in (("auto", "torch sees 1 GPU here"), ("cuda", "torch sees 1 GPU"), ("cuda:0", "is one device")):
        with pytest.raises(InputError, match=says):
            launch(lambda cfg, devices: pytest.fail("it must not start"), *both({"devices": 2, "device": device}))


def test_fabric_is_asked_for_where_it_is_needed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"devices=2 needs Lightning Fabric.*pip install 'viscos\[devices\]'"):
        launch(lambda cfg, devices: pytest.fail("it must not start"), *both({"devices": 2}))
    assert launch(lambda cfg, devices: {"rank": devices.global_rank}, *both({})) == {"rank": 0}


def test_one_device_does_without_fabric():
    code = "import sys, viscos.train, viscos.commands.train; sys.exit('lightning_fabric' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ------------------------------------------------------------------------------------------------------ the whole thing

DEBUG = (
    "experiment=debug",
    "flow=iresnet",
    "flow.blocks=[1]",
    "flow.channels=4",
    "threads=1",
    "device=cpu",
    "max_steps=null",
    "epochs=2",
)


@pytest.mark.slow
def test_the_command(tmp_path, monkeypatch, capfd):
    """Only the first process prints and writes; and a run may go on with another number of devices."""
    monkeypatch.chdir(tmp_path)
    assert main(["train", *DEBUG, "devices=2"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("32 items, 8 steps") and out.count("run folder") == out.count("numbers in") == 1
    assert [line.split()[0] for line in err.splitlines()] == ["training", "measuring"], err
    (folder,) = Path("outputs/train").resolve().iterdir()
    assert main(["train", f"resume={folder}", "devices=1", "epochs=3"]) == 0
    assert checkpoint.load(folder / "checkpoint.pt")["trainer"]["step"] == 12


@pytest.mark.slow
def test_an_error_in_the_processes_is_one_line(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *DEBUG, "devices=2", "mask=center8"]) == 2
    err = capfd.readouterr().err.splitlines()
    assert len(err) == 1 and err[0].startswith("viscos train: nothing is observed in the training data")
    assert not Path("outputs").exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_processes_and_saves(number, tmp_path):
    words = [sys.executable, "-m", "viscos", "train", *DEBUG, "epochs=1000", "devices=2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A test run in the background may ignore Ctrl-C, which what it starts would inherit.
    heed = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    started = subprocess.Popen(words, cwd=tmp_path, **pipes, **heed)
    try:
        first = started.stdout.readline()
        folder = Path(first.rstrip().rpartition("run folder ")[2])
        saved = folder / "checkpoint.pt"
        waited(lambda: saved.exists() and checkpoint.load(saved)["trainer"]["step"] >= 4, started)
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        started.send_signal(number)
        _, err = started.communicate(timeout=60)
    finally:
        started.kill()
    assert started.returncode == 130, err
    assert err.splitlines()[-1] == f"viscos train: interrupted; `viscos train resume={folder}` goes on"
    assert "Traceback" not in err and len(err.splitlines()) == 2
    step = checkpoint.load(folder / "checkpoint.pt")["trainer"]["step"]
    assert 4 <= step < 4000
    assert len(children) >= 2
    for _ in range(100):  # the tracker of shared memory ends a little later
        if not any(Path("/proc", child).exists() for child in children):
            break
        time.sleep(0.1)
    else:
        pytest.fail("a process is left over")


# -------------------------------------------------------------------------------------------- completions, shared out

COMPLETING = ("threads=1", "device=cpu", "items=5", "batch_size=2", "steps=2", "samples=2", "draws=2")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A training whose runs of `viscos impute` have three batches, and what one process makes of them."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(tmp_path_factory.mktemp("small"))
        assert main(["train", *DEBUG[:-2]]) == 0
        (run,) = Path("outputs/train").resolve().iterdir()
        assert main(["impute", f"checkpoint={run}", *COMPLETING, "hydra.run.dir=whole"]) == 0
        return run, Path("whole").resolve()


def draws_in(folder: Path) -> bytes:
    with np.load(folder / "completions.npz") as arrays:
        return arrays["draws"].tobytes() + arrays["residual"].tobytes()


@pytest.mark.slow
def test_two_processes_complete_as_one_does(small, tmp_path, monkeypatch, capfd):
    """The same draws, in one voice."""
    run, whole = small
    monkeypatch.chdir(tmp_path)
    assert main(["impute", f"checkpoint={run}", *COMPLETING, "devices=2", "hydra.run.dir=two"]) == 0
    out = capfd.readouterr().out
    assert out.count("items: ") == out.count("completions in ") == 1
    assert draws_in(Path("two")) == draws_in(whole) and not Path("two/shards").exists()


FAILING = """
import os
from viscos.core.errors import InputError
from viscos.imputers import MeanImputer

class Failing(MeanImputer):
    def impute(self, batch, *rest):
        if int(batch.index[0]) == 2 and "FAILING" in os.environ:
            raise InputError("the second batch fails")
        return super().impute(batch, *rest)
"""


@pytest.mark.slow
def test_a_failure_of_one_process_ends_all_and_one_goes_on(small, tmp_path, monkeypatch, capfd):
    run, _ = small
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("failing.py").write_text(FAILING)
    words = [f"checkpoint={run}", *COMPLETING[:4], "imputer._target_=failing.Failing"]
    monkeypatch.setenv("FAILING", "1")
    assert main(["impute", *words, "devices=2", "hydra.run.dir=two"]) == 2
    err = capfd.readouterr().err.splitlines()
    assert err[-1] == "viscos impute: the second batch fails" and len(err) == 1
    assert [path.name for path in Path("two/shards").iterdir()] == ["00000000.pt"]
    monkeypatch.delenv("FAILING")
    assert main(["impute", f"resume={Path('two').resolve()}", "devices=1", "allow=failing"]) == 0
    with np.load("two/completions.npz") as arrays:
        draws, hidden = arrays["draws"][0], ~arrays["observed"]
    high, low = np.where(hidden, draws, -np.inf).max(0), np.where(hidden, draws, np.inf).min(0)
    assert len(draws) == 5 and (high <= low).sum() > 32 and (high - low).max() <= 0, "the same mean in every item"


@pytest.mark.slow
def test_ctrl_c_ends_completions_with_whole_batches(small, tmp_path):
    run, _ = small
    many = [*COMPLETING[:2], "items=64", "batch_size=1", "steps=4", "samples=2", "draws=2"]
    words = [sys.executable, "-m", "viscos", "impute", f"checkpoint={run}", *many, "devices=2", "hydra.run.dir=out"]
    heed = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    started = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **heed)
    shards = tmp_path / "out/shards"
    try:
        waited(lambda: len(list(shards.glob("0*.pt"))) >= 4, started)
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=120)
    finally:
        started.kill()
    assert started.returncode == 130, err
    line = f"viscos impute: interrupted; `viscos impute resume={tmp_path / 'out'}` goes on"
    assert err.splitlines()[-1] == line and "Traceback" not in err
    done = sorted(int(path.stem) for path in shards.glob("*.pt"))
    assert done == list(range(len(done))) and 4 <= len(done) < 64 and len(done) % 2 == 0
