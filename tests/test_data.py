"""Data sets by name, and data sets with holes."""

import gzip
import hashlib
import http.server
import os
import pickle
import socket
import tarfile
import threading
from functools import partial

import numpy as np
import pytest
import torch
from torchvision import datasets as torchvision_datasets

from viscos.core.errors import InputError
from viscos.data.images import Images
from viscos.data.incomplete import IncompleteData, epoch_order
from viscos.data.sources import public
from viscos.data.sources.registry import load, load_described

NAMES = [os.path.splitext(name)[0] for name, _ in torchvision_datasets.MNIST.resources]


def idx(array):
    """The bytes of a uint8 array in MNIST's file format."""
    return np.array([8 * 256 + array.ndim, *array.shape], dtype=">i4").tobytes() + array.astype(np.uint8).tobytes()


def idx_files(last=255):
    """The four files of a small forgery: one training image, and a whole test set with one bright pixel."""
    images = np.zeros((10_000, 28, 28), dtype=np.uint8)
    images[0, 0, 0] = last
    one = np.zeros((1, 28, 28), dtype=np.uint8)
    return dict(zip(NAMES, [idx(one), idx(one[:, 0, 0]), idx(images), idx(np.arange(10_000) % 10)], strict=True))


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serves the forgery from this machine in the place of MNIST's mirrors."""
    folder = tmp_path / "server"
    folder.mkdir()
    resources = []
    for name, data in idx_files().items():
        packed = gzip.compress(data)
        (folder / f"{name}.gz").write_bytes(packed)
        resources.append((f"{name}.gz", hashlib.md5(packed).hexdigest()))
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=folder))
    threading.Thread(target=partial(httpd.serve_forever, poll_interval=0.01), daemon=True).start()
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(torchvision_datasets.MNIST, "mirrors", [f"http://127.0.0.1:{httpd.server_port}/"])
    monkeypatch.setattr(torchvision_datasets.MNIST, "resources", resources)
    yield folder
    httpd.shutdown()
    httpd.server_close()


def files_under(folder):
    return sorted(p for p in folder.rglob("*")) if folder.exists() else []


def test_digits_are_split_once_and_for_all():
    train, test = load("digits", "train"), load("digits", "test")
    assert train.values.shape == (1437, 1, 8, 8) and test.values.shape == (360, 1, 8, 8)
    assert train.shape == (1, 8, 8) and len(train) == 1437 and train.classes == 10
    assert train.values.dtype == torch.float32 and train.labels.dtype == torch.int64
    assert train.values.min() == 0 and train.values.max() == 1
    assert torch.equal(load("digits", "test").values, test.values)
    shares = [torch.bincount(part.labels, minlength=10) / len(part) for part in (train, test)]
    assert torch.allclose(*shares, atol=0.003)
    whole = torch.cat([train.values, test.values]).flatten(1)
    assert len(whole.unique(dim=0)) == 1797  # all of scikit-learn's images, none of them twice


@pytest.mark.skipif(not os.environ.get("VISCOS_DATA_DIR"), reason="VISCOS_DATA_DIR is not set")
def test_real_mnist():
    if not os.path.exists(os.path.join(os.environ["VISCOS_DATA_DIR"], "MNIST", "raw", NAMES[2])):
        pytest.skip("VISCOS_DATA_DIR has no MNIST")
    test = load("mnist", "test", download=False)
    assert test.values.shape == (10_000, 1, 28, 28) and test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert test.values.max() == 1 and abs(test.values.mean().item() - 0.1325) < 1e-3


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match=r"'mnits'.*cifar10, circles, digits, .*table"):
        load("mnits", "train")
    with pytest.raises(InputError, match="train or test"):
        load("digits", "validation")
    with pytest.raises(InputError, match=r"unexpected keyword argument 'root'; it takes none"):
        load("digits", "train", root="here")
    with pytest.raises(InputError, match=r"missing a required argument: 'path'; it takes path, channels, size"):
        load("folder", "train")


def test_settings_of_training_are_left_aside():
    described = {"_target_": "viscos.data.sources.toys.moons", "items": 10, "noise": 0.1, "epochs": 3, "levels": 256}
    assert len(load_described(described, "train")) == 10
    with pytest.raises(InputError, match="unexpected keyword argument 'itemz'; it takes items, spread"):
        load_described(described | {"itemz": 3}, "train")


def test_a_run_of_before_names_its_data_set_alone():
    assert load_described({"name": "digits", "noise": 0.05, "augment": "none", "levels": 17, "epochs": 30}, "test")


@pytest.mark.parametrize("target", ["os.listdir", "viscos.data.mask_files.load_masks", "viscos.data.images.Images"])
def test_what_reads_no_data_is_no_data_set(target):
    with pytest.raises(InputError):
        load_described({"_target_": target, "name": "digits", "path": "."}, "train")


