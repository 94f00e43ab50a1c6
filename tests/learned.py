"""What every imputer that learns networks from rows has to hold, and a Gaussian whose conditional means are known."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from problems import normal

from viscos.cli import main
from viscos.core.batch import Incomplete, incomplete
from viscos.core.build import build
from viscos.core.errors import InputError
from viscos.data.incomplete import IncompleteData
from viscos.imputers import Imputer
from viscos.imputers.learned import LearnedImputer
from viscos.linear.gaussian import Gaussian
from viscos.runs import checkpoint

D = 3
ROOT = torch.tensor([[1.0, 0.0, 0.0], [0.9, 0.4, 0.0], [-0.8, 0.2, 0.5]])
LAW = Gaussian(torch.tensor([2.0, -1.0, 0.5]), ROOT @ ROOT.T)


def gaussian_rows(n: int, seed: int, missing: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of LAW (n, 3), and masks."""
    values = (normal(n, D, seed=seed).float() @ ROOT.T + LAW.mean).float()
    observed = torch.rand((n, D), generator=torch.Generator().manual_seed(seed + 1)) > missing
    return values, observed


def errors(imputer: LearnedImputer, draws: int = 1, n: int = 300) -> tuple[float, float, float]:
    """RMSE on hidden entries of new rows: of the imputer's mean, of the exact conditional mean, and of LAW's mean."""
    values, observed = gaussian_rows(n, seed=50)
    batch = incomplete(values, observed)
    found = (imputer.impute(batch, draws).mean(), LAW.conditional(batch.values, observed), LAW.mean.expand(n, D))
    return tuple(float((each - values)[~observed].square().mean().sqrt()) for each in found)  # type: ignore[return-value]


def same(a: Incomplete, imputer: LearnedImputer, other: LearnedImputer) -> bool:
    """Whether two imputers complete alike, to the last bit."""
    return torch.equal(imputer.impute(a, 2, seed=4).draws, other.impute(a, 2, seed=4).draws)


def ended(make: Callable[[], LearnedImputer], data: IncompleteData, at: int, seed: int = 1) -> LearnedImputer:
    """An imputer whose fit was ended after `at` steps."""
    imputer = make()

    def stop(done: int, total: int, figures: dict[str, float]) -> None:
        if done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        imputer.fit(data, seed, stop)
    return imputer


def check_protocol(make: Callable[[], LearnedImputer], stops: tuple[int, ...], tmp_path) -> None:
    """Holes of training and of imputing are never looked at; a seed, a saved state and the company change nothing."""
    values, observed = gaussian_rows(24, seed=3)
    observed[0], observed[1] = False, True
    data = IncompleteData(values, observed)
    batch = data.batch(torch.arange(24))
    before = torch.get_rng_state()
    steps = []
    imputer = make().fit(data, 1, lambda done, total, figures: steps.append((done, total, figures)))
    assert torch.equal(torch.get_rng_state(), before)
    assert [done for done, _, _ in steps] == list(range(1, steps[0][1] + 1)) and all(figures for *_, figures in steps)

    done = imputer.impute(batch, 2, seed=4)
    assert bool(done.ok.all()) and done.draws.isfinite().all() and torch.equal(done.draws[0, 1], values[1])
    assert torch.equal(done.draws[:, observed], values[observed].expand(len(done.draws), -1))
    alone = imputer.impute(batch.select(slice(7, 8)), 2, seed=4).draws
    torch.testing.assert_close(alone, done.draws[:, 7:8])

    for garbage in (1e6, float("nan")):
        spoilt = torch.where(observed, values, garbage)
        assert same(batch, imputer, make().fit(IncompleteData(spoilt, observed), 1))
        assert same(replace(batch, values=spoilt), imputer, imputer)
        assert torch.equal(imputer.impute(replace(batch, values=spoilt), 2, seed=4).draws, done.draws)
    assert not same(batch, imputer, make().fit(data, 2))

    for at in stops:
        half = ended(make, data, at)
        with pytest.raises(InputError, match="call fit first"):
            half.impute(batch)
        checkpoint.save(tmp_path / "half.pt", half.state())
        other = make()
        other.load_state(checkpoint.load(tmp_path / "half.pt"))
        assert same(batch, imputer, other.fit(data, seed=77)), f"after {at} steps"
    assert same(batch, imputer, other.fit(data, 1)), "a fit after one that ended begins anew"
    checkpoint.save(tmp_path / "whole.pt", imputer.state())
    other = make()
    other.load_state(checkpoint.load(tmp_path / "whole.pt"))
    assert same(batch, imputer, other)

    other.load_state({})
    with pytest.raises(InputError, match="call fit first"):
        other.impute(batch)
    with pytest.raises(InputError, match=r"items have shape \(4,\); this imputer was fitted to \(3,\)"):
        imputer.impute(incomplete(torch.zeros(2, 4), torch.ones(2, 4).bool()))


def check_commands(name: str, *settings: str) -> dict:
    """It is trained, measured and saved from the command line, and completes from its run; returns the record."""
    few = ("train_items=40", "test_items=6", "imputers=[mean]", *(f"imputer.{each}" for each in settings))
    assert main(["train", f"imputer={name}", *few, "hydra.run.dir=run"]) == 0
    assert main(["impute", "checkpoint=run", "items=2", "draws=2", "hydra.run.dir=out"]) == 0
    record = json.loads(Path("run/metrics.json").read_text())
    assert record["imputer"] == name and record["cost"][name]["network_passes_an_item"] > 0
    assert all(row["pooled"] > 0 for row in record["rmse"].values())
    with initialize_config_module("viscos.configs", version_base="1.3"):
        published = OmegaConf.to_container(compose("train", [f"imputer={name}_paper"]).imputer)
    assert published.keys() == record["config"]["imputer"].keys() and build(published, Imputer)
    return record


def check_odd_columns(make: Callable[[], LearnedImputer]) -> None:
    """A column with one value alone, one that is never observed, a large one: nothing turns to NaN."""
    values, observed = gaussian_rows(24, seed=3)
    values = torch.cat([values * torch.tensor([1.0, 1e5, 1.0]), torch.full((24, 1), 7.0), torch.zeros(24, 1)], 1)
    observed = torch.cat([observed, torch.rand(24, 1) > 0.5, torch.zeros(24, 1).bool()], 1)
    data = IncompleteData(values, observed)
    done = make().fit(data, 1).impute(data.batch(torch.arange(24)), 2)
    assert bool(done.ok.all()) and done.draws.isfinite().all()


def check_keyed_draws(make: Callable[[], LearnedImputer]) -> None:
    """Draws are keyed by seed, purpose, item and number."""
    data = IncompleteData(*gaussian_rows(24, seed=3))
    imputer, batch = make().fit(data), data.batch(torch.arange(24))
    many, few = imputer.impute(batch, 4, seed=1).draws, imputer.impute(batch, 2, seed=1).draws
    torch.testing.assert_close(many[:2], few)
    assert not torch.allclose(few, imputer.impute(batch, 2, seed=1, purpose="others").draws)
    assert not torch.allclose(few, imputer.impute(batch, 2, seed=2).draws)
    assert not torch.allclose(many[0], many[2])
