"""Draws beside exact conditionals in the plane: distances with known answers, and the page's table from its record."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from script_loader import loaded

from viscos.core.rng import generator
from viscos.report.conditionals import conditionals, distances, exact_draws, histogram, picture, shown, table
from viscos.report.density import Plane

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "two_dimensions.py"
RECORD, PAGE = ROOT / "outputs" / "reference" / "two_dimensions.json", ROOT / "docs" / "measured.md"
VALUES, HIDDEN = torch.tensor([[0.5, 9.0], [9.0, -1.0]]), torch.tensor([1, 0])


@pytest.fixture(scope="module")
def known():
    """Two normal coordinates of correlation 0.6, of which one is known: N(0.6 · known, 0.64)."""
    covariance = torch.tensor([[1.0, 0.6], [0.6, 1.0]], dtype=torch.float64)
    law = torch.distributions.MultivariateNormal(torch.zeros(2, dtype=torch.float64), covariance)
    plane = Plane(lambda y: law.log_prob(y.double()), torch.tensor([[-4.0, -4.0], [4.0, 4.0]]), ("a", "b"))
    return conditionals(plane, VALUES, HIDDEN)


def test_conditionals_are_those_of_the_density(known):
    grids, exact = known
    for item, (h, mean) in enumerate(((1, 0.3), (0, -0.6))):
        wanted = torch.distributions.Normal(mean, 0.8).log_prob(grids[h].double()).exp()
        assert torch.allclose(exact[item], wanted, atol=1e-4)


def test_distances_have_their_known_answers(known):
    """A constant c is E|X − c| away, a shifted law its shift, and failed draws count for nothing."""
    grids, exact = known
    quantiles = torch.special.ndtri((torch.arange(4000, dtype=torch.float64) + 0.5) / 4000) * 0.8
    draws = torch.stack([quantiles + 0.3 + 0.25, torch.full_like(quantiles, -0.6)], 1)
    draws[::5, 0] = math.nan
    found = distances(grids, exact, HIDDEN, draws)
    assert found.tolist() == pytest.approx([0.25, 0.8 * math.sqrt(2 / math.pi)], abs=3e-3)
    assert distances(grids, exact, HIDDEN, torch.full((3, 2), math.nan)).isnan().all()
    best = distances(grids, exact, HIDDEN, exact_draws(grids, exact, HIDDEN, 4000, generator(0)))
    assert (best < 0.05).all()


def test_panels_hold_densities(known):
    grids, exact = known
    panel = shown(grids[1], exact[0])
    width = (panel["to"] - panel["from"]) / len(panel["density"])
    counts = histogram(exact_draws(grids, exact, HIDDEN, 4000, generator(0))[:, 0], panel)
    assert sum(panel["density"]) * width == pytest.approx(1, abs=1e-2) == sum(counts) * width
    assert max(abs(a - b) for a, b in zip(counts, panel["density"], strict=True)) < 0.15


def test_a_table_and_a_picture_of_a_record():
    panel = {"from": 0.0, "to": 1.0, "density": [1.0] * 80, "item": 0}
    found = {"distance": 0.1234, "error": 0.01, "failed": 0.25, "seconds": 1.0, "histogram": [1.0] * 80}
    some = {"methods": {"a": found, "b": found | {"failed": 0.0}}, "shown": panel}
    record = {"datasets": {"moons": some, "pinwheel": {"methods": {"a": found}, "shown": panel}}}
    assert table(record).splitlines() == [
        "| | moons | pinwheel |",
        "| --- | --- | --- |",
        "| a | 0.123 ± 0.010 (25.0 % failed) | 0.123 ± 0.010 (25.0 % failed) |",
        "| b | 0.123 ± 0.010 | — |",
    ]
    assert len(picture(record).axes) == 4


@pytest.mark.skipif(
    not (RECORD.is_file() and PAGE.is_file()), reason="the record and the page are not beside the tests"
)
def test_the_table_of_the_page_is_that_of_the_record():
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    marker = "<!-- python scripts/two_dimensions.py -->\n"
    _, text, _ = PAGE.read_text(encoding="utf-8").split(marker)
    assert text == table(record)
    moons = {name: found["distance"] for name, found in record["datasets"]["moons"]["methods"].items()}
    assert moons["viscos, mixture"] < moons["viscos, diagonal"] / 3


@pytest.fixture
def script(monkeypatch):
    """The script, by two methods that cost nothing."""
    if not SCRIPT.is_file():
        pytest.skip("the scripts are not beside the tests")
    script = loaded(SCRIPT)
    monkeypatch.setattr(script, "methods", lambda *about: dict.fromkeys("ab", lambda batch, n: torch.randn(n, 2, 2)))
    return script


def ran(script, monkeypatch, folder, at, *words):
    """Runs the script at a commit, on the record in a folder."""
    size = ["--items", "2", "--draws", "20", "--steps", "2"]
    files = ["--record", str(folder / "kept.json"), "--picture", str(folder / "picture.png")]
    monkeypatch.setattr(sys, "argv", ["two_dimensions.py", *size, *files, *words])
    monkeypatch.setattr(script, "commit", lambda: at)
    script.started(script.main)
    return json.loads((folder / "kept.json").read_text())


def test_what_is_kept_keeps_its_commit(script, monkeypatch, tmp_path):
    first = ran(script, monkeypatch, tmp_path, "first", "--datasets", "moons")
    for found in first["datasets"]["moons"]["methods"].values():
        assert found.pop("commit") == "first"
    (tmp_path / "kept.json").write_text(json.dumps(first | {"commit": "older"}))  # as records were, with one for all
    found = ran(script, monkeypatch, tmp_path, "second", "--datasets", "moons", "pinwheel", "--methods", "a")
    commits = {
        name: {key: each["commit"] for key, each in of["methods"].items()} for name, of in found["datasets"].items()
    }
    assert commits == {
        "moons": {"a": "second", "b": "older", "exact draws": "second"},
        "pinwheel": {"a": "second", "exact draws": "second"},
    }


def test_a_record_of_other_settings_is_refused(script, monkeypatch, tmp_path, capsys):
    (tmp_path / "kept.json").write_text(json.dumps({"settings": {"items": 8}, "datasets": {"moons": {}}}))
    before = (tmp_path / "kept.json").read_text()
    with pytest.raises(SystemExit, match="2"):
        ran(script, monkeypatch, tmp_path, "now", "--datasets", "moons")
    line = capsys.readouterr().err
    assert "kept.json is of items=8, draws=None, steps=None" in line and line.count("\n") == 1
    assert (tmp_path / "kept.json").read_text() == before
