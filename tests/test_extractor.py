"""The networks behind FID: the one that is shipped, and Inception with weights that a user has."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from problems import normal
from torch import nn

from viscos.core.errors import InputError
from viscos.data.sources.registry import load
from viscos.metrics import extractor
from viscos.metrics.extractor import MNIST_SHA256, MNIST_WEIGHTS, extractor_for, mnist_extractor


def test_the_shipped_file():
    assert hashlib.sha256(MNIST_WEIGHTS.read_bytes()).hexdigest() == MNIST_SHA256
    assert MNIST_WEIGHTS.stat().st_size < 100_000
    net = mnist_extractor()
    assert net.sha256 == MNIST_SHA256 and not net.training
    assert not any(p.requires_grad for p in net.parameters())


def test_what_it_computes():
    """The same network put together from torch's own modules, layer by layer."""
    weights = torch.load(MNIST_WEIGHTS, weights_only=True)
    pool = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    below = nn.Sequential(nn.Conv2d(1, 10, 5), pool, nn.Conv2d(10, 20, 5), pool, nn.Flatten(), nn.Linear(320, 50))
    above = nn.Sequential(nn.ReLU(), nn.Linear(50, 10))
    for module, name in ((below[0], "conv1"), (below[2], "conv2"), (below[5], "fc1"), (above[1], "fc2")):
        module.load_state_dict({key: weights[f"{name}.{key}"] for key in ("weight", "bias")})
    images, net = normal(5, 1, 28, 28, dtype=torch.float32).sigmoid(), mnist_extractor()
    features = net.features(images)
    torch.testing.assert_close(features, below(images).detach(), atol=1e-5, rtol=0)
    torch.testing.assert_close(net.scores(features), above(features).detach(), atol=1e-5, rtol=0)
    assert features.shape == (5, net.size) and float(features.min()) < 0, "before ReLU"


def test_accuracy_on_real_digits():
    try:
        test = load("mnist", "test", download=False)
    except InputError:
        pytest.skip("there is no MNIST here")
    net = mnist_extractor()
    hits = net.scores(net.features(test.values)).argmax(1) == test.labels
    assert float(hits.double().mean()) == pytest.approx(0.99, abs=0.005)


@pytest.mark.parametrize("kind", ["missing", "cut", "not torch's", "other weights"])
def test_another_file_is_refused(kind, tmp_path, monkeypatch):
    path = tmp_path / "mnist_extractor.pt"
    if kind == "cut":
        path.write_bytes(MNIST_WEIGHTS.read_bytes()[:50_000])
    elif kind == "not torch's":
        path.write_text("nothing")
    elif kind == "other weights":
        torch.save({key: value + 1e-3 for key, value in mnist_extractor().state_dict().items()}, path)
    monkeypatch.setattr(extractor, "MNIST_WEIGHTS", path)
    with pytest.raises(InputError, match="install viscos again"):
        mnist_extractor()


def test_which_extractor():
    assert extractor_for((1, 28, 28)).sha256 == MNIST_SHA256
    for shape, reason in (
        ((1, 8, 8), "of 1 × 8 × 8"),
        ((1, 32, 32), "of 1 × 32 × 32"),
        ((3, 32, 32), "inception=<file>"),
    ):
        assert reason in extractor_for(shape)
    with pytest.raises(InputError, match="colour images, and these are of 1 × 28 × 28"):
        extractor_for((1, 28, 28), "weights.pth")


# ------------------------------------------------------------------------------------------------------------ Inception


@pytest.fixture(scope="module")
def inception(tmp_path_factory) -> Path:
    """A file of random weights, where torch's cache has those of ImageNet."""
    from torchvision.models import Inception_V3_Weights, inception_v3

    path = tmp_path_factory.mktemp("hub") / "checkpoints" / os.path.basename(Inception_V3_Weights.IMAGENET1K_V1.url)
    path.parent.mkdir()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.save(inception_v3(weights=None, init_weights=False).state_dict(), path)
    return path


def test_inception(inception):
    """With the last layer on top it is torchvision's network, on images that torchvision prepared."""
    from torchvision.models import inception_v3
    from torchvision.transforms.v2.functional import normalize, resize

    net = extractor_for((3, 32, 32), str(inception))
    assert net.sha256 == hashlib.sha256(inception.read_bytes()).hexdigest() and not net.training
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    features = net.features(images)
    assert features.shape == (2, net.size) == (2, 2048)

    whole = inception_v3(weights=None, init_weights=False).eval()
    whole.load_state_dict(torch.load(inception, weights_only=True))
    prepared = normalize(resize(images, [299, 299]), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    with torch.no_grad():
        torch.testing.assert_close(whole.fc(features), whole(prepared), atol=1e-4, rtol=1e-3)


def test_inception_from_the_cache_of_torch(inception, monkeypatch):
    monkeypatch.setattr(torch.hub, "_hub_dir", str(inception.parents[1]))
    assert extractor_for((3, 8, 8), "download").sha256 == hashlib.sha256(inception.read_bytes()).hexdigest()


def test_inception_that_cannot_be_had(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"cannot read nowhere\.pth"):
        extractor_for((3, 32, 32), "nowhere.pth")
    with pytest.raises(InputError, match="does not hold weights of torchvision's inception_v3"):
        extractor_for((3, 32, 32), str(MNIST_WEIGHTS))

    def fails(*args, **more):
        raise URLError("no route\nto host")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fails)
    with pytest.raises(InputError, match=r"cannot be downloaded \(<urlopen error no route to host>\); give inception="):
        extractor_for((3, 32, 32), "download")
