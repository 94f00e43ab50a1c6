"""MCFlow, on a Gaussian whose conditional means are known."""

from __future__ import annotations

import pytest
import torch
from learned import check_commands, check_odd_columns, check_protocol, errors, gaussian_rows
from problems import normal

from viscos.core.batch import incomplete
from viscos.core.errors import InputError
from viscos.data.incomplete import IncompleteData
from viscos.flows import Affine, Flow, Mix
from viscos.imputers.learned import Rows
from viscos.imputers.mcflow import MCFlowImputer
from viscos.imputers.mcflow.filling import from_marginals, from_nearest, quantiles
from viscos.imputers.mcflow.imputer import refilled, refilled_after
from viscos.imputers.mcflow.networks import Stage, from_latent


def tiny() -> MCFlowImputer:
    return MCFlowImputer(epochs=5, first=1, batch_size=12, width=8, couplings=2)


def test_it_holds_what_every_imputer_holds(tmp_path):
    check_protocol(tiny, (2, 7), tmp_path)


def test_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert check_commands("mcflow", "epochs=2", "first=1", "width=8")["rmse"].keys() == {"mcflow", "mean_imputation"}


def test_odd_columns():
    check_odd_columns(tiny)


def test_completions_of_a_gaussian_come_near_its_conditional_means():
    values, observed = gaussian_rows(600, seed=1)
    imputer = MCFlowImputer(epochs=65, first=2, batch_size=300, learning_rate=5e-3, weight=200.0, width=32, couplings=4)
    mine, exact, mean = errors(imputer.fit(IncompleteData(values, observed)))
    assert mine < 1.15 * exact < 0.7 * mean


class Linear(torch.nn.Module):
    """x ↦ A x."""

    def __init__(self, A):
        super().__init__()
        self.A = A

    def forward(self, x):
        return x @ self.A.T


def test_fillings_tend_to_the_conditional_mean_where_flow_and_network_are_exact():
    """Of N(0, Σ) the objective of h is least at A = Σ (Σ + I/2w)⁻¹, and x^H = (A x)^H at the mean under Σ + I/2w."""
    S, w = torch.tensor([[1.0, 0.8, 0.3], [0.8, 1.0, -0.1], [0.3, -0.1, 1.0]]), 4.0
    wide = S + torch.eye(3) / (2 * w)
    stage = Stage(3, 2, 4, Linear(S @ torch.linalg.inv(wide)))
    stage.flow = Flow([Affine((3,))], (3,))  # the identity
    y, observed = normal(6, 3, seed=5).float(), torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 0]] * 2).bool()
    filled = torch.where(observed, y, 0)
    for _ in range(400):
        filled = refilled(stage, filled, observed)
    for row, known in zip(filled, observed, strict=True):
        regression = wide[~known][:, known] @ torch.linalg.inv(wide[known][:, known])
        torch.testing.assert_close(row[~known], regression @ row[known], atol=1e-4, rtol=1e-4)


def test_the_objective_of_the_network_is_least_there():
    """Its gradient vanishes, with every entry observed, on rows of covariance Σ and the flow that whitens them."""
    S, w = torch.tensor([[1.0, 0.5], [0.5, 2.0]]), 3.0
    size, basis = torch.linalg.eigh(S)
    rows = normal(500, 2, seed=8).float()
    rows = torch.linalg.qr(rows - rows.mean(0))[0] * 500**0.5 @ (basis * size.sqrt()).T
    best = S @ torch.linalg.inv(S + torch.eye(2) / (2 * w))  # commutes with the flow's matrix
    stage = Stage(2, 2, 4, Linear(torch.nn.Parameter(best)))
    stage.flow = Flow([Mix(2)], (2,))
    stage.flow.layers[0].W.data = basis / size.sqrt() @ basis.T
    imputer = MCFlowImputer(weight=w)
    imputer.rows = Rows(torch.Size((2,)), torch.zeros(2), torch.ones(2))
    imputer.table = torch.tensor([[0.0, 0.0], [1.0, 1.0]])  # a range of 1
    imputer._objective(stage, rows, torch.ones(500, 2).bool()).backward()
    assert float(stage.likelier.A.grad.abs().max()) < 1e-4
    stage.likelier.A.grad, stage.likelier.A.data = None, best + 0.01
    imputer._objective(stage, rows, torch.ones(500, 2).bool()).backward()
    assert float(stage.likelier.A.grad.abs().max()) > 0.05


