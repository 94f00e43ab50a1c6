"""A user's own images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from viscos.core.errors import InputError
from viscos.data.sources.files import read_items

GREY = (1, 4, 6)
COLOUR = (3, 4, 6)


def numbers(*shape, dtype=np.float32):
    """Numbers in [0, 1]."""
    return np.random.default_rng(0).random(shape).astype(dtype)


def read_images(path, shape, limit=None):
    """The images, and where they are known."""
    found = read_items(path, shape, limit)
    return found.data, found.known


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("shape", "held", "count"),
    [
        (GREY, (5, 1, 4, 6), 5),
        (GREY, (5, 4, 6), 5),
        (GREY, (1, 4, 6), 1),
        (GREY, (4, 6), 1),
        (COLOUR, (5, 3, 4, 6), 5),
        (COLOUR, (3, 4, 6), 1),
    ],
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_arrays(shape, held, count, dtype):
    array = numbers(*held, dtype=dtype)
    array.flat[[0, 7]] = np.nan
    np.save("a.npy", array)
    images, known = read_images("a.npy", shape)
    assert images.values.shape == known.shape == (count, *shape)
    assert images.values.dtype == torch.float32 and images.labels is None and images.name == "a"
    expected = torch.from_numpy(array.astype(np.float32)).reshape(count, *shape)
    assert torch.equal(known, ~expected.isnan())
    assert torch.equal(images.values, expected.nan_to_num(0.0))


@pytest.mark.parametrize("shape", [GREY, COLOUR])
@pytest.mark.parametrize("key", ["images", "x", "data", "values"])
def test_arrays_as_training_takes_them(shape, key):
    """Channels last, beside labels."""
    array = numbers(5, *shape[1:], shape[0])
    np.savez("a.npz", **{"labels": np.arange(5), key: array})
    for expected in (array, array[:1]):
        np.savez("a.npz", **{"labels": np.arange(5), key: expected})
        images, known = read_images("a.npz", shape)
        assert known.all() and np.array_equal(images.values.numpy(), expected.transpose(0, 3, 1, 2))
    np.save("a.npy", array[0])
    assert np.array_equal(read_images("a.npy", shape)[0].values[0].numpy(), array[0].transpose(2, 0, 1))


def test_eight_bit_array():
    array = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10
    np.save("a.npy", array)
    images, known = read_images("a.npy", GREY)
    assert known.all() and torch.equal(images.values[0, 0], torch.from_numpy(array.astype(np.float32)) / 255)


@pytest.mark.parametrize("arrays", [{"anything": numbers(2, 4, 6)}, {"values": numbers(2, 4, 6), "more": np.zeros(3)}])
def test_npz(arrays):
    np.savez("a.NPZ", **arrays)
    Path("a.NPZ.npz").rename("a.NPZ")
    images, _ = read_images("a.NPZ", GREY)
    assert np.array_equal(images.values[:, 0].numpy(), next(iter(arrays.values())))


def test_only_so_many():
    np.save("a.npy", numbers(5, 4, 6))
    images, known = read_images("a.npy", GREY, 2)
    assert len(images) == len(known) == 2 and np.array_equal(images.values[:, 0].numpy(), numbers(5, 4, 6)[:2])
    for name in "cab":
        Image.fromarray(np.full((4, 6), ord(name), np.uint8)).save(f"{name}.png")
    images, _ = read_images(".", GREY, 2)
    assert (images.values[:, 0, 0, 0] * 255).round().tolist() == [ord("a"), ord("b")]


def pixels(channels, alpha=None):
    """8-bit pixels (4, 6, channels), and one more channel if `alpha` is given."""
    colour = np.random.default_rng(1).integers(0, 256, (4, 6, channels), dtype=np.uint8)
    return colour if alpha is None else np.concatenate([colour, alpha[..., None]], -1)


ALPHA = np.full((4, 6), 255, np.uint8)
ALPHA[1, 2:4] = 0
ALPHA[3, 0] = 1  # nearly transparent is not transparent


def test_grey_picture():
    grey = pixels(1)[..., 0]
    Image.fromarray(grey).save("a.png")
    images, known = read_images("a.png", GREY)
    assert known.all() and torch.equal(images.values[0, 0], torch.from_numpy(grey.astype(np.float32)) / 255)


def test_colour_picture():
    colour = pixels(3)
    Image.fromarray(colour).save("a.png")
    images, known = read_images("a.png", COLOUR)
    assert known.all() and torch.equal(images.values[0].permute(1, 2, 0), torch.from_numpy(colour / np.float32(255)))


@pytest.mark.parametrize(("shape", "channels"), [(GREY, 1), (COLOUR, 3), (GREY, 3)])
def test_transparent_pixels_are_holes(shape, channels):
    Image.fromarray(pixels(channels, ALPHA), {1: "LA", 3: "RGBA"}[channels]).save("a.png")
    images, known = read_images("a.png", shape)
    assert torch.equal(known, torch.from_numpy(ALPHA > 0).expand(1, *shape))
    assert (images.values[~known] == 0).all()
    if channels == shape[0]:
        seen = images.values[0].permute(1, 2, 0)[torch.from_numpy(ALPHA > 0)]
        assert torch.equal(seen, torch.from_numpy(pixels(channels)[ALPHA > 0] / np.float32(255)))


def test_a_palette_with_transparency():
    picture = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6) % 3, "P")
    picture.putpalette([0, 0, 0, 51, 51, 51, 255, 255, 255])
    picture.save("a.png", transparency=bytes([255, 0, 255]))
    images, known = read_images("a.png", GREY)
    assert known[0, 0].tolist() == [[True, False, True] * 2] * 4
    assert sorted(images.values[known].unique().tolist()) == [0, 1]


def test_a_folder():
    for k, name in enumerate(("b.png", "a.bmp", "c.PNG")):
        Image.fromarray(np.full((4, 6), k, np.uint8)).save(name)
    Path("notes.txt").touch()
    images, _ = read_images(".", GREY)
    assert (images.values[:, 0, 0, 0] * 255).round().tolist() == [1, 0, 2]


def _save(array):
    return lambda: np.save("a.npy", array)


def _two_arrays():
    np.savez("a.npz", one=numbers(4, 6), two=numbers(4, 6))


def _cut_archive():
    np.savez("b.npz", values=numbers(4, 6))
    data = Path("b.npz").read_bytes()
    Path("a.npz").write_bytes(data[: len(data) // 2])


def _text(name):
    return lambda: Path(name).write_text("this is text")


def _cut_picture():
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (4, 6), dtype=np.uint8)).save("b.png")
    Path("a.png").write_bytes(Path("b.png").read_bytes()[:50])


def _sixteen_bits():
    Image.fromarray(np.full((4, 6), 30000, np.uint16)).save("a.png")


def _objects():
    np.save("a.npy", np.array([None, 1]), allow_pickle=True)


REFUSED = {
    "another size": (_save(numbers(2, 6, 4)), "a.npy", r"shape \(1, 6, 4\), the flow takes \(1, 4, 6\)"),
    "three channels": (_save(numbers(2, 3, 4, 6)), "a.npy", "the flow takes"),
    "channels last of another size": (_save(numbers(2, 6, 4, 1)), "a.npy", "the flow takes"),
    "five axes": (_save(numbers(1, 2, 1, 4, 6)), "a.npy", "the flow takes"),
    "a vector": (_save(numbers(24)), "a.npy", "the flow takes"),
    "a number": (_save(np.float32(0.5)), "a.npy", "the flow takes"),
    "no image": (_save(numbers(0, 4, 6)), "a.npy", "holds no images"),
    "0 to 255": (_save(255 * numbers(2, 4, 6)), "a.npy", "divide 0-255 values by 255"),
    "-1 to 1": (_save(2 * numbers(2, 4, 6) - 1), "a.npy", r"shift \[-1, 1\]"),
    "infinite": (_save(np.full((4, 6), np.inf)), "a.npy", r"must lie in \[0, 1\]"),
    "int64": (_save(np.zeros((2, 4, 6), np.int64)), "a.npy", "holds int64; give floats in"),
    "bool": (_save(np.zeros((2, 4, 6), bool)), "a.npy", "holds bool; give floats in"),
    "complex": (_save(np.zeros((2, 4, 6), complex)), "a.npy", "holds complex128; give floats in"),
    "objects": (_objects, "a.npy", "cannot be read as an array file"),
    "two arrays": (_two_arrays, "a.npz", "holds the arrays one, two; name the images `images` or `x`"),
    "cut archive": (_cut_archive, "a.npz", "cannot be read as an array file"),
    "text as npy": (_text("a.npy"), "a.npy", "cannot be read as an array file: it is neither .npy nor .npz"),
    "text as npz": (_text("a.npz"), "a.npz", "cannot be read as an array file"),
    "text as png": (_text("a.png"), "a.png", "cannot be read as a picture"),
    "cut picture": (_cut_picture, "a.png", "cannot be read as a picture"),
    "16 bits": (_sixteen_bits, "a.png", "more than 8 bits"),
    "text": (_text("a.txt"), "a.txt", "is not .npy, .npz, a picture or a folder"),
    "a table": (_text("a.csv"), "a.csv", "a table wants a run of `viscos train dataset=table`"),
    "no such file": (lambda: None, "a.npy", "there is no file"),
    "an empty folder": (lambda: None, ".", "has no pictures"),
    "a smaller picture": (
        lambda: Image.fromarray(np.zeros((3, 6), np.uint8)).save("a.png"), "a.png", "6 × 3, the flow takes 6 × 4"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line(name):
    make, path, says = REFUSED[name]
    make()
    with pytest.raises(InputError, match=says) as caught:
        read_images(path, GREY)
    assert "\n" not in str(caught.value)
