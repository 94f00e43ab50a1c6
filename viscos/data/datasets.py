"""Complete images by name: `load("mnist", "train")`. A new data set is one function and one line in `DATASETS`."""

from __future__ import annotations

import contextlib
import gzip
import io
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from viscos import atomic
from viscos.errors import InputError

log = logging.getLogger(__name__)

SPLITS = ("train", "test")
DIGITS_TEST = 360
"""Test images of `digits`; the other 1437 are for training."""
TIMEOUT = 10.0
"""Seconds that a server may stay silent before a download is given up."""


@dataclass(frozen=True)
class Images:
    """One split of a data set of complete images. Raises `InputError` if a field is not as it says here."""

    name: str
    values: Tensor
    """**y** (N, C, H, W), float32 in [0, 1]."""
    labels: Tensor | None
    """Class of each image (N,), int64, if there is one."""
    classes: int
    """Number of classes; 0 without labels."""

    def __post_init__(self) -> None:
        if self.values.dim() != 4 or self.values.dtype != torch.float32:
            seen = f"{self.values.dtype} of shape {tuple(self.values.shape)}"
            raise InputError(f"images of {self.name!r} are {seen}; give float32 of shape (N, C, H, W)")
        check_unit_range(self.values)
        if self.labels is not None and (self.labels.dtype != torch.int64 or len(self.labels) != len(self.values)):
            seen = f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            raise InputError(
                f"labels of {self.name!r} are {seen}; give one int64 for each of {len(self.values)} images"
            )

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image (C, H, W)."""
        return tuple(self.values.shape[1:])


def check_unit_range(values: Tensor, known: Tensor | None = None) -> None:
    """Raises `InputError` unless `values` (those where `known`, bool of the same shape, is true) lie in [0, 1]."""
    inside = (values >= 0) & (values <= 1)
    bad = ~inside if known is None else ~inside & known
    if bad.any():
        seen = values[bad]
        raise InputError(
            f"image values must lie in [0, 1], saw {seen.min().item():.4g} to {seen.max().item():.4g} outside it; "
            "divide 0-255 values by 255, shift [-1, 1] values by (v + 1) / 2, undo logits with a sigmoid"
        )


def load(name: str, split: str, root: str | Path | None = None, download: bool = True) -> Images:
    """The `split` ("train" or "test") of the data set `name`, one of `DATASETS`.

    Files are looked for under `root`, else under the environment's VISCOS_DATA_DIR, else under ~/.cache/viscos, and
    downloaded there if they are missing and `download` is true. Raises `InputError` if the name or the split is not
    known, or if the files are missing, cannot be downloaded or cannot be read.
    """
    if name not in DATASETS:
        raise InputError(f"there is no data set {name!r}; choose one of {', '.join(sorted(DATASETS))}")
    if split not in SPLITS:
        raise InputError(f"there is no split {split!r} of {name}; choose train or test")
    folder = root or os.environ.get("VISCOS_DATA_DIR") or Path("~/.cache/viscos")
    return DATASETS[name](split, Path(folder).expanduser(), download)


def _digits(split: str, root: Path, download: bool) -> Images:
    """scikit-learn's bundled 8x8 digits, their 0-16 scale divided by 16; a fixed stratified split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import StratifiedShuffleSplit

    pixels, labels = load_digits(return_X_y=True)
    train, test = next(StratifiedShuffleSplit(1, test_size=DIGITS_TEST, random_state=0).split(pixels, labels))
    index = torch.from_numpy(train if split == "train" else test).sort().values
    values = torch.from_numpy(pixels).float().div_(16).reshape(-1, 1, 8, 8)
    return Images("digits", values[index], torch.from_numpy(labels).long()[index], 10)


def _mnist(split: str, root: Path, download: bool) -> Images:
    return _idx("mnist", "MNIST", split, root, download)


def _fashion_mnist(split: str, root: Path, download: bool) -> Images:
    return _idx("fashion_mnist", "FashionMNIST", split, root, download)


DATASETS: dict[str, Callable[[str, Path, bool], Images]] = {
    "digits": _digits,
    "fashion_mnist": _fashion_mnist,
    "mnist": _mnist,
}
"""Name of each data set -> function of (split, root, download)."""


def _idx(name: str, kind: str, split: str, root: Path, download: bool) -> Images:
    """A data set in MNIST's file format, read by torchvision's class `kind`."""
    from torchvision import datasets

    source = getattr(datasets, kind)
    folder = root / kind / "raw"
    _provide(source, root, download)
    try:
        raw = source(root=str(root), train=split == "train", download=False)
        values, labels = raw.data, raw.targets
    except Exception as error:  # torchvision's reader fails in many ways on a damaged file, asserts included
        raise InputError(
            f"a file in {folder} cannot be read ({_line(error)}); delete the folder and load again"
        ) from error
    count = 60_000 if split == "train" else 10_000
    if values.shape != (count, 28, 28) or labels.shape != (count,):
        seen = f"{tuple(values.shape)} images and {tuple(labels.shape)} labels"
        raise InputError(f"{folder} holds {seen} for {split}, not {count} of 28x28; delete the folder and load again")
    return Images(name, values.float().div_(255)[:, None], labels.long(), 10)


def _provide(source: type, root: Path, download: bool) -> None:
    """Sees to it that the files of torchvision's class `source` lie, unpacked, under `root`."""
    kind = source.__name__
    folder = root / kind / "raw"
    wanted = [Path(name).stem for name, _ in source.resources]  # type: ignore[attr-defined]
    missing = [name for name in wanted if not (folder / name).is_file()]
    if not missing:
        return
    reason = "downloading is off"
    try:
        if all((folder / f"{name}.gz").is_file() for name in missing):
            for name in missing:
                _unpack(folder / f"{name}.gz", folder / name)
            return
        if download:
            log.info("downloading %s to %s", kind, folder)
            _download(source, folder, missing)
            return
    except Exception as error:  # no network, a server's nonsense, a full disk: to the user it is all one
        reason = f"getting them failed: {_line(error)}"
    raise InputError(
        f"{kind} is not complete in {folder}: missing {', '.join(missing)} ({reason}); "
        f"put these files there, or set VISCOS_DATA_DIR to the folder that holds {kind}/raw"
    )


def _download(source: type, folder: Path, missing: list[str]) -> None:
    """Downloads to a temporary folder, then puts each file in `folder` whole: a failure leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="viscos-") as scratch:
        with _quiet(), _timeout(TIMEOUT):
            fetched = Path(source(root=scratch, download=True).raw_folder)
        for name in missing:
            origin = fetched / name
            atomic.write(folder / name, partial(shutil.copyfile, origin))


def _unpack(packed: Path, path: Path) -> None:
    def writer(temporary: Path) -> None:
        with gzip.open(packed, "rb") as source, open(temporary, "wb") as target:
            shutil.copyfileobj(source, target)

    atomic.write(path, writer)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Swallows what torchvision prints while it downloads."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    """A time limit for each wait on the network: torchvision sets none, and without one a silent server hangs it."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _line(error: Exception) -> str:
    """The error's message on one line of bearable length."""
    return " ".join(str(error).split())[:200] or type(error).__name__
