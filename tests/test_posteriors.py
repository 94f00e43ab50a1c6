"""Gaussians over x^H against dense linear algebra, their gradients, and the inference network."""

from dataclasses import replace

import pytest
import torch
from problems import F64, flow_named, masks, normal, residual_flow, sees_the_observation_alone

from viscos.core.batch import incomplete
from viscos.core.errors import InputError
from viscos.core.rng import generator
from viscos.flows import Affine, Bijection, Flow
from viscos.linear.gaussian import Gaussian
from viscos.posteriors import (
    Amortised,
    Diagonal,
    DiagonalGaussian,
    Full,
    FullGaussian,
    Householder,
    HouseholderGaussian,
)
from viscos.posteriors.holdout import hold_out, holdout_errors
from viscos.runs import checkpoint

SHAPE = (2, 3)
HIDDEN = torch.tensor(
    [[[1, 1, 0], [1, 0, 1]], [[0, 0, 0], [0, 0, 0]], [[1, 1, 1], [1, 1, 1]], [[0, 0, 1], [0, 0, 0]]]
).bool()


@pytest.fixture(autouse=True)
def seeded():
    """Layers draw their first weights from torch's own generator."""
    torch.manual_seed(0)


def gaussians():
    mean, log_scale = normal(4, *SHAPE, seed=1), 0.3 * normal(4, *SHAPE, seed=2)
    return {
        "diagonal": DiagonalGaussian(mean, HIDDEN, log_scale),
        "householder": HouseholderGaussian(mean, HIDDEN, log_scale, normal(4, 3, *SHAPE, seed=3)),
        "full": FullGaussian(mean, HIDDEN, 0.4 * normal(4, 6, 6, seed=4)),
    }


def scale_matrix(q):
    """L (B, d, d), column by column."""
    basis = torch.eye(6, dtype=F64).view(6, 1, *SHAPE).expand(6, 4, *SHAPE)
    return q.scaled(q.masked(basis)).flatten(2).permute(1, 2, 0)


@pytest.mark.parametrize("name", list(gaussians()))
def test_density_and_draws_against_the_dense_normal(name):
    q = gaussians()[name]
    L, noise = scale_matrix(q), normal(5, 4, *SHAPE, seed=6)
    x, log_q = q.sample(noise), q.log_prob_of_noise(noise)
    log_scale = q.log_scale_sum()
    assert (x[:, ~HIDDEN] == 0).all()
    for k, H in enumerate(HIDDEN.flatten(1)):
        if not H.any():
            assert (log_q[:, k] == 0).all() and log_scale[k] == 0
            continue
        LH = L[k][H][:, H]
        wanted = torch.distributions.MultivariateNormal(q.mean.flatten(1)[k, H], LH @ LH.T)
        xk, epsilon = x.flatten(2)[:, k, H], noise.flatten(2)[:, k, H]
        assert torch.allclose(xk, q.mean.flatten(1)[k, H] + epsilon @ LH.T, atol=1e-12)
        assert torch.allclose(log_q[:, k], wanted.log_prob(xk), atol=1e-10)
        assert log_scale[k].item() == pytest.approx(torch.linalg.slogdet(LH)[1].item(), abs=1e-12)
        turned = q.unscaled_transposed(q.masked(noise)).flatten(2)[:, k, H]
        assert torch.allclose(turned, epsilon @ torch.linalg.inv(LH), atol=1e-10)


@pytest.mark.parametrize("name", list(gaussians()))
def test_the_density_of_given_latents_against_the_dense_normal(name):
    q, x = gaussians()[name], 2 * normal(5, 4, *SHAPE, seed=7)
    L, found = scale_matrix(q), q.log_prob(torch.where(HIDDEN, x, float("nan")))
    for k, H in enumerate(HIDDEN.flatten(1)):
        wanted = torch.zeros(5, dtype=F64)
        if H.any():
            LH = L[k][H][:, H]
            wanted = torch.distributions.MultivariateNormal(q.mean.flatten(1)[k, H], LH @ LH.T).log_prob(
                x.flatten(2)[:, k, H]
            )
        assert torch.allclose(found[:, k], wanted, atol=1e-9)
    noise = normal(5, 4, *SHAPE, seed=6)
    assert torch.allclose(q.log_prob(q.sample(noise)), q.log_prob_of_noise(noise), atol=1e-10)


@pytest.mark.parametrize("name", list(gaussians()))
def test_unscaled_is_the_inverse_of_scaled(name):
    q = gaussians()[name]
    v = q.masked(normal(5, 4, *SHAPE, seed=8))
    for there_and_back in (q.unscaled(q.scaled(v)), q.scaled(q.unscaled(v))):
        assert torch.allclose(there_and_back, v, atol=1e-12)
    assert not torch.allclose(q.unscaled(v), v)


