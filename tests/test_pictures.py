"""Completing a user's own pictures: windows of them, masks, and the files that are written."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from viscos.cli import main
from viscos.commands.completing.pictures import file_names
from viscos.core.errors import InputError
from viscos.data import mask_files
from viscos.data.masks import FileMask
from viscos.data.pictures import open_picture, read_picture
from viscos.data.sources.files import read_items
from viscos.data.sources.registry import load
from viscos.data.windows import Window, covering
from viscos.inference.diagnosis import WORDS
from viscos.report.overview import labelled
from viscos.report.pasted import Canvas


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def pixels(height, width, seed=0, channels=3):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def save(array, name, **settings):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(name, **settings)


def hole(height, width, rows, columns):
    found = torch.zeros(height, width, dtype=torch.bool)
    found[rows, columns] = True
    return found


def cut(colours, found):
    """The picture, transparent in a hole."""
    return np.concatenate([colours, np.where(found.numpy(), 0, 255).astype(np.uint8)[..., None]], -1)


# -------------------------------------------------------------------------------------------------------------- windows


@pytest.mark.parametrize(
    ("where", "how", "windows"),
    [
        ((20, 24, 30, 33), "crop", [(20, 0, 40, 40)]),  # the middle of 80 × 40 has it
        ((20, 24, 3, 6), "crop", [(3, 0, 40, 40)]),  # as near to the middle as may be
        ((20, 24, 75, 80), "crop", [(40, 0, 40, 40)]),
        ((0, 4, 2, 60), "crop", [(0, 0, 40, 40), (40, 0, 40, 40)]),  # one is not enough
        ((20, 24, 30, 42), "near", [(24, 10, 24, 24)]),  # twice its length, about it
        ((20, 22, 30, 32), "near", [(27, 17, 8, 8)]),  # not smaller than the model
        ((2, 26, 40, 60), "near", [(30, 0, 40, 40)]),  # nor larger than the picture
        ((20, 24, 30, 34), "tiles", [(28, 18, 8, 8)]),  # the hole in its middle
        ((0, 2, 0, 2), "tiles", [(0, 0, 8, 8)]),  # at the edge, inside of the picture
        ((10, 20, 30, 34), "tiles", [(28, 7, 8, 8), (28, 15, 8, 8)]),
    ],
)
def test_windows_cover_the_hole(where, how, windows):
    found = hole(40, 80, slice(*where[:2]), slice(*where[2:]))
    assert [(w.left, w.top, w.width, w.height) for w in covering(found, (8, 8), how)] == windows


@pytest.mark.parametrize("how", ["crop", "near", "tiles"])
def test_every_pixel_of_any_hole_is_in_a_window_inside_of_the_picture(how):
    g = torch.Generator().manual_seed(0)
    for _ in range(50):
        height, width = (int(torch.randint(8, 40, (), generator=g)) for _ in range(2))
        found = torch.rand(height, width, generator=g) < 0.02
        seen = torch.zeros_like(found)
        for window in covering(found, (8, 6), how):
            assert min(window.left, window.top) >= 0
            assert window.left + window.width <= width and window.top + window.height <= height
            assert bool(found[window.rows, window.columns].any()), "none without a part of the hole"
            seen[window.rows, window.columns] = True
        assert bool(seen[found].all())


def test_no_hole_no_window():
    assert covering(torch.zeros(9, 9, dtype=torch.bool), (8, 8), "tiles") == []


# -------------------------------------------------------------------------------------------------------------- reading


def test_a_pixel_is_hidden_where_any_part_of_it_is_and_no_colour_of_the_hole_is_taken_over():
    grey = np.full((40, 40, 3), 51, np.uint8)
    found = hole(40, 40, slice(13, 14), slice(21, 22))  # one pixel of the 100 that make one of the model's
    grey[found.numpy()] = 255
    save(cut(grey, found), "a.png")
    values = read_picture(Path("a.png"), 3, 4)
    assert torch.equal(values.isnan(), hole(4, 4, slice(1, 2), slice(2, 3)).expand(3, -1, -1))
    torch.testing.assert_close(values[~values.isnan()], torch.full((45,), 0.2))


def test_a_hole_far_away_changes_no_pixel():
    colours, found = pixels(40, 40), hole(40, 40, slice(0, 4), slice(0, 4))
    save(colours, "whole.png")
    save(cut(colours, found), "holed.png")
    whole, holed = (read_picture(Path(f"{name}.png"), 3, 8) for name in ("whole", "holed"))
    assert torch.equal(whole[:, 4:, 4:], holed[:, 4:, 4:]) and int(holed.isnan().sum()) == 3


def test_a_picture_is_turned_upright_and_frames_and_half_transparency_are_named():
    colours = pixels(4, 6)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° to the right
    Image.fromarray(colours).save("a.png", exif=exif)
    assert np.array_equal(np.array(open_picture(Path("a.png")).image), np.rot90(colours, -1))
    first, second = Image.fromarray(colours), Image.fromarray(pixels(4, 6, 1))
    first.save("b.tif", save_all=True, append_images=[second])
    picture = open_picture(Path("b.tif"))
    assert np.array_equal(np.array(picture.image), colours) and picture.notes == (
        "b.tif has 2 frames, of which the first is taken",
    )
    alpha = np.full((4, 6, 1), 255, np.uint8)
    alpha[0, :3, 0] = 1, 128, 0
    save(np.concatenate([colours, alpha], -1), "c.png")
    picture = open_picture(Path("c.png"))
    assert int(picture.hole.sum()) == 1 and picture.notes == (
        "c.png has 2 pixels that are partly transparent, and count as known",
    )


def test_a_colour_profile_is_kept_where_its_colours_are():
    picture = Image.fromarray(pixels(4, 6))
    picture.save("a.jpg", icc_profile=b"profile")
    picture.convert("CMYK").save("b.jpg", icc_profile=b"profile")
    kept, left = (open_picture(Path(f"{name}.jpg")).image for name in "ab")
    assert kept.info["icc_profile"] == b"profile" and "icc_profile" not in left.info and left.mode == "RGB"


def test_folders_and_patterns():
    for name in ("p/a.png", "p/deep/b.jpg", "p/deep/b.png", "p/.thumbs/c.png", "p/__MACOSX/._a.png", "p/._a.png"):
        save(pixels(8, 8), name)
    assert read_items("p", (3, 8, 8)).names == ("a", "deep/b.jpg", "deep/b.png")
    assert read_items("p/*/b.*", (3, 8, 8)).names == ("b.jpg", "b.png")
    assert read_items("p/**/*.jpg", (3, 8, 8)).names == ("b",)
    with pytest.raises(InputError, match=r"'p/\*.gif' matches no picture .*; it matches 0 files"):
        read_items("p/*.gif", (3, 8, 8))
    save(pixels(6, 8), "small.png")
    with pytest.raises(InputError, match=r"small\.png is 8 × 6, the flow takes 8 × 8; window=crop resizes it"):
        read_items("small.png", (3, 8, 8))


def test_names_of_an_array():
    images = np.random.default_rng(0).random((3, 4, 6)).astype(np.float32)
    np.savez("a.npz", images=images, names=["x", "y", "z"])
    assert read_items("a.npz", (1, 4, 6), 2).names == ("x", "y")
    np.save("a.npy", images)
    assert read_items("a.npy", (1, 4, 6)).names == ("0", "1", "2")


def test_what_a_mask_hides_is_known_and_not_used():
    """Not even by the colours that a window takes over when it is resized."""
    colours, found = np.full((40, 40, 3), 51, np.uint8), hole(40, 40, slice(10, 22), slice(10, 20))
    colours[found.numpy()] = 255
    save(colours, "a.png")
    items = read_items("a.png", (3, 4, 4), None, "crop", lambda name, path, size: ~found)
    assert bool(items.known.all()) and int((~items.observed[0, 0]).sum()) == 2
    torch.testing.assert_close(items.data.values[items.observed], torch.full((42,), 0.2), atol=0.004, rtol=0)
    assert float(items.data.values[~items.observed].min()) > 0.2


# ---------------------------------------------------------------------------------------------------------------- masks

BARS = hole(6, 8, slice(2, 4), slice(None))


def read_mask(array, mode=None, name="m.png", **settings):
    picture = Image.fromarray(array)
    (picture if mode is None else picture.convert(mode)).save(name)
    return FileMask(name, **settings).of_picture("a", Path("a.png"), (6, 8), (1, 4, 4))


def test_black_or_white_is_the_hole():
    grey = np.where(BARS.numpy(), 0, 255).astype(np.uint8)
    for mode in ("1", "L", "RGB", "P"):
        assert torch.equal(read_mask(grey, mode), ~BARS) and torch.equal(read_mask(grey, mode, hole="white"), BARS)
    red = np.where(BARS.numpy()[..., None], [255, 0, 0], [255, 255, 255]).astype(np.uint8)
    assert torch.equal(read_mask(red), ~BARS), "the darker of two colours counts as black"
    np.save("m.npy", (~BARS).numpy())
    for side, observed in (("black", ~BARS), ("white", BARS)):
        assert torch.equal(FileMask("m.npy", side).of_picture("a", Path("a.png"), (6, 8), (1, 4, 4)), observed)


def test_transparency_of_a_mask_counts():
    colours = cut(pixels(6, 8), BARS)  # of any colours
    assert torch.equal(read_mask(colours), ~BARS) and torch.equal(read_mask(colours, hole="white"), BARS)
    colours[0, :2, 3] = 100
    with pytest.raises(InputError, match=r"m\.png has 3 degrees of transparency, 2 pixels beside .*threshold=0\.5"):
        read_mask(colours)
    assert int((~read_mask(colours, threshold=0.5)).sum()) == 18


def test_more_than_two_colours_are_refused_with_their_count_or_compared():
    grey = np.where(BARS.numpy(), 0, 255).astype(np.uint8)
    grey[4, :3] = 10, 20, 200
    with pytest.raises(InputError, match=r"m\.png has 5 colours, 3 pixels beside the two commonest"):
        read_mask(grey)
    assert int((~read_mask(grey, threshold=0.5)).sum()) == 18
    with pytest.raises(InputError, match=r"holds 7 and 1 more such values"):
        np.save("m.npy", np.full((2, 1), 7))
        FileMask("m.npy")((2, 1), 1, 0, "test")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.array([0, 1, 0, 1], np.uint8), None),
        (np.array([3, 255, 90, 200], np.uint8), None),
        (np.array([0.1, 1.0, 0.3, 0.9]), None),
        (np.array([0, 65535, 0, 65535], dtype=np.uint16), r"holds 65535\.0, and mask\.threshold is for values"),
        (np.array([0, 1, 0, 1], dtype=np.uint32), None),
        (np.array([3, 255, 90, 200]), r"holds 3, and mask\.threshold is for values from 0 to 1, or uint8"),
        (np.array([0.1, -1.0, 0.3, 0.9]), r"holds -1\.0, and mask\.threshold"),
    ],
)
def test_the_threshold_of_an_array(values, says):
    """Bytes that are 0 and 1 are no grey levels, and numbers of another scale are refused."""
    np.save("m.npy", values.reshape(2, 2))
    if says is None:
        assert mask_files.read_mask("m.npy", threshold=0.5).flatten().tolist() == [False, True, False, True]
    else:
        with pytest.raises(InputError, match=says):
            mask_files.read_mask("m.npy", threshold=0.5)


def test_masks_of_another_size_and_folders_of_masks():
    grey = np.where(BARS.numpy(), 0, 255).astype(np.uint8)
    save(grey, "m/deep/b.png")
    fits = FileMask("m").of_picture("deep/b.jpg", Path("b.jpg"), (6, 8), (1, 6, 8))
    assert torch.equal(fits, ~BARS)
    assert FileMask("m/deep/b.png").of_picture("x", Path("x.png"), (6, 8), (1, 6, 8)) is None, "it is one of items"
    with pytest.raises(InputError, match=r"8 × 6, the mask m/deep/b\.png, does not fit 9 × 5, the picture x\.png"):
        FileMask("m/deep/b.png").of_picture("x", Path("x.png"), (5, 9), (1, 4, 4))
    with pytest.raises(InputError, match=r"the folder 'm' has no mask called 'c'"):
        FileMask("m").of_picture("c", Path("c.png"), (6, 8), (1, 4, 4))
    with pytest.raises(InputError, match="is a folder"):
        FileMask("m")((1, 4, 4), 1, 0, "test")


def test_a_mask_of_a_folder_has_the_whole_name_of_its_picture():
    """What begins alike, or is no mask, is not taken for one; of two masks neither is."""
    grey = np.where(BARS.numpy(), 0, 255).astype(np.uint8)
    for name, pixels in (("a.1.png", 255 - grey), ("a.png", grey)):
        save(pixels, f"m/{name}")
    Path("m/a.json").write_text("{}")
    assert torch.equal(FileMask("m").of_picture("a.jpg", Path("a.jpg"), (6, 8), (1, 6, 8)), ~BARS)
    assert torch.equal(FileMask("m").of_picture("a.1.jpg", Path("a.1.jpg"), (6, 8), (1, 6, 8)), BARS)
    np.save("m/a.npy", BARS.numpy())
    with pytest.raises(InputError, match=r"the folder 'm' has a\.npy and a\.png; leave one mask for each picture"):
        FileMask("m").of_picture("a.jpg", Path("a.jpg"), (6, 8), (1, 6, 8))


# -------------------------------------------------------------------------------------------------------------- writing


def canvas(array, found, windows, extra=None, channels=3):
    save(array, "a.png")
    return Canvas(open_picture(Path("a.png")), found, windows, extra, channels)


def test_only_the_hole_is_painted_and_it_is_opaque():
    colours, found = pixels(40, 60), hole(40, 60, slice(5, 9), slice(30, 41))
    window = Window.middle((40, 60), (4, 4))
    for array in (colours, cut(colours, found)):
        done = np.array(canvas(array, found, [window]).completed(torch.full((1, 3, 4, 4), 0.2)))
        assert done.shape == (40, 60, 3), "nothing is transparent any more"
        assert (done[found.numpy()] == 51).all() and np.array_equal(done[~found.numpy()], colours[~found.numpy()])
    array = cut(colours, found)
    array[0, 0, 3] = 7  # a known pixel stays as it is, transparency and all
    done = np.array(canvas(array, found, [window]).completed(torch.full((1, 3, 4, 4), 0.2)))
    assert np.array_equal(done[~found.numpy()], array[~found.numpy()]) and (done[found.numpy()][:, 3] == 255).all()


def test_grey_in_colour_and_colour_in_grey():
    found, window = hole(8, 8, slice(0, 2), slice(None)), [Window.whole((8, 8))]
    grey = pixels(8, 8, channels=1)[..., 0]
    values = torch.rand(1, 3, 8, 8)
    done = np.array(canvas(grey, found, window).completed(values))
    assert np.array_equal(done[2:], np.stack([grey[2:]] * 3, -1))
    assert np.array_equal(done[:2], (values[0] * 255).round().byte().permute(1, 2, 0).numpy()[:2])
    done = np.array(canvas(grey, found, window, channels=1).completed(values[:, :1]))
    assert done.shape == (8, 8) and np.array_equal(done[2:], grey[2:])
    done = np.array(canvas(pixels(8, 8), found, window, channels=1).completed(values[:, :1]))
    assert np.array_equal(done[2:], pixels(8, 8)[2:]) and (done[:2] == done[:2, :, :1]).all()


def test_where_windows_meet_the_first_one_paints():
    found, windows = hole(8, 12, slice(None), slice(None)), [Window(0, 0, 8, 8), Window(4, 0, 8, 8)]
    made = canvas(pixels(8, 12), found, windows)
    done = np.array(made.completed(torch.stack([torch.zeros(3, 8, 8), torch.ones(3, 8, 8)])))
    assert (done[:, :8] == 0).all() and (done[:, 8:] == 255).all()
    spread = made.spread(torch.stack([torch.full((3, 8, 8), 0.1), torch.full((3, 8, 8), 0.3)]))
    torch.testing.assert_close(spread[0], torch.tensor([0.1] * 8 + [0.3] * 4))


def test_what_masks_of_a_window_hide_is_painted_in_whole_blocks():
    extra = hole(4, 4, slice(1, 2), slice(2, 3))[None]
    made = canvas(pixels(40, 60), torch.zeros(40, 60, dtype=torch.bool), [Window(10, 0, 40, 40)], extra)
    assert torch.equal(made.hole, hole(40, 60, slice(10, 20), slice(30, 40)))


def test_the_overview_has_room_for_all():
    small, large = Image.new("L", (10, 5), 255), Image.new("RGBA", (1000, 500), (255, 0, 0, 0))
    grid = labelled([("given", [small, large]), ("mean", [small, large])], ["a", "a name that is far too long " * 3])
    assert grid.mode == "RGB" and grid.width > 2 * 220 and grid.height > 2 * 110
    assert grid.convert("L").getextrema()[0] < 50, "there is something to read"


# ------------------------------------------------------------------------------------------------------------- commands

RUN = ("threads=1", "experiment=debug", "flow=iresnet", "flow.blocks=[1]", "flow.channels=4")
QUICK = ("threads=1", "steps=1", "samples=2", "draws=4")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on pictures of two classes, 8 × 8, of which one in the training and one in the test split have holes."""
    base = tmp_path_factory.mktemp("trained")
    for k in range(24):
        colours = pixels(10, 12, k)
        kept = cut(colours, hole(10, 12, slice(2, 5), slice(3, 6))) if k % 12 < 6 else colours
        (base / f"p/{'ab'[k % 2]}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(kept).save(base / f"p/{'ab'[k % 2]}/{k:02}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(base)
        words = ("dataset=folder", "dataset.path=p", "dataset.size=8", "missing=0", "hydra.run.dir=run")
        assert main(["train", *words, *RUN]) == 0
    return base / "run"


def complete(trained, *words, out="out"):
    assert main(["impute", f"checkpoint={trained}", f"hydra.run.dir={out}", *QUICK, *words]) == 0
    manifest = json.loads(Path(out, "manifest.json").read_text())
    return Path(out), manifest, {entry["name"]: entry for entry in manifest["pictures"]}


def opened(path):
    return np.array(Image.open(path))


def test_training_pictures_may_have_holes(trained):
    record = json.loads((trained / "metrics.json").read_text())
    assert 0 < record["missing"] < 0.2 and record["bound"]["items"]


def test_a_folder_is_completed(trained, capsys):
    found = hole(40, 60, slice(8, 20), slice(2, 14))
    save(cut(pixels(40, 60), found), "p/a.png")
    save(pixels(30, 30, 1), "p/b.png")
    save(cut(pixels(8, 8, 2), hole(8, 8, slice(0, 2), slice(0, 2))), "p/deep/c.png")
    out, manifest, entries = complete(trained, "input=p", "proposals=30")
    said = capsys.readouterr().out
    assert "a: 60 × 40, 6 % hidden, seen in a window of 40 × 40, resized to 8 × 8" in said
    assert "b: 30 × 30, nothing hidden, so it stays as it is" in said and "overview.png" in said
    names = {"draw-01", "draw-02", "draw-03", "draw-04", "mean", "deviation"}
    assert {path.stem for path in (out / "completed/a").iterdir()} == names
    draws = [opened(out / f"completed/a/draw-0{k}.png") for k in (1, 2, 3, 4)]
    for done in (*draws, opened(out / "completed/a/mean.png")):
        assert np.array_equal(done[~found.numpy()], pixels(40, 60)[~found.numpy()])
    assert (draws[0] != draws[2])[found.numpy()].any()
    shade = opened(out / "completed/a/deviation.png")
    assert (shade[~found.numpy()] == 0).all() and shade[found.numpy()].any()
    assert np.array_equal(opened(out / "completed/b/mean.png"), pixels(30, 30, 1))
    assert {path.name for path in (out / "completed/b").iterdir()} == {"mean.png"}
    assert [entries[name]["status"] for name in ("a", "b", "deep/c")] == ["completed", "nothing hidden", "completed"]
    assert entries["a"]["trust"] in WORDS and entries["a"]["reason"] and "trust" not in entries["b"]
    assert (out / "trust.csv").read_text().splitlines()[1].startswith("0,a,")
    assert entries["a"]["windows"] == [[2, 0, 40, 40]] and manifest["seed"] == 0 and manifest["draws"] == 4
    assert entries["a"]["input"] == str(Path("p/a.png").absolute()) and (out / "overview.png").exists()
    with np.load(out / "completions.npz") as arrays:
        assert arrays["names"].tolist() == ["a", "deep/c"] and len(arrays["mean"]) == 2
        own = (arrays["mean"][1].clip(0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0)
    assert np.array_equal(own, opened(out / "completed/deep/c/mean.png")), "of the model's own size, as it is"


def test_images_of_an_array_leave_the_files_of_pictures(trained, capsys, monkeypatch):
    monkeypatch.setattr("viscos.commands.completing.pictures.MOST", 2)
    found = hole(8, 8, slice(2, 5), slice(1, 4)).numpy()
    values = np.stack([pixels(8, 8, k) for k in range(3)]) / np.float32(255)
    values[0, found] = values[2, found] = np.nan
    np.savez("a.npz", images=values, names=["x/one", "two", "three"])
    out, _, entries = complete(trained, "input=a.npz", "posterior=diagonal")
    assert "pictures of the first 2 of 3 images" in capsys.readouterr().out and (out / "overview.png").exists()
    assert entries.keys() == {"x/one", "two"} and entries["two"]["status"] == "nothing hidden"
    assert np.array_equal(opened(out / "completed/two/mean.png"), pixels(8, 8, 1))
    with np.load(out / "completions.npz") as arrays:
        drawn = (arrays["draws"][:, 0].clip(0, 1) * 255).round().astype(np.uint8).transpose(0, 2, 3, 1)
    for k in range(4):
        done = opened(out / f"completed/x/one/draw-0{k + 1}.png")
        assert np.array_equal(done, drawn[k]) and np.array_equal(done[~found], pixels(8, 8)[~found])
    shade = opened(out / "completed/x/one/deviation.png")
    assert shade[found].any() and not shade[~found].any()
    lines = (out / "trust.csv").read_text().splitlines()
    assert lines[0].startswith("item,name,") and [line.split(",")[1] for line in lines[1:]] == ["x/one", "two", "three"]


def test_files_of_images_are_called_as_the_images_where_that_can_be():
    assert file_names(["a", "b/c"]) == ["a", "b/c"]
    for names in (["a", "a"], ["../a", "b"], ["/a", "b"], ["a", ""], ["a", "b\n"], ["a", "b" * 300]):
        assert file_names(names) == ["0", "1"]


def test_a_mask_of_the_picture_and_nothing_is_overwritten(trained, capsys):
    save(pixels(40, 60), "a.png")
    found = hole(40, 60, slice(30, 34), slice(20, 24))
    save(np.where(found.numpy(), 255, 0).astype(np.uint8), "m.png")
    words = ("input=a.png", "observed=m.png", "mask.hole=white", "window=tiles")
    out, manifest, entries = complete(trained, *words)
    said = capsys.readouterr().out
    assert "seen at its own resolution in 1 tile of 8 × 8" in said
    assert "RMSE on hidden pixels, in [0, 1], against what stands under the mask:\n" in said
    assert "on hidden pixels, against what stands under the mask, ± standard error:\n" in said
    done = opened(out / "completed/a/draw-01.png")
    assert np.array_equal(done[~found.numpy()], pixels(40, 60)[~found.numpy()])
    assert (done != pixels(40, 60))[found.numpy()].any() and manifest["mask"]["path"] == str(Path("m.png").absolute())
    assert entries["a"]["windows"] == [[18, 28, 8, 8]]
    assert json.loads((out / "metrics.json").read_text())["rmse"]["mean"]["entries"] == 48, "the truth is known"
    again = ["impute", f"checkpoint={trained}", "hydra.run.dir=out", *QUICK, *words]
    assert main(again) == 2 and "holds completions already" in capsys.readouterr().err
    for stale in ("completed/a/draw-09.png", "draws/draw_009.csv", "masked.csv"):
        Path("out", stale).parent.mkdir(exist_ok=True)
        Path("out", stale).touch()
    assert main([*again, "overwrite=true"]) == 0
    left = {path.name for path in Path("out").iterdir()}
    assert "completed" in left and not {"draws", "masked.csv"} & left, "of a run that is overwritten nothing stays"
    assert not Path("out/completed/a/draw-09.png").exists()


def test_where_no_picture_that_is_shown_has_a_hole_there_is_no_overview(trained):
    images = np.random.RandomState(0).rand(102, 8, 8, 3).astype(np.float32)
    images[101, :4] = np.nan
    np.savez("x.npz", images=images, names="one")
    out, _, entries = complete(trained, "input=x.npz")
    assert len(entries) == 100 and not (out / "overview.png").exists() and (out / "metrics.json").exists()
    assert np.load(out / "completions.npz")["draws"].shape[1] == 102


def test_masks_that_are_drawn_are_of_what_the_model_sees(trained):
    save(pixels(40, 60), "a.png")
    _, _, entries = complete(trained, "input=a.png", "mask=center8", "mask.size=2")
    assert entries["a"]["hidden"] == pytest.approx(100 / 2400) and entries["a"]["windows"] == [[10, 0, 40, 40]]
    _, _, entries = complete(trained, "input=a.png", "mask=center8", "mask.size=2", "window=tiles", out="tiles")
    assert entries["a"]["hidden"] == pytest.approx(4 / 2400) and entries["a"]["windows"] == [[26, 16, 8, 8]]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["input=a.png"], "a.png has no holes (NaN, transparent pixels)"),
        (["input=a.png", "observed=white.png"], "the mask hides nothing of a.png; black is hidden, mask.hole=white"),
        (["input=own.png", "observed=bare.png"], "the mask hides nothing of own.png"),
        (["input=a.png", "observed=small.png"], "3 × 3, the mask small.png, does not fit 60 × 40, the picture a.png"),
        (["input=a.png", "observed=absent.png"], "there is no mask file absent.png"),
        (
            ["input=a.png", "observed=white.png", "mask=half"],
            "observed= is short for mask=file mask.path=, and mask=ha",
        ),
        (["input=cut.png", "mask=half"], "cut.png cannot be read as a picture"),
        (["input=none", "mask=half"], "the folder 'none' has no pictures"),
        (["input=a.png", "mask=half", "window=middle"], "window=middle: must be one of crop, near, tiles"),
    ],
)
def test_refusals_are_one_line(trained, words, says, capsys):
    save(pixels(40, 60), "a.png")
    save(np.full((40, 60), 255, np.uint8), "white.png")
    save(np.full((3, 3), 255, np.uint8), "small.png")
    save(pixels(8, 8), "own.png")
    save(np.full((8, 8), 255, np.uint8), "bare.png")
    Path("cut.png").write_bytes(Path("a.png").read_bytes()[:300])
    Path("none").mkdir()
    assert main(["impute", f"checkpoint={trained}", *words, *QUICK]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1 and not Path("outputs").exists()


def test_pictures_that_are_not_read_are_counted():
    Path("mixed/sub").mkdir(parents=True)
    for name in ("a.png", "b.jfif", "sub/c.png"):
        Image.fromarray(pixels(4, 4)).save(Path("mixed", name), format="PNG" if name.endswith("png") else "JPEG")
    for name in ("IMG_1.HEIC", "sub/d.avif", "e.heic", "notes.txt", ".hidden.heic"):
        Path("mixed", name).write_bytes(b"0")
    line = "left out: 3 pictures of formats that are not read (.avif, .heic); save them as PNG"
    assert read_items("mixed", (3, 4, 4)).notes == (line,) and len(read_items("mixed", (3, 4, 4)).pictures) == 3
    assert read_items("mixed/*.*", (3, 4, 4)).notes == (line.replace("3", "2").replace(".avif, ", ""),)
    assert line in load("folder", "train", path="mixed", size=4).notes


def test_transparency_stays_where_a_picture_is_shown_with_its_hole():
    """Else its known pixels look changed beside those of its completions."""
    rgba = np.full((6, 8, 4), 255, np.uint8)
    rgba[:, :4, 1:3], rgba[:, :4, 3] = 0, 128
    rgba[2:4, 5:7, 3] = 0
    Image.fromarray(rgba).save("a.png")
    canvas = Canvas(open_picture(Path("a.png")), torch.from_numpy(rgba[..., 3] == 0), [Window(0, 0, 8, 6)], None, 3)
    shown = np.array(canvas.holed((9, 8, 7)))
    assert (shown[0, 0] == (255, 0, 0, 128)).all() and (shown[2, 5] == (9, 8, 7, 255)).all()


def deep_png(path, colour_type, pixels):
    """A PNG with 16 bits a channel, of pixels (H, W, channels)."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    whole = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(whole))


def test_sixteen_bits_a_pixel_are_no_sixteen_bits_a_channel():
    """BMP with 5, 6 and 5 bits of blue, green and red."""
    bits = struct.pack("<4H", 0xF800, 0x07E0, 0x001F, 0)
    head = struct.pack("<IiiHHIIiiII3I", 40, 4, 1, 1, 16, 3, len(bits), 0, 0, 0, 0, 0xF800, 0x07E0, 0x001F)
    Path("a.bmp").write_bytes(
        b"BM" + struct.pack("<IHHI", 14 + len(head) + len(bits), 0, 0, 14 + len(head)) + head + bits
    )
    assert np.array(open_picture(Path("a.bmp")).image)[0, :3].tolist() == [[255, 0, 0], [0, 255, 0], [0, 0, 255]]


@pytest.mark.parametrize(("colour_type", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_pictures_of_sixteen_bits_are_refused_in_every_mode(colour_type, channels):
    deep_png("deep.png", colour_type, np.full((4, 5, channels), 200))
    with pytest.raises(InputError, match="more than 8 bits a channel"):
        open_picture(Path("deep.png"))


def test_pictures_of_the_models_size_without_a_hole_stay_as_they_are(trained):
    save(pixels(8, 8, 1), "p/whole.png")
    save(cut(pixels(8, 8, 2), hole(8, 8, slice(0, 2), slice(0, 2))), "p/holed.png")
    _, _, entries = complete(trained, "input=p")
    assert [entries[name]["status"] for name in ("holed", "whole")] == ["completed", "nothing hidden"]
    assert [len(entries[name]["files"]) for name in ("holed", "whole")] == [6, 1] and "trust" not in entries["whole"]
    assert np.array_equal(opened("out/completed/whole/mean.png"), pixels(8, 8, 1))


def test_a_grey_model_says_that_it_fills_with_grey():
    save(cut(pixels(8, 8), hole(8, 8, slice(0, 2), slice(0, 2))), "p/holed.png")
    save(pixels(8, 8, 1), "p/whole.png")
    found = read_items("p", (1, 8, 8))
    assert [note for note in found.notes if "grey" in note] == [
        "pictures in colour: 1; the model is of grey ones, so their holes are filled with grey"
    ]
    assert not any("grey" in note for note in read_items("p", (3, 8, 8)).notes)
