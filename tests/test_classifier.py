"""The classifiers that are trained along."""

import pytest
import torch
from problems import normal

from viscos.core.errors import InputError
from viscos.train.classifier import CLASSIFIERS, make_classifier


def inputs(batch=6, shape=(1, 8, 8)):
    observed = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(1)) < 0.5
    x, y = normal(batch, *shape, dtype=torch.float32), normal(batch, *shape, seed=1, dtype=torch.float32)
    return x.requires_grad_(), y.requires_grad_(), observed


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 7), (5,)])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_sees_what_it_says_and_no_more(name, shape):
    x, y, observed = inputs(shape=shape)
    scores = make_classifier(name, shape, 4)(x, y, observed)
    assert scores.shape == (6, 4)
    scores.square().sum().backward()
    assert (x.grad is not None) == (name == "latents")
    assert y.grad is None  # the one that sees completions does not move them


def test_each_learns():
    torch.manual_seed(0)
    x, y, observed = inputs(64)
    labels = (y.detach().flatten(1).mean(1) > 0).long()
    x = y.detach() * 2  # a latent that says as much as the completion
    for name in CLASSIFIERS:
        classifier = make_classifier(name, (1, 8, 8), 2)
        optimizer = torch.optim.Adam(classifier.parameters(), 1e-2)
        for _ in range(60):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(classifier(x, y, observed), labels).backward()
            optimizer.step()
        assert float((classifier.eval()(x, y, observed).argmax(1) == labels).double().mean()) > 0.9


def test_refusals():
    with pytest.raises(InputError, match="choose both, completions or latents"):
        make_classifier("pixels", (1, 8, 8), 3)
    with pytest.raises(InputError, match="take classifier=latents"):
        make_classifier("completions", (8, 8), 3)