@pytest.mark.parametrize("name", list(gaussians()))
def test_the_gradient_of_the_density_is_finite_whatever_is_hidden(name):
    q, x = gaussians()[name], torch.where(HIDDEN, normal(1, 4, *SHAPE), float("nan"))
    mean = q.mean.clone().requires_grad_()
    replace(q, mean=mean).log_prob(x).sum().backward()
    assert mean.grad.isfinite().all() and (mean.grad[~HIDDEN] == 0).all()


@pytest.mark.parametrize("name", list(gaussians()))
def test_the_path_gradient_is_that_of_log_q_by_the_draw(name):
    q = gaussians()[name]
    noise = normal(5, 4, *SHAPE, seed=6)
    x = q.sample(noise).requires_grad_()
    value = q.log_prob_path(noise, x)
    assert torch.allclose(value, q.log_prob_of_noise(noise))
    (found,) = torch.autograd.grad(value.sum(), x)
    L = scale_matrix(q)
    for k, H in enumerate(HIDDEN.flatten(1)):
        if not H.any():
            continue
        LH, z = L[k][H][:, H], x.detach().flatten(2)[:, k, H].requires_grad_()
        law = torch.distributions.MultivariateNormal(q.mean.flatten(1)[k, H], LH @ LH.T)
        (wanted,) = torch.autograd.grad(law.log_prob(z).sum(), z)
        assert torch.allclose(found.flatten(2)[:, k, H], wanted, atol=1e-9)


@pytest.mark.parametrize("posterior", [Diagonal, Householder, Full])
def test_free_posteriors_start_at_the_standard_normal(posterior):
    y = torch.where(HIDDEN, float("nan"), normal(4, *SHAPE))
    batch = incomplete(y, ~HIDDEN)
    q = posterior(batch.filled())(batch, flow_named("vector"))
    noise = normal(400, 4, *SHAPE, seed=6)
    law = torch.where(HIDDEN, torch.distributions.Normal(0, 1).log_prob(noise), 0).flatten(2).sum(2)
    assert torch.allclose(q.log_prob_of_noise(noise), law, atol=1e-10)
    assert (q.mean == 0).all() and torch.equal(q.sample(noise), q.sample(noise))
    with pytest.raises(InputError, match=r"for a batch of shape \(4, 2, 3\), got \(1, 2, 3\)"):
        posterior(batch.filled())(batch.select(torch.tensor([0])), flow_named("vector"))


@pytest.mark.parametrize(
    ("posterior", "settings"),
    [(Diagonal, {}), (Full, {}), *((Householder, {"reflections": n}) for n in (0, 1, 7, 50))],
)
def test_a_fit_begins_at_the_distribution_that_it_is_given(posterior, settings):
    y = torch.where(HIDDEN, float("nan"), normal(4, *SHAPE))
    batch, taught = incomplete(y, ~HIDDEN), gaussians()["diagonal"]
    module = posterior(batch.filled(), **settings)
    module.begin(taught)
    q = module(batch, flow_named("vector"))
    L = scale_matrix(q)
    assert torch.equal(q.masked(q.mean), taught.masked(taught.mean))
    assert torch.allclose(L @ L.mT, scale_matrix(taught).square(), atol=1e-12)  # the covariance of its draws
    x = 2 * normal(5, 4, *SHAPE, seed=7)
    assert torch.allclose(q.log_prob(x), taught.log_prob(x), atol=1e-10)
    (q.sample(normal(3, 4, *SHAPE, seed=6)).flatten(2).cumsum(2).square().sum() - q.log_scale_sum().sum()).backward()
    if settings.get("reflections"):  # an item with one hidden entry has nothing to turn, nor one with none
        assert (module.vectors.grad[[0, 2]].flatten(2).norm(dim=2) > 1e-3).all()
    assert all(bool(p.grad.isfinite().all()) for p in module.parameters() if p.numel())


@pytest.mark.parametrize("posterior", [Diagonal, Householder, Full])
def test_gradients_are_finite_whatever_is_hidden(posterior):
    y = torch.where(HIDDEN, float("nan"), normal(4, *SHAPE, dtype=torch.float32))
    batch = incomplete(y, ~HIDDEN)
    module = posterior(batch.filled())
    noise = normal(2, 4, *SHAPE, dtype=torch.float32)
    q = module(batch, flow_named("vector"))
    (q.sample(noise).square().sum() + q.log_prob_of_noise(noise).sum()).backward()
    for p in module.parameters():
        assert torch.isfinite(p.grad).all()
        assert (p.grad[1] == 0).all()  # nothing is hidden there
    assert (module.mean.grad[~HIDDEN] == 0).all()


