"""Makers of masks, and masks on disk."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image

from viscos.core.errors import InputError
from viscos.core.rng import generator
from viscos.data.mask_files import load_masks, mask_hash, save_masks
from viscos.data.masks import CenterMask, FileMask, HalfMask, RandomMask, any_masks

quick = settings(max_examples=30, deadline=None)
rates = st.floats(0, 1)
shapes = st.one_of(
    st.tuples(st.integers(1, 9)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)),
)
masks = arrays(np.bool_, array_shapes(max_dims=4, max_side=6)).map(torch.from_numpy)


@quick
@given(rates, shapes, st.integers(0, 5), st.integers(0, 2**40))
def test_random_masks_are_a_function_of_seed_and_split(missing, shape, n, seed):
    mask = RandomMask(missing)
    observed = mask(shape, n, seed, "train")
    assert observed.shape == (n, *shape) and observed.dtype == torch.bool
    assert torch.equal(observed, mask(shape, n, seed, "train"))
    assert torch.equal(observed, mask(shape, n + 3, seed, "train")[:n])
    if len(shape) == 3:
        assert torch.equal(observed, observed[:, :1].expand_as(observed))


@quick
@given(rates, rates, st.integers(0, 99))
def test_what_is_hidden_stays_hidden_at_a_higher_rate(a, b, seed):
    low, high = (RandomMask(rate)((1, 4, 4), 5, seed, "test") for rate in sorted((a, b)))
    assert not (high & ~low).any()


def test_random_rates():
    assert RandomMask(0)((1, 8, 8), 50, 0, "train").all()
    assert not RandomMask(1)((1, 8, 8), 50, 0, "train").any()
    for missing in (0.1, 0.5, 0.9):
        hidden = ~RandomMask(missing)((1, 28, 28), 200, 0, "train")
        assert abs(hidden.float().mean().item() - missing) < 0.005
    one, other = (RandomMask(0.5)((1, 8, 8), 50, 0, split) for split in ("train", "test"))
    assert not torch.equal(one, other)
    assert not torch.equal(one, RandomMask(0.5)((1, 8, 8), 50, 1, "train"))


@pytest.mark.parametrize("missing", [-0.1, 1.1, 90, float("nan")])
def test_random_refuses_a_rate_that_is_none(missing):
    with pytest.raises(InputError, match="from 0 to 1"):
        RandomMask(missing)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (8, 8), (1, 9, 12)])
@pytest.mark.parametrize("size", [1, 5, 8])
def test_centre(shape, size):
    hidden = ~CenterMask(size)(shape, 2, 0, "test")
    assert hidden.shape == (2, *shape)
    plane = hidden.reshape(-1, *shape[-2:])
    assert (plane == plane[0]).all() and plane[0].sum() == size**2
    for axis, length in ((1, shape[-2]), (0, shape[-1])):
        places = plane[0].any(axis).nonzero().flatten()
        assert len(places) == size and 0 <= (length - 1 - places[-1]) - places[0] <= 1


def test_centre_up_to_the_whole_image():
    assert CenterMask().size == 8
    assert not CenterMask(8)((1, 8, 8), 1, 0, "test").any()
    for size in (0, 9, -1):
        with pytest.raises(InputError, match="8x8; give 1 to 8"):
            CenterMask(size)((1, 8, 8), 1, 0, "test")
    with pytest.raises(InputError, match="needs images"):
        CenterMask(1)((8,), 1, 0, "test")


def test_halves():
    def hidden(side, shape=(2, 2, 3)):
        return (~HalfMask(side)(shape, 1, 0, "test"))[0, 0].int().tolist()

    assert hidden("right") == [[0, 0, 1], [0, 0, 1]] and hidden("left") == [[1, 0, 0], [1, 0, 0]]
    assert hidden("top") == [[1, 1, 1], [0, 0, 0]] and hidden("bottom") == [[0, 0, 0], [1, 1, 1]]
    assert hidden("right", (1, 1, 4)) == [[0, 0, 1, 1]]
    with pytest.raises(InputError, match="right, left, top, bottom"):
        HalfMask("middle")
    with pytest.raises(InputError, match="needs images"):
        HalfMask()((8,), 1, 0, "test")


@pytest.mark.parametrize("n", [0, 1, 7, 64])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 4), (1, 1, 1), (6,), (1,)])
def test_masks_of_every_kind_are_a_function_of_their_generator(shape, n):
    observed = any_masks(shape, n, generator(0))
    assert observed.shape == (n, *shape) and observed.dtype == torch.bool
    assert torch.equal(observed, any_masks(shape, n, generator(0)))
    assert n < 7 or not torch.equal(observed, any_masks(shape, n, generator(1)))
    if len(shape) == 3:
        assert torch.equal(observed, observed[:, :1].expand_as(observed)), "channels share their fate"


def rectangular(inside):
    """Whether what is true in images (n, 1, H, W) is a rectangle, whole."""
    rows, columns = inside.any(3, keepdim=True), inside.any(2, keepdim=True)
    edges = [line.flatten(1).int().diff(dim=1).abs().sum(1) + line.flatten(1)[:, 0] <= 2 for line in (rows, columns)]
    return (inside == rows & columns).flatten(1).all(1) & edges[0] & edges[1] & inside.flatten(1).any(1)


def test_every_kind_of_mask_of_images_occurs():
    observed = any_masks((1, 6, 8), 4000, generator(0))
    share = observed[:2000].flatten(1).double().mean(1)
    assert float(share.mean()) == pytest.approx(0.5, abs=0.03)
    assert [float(share.quantile(q)) for q in (0.1, 0.9)] == pytest.approx([0.1, 0.9], abs=0.05)
    rest = observed[2000:]
    outside = torch.arange(2000) % 4 == 3  # where only a rectangle is seen
    assert rectangular(rest[outside]).all() and rectangular(~rest[~outside]).all()
    hidden = torch.where(outside.view(-1, 1, 1, 1), rest, ~rest)
    sides = torch.stack([hidden.any(3).flatten(1).sum(1), hidden.any(2).flatten(1).sum(1)], 1)
    assert len(sides.unique(dim=0)) == 48, "every size"
    for axis, size in ((0, 6), (1, 8)):
        assert float((sides[:, axis] == size).double().mean()) == pytest.approx(1 / 8 + 7 / 8 / size, abs=0.03)
    assert hidden[sides.amax(1) <= 3].flatten(1).any(0).all(), "every place"


def test_every_kind_of_mask_of_vectors_occurs():
    observed = any_masks((5,), 4000, generator(0))
    assert float(observed[:2000].double().mean()) == pytest.approx(0.5, abs=0.03)
    rest = observed[2000:]
    alone = torch.arange(2000) % 4 == 3
    assert (rest[alone].sum(1) == 1).all() and (rest[~alone].sum(1) == 4).all()
    assert rest[alone].any(0).all() and (~rest[~alone]).any(0).all()


MASK = torch.tensor([[1, 0, 1], [0, 1, 1]], dtype=torch.bool)


def write_png(path, mask, mode="L"):
    Image.fromarray(mask.numpy().astype(np.uint8) * np.uint8(255)).convert(mode).save(path)


WRITERS = {
    "bool.npy": lambda path, mask: np.save(path, mask.numpy()),
    "int.npy": lambda path, mask: np.save(path, mask.numpy().astype(np.uint16)),
    "float.npy": lambda path, mask: np.save(path, mask.numpy().astype(np.float64)),
    "one.npz": lambda path, mask: np.savez(path, whatever=mask.numpy()),
    "named.npz": lambda path, mask: np.savez(path, observed=mask.numpy(), other=np.zeros(3)),
    "saved.npz": save_masks,
    "tensor.pt": lambda path, mask: torch.save(mask, path),
    "half.pt": lambda path, mask: torch.save(mask.half(), path),
    "dict.pt": lambda path, mask: torch.save({"observed": mask.int()}, path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_file_masks_of_every_kind_and_shape(tmp_path, name):
    for mask in (MASK, MASK.expand(2, 2, 3).clone(), torch.stack([MASK, ~MASK]).expand(4, 2, 2, 3).clone()):
        WRITERS[name](tmp_path / name, mask)
        observed = FileMask(tmp_path / name)((2, 2, 3), 4, 0, "test")
        assert observed.dtype == torch.bool and torch.equal(observed, mask.expand(4, 2, 2, 3))


@pytest.mark.parametrize("mode", ["L", "1", "RGB", "RGBA", "P", "LA"])
def test_png_masks(tmp_path, mode):
    write_png(tmp_path / "mask.png", MASK, mode)
    assert torch.equal(FileMask(tmp_path / "mask.png")((1, 2, 3), 2, 0, "test"), MASK.expand(2, 1, 2, 3))


def test_png_counts_every_colour_but_black_as_observed(tmp_path):
    pixels = np.zeros((2, 3, 3), dtype=np.uint8)
    pixels[0, 0, 2] = 1  # the darkest blue, which turns into black when made grey
    Image.fromarray(pixels).save(tmp_path / "mask.PNG")
    assert FileMask(str(tmp_path / "mask.PNG"))((2, 3), 1, 0, "test").sum() == 1


def test_a_mask_for_vectors(tmp_path):
    np.save(tmp_path / "mask.npy", [1, 0, 1])
    assert FileMask(tmp_path / "mask.npy")((3,), 2, 0, "test").int().tolist() == [[1, 0, 1]] * 2


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros((2, 4)), r"shape \(2, 4\).*\(2, 3\), \(1, 2, 3\) or \(4, 1, 2, 3\)"),
        (np.zeros((3, 1, 2, 3)), "holds 3 masks, and there are 4 test items; give one for all"),
        (np.zeros((3, 2, 3)), "has shape"),
        (np.zeros(()), "has shape"),
        (np.full((2, 3), 255), "holds 255"),
        (np.full((2, 3), 0.5), "holds 0.5"),
        (np.full((2, 3), np.nan), "holds nan"),
        (np.array([["a"] * 3] * 2), "cannot be read"),
        (np.array([[None] * 3] * 2), "cannot be read"),
    ],
)
def test_file_masks_that_do_not_fit_are_refused(tmp_path, array, says):
    np.save(tmp_path / "mask.npy", array)
    with pytest.raises(InputError, match=says):
        FileMask(tmp_path / "mask.npy")((1, 2, 3), 4, 0, "test")


def test_files_that_are_no_masks_are_refused(tmp_path):
    np.savez(tmp_path / "two.npz", a=MASK.numpy(), b=MASK.numpy())
    torch.save(["text"], tmp_path / "list.pt")
    torch.save(Image.Image, tmp_path / "code.pt")
    for name in ("mask.npy", "mask.npz", "mask.pt", "mask.png"):
        (tmp_path / name).write_bytes(b"nonsense")
    (tmp_path / "mask.txt").write_bytes(b"")
    says = {"two.npz": "one array", "list.pt": "no tensor", "mask.txt": "ending", "absent.npy": "no mask file"}
    for name in ("code.pt", "mask.npy", "mask.npz", "mask.pt", "mask.png", *says):
        with pytest.raises(InputError, match=says.get(name, "cannot be read")) as caught:
            FileMask(tmp_path / name)((2, 3), 1, 0, "test")
        assert "\n" not in str(caught.value)


@quick
@given(masks)
def test_saved_masks_come_back(tmp_path_factory, observed):
    path = save_masks(tmp_path_factory.mktemp("masks") / "m.npz", observed)
    back = load_masks(path)
    assert back.dtype == torch.bool and torch.equal(back, observed) and mask_hash(back) == mask_hash(observed)
    assert [file.name for file in path.parent.iterdir()] == ["m.npz"]


@quick
@given(masks, st.data())
def test_the_hash_tells_bits_and_shapes_apart(observed, data):
    other = observed.clone()
    other.view(-1)[data.draw(st.integers(0, observed.numel() - 1))] ^= True
    assert mask_hash(other) != mask_hash(observed) != mask_hash(observed[None])


def test_the_hash_stays_what_it_is():
    # Records of earlier runs hold it.
    expected = hashlib.blake2b(b"(2, 3)" + bytes([0b10101100]), digest_size=8).hexdigest()
    assert mask_hash(MASK) == expected == "5ff7e56bddee63a2"
    assert mask_hash(MASK.T.clone().T) == mask_hash(MASK)
    with pytest.raises(InputError, match="must be bool"):
        mask_hash(MASK.int())


def test_damaged_masks_are_refused(tmp_path):
    path = save_masks(tmp_path / "m.npz", MASK)
    whole = path.read_bytes()
    with np.load(path) as file:
        parts = {key: file[key] for key in file.files}
    path.write_bytes(whole[:-40])
    with pytest.raises(InputError, match="cannot be read"):
        load_masks(path)
    for change in ({"bits": ~parts["bits"]}, {"shape": np.array([3, 2])}, {"shape": np.array([-2, -3])}):
        np.savez(path, **{**parts, **change})
        for read in (load_masks, lambda p: FileMask(p)((2, 3), 1, 0, "test")):
            with pytest.raises(InputError, match="damaged"):
                read(path)
    np.savez(path, observed=MASK.numpy())
    with pytest.raises(InputError, match="not saved masks"):
        load_masks(path)
    np.savez(path, bits=np.array([None]), shape=parts["shape"], hash=parts["hash"])
    with pytest.raises(InputError, match="pickled"):
        load_masks(path)
    with pytest.raises(InputError, match="no mask file"):
        load_masks(tmp_path / "absent.npz")
