"""Pictures of completions."""

import numpy as np
import pytest
import torch
from PIL import Image

from viscos.core.errors import InputError
from viscos.report.grid import FAILED, GAP, HIDDEN, completion_grid, draws_grid, image_grid, save_png


def parts(n=3, c=1, size=28, k=2):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand((k + 2, n, c, size, size), generator=generator)
    return images[0], torch.rand((n, c, size, size), generator=generator) < 0.5, images[1:-1], images[-1]


def cell(grid, row, column, size):
    top, left = GAP + row * (size + GAP), GAP + column * (size + GAP)
    return grid[:, top : top + size, left : left + size]


def test_rows_and_columns():
    truth, observed, draws, mean = parts()
    grid = completion_grid(truth, observed, draws, mean)
    assert grid.shape == (3, 5 * 58 + 2, 3 * 58 + 2) and grid.dtype == torch.float32

    def big(image):
        return image.expand(3, -1, -1).repeat_interleave(2, 1).repeat_interleave(2, 2)

    for item in range(3):
        for row, expected in enumerate([truth, None, *draws, mean]):
            shown = cell(grid, row, item, 56)
            if expected is not None:
                assert torch.equal(shown, big(expected[item]))
                continue
            where = big(observed[item])
            assert torch.equal(shown[where], big(truth[item])[where])
            assert torch.equal(shown[:, ~where[0]].T.unique(dim=0), torch.tensor([HIDDEN]))
    assert (grid[:, :GAP] == 1).all() and (grid[:, :, -GAP:] == 1).all()


@pytest.mark.parametrize(("size", "shown"), [(8, 56), (32, 32), (64, 64), (5, 55)])
def test_tiny_images_are_enlarged_by_whole_factors(size, shown):
    grid = completion_grid(*parts(n=1, c=3, size=size, k=1))
    assert grid.shape == (3, 4 * (shown + GAP) + GAP, shown + 2 * GAP)


def test_columns_limit_the_items():
    assert torch.equal(
        completion_grid(*parts(n=3), columns=2),
        completion_grid(*(t[:, :2] if t.dim() == 5 else t[:2] for t in parts(n=3))),
    )
    assert completion_grid(*parts(n=2, k=0), columns=9).shape == (3, 3 * 58 + 2, 2 * 58 + 2)


def test_draws_of_one_item_in_rows():
    truth, observed, draws, _ = parts(n=1, c=3, size=56, k=5)
    draws[1] = float("nan")
    grid = draws_grid(truth[0], observed[0], draws[:, 0], columns=4)
    assert grid.shape == (3, 2 * 58 + 2, 4 * 58 + 2)
    assert torch.equal(cell(grid, 0, 0, 56), truth[0])
    assert torch.equal(cell(grid, 0, 1, 56)[observed[0]], truth[0][observed[0]])
    assert torch.equal(cell(grid, 0, 2, 56), draws[0, 0]) and torch.equal(cell(grid, 1, 2, 56), draws[4, 0])
    assert torch.equal(cell(grid, 0, 3, 56).flatten(1).T.unique(dim=0), torch.tensor([FAILED]))
    assert (cell(grid, 1, 3, 56) == 1).all(), "the last row is filled up"


def test_images_in_rows():
    images = torch.linspace(-1, 2, 3)[:, None, None, None].expand(3, 1, 56, 56)
    grid = image_grid(images, columns=2)
    assert [cell(grid, *place, 56).unique().tolist() for place in ((0, 0), (0, 1), (1, 0))] == [[0.0], [0.5], [1.0]]
    assert image_grid(images).shape == (3, 58 + 2, 3 * 58 + 2)


def test_failures_and_unknown_truth_are_seen():
    truth, observed, draws, mean = parts(n=1, c=3, size=56)
    truth[:], draws[0], mean[:] = float("nan"), float("nan"), 7.0
    grid = completion_grid(truth, observed, draws, mean)
    assert torch.equal(cell(grid, 0, 0, 56).flatten(1).T.unique(dim=0), torch.tensor([HIDDEN]))
    assert torch.equal(cell(grid, 2, 0, 56).flatten(1).T.unique(dim=0), torch.tensor([FAILED]))
    assert (cell(grid, 4, 0, 56) == 1).all() and grid.isfinite().all()


def test_refusals():
    truth, observed, draws, mean = parts()
    bad = [
        (truth[0], observed, draws, mean),
        (truth[:0], observed, draws, mean),
        (truth.expand(-1, 2, -1, -1), observed, draws, mean),
        (truth, observed.float(), draws, mean),
        (truth, observed[0], draws, mean),
        (truth, observed, draws[0], mean),
        (truth, observed, draws, mean[:1]),
        (truth, observed, draws, mean, 0),
    ]
    for arguments in bad:
        with pytest.raises(InputError):
            completion_grid(*arguments)


def test_png(tmp_path):
    grid = torch.tensor([0.0, 0.5, 1.0, 1.2, -1.0, float("nan")]).expand(3, 2, 6)
    path = save_png(tmp_path / "new" / "grid.png", grid)
    with Image.open(path) as image:
        assert image.format == "PNG" and np.asarray(image).shape == (2, 6, 3)
        assert np.asarray(image)[0, :, 0].tolist() == [0, 128, 255, 255, 0, 0]
    assert [file.name for file in path.parent.iterdir()] == ["grid.png"]
    for name, picture in (("grid.jpg", grid), ("grid.png", grid[:1]), ("grid.png", grid.mul(0).nan_to_num().byte())):
        with pytest.raises(InputError):
            save_png(tmp_path / name, picture)