def test_the_full_posterior_is_for_small_problems():
    with pytest.raises(InputError, match="posterior=householder above 256"):
        Full(torch.zeros(1, 257))


# ----------------------------------------------------------------------------------------------- inference network


def image_batch(shape=(1, 4, 4), batch=3):
    hidden = masks(shape, batch)["one kind an item"]
    return incomplete(torch.where(hidden, float("nan"), normal(batch, *shape)), ~hidden, torch.arange(batch))


def test_the_network_begins_at_the_latent_of_the_filled_image():
    flow, batch = residual_flow("image"), image_batch()
    root = torch.eye(16, dtype=F64) + 0.2 * normal(16, 16)
    gaussian = Gaussian(normal(16, seed=2), root @ root.T)
    plain, filled = Amortised((1, 4, 4), gaussian=False).double(), Amortised((1, 4, 4)).double()
    plain.prepare(torch.full((1, *plain.shape), 0.25), torch.ones(1, *plain.shape, dtype=torch.bool), None)
    filled.prepare(torch.full((1, *filled.shape), 0.25), torch.ones(1, *filled.shape, dtype=torch.bool), gaussian)
    assert torch.equal(plain(batch, flow).start, batch.filled(0.25))
    assert torch.equal(plain(batch, flow).mean, flow.to_latent(batch.filled(0.25)))
    conditional = gaussian.conditional(batch.values.flatten(1), batch.observed.flatten(1)).view_as(batch.values)
    difference = (filled(batch, flow).start - conditional).flatten(1).norm(dim=1)
    assert (difference <= 1e-2 * conditional.flatten(1).norm(dim=1)).all()  # a start need not be exact
    assert torch.equal(filled(batch, flow).start[batch.observed], batch.values[batch.observed])
    assert (filled(batch, flow).log_scale == 0).all()


def test_a_gaussian_fills_the_holes_of_small_items_alone_unless_it_is_said():
    """Its conditional mean takes a factor of the size of an item's holes, 40 s for a batch of 64 colour photographs."""
    sizes = {shape: Amortised(shape, width=4).precision.numel() for shape in ((1, 28, 28), (3, 32, 32), (5,))}
    assert sizes == {(1, 28, 28): 784**2, (3, 32, 32): 0, (5,): 25}
    assert Amortised((1, 4, 4), gaussian=False).precision.numel() == 0
    assert Amortised((1, 34, 34), width=4, gaussian=True).precision.numel() == 34**4


@pytest.mark.parametrize("channels", [None, (4, 8)], ids=["U-Net", "plain"])
@pytest.mark.parametrize("shape", [(1, 4, 4), (2, 4, 6), (1, 5, 5)])
def test_the_network_sees_observed_entries_and_the_mask_and_nothing_else(shape, channels):
    hidden = masks(shape)["random"]
    values = normal(3, *shape)
    network = Amortised(shape, width=4, channels=channels, gaussian=False).double()
    sees_the_observation_alone(network, values, hidden)


@pytest.mark.parametrize("channels", [None, (4, 8)], ids=["U-Net", "plain"])
def test_the_network_is_trained_in_every_layer(channels):
    flow, batch = residual_flow("image"), image_batch()
    network = Amortised((1, 4, 4), width=4, channels=channels, held_out=0.0).double()
    optimizer = torch.optim.SGD(network.parameters(), 1e-2)
    for _ in range(2):  # the last layer begins at zero, so the others move from the second step on
        optimizer.zero_grad()
        q = network(batch, flow)
        (q.sample(normal(2, 3, 1, 4, 4)).square().sum() - q.log_scale_sum().sum()).backward()
        optimizer.step()
    assert all(float(p.grad.abs().sum()) > 0 for p in network.parameters())
    assert float(sum(p.grad.abs().sum() for p in flow.parameters() if p.grad is not None)) > 0


def test_the_network_refuses_what_is_neither_image_nor_vector():
    with pytest.raises(InputError, match=r"is for images \(C, H, W\) and vectors \(d,\), got \(4, 5\)"):
        Amortised((4, 5))


# ------------------------------------------------------------------------------------------------ held-out entries


