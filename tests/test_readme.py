"""The README and the pages: their Python runs, and what they name is there."""

from __future__ import annotations

import re
import shlex
import sys
import types
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from test_layers import ORDER

import viscos
from viscos.cli import main
from viscos.core.batch import incomplete
from viscos.core.build import build
from viscos.data.incomplete import IncompleteData
from viscos.flows import Flow
from viscos.metrics import Truth

ROOT = Path(__file__).parents[1]
LIBRARIES = ("normflows", "nflows", "zuko")
PAGES = [path for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))) if path.is_file()]
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in PAGES}

pytestmark = pytest.mark.skipif("index.md" not in TEXTS, reason="the README and the pages are not beside the tests")


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.S)


def needed(block: str) -> list[str]:
    """The libraries that an example imports beside viscos."""
    return [name for name in LIBRARIES if re.search(rf"^import .*\b{name}\b", block, flags=re.M)]


def with_blocks(language: str) -> list[str]:
    """The pages with a code block in a language."""
    return [name for name, text in TEXTS.items() if blocks(text, language)]


@cache
def ran(page: str) -> dict[str, object]:
    """What the Python of a page leaves behind, its blocks one after the other."""
    names: dict[str, object] = {}
    for block in blocks(TEXTS[page], "python"):
        if not needed(block):
            exec(block, names)
    return names


@pytest.mark.parametrize("page", with_blocks("python"))
def test_python_examples_run(page: str) -> None:
    ran(page)


@pytest.mark.parametrize("page", [page for page in ("README.md", "index.md") if page in TEXTS])
def test_draws_keep_what_is_observed(page: str) -> None:
    draws, y, observed = (ran(page)[name] for name in ("draws", "y", "observed"))
    assert draws.shape == (16, 3, 1, 8, 8)
    assert (draws[:, observed] == y[observed]).all()


@pytest.mark.parametrize("library", ["normflows", "zuko"])
def test_examples_with_other_libraries_run(library: str) -> None:
    pytest.importorskip(library)
    (block,) = (block for text in TEXTS.values() for block in blocks(text, "python") if library in needed(block))
    names: dict[str, object] = {}
    exec(block, names)
    draws, y, observed = names["draws"], names["y"], names["observed"]
    assert (draws[..., observed] == y[:, observed]).all() and draws.isfinite().all()


def test_a_flow_of_ones_own_can_be_inverted() -> None:
    own = ran("index.md")["own"]
    found = own.to_data(own.to_latent(torch.zeros(2, 4) + 0.5))
    assert found.converged.all()
    torch.testing.assert_close(found.value, torch.full((2, 4), 0.5), atol=1e-4, rtol=0)


def test_the_flow_that_is_added_is_built_and_conditioned(monkeypatch) -> None:
    """From its one file and its YAML, as they stand in the page on flows."""
    (code,) = (block for block in blocks(TEXTS["flows.md"], "python") if "class Ripple" in block)
    (settings,) = (yaml.safe_load(block) for block in blocks(TEXTS["flows.md"], "yaml"))
    module = types.ModuleType("viscos.flows.families.ripple")
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    flow = build(settings, Flow, (5,)).double()
    with torch.no_grad():
        for p in flow.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    y = torch.randn(3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    jacobians = torch.stack([torch.autograd.functional.jacobian(lambda v: flow.to_latent(v[None])[0], v) for v in y])
    x, ladj = flow.forward_and_ladj(y)
    torch.testing.assert_close(ladj, torch.linalg.slogdet(jacobians)[1])
    torch.testing.assert_close(flow.to_data(x.detach()).value, y)
    observed = torch.tensor([True, False, True, False, True])
    done = viscos.condition(flow, y, observed).fit(steps=3).completions(4)
    assert done.ok.all() and (done.draws[..., observed] == y[:, observed]).all()


def test_analyses_are_pooled_by_rubins_rules() -> None:
    """W = 0.5 and B = 1 of three estimates: a variance of 0.5 + 4/3, and 2 (1 + 3/8)² degrees of freedom."""
    names = ran("python.md")
    estimate, error, freedom = names["pooled"]([1.0, 2.0, 3.0], [0.25, 0.5, 0.75])
    assert (estimate, error**2, freedom) == pytest.approx((2, 11 / 6, 121 / 32))
    assert names["estimate"].shape == (13,) and (names["low"] < names["estimate"]).all()
    assert names["imputations"].shape == (2, 178, 13)


def test_the_imputer_and_the_metric_that_are_added_work() -> None:
    """On items that are in the training data, of which the nearest one is the item itself."""
    names = ran("contributing.md")
    values = torch.rand(20, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    observed = torch.rand(20, 1, 4, 4, generator=torch.Generator().manual_seed(1)) < 0.6
    imputer = names["NearestImputer"]().fit(IncompleteData(values, torch.ones_like(observed)))
    done = imputer.impute(incomplete(values[:5], observed[:5]))
    assert torch.equal(done.mean(), values[:5])
    metric, truth = names["WorstError"](None), Truth(values[:5] - 0.25, ~observed[:5], observed[:5])
    metric.update(imputer, done, truth)
    assert metric.record() == {"worst": {"nearest": {"value": pytest.approx(0.25)}}}


@pytest.mark.parametrize("page", TEXTS)
def test_files_that_are_named_exist(page: str) -> None:
    named = set(re.findall(r"`((?:viscos|configs|scripts|tests)/[\w./]+)`", TEXTS[page]))
    assert not {name for name in named if not (ROOT / name).exists()} - {
        "viscos/flows/families/ripple.py",
        "configs/flow/ripple.yaml",
    }


@pytest.mark.parametrize("page", TEXTS)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    folder = next(path.parent for path in PAGES if path.name == page)
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)", TEXTS[page])
    assert not [link for link in links if link and not (folder / link).exists()]


def commands() -> set[tuple[str, ...]]:
    """The commands of every page, without what only a shell, a sweep or an earlier run could make sense of."""
    found = set()
    for line in re.findall(
        r"^viscos .*", "\n".join(block for text in TEXTS.values() for block in blocks(text, "bash")), re.M
    ):
        line = re.sub("<[^>]*>|…", "RUN", re.sub(r"\s+#.*", "", line))
        words = [re.sub(r"^(\w+=[^,\[]*),.*", r"\1", word) for word in shlex.split(line)[1:]]
        found.add(tuple(word for word in words if not word.startswith(("--multirun", "hydra", "resume"))))
    return {words for words in found if not words[0].startswith("-")}


@pytest.mark.slow
def test_commands_compose(capsys) -> None:
    """Each command is there, with its settings and choices: `--cfg job` composes it and runs nothing."""
    assert len(commands()) > 40
    refused = [words for words in sorted(commands()) if main([*words, "--cfg", "job"])]
    assert not refused, capsys.readouterr().err


def test_every_package_has_its_subject_said() -> None:
    """In the order in which packages may know each other."""
    told = re.findall(r"^\| `(\w+)` \|", TEXTS["contributing.md"], flags=re.M)
    assert [*told, "__main__"] == ORDER


def test_the_readme_is_short_and_says_how_to_test() -> None:
    lines = TEXTS["README.md"].splitlines()
    assert len(lines) <= 150
    assert "Tests: `pip install '.[test]' && pytest`." in lines


def test_the_results_of_the_readme_are_measured_ones() -> None:
    results = TEXTS["README.md"].partition("## Results")[2].partition("## Flows")[0]
    numbers = re.findall(r"\b0\.\d{3,}", results)
    assert len(numbers) == 32
    assert not [number for number in numbers if not re.search(rf"\b{number}\b", TEXTS["measured.md"])]
