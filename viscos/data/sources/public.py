"""Public data sets, read by torchvision, which downloads what is missing."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import socket
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from viscos.core import atomic
from viscos.core.errors import InputError
from viscos.data.images import Images

TIMEOUT = 10.0
"""Seconds that a server may stay silent before a download is given up."""


def mnist(split: str, *, root: str | Path | None = None, download: bool = True) -> Images:
    """MNIST: 28 × 28 digits, 60,000 to train and 10,000 to test."""
    return _idx("mnist", "MNIST", split, _root(root), download)


def fashion_mnist(split: str, *, root: str | Path | None = None, download: bool = True) -> Images:
    """Fashion-MNIST: 28 × 28 pictures of clothes, as many as MNIST has."""
    return _idx("fashion_mnist", "FashionMNIST", split, _root(root), download)


def cifar10(split: str, *, root: str | Path | None = None, download: bool = True) -> Images:
    """CIFAR-10 (Krizhevsky, 2009): 32 × 32 photographs in colour, 50,000 to train and 10,000 to test."""
    from torchvision.datasets import CIFAR10

    folder = _root(root)
    batches = folder / CIFAR10.base_folder
    wanted = [name for name, _ in (*CIFAR10.train_list, *CIFAR10.test_list)] + [CIFAR10.meta["filename"]]
    archive = folder / CIFAR10.filename
    _provide(CIFAR10, batches, wanted, partial(_untar, archive), download)
    raw = _read(CIFAR10, folder, batches, split)
    values = torch.from_numpy(raw.data).permute(0, 3, 1, 2)
    labels = torch.tensor(raw.targets)
    _check(batches, split, values, labels, 50_000 if split == "train" else 10_000, (3, 32, 32))
    return Images("cifar10", values.float().div_(255), labels, 10)


def _root(root: str | Path | None) -> Path:
    return Path(root or os.environ.get("VISCOS_DATA_DIR") or "~/.cache/viscos").expanduser()


def _idx(name: str, kind: str, split: str, root: Path, download: bool) -> Images:
    """A data set in MNIST's file format, read by torchvision's class `kind`."""
    from torchvision import datasets

    source, folder = getattr(datasets, kind), root / kind / "raw"
    wanted = [Path(file).stem for file, _ in source.resources]
    _provide(source, folder, wanted, partial(_unzip, folder), download)
    raw = _read(source, root, folder, split)
    _check(folder, split, raw.data, raw.targets, 60_000 if split == "train" else 10_000, (28, 28))
    return Images(name, raw.data.float().div_(255)[:, None], raw.targets.long(), 10)


def _read(source: type, root: Path, folder: Path, split: str) -> Any:
    """torchvision's data set of the files in `folder`."""
    try:
        return source(root=str(root), train=split == "train", download=False)
    except Exception as error:  # torchvision's reader fails in many ways on a damaged file, asserts included
        raise InputError(
            f"a file in {folder} cannot be read ({_line(error)}); delete the folder and load again"
        ) from error


def _check(folder: Path, split: str, values: Tensor, labels: Tensor, count: int, shape: tuple[int, ...]) -> None:
    if values.shape != (count, *shape) or labels.shape != (count,):
        seen = f"{tuple(values.shape)} images and {tuple(labels.shape)} labels"
        size = f"{shape[-2]}x{shape[-1]}"
        raise InputError(f"{folder} holds {seen} for {split}, not {count} of {size}; delete the folder and load again")


def _provide(
    source: type, folder: Path, wanted: list[str], unpack: Callable[[list[str], Path], bool], download: bool
) -> None:
    """Sees to it that the `wanted` files of torchvision's class `source` lie in `folder`.

    `unpack(missing, folder)` takes them from archives that the user has put there, and says whether it could.
    """
    kind = source.__name__
    missing = [name for name in wanted if not (folder / name).is_file()]
    if not missing:
        return
    reason = "downloading is off"
    try:
        if unpack(missing, folder):
            return
        if download:
            print(f"downloading {kind} to {folder}", file=sys.stderr, flush=True)
            _download(source, folder, missing)
            return
    except Exception as error:  # no network, a server's nonsense, a full disk: to the user it is all one
        reason = f"getting them failed: {_line(error)}"
    below = folder.name if folder.name != "raw" else f"{kind}/raw"
    raise InputError(
        f"{kind} is not complete in {folder}: missing {', '.join(missing)} ({reason}); "
        f"put these files there, or set VISCOS_DATA_DIR to the folder that holds {below}"
    )


def _download(source: type, folder: Path, missing: list[str]) -> None:
    """Downloads to a temporary folder, then puts each file in `folder` whole: a failure leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="viscos-") as scratch:
        with _quiet(), _timeout(TIMEOUT):
            source(root=scratch, download=True)
        found = {file.name: file for file in Path(scratch).rglob("*") if file.is_file()}
        for name in missing:
            atomic.write(folder / name, partial(shutil.copyfile, found[name]))


def _unzip(packed: Path, missing: list[str], folder: Path) -> bool:
    """Unpacks `<name>.gz` in the folder `packed`, if they are all there."""
    if not all((packed / f"{name}.gz").is_file() for name in missing):
        return False
    for name in missing:
        with gzip.open(packed / f"{name}.gz", "rb") as source:
            atomic.write(folder / name, partial(_copy, source))
    return True


def _untar(archive: Path, missing: list[str], folder: Path) -> bool:
    """Unpacks the files from `archive`, if it is there."""
    if not archive.is_file():
        return False
    with tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name).name
            source = tar.extractfile(member) if name in missing else None
            if source is not None:
                atomic.write(folder / name, partial(_copy, source))
    return all((folder / name).is_file() for name in missing)


def _copy(source: Any, path: Path) -> None:
    with open(path, "wb") as target:
        shutil.copyfileobj(source, target)


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