@pytest.mark.parametrize(("name", "kind"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_missing_files_are_named(tmp_path, monkeypatch, name, kind):
    monkeypatch.setenv("VISCOS_DATA_DIR", str(tmp_path / "data"))
    with pytest.raises(InputError) as caught:
        load(name, "train", download=False)
    message = str(caught.value)
    assert "\n" not in message and "VISCOS_DATA_DIR" in message
    assert str(tmp_path / "data" / kind / "raw") in message and all(file in message for file in NAMES)
    assert files_under(tmp_path) == []


def test_without_a_network_nothing_is_left_behind(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(torchvision_datasets.MNIST, "mirrors", ["http://127.0.0.1:9/"])  # nobody listens
    with pytest.raises(InputError, match="getting them failed") as caught:
        load("mnist", "test", root=tmp_path)
    assert "\n" not in str(caught.value)
    assert files_under(tmp_path) == [] and capfd.readouterr().err.startswith("downloading MNIST to ")


def test_a_silent_server_does_not_hang(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(public, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(torchvision_datasets.MNIST, "mirrors", [f"http://127.0.0.1:{listener.getsockname()[1]}/"])
        with pytest.raises(InputError, match="timed out"):
            load("mnist", "test", root=tmp_path)
    assert files_under(tmp_path) == [] and socket.getdefaulttimeout() is None


def test_a_download_is_said_in_a_line_and_made_only_once(tmp_path, server, capfd):
    first = load("mnist", "test", root=tmp_path / "data")
    assert first.values[0, 0, 0, 0] == 1 and first.labels[:3].tolist() == [0, 1, 2]
    assert sorted(os.listdir(tmp_path / "data/MNIST/raw")) == sorted(NAMES)
    assert capfd.readouterr() == ("", f"downloading MNIST to {tmp_path / 'data/MNIST/raw'}\n")
    for file in server.iterdir():
        file.unlink()
    assert torch.equal(load("mnist", "test", root=tmp_path / "data").values, first.values)
    assert capfd.readouterr() == ("", "")


def test_a_wrong_download_is_refused(tmp_path, server):
    (server / f"{NAMES[2]}.gz").write_bytes(b"a page about cookies")
    with pytest.raises(InputError, match="getting them failed"):
        load("mnist", "test", root=tmp_path / "data")
    assert files_under(tmp_path / "data") == []


def test_packed_files_put_there_by_hand_are_unpacked(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, data in idx_files(last=51).items():
        (raw / f"{name}.gz").write_bytes(gzip.compress(data))
    assert load("mnist", "test", root=tmp_path, download=False).values[0, 0, 0, 0] == pytest.approx(0.2)


def test_damaged_and_short_files_are_refused(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, data in idx_files().items():
        (raw / name).write_bytes(data[:1000])
    with pytest.raises(InputError, match="cannot be read"):
        load("mnist", "test", root=tmp_path)
    (raw / NAMES[2]).write_bytes(idx(np.zeros((5, 28, 28))))
    (raw / NAMES[3]).write_bytes(idx(np.zeros(5)))
    with pytest.raises(InputError, match="not 10000 of 28x28"):
        load("mnist", "test", root=tmp_path)


CIFAR10 = torchvision_datasets.CIFAR10
BATCHES = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch", "batches.meta"]


@pytest.fixture(scope="module")
def cifar10_files():
    """A forgery: one training image in each batch, and a whole test set whose first pixel is red."""
    images = np.zeros((10_000, 3072), np.uint8)
    images[0, 0] = 51
    held = {name: {"data": images[1:2], "labels": [k]} for k, name in enumerate(BATCHES[:5])}
    held |= {"test_batch": {"data": images, "labels": [k % 10 for k in range(10_000)]}}
    held |= {"batches.meta": {"label_names": list("abcdefghij")}}
    return {name: pickle.dumps(value) for name, value in held.items()}


@pytest.fixture
def cifar10(tmp_path, monkeypatch, cifar10_files):
    """The forgery takes CIFAR-10's place; returns the folder where its files lie."""
    sums = {name: hashlib.md5(data).hexdigest() for name, data in cifar10_files.items()}
    monkeypatch.setattr(CIFAR10, "train_list", [[name, sums[name]] for name in BATCHES[:5]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": sums["batches.meta"]})
    folder = tmp_path / "data" / CIFAR10.base_folder
    folder.mkdir(parents=True)
    for name, data in cifar10_files.items():
        (folder / name).write_bytes(data)
    return folder


def test_cifar10(cifar10):
    test = load("cifar10", "test", root=cifar10.parent, download=False)
    assert test.values.shape == (10_000, 3, 32, 32) and test.labels[:3].tolist() == [0, 1, 2] and test.classes == 10
    assert test.values[0, 0, 0, 0] == pytest.approx(0.2) and test.values.sum() == test.values[0, 0, 0, 0]
    with pytest.raises(InputError, match=r"\(5, 3, 32, 32\) images .* for train, not 50000 of 32x32"):
        load("cifar10", "train", root=cifar10.parent)


def test_cifar10_from_an_archive_put_there_by_hand(cifar10):
    with tarfile.open(cifar10.parent / CIFAR10.filename, "w:gz", compresslevel=1) as tar:
        tar.add(cifar10, CIFAR10.base_folder)
    for file in cifar10.iterdir():
        file.unlink()
    assert len(load("cifar10", "test", root=cifar10.parent, download=False)) == 10_000
    assert sorted(file.name for file in cifar10.iterdir()) == sorted(BATCHES)


def test_missing_and_damaged_files_of_cifar10(cifar10, monkeypatch):
    (cifar10 / "test_batch").unlink()
    with pytest.raises(InputError, match=r"missing test_batch \(downloading is off\); .* holds cifar-10-batches-py"):
        load("cifar10", "test", root=cifar10.parent, download=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/x.tar.gz")  # nobody listens
    with pytest.raises(InputError, match=r"missing test_batch .*getting them failed") as caught:
        load("cifar10", "test", root=cifar10.parent)
    assert "\n" not in str(caught.value) and not (cifar10 / "test_batch").exists()
    (cifar10 / "test_batch").write_bytes(b"half a file")
    with pytest.raises(InputError, match="cannot be read"):
        load("cifar10", "test", root=cifar10.parent)


@pytest.mark.parametrize(
    ("values", "labels", "says"),
    [
        (torch.full((1, 1, 2, 2), 255.0), None, "has 255; divide 0-255 values"),
        (torch.full((1, 1, 2, 2), -1.0), None, r"has -1; shift \[-1, 1\] values"),
        (torch.full((1, 1, 2, 2), float("inf")), None, "has inf; give NaN where a value is missing"),
        (torch.zeros(1, 2, 2), None, "shape"),
        (torch.zeros(1, 1, 2, 2, dtype=torch.float64), None, "float64"),
        (torch.zeros(2, 1, 2, 2), torch.zeros(1, dtype=torch.int64), "labels"),
        (torch.zeros(2, 1, 2, 2), torch.zeros(2), "labels"),
    ],
)
def test_images_of_another_kind_are_refused(values, labels, says):
    with pytest.raises(InputError, match=says):
        Images("x", values, labels, 0)


def test_images_may_have_holes_of_their_own():
    values = torch.tensor([[[[0.5, float("nan")]]]])
    assert Images("x", values, None, 0).known.tolist() == [[[[True, False]]]]


def small(n=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand((n, 1, 3, 2), generator=generator)
    return values, torch.rand((n, 1, 3, 2), generator=generator) < 0.5, torch.arange(n) % 3


def test_hidden_values_are_out_of_reach():
    values, observed, labels = small()
    data = IncompleteData(values, observed, labels)
    kept = values.clone()
    values.zero_()
    assert torch.equal(data.values.isnan(), ~observed) and torch.equal(data.values[observed], kept[observed])
    held = [v for v in vars(data).values() if torch.is_tensor(v) and v.is_floating_point()]
    assert len(held) == 1 and held[0].isnan().any()


def test_hidden_garbage_is_welcome_and_observed_garbage_is_not():
    values, observed, _ = small()
    garbage = torch.where(observed, values, 1e9)
    assert torch.equal(IncompleteData(garbage, observed).values[observed], values[observed])
    with pytest.raises(InputError, match=r"\[0, 1\]"):
        IncompleteData(values * 255, observed)
    with pytest.raises(InputError, match="not finite"):
        IncompleteData(torch.where(observed, float("nan"), values), observed)
    with pytest.raises(InputError, match="labels"):
        IncompleteData(values, observed, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(InputError, match="N, C, H, W"):
        IncompleteData(values[0], observed[0])


def test_batches_visit_every_item_once_with_its_number():
    values, observed, labels = small()
    data = IncompleteData(values, observed, labels)
    order = epoch_order(len(data), seed=1, epoch=0)
    batches = [data.batch(rows) for rows in order.split(3)]
    assert [len(batch) for batch in batches] == [3, 3, 1] and data.shape == (1, 3, 2)
    assert torch.equal(torch.cat([batch.index for batch in batches]), order)
    for batch in batches:
        assert torch.equal(batch.observed, observed[batch.index]) and torch.equal(batch.label, labels[batch.index])
        assert torch.equal(batch.values[batch.observed], values[batch.index][batch.observed])


def test_one_mask_for_all_and_no_labels():
    values, observed, _ = small()
    batch = IncompleteData(values, observed[0]).batch(torch.tensor([6, 6]))
    assert batch.label is None and torch.equal(batch.observed, observed[:1].expand(2, -1, -1, -1))


def test_bad_indices_are_refused():
    data = IncompleteData(*small())
    for index in (torch.tensor([7]), torch.tensor([-1]), torch.tensor([0.0]), torch.tensor([[0]])):
        with pytest.raises(InputError, match="index"):
            data.batch(index)


def test_epoch_order_depends_on_the_arguments_alone():
    order = epoch_order(100, 3, 1)
    assert torch.equal(order.sort().values, torch.arange(100))
    torch.rand(5)
    assert torch.equal(order, epoch_order(100, 3, 1))
    assert not torch.equal(order, epoch_order(100, 3, 2)) and not torch.equal(order, epoch_order(100, 4, 1))
