"""The Python of the README runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LIBRARIES = ("normflows", "nflows", "zuko")
README = Path(__file__).parents[1] / "README.md"


def needed(block: str) -> list[str]:
    """The libraries that an example imports beside viscos."""
    return [name for name in LIBRARIES if re.search(rf"^import .*\b{name}\b", block, flags=re.M)]


@pytest.mark.skipif(not README.is_file(), reason="the README is not beside the tests")
def test_python_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.S)
    assert len(blocks) >= 2
    names: dict[str, object] = {}
    for block in blocks:
        if not needed(block):
            exec(block, names)
    draws, y, observed = names["draws"], names["y"], names["observed"]
    assert draws.shape == (16, 3, 1, 8, 8)
    assert (draws[:, observed] == y[observed]).all()
    import torch

    own = names["Stretch"]()
    found = own.to_data(own.to_latent(torch.zeros(2, 4) + 0.5))
    assert found.converged.all()
    torch.testing.assert_close(found.value, torch.full((2, 4), 0.5), atol=1e-4, rtol=0)


@pytest.mark.skipif(not README.is_file(), reason="the README is not beside the tests")
def test_the_flow_that_is_added_is_built_and_conditioned(monkeypatch) -> None:
    """From its one file and its YAML, as they stand in the README."""
    import sys
    import types

    import torch
    import yaml

    import viscos
    from viscos.core.build import build

    text = README.read_text(encoding="utf-8")
    (code,) = (b for b in re.findall(r"```python\n(.*?)```", text, flags=re.S) if "class Ripple" in b)
    (settings,) = (yaml.safe_load(b) for b in re.findall(r"```yaml\n(.*?)```", text, flags=re.S))
    module = types.ModuleType("viscos.flows.ripple")
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    flow = build(settings, (5,)).double()
    with torch.no_grad():
        for p in flow.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    y = torch.randn(3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    jacobians = torch.stack([torch.autograd.functional.jacobian(lambda v: flow.to_latent(v[None])[0], v) for v in y])
    x, ladj = flow.to_latent_and_ladj(y)
    torch.testing.assert_close(ladj, torch.linalg.slogdet(jacobians)[1])
    torch.testing.assert_close(flow.to_data(x.detach()).value, y)
    observed = torch.tensor([True, False, True, False, True])
    done = viscos.condition(flow, y, observed).fit(steps=3).completions(4)
    assert done.ok.all() and (done.draws[..., observed] == y[:, observed]).all()


@pytest.mark.skipif(not README.is_file(), reason="the README is not beside the tests")
@pytest.mark.parametrize("library", ["normflows", "zuko"])
def test_examples_with_other_libraries_run(library: str) -> None:
    pytest.importorskip(library)
    (block,) = (
        b
        for b in re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.S)
        if library in needed(b)
    )
    names: dict[str, object] = {}
    exec(block, names)
    draws, y, observed = names["draws"], names["y"], names["observed"]
    assert (draws[..., observed] == y[:, observed]).all() and draws.isfinite().all()
