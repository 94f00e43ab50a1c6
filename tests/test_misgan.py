"""MisGAN."""

from __future__ import annotations

import copy

import pytest
import torch
from learned import check_commands, check_keyed_draws, check_odd_columns, check_protocol, errors, gaussian_rows
from problems import normal

from viscos.core.errors import InputError
from viscos.data.incomplete import IncompleteData
from viscos.imputers.misgan import MisGANImputer
from viscos.imputers.misgan.networks import MisGAN, critic_loss, masked


def tiny() -> MisGANImputer:
    return MisGANImputer(epochs=10, batch_size=8, critics=2, noise=3, widths=(5, 6), imputer_width=7)


def test_it_holds_what_every_imputer_holds(tmp_path):
    check_protocol(tiny, (1, 7), tmp_path)


def test_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = check_commands("misgan", "epochs=5", "imputer_width=8")
    assert record["rmse"].keys() == {"misgan_mean", "misgan_draw", "mean_imputation"}


def test_odd_columns():
    check_odd_columns(tiny)


def test_draws_are_keyed():
    check_keyed_draws(tiny)


def test_the_loss_of_a_critic_of_known_slope():
    """Of D(x) = 3 x₁ the penalty is 10 (3 − 1)², whatever the points."""
    critic = torch.nn.Linear(2, 1)
    with torch.no_grad():
        critic.weight.copy_(torch.tensor([[3.0, 0.0]]))
    real, made, mix = normal(7, 2, seed=1).float(), normal(7, 2, seed=2).float(), torch.rand(7, 1)
    expected = 3 * float((made - real)[:, 0].mean()) + 40
    assert float(critic_loss(critic, real, made, mix).detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("sees_mask", [True, False])
def test_what_is_masked_and_completed(sees_mask):
    torch.manual_seed(0)
    networks = MisGAN(3, 2, (4, 4), 5, unit=True, sees_mask=sees_mask)
    x, m = torch.rand(4, 3), torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
    assert torch.equal(masked(x, m), torch.where(m.bool(), x, 0))
    first, other = (networks.completed(x, m, normal(4, 3, seed=seed).float()) for seed in (1, 2))
    assert torch.equal(first[m.bool()], x[m.bool()]) and not torch.equal(first, other)
    assert first.gt(0).logical_and(first.lt(1) | m.bool()).all()
    spoilt = torch.where(m.bool(), x, 9.0)
    assert torch.equal(networks.completed(spoilt, m, normal(4, 3, seed=1).float()), first)
    masks = networks.masks(normal(4, 2).float())
    assert masks.shape == (4, 3) and masks.gt(0).all() and masks.lt(1).all()


def test_the_imputer_and_its_critic_have_a_rate_of_their_own():
    data, began = IncompleteData(*gaussian_rows(24, seed=3)), {}

    def note(done, total, figures):
        began.setdefault("networks", copy.deepcopy(imputer.networks.state_dict()))

    imputer = MisGANImputer(epochs=4, batch_size=8, critics=2, widths=(5,), imputer_rate=1e-12)
    now = imputer.fit(data, progress=note).networks.state_dict()
    weights = {key: value for key, value in began["networks"].items() if key.endswith("weight")}
    still = {key for key, value in weights.items() if (now[key] - value).abs().max() < 1e-6}
    assert still == {key for key in weights if key.startswith(("imputer.", "critics.imputer."))}


@pytest.mark.slow
def test_completions_of_a_gaussian_come_near_its_conditional_means():
    values, observed = gaussian_rows(1000, seed=3)
    imputer = MisGANImputer(epochs=288, imputer_rate=1e-3, widths=(32, 32), imputer_width=32, noise=8)
    mine, exact, mean = errors(imputer.fit(IncompleteData(values, observed), 1), draws=16)
    assert mine < 1.25 * exact < 0.75 * mean


def test_images_stay_in_their_range():
    values, observed = torch.rand(10, 1, 4, 4), torch.rand(10, 1, 4, 4) > 0.5
    data = IncompleteData(values, observed)
    done = tiny().fit(data).impute(data.batch(torch.arange(10)), 3)
    assert torch.equal(done.draws[0][observed], values[observed]) and 0 <= done.draws.min() <= done.draws.max() <= 1


def test_refusals():
    with pytest.raises(InputError, match="misgan: critics is 0; give 1 or more"):
        MisGANImputer(critics=0)
    with pytest.raises(InputError, match=r"misgan: alpha is -1 and beta 0\.1; give weights of 0 or more"):
        MisGANImputer(alpha=-1)
