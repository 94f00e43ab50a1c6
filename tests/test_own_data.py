"""A user's own images as a data set: array files and folders of pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from viscos.core.errors import InputError
from viscos.data.sources.registry import load


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def pixels(count=20, height=4, width=6, channels=3):
    """Images (N, H, W, C), uint8, no two alike."""
    return np.random.default_rng(0).integers(0, 256, (count, height, width, channels), dtype=np.uint8)


def both(name, **settings):
    """The training and the test split."""
    return load(name, "train", **settings), load(name, "test", **settings)


def together(train, test):
    """Both splits as rows of integer pixels, and the labels, in one."""
    values = torch.cat([train.values, test.values]).mul(255).round().int()
    labels = None if train.labels is None else torch.cat([train.labels, test.labels])
    return values, labels


def unit(images):
    """(N, H, W, C) uint8 as (N, C, H, W) floats."""
    return torch.from_numpy(images.astype(np.float32) / 255).permute(0, 3, 1, 2)


# ---------------------------------------------------------------------------------------------------------------- array

LAYOUTS = {
    "height, width, channels": (3, lambda images: images),
    "channels, height, width": (3, lambda images: images.transpose(0, 3, 1, 2)),
    "height, width": (1, lambda images: images[..., 0]),
    "one channel last": (1, lambda images: images),
    "one channel first": (1, lambda images: images.transpose(0, 3, 1, 2)),
}


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_and_dtype(layout, dtype):
    channels, arrange = LAYOUTS[layout]
    images = pixels(channels=channels)
    held = images if dtype == np.uint8 else (images / 255).astype(dtype)
    np.savez("x.npz", x_train=arrange(held[:15]), x_test=arrange(held[15:]))
    train, test = both("array", path="x.npz")
    torch.testing.assert_close(train.values, unit(images[:15]))
    torch.testing.assert_close(test.values, unit(images[15:]))
    assert train.name == "x" and train.labels is None and train.classes == 0


@pytest.mark.parametrize("key", ["images", "x", "data", "anything"])
def test_a_split_of_its_own_is_always_the_same(key):
    """A tenth is for testing, in no order; every image is in one split, and has its own label."""
    images = pixels()
    labels = {} if key == "anything" else {"labels": np.arange(20) % 4}
    np.savez("x.npz", **{key: images}, **labels)
    train, test = both("array", path="x.npz")
    assert len(train) == 18 and len(test) == 2
    assert torch.equal(load("array", "test", path="x.npz").values, test.values)
    values, found = together(train, test)
    every = torch.from_numpy(images).permute(0, 3, 1, 2).int()
    number = [int((every == image).flatten(1).all(1).nonzero()) for image in values]
    assert sorted(number) == list(range(20)) and number[:18] != sorted(number[:18])
    if labels:
        assert train.classes == test.classes == 4 and found.tolist() == [k % 4 for k in number]


def test_labels_of_a_table_are_one_a_row():
    for labels in (np.zeros(19, int), np.zeros((20, 2), int), np.int64(1)):
        np.savez("x.npz", x=np.random.RandomState(0).rand(20, 3), y=labels)
        with pytest.raises(InputError, match=f"has {labels.size} labels for 20 rows; give one a row"):
            load("table", "train", path="x.npz")


def test_npy_and_single_column_labels():
    np.save("x.npy", pixels())
    assert len(load("array", "train", path="x.npy")) == 18
    np.savez("x.npz", x_train=pixels(5), y_train=np.array([[0], [1], [0], [2], [1]], np.uint8), x_test=pixels(1),
             y_test=np.array([[4]], np.uint8))  # fmt: skip
    train, test = both("array", path="x.npz")
    assert train.labels.tolist() == [0, 1, 0, 2, 1] and test.labels.tolist() == [4] and train.classes == 5


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"pictures": pixels(), "more": pixels()}, "holds the arrays pictures, more; name the images `images` or `x`"),
        ({"x": pixels().astype(np.int32)}, "holds int32; give floats in [0, 1] or uint8"),
        ({"x": pixels().astype(np.float32)}, "divide 0-255 values by 255"),
        ({"x": pixels(channels=2)}, "no axis of 1 or 3 channels"),
        ({"x": pixels(width=3).transpose(0, 3, 1, 2)}, "channels may be the second or the last axis"),
        ({"x": pixels()[0, 0]}, "of shape (6, 3)"),
        ({"x": pixels(1)}, "holds 1 images; a training and a test split need at least 2"),
        ({"x": pixels(), "labels": np.zeros(20)}, "has labels of float64; give whole numbers"),
        ({"x": pixels(), "labels": np.full(20, -1)}, "give whole numbers from 0"),
        ({"x": pixels(), "labels": np.zeros(19, int)}, "one int64 for each of 20 images"),
    ],
)
def test_arrays_that_are_refused(arrays, says):
    np.savez("x.npz", **arrays)
    with pytest.raises(InputError) as caught:
        load("array", "train", path="x.npz")
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_are_no_arrays():
    with pytest.raises(InputError, match=r"there is no file 'x\.npz'"):
        load("array", "train", path="x.npz")
    Path("x.npz").write_bytes(b"not an array")
    with pytest.raises(InputError, match=r"x\.npz cannot be read as an array file"):
        load("array", "train", path="x.npz")


# --------------------------------------------------------------------------------------------------------------- folder


def save(images, names):
    for image, name in zip(images, names, strict=True):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(name)


def test_a_folder_with_splits_and_classes():
    images = pixels(6)
    names = ["train/cat/a.png", "train/cat/deep/b.png", "train/dog/c.PNG", "test/dog/d.png", "test/emu/e.png"]
    save(images[:5], [f"p/{name}" for name in names])
    Path("p/train/dog/notes.txt").write_text("no picture")
    train, test = both("folder", path="p")
    assert torch.equal(train.values, unit(images[:3])) and torch.equal(test.values, unit(images[3:5]))
    assert train.labels.tolist() == [0, 0, 1] and test.labels.tolist() == [1, 2]
    assert train.classes == test.classes == 3 and train.name == "p"


@pytest.mark.parametrize("inside", ["", "a/", "train/"])
def test_a_folder_without_splits(inside):
    """One folder of pictures has no classes, whatever it is called; the split is fixed."""
    images = pixels()
    save(images, [f"p/{inside}{k:02}.png" for k in range(20)])
    train, test = both("folder", path="p")
    assert len(train) == 18 and len(test) == 2 and train.labels is None and train.classes == 0
    values, _ = together(train, test)
    assert {tuple(v.flatten().tolist()) for v in values} == {
        tuple(v.flatten().tolist()) for v in torch.from_numpy(images).permute(0, 3, 1, 2).int()
    }
    np.save("same.npy", images)
    assert torch.equal(load("array", "test", path="same.npy").values, test.values)


def test_classes_without_splits_and_a_stray_picture():
    save(pixels(), [f"p/{'ab'[k % 2]}/{k:02}.png" for k in range(20)])
    train, test = both("folder", path="p")
    _, labels = together(train, test)
    assert train.classes == 2 and labels.bincount().tolist() == [10, 10]
    save(pixels(1), ["p/stray.png"])
    strayed = load("folder", "train", path="p")
    assert strayed.labels is None and strayed.notes == (
        "no classes: 1 of the pictures lie beside the sub-folders, not in them",
    )


def test_grey_and_colour():
    images = pixels(2, channels=1)[..., 0]
    save([images[0], np.stack([images[1]] * 3, -1)], ["p/train/a.png", "p/test/b.png"])
    for channels in (1, 3):
        train, test = both("folder", path="p", channels=channels)
        assert torch.equal(train.values, unit(images[:1, ..., None]).expand(-1, channels, -1, -1))
        torch.testing.assert_close(test.values, unit(images[1:, ..., None]).expand(-1, channels, -1, -1))


def test_pictures_of_many_sizes_are_cropped_and_resized():
    """The middle square of a picture whose sides are red and blue is green."""
    wide = np.zeros((8, 24, 3), np.uint8)
    wide[:, :8, 0] = wide[:, 8:16, 1] = wide[:, 16:, 2] = 255
    save([wide, wide.transpose(1, 0, 2)[::2, ::2]], ["p/train/a.png", "p/test/b.png"])
    for images in both("folder", path="p", size=4):
        assert images.shape == (3, 4, 4) and torch.equal(images.values[0, :, 1:3, 1:3], unit(np.full((1, 2, 2, 3), 0))
                                                          [0] + torch.tensor([0.0, 1, 0])[:, None, None])  # fmt: skip


def broken(path):
    save(pixels(3), [f"{path}/a.png", f"{path}/b.png", f"{path}/c.png"])
    return Path(path, "b.png")


def test_a_picture_that_cannot_be_read_is_named():
    file = broken("p/train")
    save(pixels(1), ["p/test/a.png"])
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(InputError, match=r"^p/train/b\.png cannot be read as a picture") as caught:
        load("folder", "train", path="p")
    assert "\n" not in str(caught.value) and len(load("folder", "test", path="p")) == 1


def test_pictures_that_do_not_fit():
    file = broken("p/train")
    save(pixels(1), ["p/test/a.png"])
    Image.fromarray(pixels(1, 4, 5)[0]).save(file)
    with pytest.raises(InputError, match=r"b\.png is 5 × 4 and .*a\.png 6 × 4; .*dataset\.size=32"):
        load("folder", "train", path="p")
    assert load("folder", "train", path="p", size=4).shape == (3, 4, 4)
    Image.fromarray(np.zeros((4, 6), np.uint16)).save(file)
    with pytest.raises(InputError, match=r"b\.png has more than 8 bits a channel"):
        load("folder", "train", path="p")


def test_transparent_pixels_and_nan_are_holes():
    """Of a resized picture, wherever a part of a pixel is one."""
    images, alpha = pixels(2), np.full((2, 4, 6, 1), 255, np.uint8)
    alpha[0, 1, 2] = 0
    save(np.concatenate([images, alpha], -1), ["p/train/a.png", "p/test/b.png"])
    train, test = both("folder", path="p")
    expected = unit(images[:1])
    expected[0, :, 1, 2] = torch.nan
    assert torch.equal(test.values, unit(images[1:])) and torch.allclose(train.values, expected, equal_nan=True)
    resized = load("folder", "train", path="p", size=2).values
    assert resized.isnan()[0, 0].tolist() == [[True, False], [False, False]]
    np.savez("x.npz", x_train=expected.numpy(), x_test=unit(images[1:]).numpy())
    assert torch.allclose(load("array", "train", path="x.npz").values, expected, equal_nan=True)


@pytest.mark.parametrize("test", ["Test", "val", "validation"])
def test_a_split_by_another_name_and_what_is_no_class(test):
    """An archive's only folder stands for what it holds; hidden names are nobody's pictures."""
    names = ["Train/cat/a.png", "Train/dog/b.png", f"{test}/cat/c.png", "raw/d.png", ".cache/e.png"]
    save(pixels(6), [f"p/data/{name}" for name in [*names, "Train/cat/._a.png"]])
    save(pixels(1), ["p/__MACOSX/data/._a.png"])
    train, tested = both("folder", path="p")
    assert (len(train), len(tested)) == (2, 1) and train.labels.tolist() == [0, 1] and tested.labels.tolist() == [0]
    said = "; ".join(train.notes)
    assert "2 classes, the sub-folders of data: cat (2), dog (1)" in said and train.notes == tested.notes
    assert f"pictures for testing: those in {test}" in said and "left out, beside Train" in said and "raw" in said


def test_folders_that_are_refused():
    with pytest.raises(InputError, match="there is no folder 'p'"):
        load("folder", "train", path="p")
    Path("p").mkdir()
    with pytest.raises(InputError, match="the folder 'p' has no pictures"):
        load("folder", "train", path="p")
    save(pixels(1), ["p/a.png"])
    with pytest.raises(InputError, match="p has one picture; a training and a test split need at least 2"):
        load("folder", "train", path="p")
    save(pixels(1), ["p/train/a.png"])
    Path("p/test").mkdir()
    with pytest.raises(InputError, match="the folder 'p/test' has no pictures"):
        load("folder", "train", path="p")