def test_the_gradient_through_the_inverse_is_that_of_autograd():
    torch.manual_seed(0)
    stage = Stage(3, 3, 5, torch.nn.Identity())
    for p in stage.flow.parameters():
        torch.nn.init.normal_(p, std=0.5)
    flow = stage.flow.double()
    x, weight = normal(4, 3, seed=1).requires_grad_(), normal(4, 3, seed=2)
    (from_latent(flow, x) * weight).sum().backward()
    J = torch.stack([torch.autograd.functional.jacobian(lambda y: flow(y[None])[0], y) for y in from_latent(flow, x)])
    torch.testing.assert_close(x.grad, torch.linalg.solve(J.mT, weight))
    torch.testing.assert_close(flow(from_latent(flow, x)), x)


def test_it_refills_after_doubled_epochs():
    assert [e for e in range(70) if refilled_after(e, 2)] == [2, 4, 8, 16, 32, 64]
    assert [e for e in range(70) if refilled_after(e, 5)] == [5, 10, 20, 40]


def test_first_fillings():
    """The nearest observed pixel; a marginal of the observed values alone."""
    image = torch.arange(9.0).view(1, 1, 3, 3)
    known = torch.zeros(1, 1, 3, 3).bool()
    known[0, 0, 0, 0] = known[0, 0, 2, 2] = True
    near = from_nearest(image, known)[0, 0]
    assert near[0, 1] == 0 and near[1, 2] == 8 and near[2, 1] == 8 and near[2, 2] == 8
    assert from_nearest(image, torch.zeros_like(known)).isnan().all()
    rows, observed = gaussian_rows(4000, seed=2)
    rows[~observed] = 1e9
    drawn = from_marginals(quantiles(rows, observed), torch.rand(4000, 3, generator=torch.Generator().manual_seed(1)))
    for column in range(3):
        seen = rows[observed[:, column], column]
        assert abs(float(drawn[:, column].mean() - seen.mean())) < 0.1 * float(seen.std())
        assert 0.9 < float(drawn[:, column].std() / seen.std()) < 1.1


def test_an_image_with_nothing_observed_ends():
    """In the original its filling from neighbours looked for one for ever."""
    values, observed = torch.rand(10, 2, 4, 4), torch.rand(10, 2, 4, 4) > 0.5
    observed[0], observed[1, 1] = False, False
    data = IncompleteData(values, observed)
    done = tiny().fit(data).impute(data.batch(torch.arange(10)))
    assert done.draws.isfinite().all() and 0 <= done.draws.min() and done.draws.max() <= 1


def test_another_rate_is_another_fit():
    """In the original masks were kept without their rate."""
    values, _ = gaussian_rows(24, seed=3)
    few, many = (torch.rand(24, 3, generator=torch.Generator().manual_seed(1)) > rate for rate in (0.2, 0.8))
    batch = incomplete(values, many)
    done = [tiny().fit(IncompleteData(values, observed)).impute(batch).draws for observed in (few, many)]
    assert not torch.equal(*done)


def test_units_are_those_of_observed_training_entries():
    """In the original they were those of hidden and of test values too."""
    values, observed = gaussian_rows(50, seed=4)
    rows = Rows.of(IncompleteData(torch.where(observed, values, 1e9), observed))
    for column in range(3):
        seen = values[observed[:, column], column]
        torch.testing.assert_close(rows.mean[column], seen.double().mean())
        torch.testing.assert_close(rows.deviation[column], seen.double().std(correction=0))
    batch = incomplete(values, observed)
    back = rows.leave(rows.enter(batch))
    torch.testing.assert_close(back[observed].float(), values[observed])
    torch.testing.assert_close(back[~observed], rows.mean.expand(50, 3)[~observed])


def test_refusals():
    with pytest.raises(InputError, match="mcflow: first is 0; give 1 or more"):
        MCFlowImputer(first=0)
    with pytest.raises(InputError, match="mcflow: weight is 0; give a number above 0"):
        MCFlowImputer(weight=0)
    values, observed = gaussian_rows(24, seed=3)
    with pytest.raises(InputError, match=r"mcflow diverged at step \d+ of its fit; lower its learning_rate"):
        MCFlowImputer(epochs=50, learning_rate=1e20, width=8).fit(IncompleteData(values, observed))