def test_holding_out_hides_a_share_of_what_is_observed():
    batch = incomplete(normal(40, 1, 6, 6), torch.rand(40, 1, 6, 6) < 0.7, label=torch.arange(40))
    sparser = hold_out(batch, 0.25, generator(0))
    assert not (sparser.observed & batch.hidden).any()
    share = 1 - sparser.observed.sum() / batch.observed.sum()
    assert abs(float(share) - 0.25) < 0.05
    assert torch.equal(sparser.values.isnan(), sparser.hidden)
    assert torch.equal(sparser.values[sparser.observed], batch.values[sparser.observed])
    assert torch.equal(sparser.label, batch.label) and torch.equal(sparser.index, batch.index)


def test_the_errors_are_those_at_held_out_entries():
    batch = incomplete(normal(6, 1, 4, 4), torch.rand(6, 1, 4, 4, generator=generator(1)) < 0.7)
    network = Amortised((1, 4, 4), width=4, gaussian=False).double()
    network.prepare(
        torch.full((1, *network.shape), 0.5), torch.ones(1, *network.shape, dtype=torch.bool), None
    )  # untrained, it predicts the median everywhere
    sparser = hold_out(batch, 0.3, generator(2))
    held = batch.observed & sparser.hidden
    errors, completed = holdout_errors(network, batch, sparser)
    assert torch.allclose(errors, (batch.values[held] - 0.5).square().sum())
    assert torch.equal(completed, sparser.filled(0.5)) and not completed.requires_grad
    assert holdout_errors(network, batch, batch)[0] == 0  # nothing was held out


@pytest.mark.slow
def test_held_out_entries_teach_a_network_what_depends_on_what():
    """Entries are copies of one number an item, plus noise: the network must learn to average what it sees."""
    values = normal(256, 1, 1, 1).expand(256, 1, 4, 4) + 0.1 * normal(256, 1, 4, 4, seed=1)
    observed = torch.rand(256, 1, 4, 4, generator=generator(3)) < 0.5
    batch = incomplete(values, observed)
    torch.manual_seed(0)
    network = Amortised((1, 4, 4), width=8, gaussian=False).double()
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for step in range(150):
        optimizer.zero_grad()
        holdout_errors(network, batch, hold_out(batch, 0.2, generator(4, step)))[0].log().backward()
        optimizer.step()
    error = (network.predict(batch) - values)[batch.hidden].detach().square().mean().sqrt()
    assert float(error) < 0.3  # the noise is 0.1, and predicting zero gives 1


