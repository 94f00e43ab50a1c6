"""DiffPuter, on a Gaussian whose conditionals are known."""

from __future__ import annotations

import pytest
import torch
from learned import (
    LAW,
    ROOT,
    D,
    check_commands,
    check_keyed_draws,
    check_odd_columns,
    check_protocol,
    errors,
    gaussian_rows,
)
from problems import normal

from viscos.core.batch import incomplete
from viscos.core.errors import InputError
from viscos.data.incomplete import IncompleteData
from viscos.imputers.diffputer import DiffPuterImputer
from viscos.imputers.diffputer.denoiser import SIGMA_DATA, Denoiser, noise_levels
from viscos.imputers.learned import Rows


def tiny() -> DiffPuterImputer:
    return DiffPuterImputer(rounds=2, epochs=2, batch_size=12, width=7, levels=4, resamplings=2, samples=2, fresh=True)


def test_it_holds_what_every_imputer_holds(tmp_path):
    check_protocol(tiny, (2, 5, 7), tmp_path)  # teaching, drawing, and the first step of another round


def test_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = check_commands("diffputer", "epochs=2", "rounds=2", "width=8", "levels=3")
    assert record["rmse"].keys() == {"diffputer_mean", "diffputer_draw", "mean_imputation"}


def test_odd_columns():
    check_odd_columns(tiny)


def test_completions_of_a_gaussian_come_near_its_conditional_means():
    values, observed = gaussian_rows(600, seed=1)
    imputer = DiffPuterImputer(rounds=4, epochs=60, batch_size=200, learning_rate=3e-3, width=48, levels=12)
    mine, exact, mean = errors(imputer.fit(IncompleteData(values, observed)), draws=16)
    assert mine < 1.1 * exact < 0.7 * mean


class Exact(torch.nn.Module):
    """E[u | u + σ ε] for u of N(0, `covariance`)."""

    def __init__(self, covariance):
        super().__init__()
        self.S = covariance

    def forward(self, z, sigma):
        return z @ torch.linalg.inv(self.S + sigma[0] ** 2 * torch.eye(D)) @ self.S


def test_draws_come_near_the_conditional_where_the_denoiser_is_exact():
    """Mean and covariance, against the Gaussian's own; a finite number of resamplings leaves some bias."""
    deviation = LAW.covariance.diagonal().sqrt()
    imputer = DiffPuterImputer(levels=24, resamplings=16)
    imputer.rows = Rows(torch.Size((D,)), LAW.mean, deviation)
    imputer.denoiser = Exact((LAW.covariance / torch.outer(deviation, deviation) * SIGMA_DATA**2).float())
    observed = torch.tensor([False, True, False])
    y = normal(1, D, seed=6).float() @ ROOT.T + LAW.mean.float()
    n = 1500
    batch = incomplete(y.expand(n, D), observed)
    assert imputer.impute(batch.select(slice(0, 1))).solution.evaluations.tolist() == [23 * 16 + 1]
    drawn = imputer.impute(batch, 1, seed=1).draws[0][:, ~observed]
    S, (H, O) = LAW.covariance, (~observed, observed)  # noqa: E741
    expected = S[H][:, H] - S[H][:, O] @ torch.linalg.inv(S[O][:, O]) @ S[O][:, H]
    mean = LAW.conditional(batch.values[:1], batch.observed[:1])[0, H]
    torch.testing.assert_close(drawn.mean(0), mean.float(), atol=0.15, rtol=0)
    torch.testing.assert_close(drawn.T.cov(), expected.float(), atol=0.2, rtol=0)


def test_draws_are_keyed():
    check_keyed_draws(tiny)


def test_the_loss_is_that_of_edm():
    """λ(σ) |D − u|² in units of the network's own output is the error of a target of unit variance, at any σ."""
    torch.manual_seed(0)
    denoiser = Denoiser(2, 8)
    u, sigma = normal(5, 2, seed=1).float() * SIGMA_DATA, torch.tensor([0.002, 0.1, 1.0, 5.0, 80.0])
    z = u + sigma[:, None] * normal(5, 2, seed=2).float()
    total = (sigma**2 + SIGMA_DATA**2)[:, None]
    out = (denoiser(z, sigma) - SIGMA_DATA**2 / total * z) / (sigma[:, None] * SIGMA_DATA / total.sqrt())
    weight = total / (sigma[:, None] * SIGMA_DATA) ** 2
    target = (u - SIGMA_DATA**2 / total * z) / (sigma[:, None] * SIGMA_DATA / total.sqrt())
    torch.testing.assert_close(weight * (denoiser(z, sigma) - u) ** 2, (out - target) ** 2, rtol=1e-2, atol=1e-2)
    assert denoiser.loss(u, torch.Generator().manual_seed(1)).shape == ()


def test_levels():
    levels = noise_levels(18, 80.0)
    assert levels[0] == pytest.approx(80) and levels[-2] == pytest.approx(0.002) and levels[-1] == 0
    steps = torch.tensor(levels[:-1]) ** (1 / 7)
    torch.testing.assert_close(steps.diff(), steps.diff().mean().expand(17), rtol=1e-3, atol=0)
    assert noise_levels(1, 10.0)[1:] == [0.0]


def test_refusals():
    with pytest.raises(InputError, match="diffputer: samples is 0; give 1 or more"):
        DiffPuterImputer(samples=0)
    with pytest.raises(InputError, match="diffputer: width is None; give 1 or more"):
        DiffPuterImputer(width=None)  # as for MCFlow, where it is the width of an item
    with pytest.raises(InputError, match=r"largest is 0\.001; give a level of noise above 0\.002"):
        DiffPuterImputer(largest=0.001)
