"""Networks that were trained on complete images, whose features FID compares."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from viscos.core.errors import InputError

MNIST_WEIGHTS = Path(__file__).with_name("mnist_extractor.pt")
"""Written by scripts/train_extractor.py."""
MNIST_SHA256 = "add99d35434f770aff11c4a9729da7e2be928dd9a491ccd461a92cfae1ea0672"
"""Of that file: numbers of different extractors cannot be compared, so another file is refused."""

IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
"""Mean and deviation of the colours, by which torchvision's weights want images standardised."""


class Extractor(nn.Module):
    """Gives features of images, and scores of classes if it `classifies`."""

    name: str
    """What it is, for records."""
    sha256: str = ""
    """Of the file that its weights came from."""
    size: int
    """Features of an image."""
    classifies: str | None = None
    """The data set whose classes it tells apart."""

    def features(self, images: Tensor) -> Tensor:
        """(B, size) of images (B, C, H, W) in [0, 1]."""
        raise NotImplementedError

    def scores(self, features: Tensor) -> Tensor:
        """Scores (B, classes) from `features`, of an extractor that classifies."""
        raise NotImplementedError


class MnistNet(Extractor):
    """The network of MisGAN's FID (Li, Jiang and Marlin 2019), for grey images of 28 × 28.

    Twice convolution (5 × 5; 10, then 20 channels), maximum over 2 × 2 and ReLU; then fully connected, 320-50-10. The
    features are the 50 numbers before their ReLU. Pixels enter in [0, 1], as they are.
    """

    name = "MNIST network of viscos: convolutions 10-20, fully connected 320-50-10; the 50 numbers before ReLU"
    size = 50
    classifies = "mnist"

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.fc1, self.fc2 = nn.Linear(320, self.size), nn.Linear(self.size, 10)

    def features(self, images: Tensor) -> Tensor:
        """(B, 50) of images (B, 1, 28, 28)."""
        h = F.relu(F.max_pool2d(self.conv1(images), 2))
        h = F.relu(F.max_pool2d(self.conv2(h), 2))
        return self.fc1(h.flatten(1))

    def scores(self, features: Tensor) -> Tensor:
        """Scores of the ten digits (B, 10)."""
        return self.fc2(F.relu(features))


class Inception(Extractor):
    """torchvision's Inception v3, for colour images: the 2048 numbers after its average pooling.

    Images are enlarged to 299 × 299 and standardised as its weights want it.
    """

    name = "torchvision's inception_v3: 2048 pooled features, images enlarged bilinearly to 299 × 299"
    size = 2048

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models import inception_v3

        self.network = inception_v3(weights=None, init_weights=False)

    def features(self, images: Tensor) -> Tensor:
        """(B, 2048) of images (B, 3, H, W)."""
        mean, deviation = (images.new_tensor(row).view(3, 1, 1) for row in IMAGENET)
        large = F.interpolate(images, (299, 299), mode="bilinear", align_corners=False)
        return self.network((large - mean) / deviation)


def extractor_for(shape: tuple[int, ...], inception: str | None = None) -> Extractor | str:
    """The extractor for items of `shape`, images (C, H, W) or vectors (d,), ready for use; or why there is none.

    `inception` is a file with weights of torchvision's inception_v3, or "download". Raises `InputError` if it is given
    and cannot be had or used.
    """
    if len(shape) != 3:
        if inception is not None:
            raise InputError(f"inception={inception} is for images, and these are vectors; leave it out")
        return "FID compares images, and these are vectors"
    size = " × ".join(str(n) for n in shape)
    if inception is not None and shape[0] != 3:
        raise InputError(f"inception={inception} is for colour images, and these are of {size}; leave it out")
    if shape == (1, 28, 28):
        return mnist_extractor()
    if shape[0] != 3:
        return f"it takes grey images of 28 × 28, or colour images, and these are of {size}"
    if inception is None:
        return "colour images need Inception's weights; give inception=<file>, or inception=download"
    return inception_extractor(_downloaded() if inception == "download" else Path(inception))


def mnist_extractor() -> MnistNet:
    """`MnistNet` with the weights that viscos ships. Raises `InputError` if they are not those."""
    net = MnistNet()
    _fill(net, net, MNIST_WEIGHTS, "viscos's extractor; install viscos again")
    if net.sha256 != MNIST_SHA256:
        raise InputError(f"{MNIST_WEIGHTS} is not the file that viscos ships; install viscos again")
    return net


def inception_extractor(path: Path) -> Inception:
    """`Inception` with the weights of a file. Raises `InputError` if it does not hold them."""
    net = Inception()
    _fill(net, net.network, path, "weights of torchvision's inception_v3; give such a file, or inception=download")
    net.network.fc = nn.Identity()
    return net


def _fill(net: Extractor, module: nn.Module, path: Path, wanted: str) -> None:
    """Loads `module`, which is `net` or a part of it, and makes `net` ready for use."""
    try:
        data = path.read_bytes()
        module.load_state_dict(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}); it should hold {wanted}") from error
    except Exception as error:  # torch fails in many ways on what is no file of its own
        raise InputError(f"{path} does not hold {wanted}") from error
    net.sha256 = hashlib.sha256(data).hexdigest()
    net.eval().requires_grad_(False)


def _downloaded() -> Path:
    """The file in torch's cache, fetched if it is not there."""
    from torchvision.models import Inception_V3_Weights

    weights = Inception_V3_Weights.IMAGENET1K_V1
    try:
        weights.get_state_dict(progress=False, check_hash=True)
    except Exception as error:  # no network, a server's nonsense, a full disk: to the user it is all one
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"Inception's weights cannot be downloaded ({reason}); give inception=<file>") from error
    return Path(torch.hub.get_dir(), "checkpoints", Path(weights.url).name)
