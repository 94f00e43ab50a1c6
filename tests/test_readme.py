"""The Python of the README runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.skipif(not README.is_file(), reason="the README is not beside the tests")
def test_python_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.S)
    assert len(blocks) >= 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    draws, y, observed = names["draws"], names["y"], names["observed"]
    assert draws.shape == (16, 3, 1, 8, 8)
    assert (draws[:, observed] == y[observed]).all()
    import torch

    own = names["Stretch"]()
    found = own.to_data(own.to_latent(torch.zeros(2, 4) + 0.5))
    assert found.converged.all()
    torch.testing.assert_close(found.value, torch.full((2, 4), 0.5), atol=1e-4, rtol=0)
