"""Several completions of one latent: a folded bijection of determinant one, by quadrature along one coordinate."""

import math
from types import SimpleNamespace

import pytest
import torch
from problems import F64, AffineFlow, normal

import viscos
from viscos.core.rng import generator
from viscos.core.solution import Solution
from viscos.flows import ClosedForm, Flow
from viscos.inference import elsewhere
from viscos.inference.completion import complete, log_evidence_term
from viscos.inference.diagnosis import Diagnosis
from viscos.inference.elsewhere import share
from viscos.roots import anderson

NAN, INF = float("nan"), float("inf")


class Shears(ClosedForm):
    """x₁ = y₁ + ¾ sin y₂ and x₂ = y₂ + c x₁: x₂(y₂) beside a given y₁ is monotone for ¾ c < 1, and folds above."""

    def __init__(self, c):
        super().__init__()
        self.c = torch.nn.Parameter(torch.tensor(float(c), dtype=F64))

    def forward_and_ladj(self, y, generator=None):
        x = y[:, 0] + 0.75 * torch.sin(y[:, 1])
        return torch.stack([x, y[:, 1] + self.c * x], 1), y.new_zeros(len(y))


def conditioned(c, observed=0.4, seed=0):
    flow = Flow([Shears(c)], (2,))
    return viscos.condition(flow, torch.tensor([[observed, NAN]], dtype=F64), solver=anderson(1e-9, 200), seed=seed)


def missed(q, y1=0.4):
    """The share of p(y₂ | y₁), on a fine grid, of places that are not what a solve for their own latent finds."""
    grid = torch.linspace(-7, 7, 1401, dtype=F64)
    y = torch.stack([torch.full_like(grid, y1), grid], 1)
    x, mass = q.flow.to_latent(y).detach(), q.flow.log_prob(y).detach().softmax(0)
    hidden = torch.tensor([[False, True]]).expand(len(y), 2)
    found = complete(q.flow, y, hidden, x, q.objective.solver)
    away = ((found.y - y)[:, 1].abs() > 1e-3) & found.solution.converged
    return float(mass[away].sum())


@pytest.mark.parametrize("c", [3.0, 4.0])
def test_the_share_elsewhere_is_found_and_not_overstated(c):
    truth = missed(conditioned(c))
    assert truth > 0.3
    shares = [float(conditioned(c, seed=seed).diagnose(64).elsewhere) for seed in range(6)]
    assert 0.2 * truth < sum(shares) / 6 < truth


def test_where_nothing_folds_nothing_is_elsewhere():
    q = conditioned(1.0)
    assert missed(q) == 0
    assert float(q.diagnose(64).elsewhere) == 0
    several = viscos.condition(AffineFlow(4), normal(3, 4), torch.tensor([True, False, True, False]))
    assert several.diagnose(16).elsewhere.tolist() == [0, 0, 0]
    nothing = viscos.condition(AffineFlow(4), normal(1, 4), torch.ones(4, dtype=torch.bool))
    assert nothing.diagnose(16).elsewhere.tolist() == [0]


def test_an_item_is_looked_at_alike_in_any_company():
    y = torch.tensor([[0.4, NAN], [-1.0, NAN], [NAN, 0.3]], dtype=F64)
    flow = Flow([Shears(3)], (2,))

    def elsewhere(rows):
        index = torch.tensor(rows)
        return viscos.condition(flow, y[rows], index=index, solver=anderson(1e-9, 200)).diagnose(16).elsewhere

    together = elsewhere([0, 1, 2])
    assert float(together.max()) > 0.05
    for rows in ([0], [2, 1]):
        torch.testing.assert_close(elsewhere(rows), together[rows])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_heavier_of_two_other_completions_counts(order, monkeypatch):
    """Whichever finder comes upon it."""
    q, hidden = conditioned(4.0), torch.tensor([[False, True]])
    y, *others = (torch.tensor([[0.4, end]], dtype=F64) for end in (0.5, -1.0, 2.0))
    own, first, second = (float(log_evidence_term(q.flow, each, hidden, generator(0))) for each in (y, *others))
    assert abs(first - second) > 0.1
    found = iter([SimpleNamespace(y=others[k], solution=Solution.exact(y)) for k in order])
    monkeypatch.setattr(elsewhere, "complete", lambda *about: next(found))
    assert float(elsewhere.log_ratio(q, y[None], range(1))) == pytest.approx(max(first, second) - own)


def test_refined_draws_say_that_there_are_others():
    with pytest.warns(UserWarning, match="on other completions of the draws' latents.*neither reaches"):
        found = conditioned(4.0).refine("imh", 4, proposals=64)
    assert found.diagnosis.words == ["doubtful"]


def test_the_share_by_hand():
    weight = torch.tensor([[0.0], [math.log(2)], [NAN], [5.0]])
    ratio = torch.tensor([[-INF], [math.log(3)], [0.0]])
    assert float(share(weight, ratio)) == pytest.approx(6 / (1 + 2 + 6))  # the third failed; the last was not looked at
    assert share(weight[2:], ratio[2:]).isnan().all()
    assert float(share(weight[:1], ratio[:1])) == 0


@pytest.mark.parametrize(
    ("elsewhere", "word"), [(0.0, "good"), (0.01, "good"), (0.06, "fair"), (0.3, "doubtful"), (NAN, "good")]
)
def test_its_verdict(elsewhere, word):
    def of(value):
        return torch.tensor([float(value)])

    numbers = of(-2), of(-1.9), of(0.2), of(120), of(0), of(1e-4), of(0)
    found = Diagnosis(*numbers, 128, elsewhere=of(elsewhere))
    assert found.words == [word]
    if word != "good":
        assert f"{100 * elsewhere:.3g} % of the conditional" in found.verdicts()[0][1]


def test_batches_are_joined():
    numbers = [torch.zeros(2)] * 7
    parts = [Diagnosis(*numbers, 16, elsewhere=torch.full((2,), share)) for share in (NAN, 1)]
    assert Diagnosis.joined(parts).elsewhere.isnan().tolist() == [True, True, False, False]