def test_taught_by_held_out_entries_the_features_are_out_of_the_bounds_reach():
    flow, batch = residual_flow("image"), image_batch()
    network = Amortised((1, 4, 4), width=4).double()
    with torch.no_grad():
        for k, p in enumerate(network.parameters()):
            p.copy_(0.2 * normal(*p.shape, seed=k))
    q = network(batch, flow)
    (q.sample(normal(2, 3, 1, 4, 4)).square().sum() - q.log_scale_sum().sum()).backward()
    moved = {name for name, p in network.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert moved == {f"heads.{head}.{part}" for head in ("center", "log_scale") for part in ("weight", "bias")}
    assert float(sum(p.grad.abs().sum() for p in flow.parameters() if p.grad is not None)) > 0
    network.zero_grad(set_to_none=True)
    holdout_errors(network, batch, hold_out(batch, 0.2, generator(1)))[0].backward()
    assert network.heads.center.weight.grad is None and float(network.heads.prediction.weight.grad.abs().sum()) > 0


# ------------------------------------------------------------------------------------------- taught by regression


def regressed(shape, held_out=0.2, seed=None, corrects=None):
    """A network that is taught by regression, new or with random parameters."""
    network = Amortised(shape, width=4, held_out=held_out, regressed=True, corrects=corrects).double()
    d = network.shape.numel()
    root = torch.eye(d, dtype=F64) + 0.2 * normal(d, d, seed=5)
    network.prepare(
        torch.full((1, *network.shape), 0.25),
        torch.ones(1, *network.shape, dtype=torch.bool),
        Gaussian(normal(d, seed=6), root @ root.T),
    )
    with torch.no_grad():
        for k, p in enumerate(network.parameters() if seed is not None else ()):
            p.copy_(0.2 * normal(*p.shape, seed=100 * seed + k))
    return network


@pytest.mark.parametrize("held_out", [0.0, 0.2])
@pytest.mark.parametrize("shape", [(1, 4, 4), (2, 4, 6), (1, 5, 5), (6,)])
def test_a_regressed_network_sees_the_observation_alone(shape, held_out):
    hidden, values = masks(shape)["random"], normal(3, *shape)
    network = regressed(shape, held_out)
    assert sees_the_observation_alone(network, values, hidden).start is None


@pytest.mark.parametrize("shape", [(1, 4, 4), (6,)])
def test_a_new_regressed_network_knows_the_prior_and_no_flow(shape):
    hidden = masks(shape)["one kind an item"]
    q = regressed(shape)(incomplete(normal(3, *shape), ~hidden), Flow([Bijection()]))
    assert (q.mean == 0).all() and (q.log_scale == 0).all()
    assert torch.equal(q.hidden, hidden)


@pytest.mark.parametrize("corrects", [True, False])
@pytest.mark.parametrize("shape", [(1, 4, 4), (6,)])
def test_what_is_taught_without_the_bound_begins_at_the_filling_or_anew(shape, corrects):
    network, batch = regressed(shape, corrects=corrects), incomplete(normal(3, *shape), ~masks(shape)["random"])
    stretch = Affine(shape).double()
    stretch.set_moments(normal(*shape, seed=7), normal(*shape, seed=8).abs() + 0.5)
    gaussian = Gaussian(network.center.flatten(), network.covariance)
    filled = gaussian.conditional(batch.values, batch.observed)
    mean, prediction = network(batch, Flow([stretch], shape)).mean, network.predict(batch)
    assert torch.allclose(prediction, filled if corrects else batch.filled(0.25))
    assert torch.allclose(mean, stretch(filled) if corrects else torch.zeros_like(mean))
    assert float((filled - batch.filled(0.25)).abs().max()) > 0.1  # the two differ


def test_vectors_are_corrected_and_images_are_not_unless_it_is_said():
    assert Amortised((6,)).corrects and not Amortised((1, 4, 4)).corrects
    assert not Amortised((6,), corrects=False).corrects and Amortised((1, 4, 4), corrects=True).corrects


def test_scales_stay_sane_whatever_the_network_says():
    network, batch = regressed((1, 4, 4)), image_batch()
    for bias, bound in ((50.0, 1.0), (-50.0, -6.0)):
        torch.nn.init.constant_(network.heads.log_scale.bias, bias)
        assert (network(batch, Flow([Bijection()])).log_scale == bound).all()


def test_regression_moves_the_second_network_alone():
    network, batch = regressed((1, 4, 4), seed=1), image_batch()
    network(batch, Flow([Bijection()])).log_prob(normal(1, 3, 1, 4, 4)).sum().backward()
    moved = {name for name, p in network.named_parameters() if p.grad is not None and bool(p.grad.any())}
    wanted = {name for name, _ in network.named_parameters() if not name.startswith(("network", "heads.prediction"))}
    assert moved == wanted and "heads.center.weight" not in wanted
    network.zero_grad(set_to_none=True)
    holdout_errors(network, batch, hold_out(batch, 0.2, generator(1)))[0].backward()
    moved = {name for name, p in network.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert moved == set(dict(network.named_parameters())) - wanted


@pytest.mark.parametrize("held_out", [0.0, 0.2])
@pytest.mark.parametrize("shape", [(1, 4, 4), (6,)])
def test_a_regressed_network_is_saved_and_loaded(shape, held_out, tmp_path):
    network, other = regressed(shape, held_out, seed=1), Amortised(shape, 4, held_out=held_out, regressed=True).double()
    checkpoint.save(tmp_path / "q.pt", dict(network.state_dict()))
    other.load_state_dict(checkpoint.load(tmp_path / "q.pt"))
    batch = incomplete(normal(3, *shape), ~masks(shape)["random"])
    a, b = network(batch, Flow([Bijection()])), other(batch, Flow([Bijection()]))
    assert torch.equal(a.mean, b.mean) and torch.equal(a.log_scale, b.log_scale)
    assert held_out == 0 or torch.equal(network.predict(batch), other.predict(batch))


def test_taught_on_complete_data_there_is_no_prediction():
    network, batch = regressed((1, 4, 4), held_out=0.0), image_batch()
    assert not network.predicts and not hasattr(network, "network") and set(network.heads) == {"mean", "log_scale"}
    with pytest.raises(InputError, match=r"^this inference network was taught on complete data and predicts latents"):
        network.predict(batch)
    assert regressed((1, 4, 4)).predicts and Amortised((1, 4, 4), width=4, held_out=0.0).predicts


def test_more_reflections_than_make_any_rotation_are_refused():
    """A hundred thousand of an image took ten gigabytes and no end."""
    assert Householder(torch.zeros(1, 3), 50).vectors.shape == (1, 50, 3), "the usual number serves items of any size"
    assert Householder(torch.zeros(1, 60), 60).vectors.shape == (1, 60, 60)
    for d, count in ((3, 51), (60, 61)):
        with pytest.raises(InputError, match=rf"posterior.reflections is {count}; {d} turn an item of {d} entries"):
            Householder(torch.zeros(1, d), count)
