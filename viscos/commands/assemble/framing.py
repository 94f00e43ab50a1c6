"""A user's own images, as the model of a run takes them: windows of pictures, under the masks that are asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from viscos.commands.assemble.masks import Masks
from viscos.commands.assemble.saved import dataset_of
from viscos.core.errors import InputError
from viscos.data.sources.files import Found, Framed, read_items
from viscos.runs.trained import Saved


def images_of(cfg: dict[str, Any], trained: Saved, masks: Masks | None, shape: tuple[int, ...]) -> tuple[Found, Tensor]:
    """The images of the setting `input`, and what of them is observed (N, C, H, W), bool.

    A mask file is of whole pictures, or of what the model sees, by its size. Other masks are of what the model sees:
    of a window that is resized, but of the whole picture where it is seen at its own resolution, in tiles. Raises
    `InputError` where nothing is hidden.
    """
    file, how = cfg["input"], cfg["window"] or _usual(trained)

    def mask(name: str, path: Path, size: tuple[int, int]) -> Tensor | None:
        assert masks is not None
        if masks.from_file:
            return masks.of_picture(name, path, size, shape)
        return masks.over_picture(name, size, shape) if how == "tiles" and size != shape[1:] else None

    found = read_items(file, shape, cfg["items"], how, None if masks is None else mask)
    if masks is None and bool(found.known.all()):
        raise InputError(f"{file} has no holes (NaN, transparent pixels); say what is missing, e.g. mask=center8 or "
                         "observed=mask.png")  # fmt: skip
    nothing = InputError(f"the mask hides nothing of {file}; black is hidden, mask.hole=white hides white")
    if not len(found.data):
        raise nothing
    if masks is None or not bool(found.unmasked.any()):
        return found, found.observed
    of_items = masks.of(found.data, "input") | ~found.unmasked.view(-1, 1, 1, 1)
    hidden = (~of_items).any(1)
    pictures = tuple(replace(each, extra=hidden[each.items.start : each.items.stop]) for each in found.pictures)
    observed = found.observed & of_items
    if masks.from_file and bool(observed.all()):
        raise nothing
    return replace(found, pictures=pictures), observed


def _usual(trained: Saved) -> str:
    """How the run's own pictures were brought to one size."""
    resized = "dataset" in trained.cfg and dataset_of(trained).settings.get("size") is not None
    return "crop" if resized else "tiles"


def lines(found: Found, observed: Tensor) -> tuple[str, ...]:
    """What a user should read of pictures: what was not taken as it stands, and how they are seen."""
    framed = [_line(frame, observed) for frame in found.pictures[:_MOST]]
    more = len(found.pictures) - _MOST
    return (*found.notes, *framed, *([f"{more} more pictures"] if more > 0 else []))


_FEW = 4
"""Pixels of the model that are few for a hole."""
_MOST = 8
"""Pictures that have a line each."""


def _line(frame: Framed, observed: Tensor) -> str:
    height, width = frame.size
    about = f"{frame.name}: {width} × {height}" + (f", {100 * frame.hidden:.3g} % hidden" if frame.hidden else "")
    if not frame.windows:
        return f"{about}, nothing hidden, so it stays as it is"
    items = observed[frame.items.start : frame.items.stop]
    h, w = items.shape[2:]
    window, many = frame.windows[0], len(frame.windows)
    if window.size == frame.size == (h, w):
        return about
    if window.size == (h, w):
        line = f"{about}, seen at its own resolution in {many} tile{'s' * (many > 1)} of {w} × {h}"
    else:
        places = f"{many} windows" if many > 1 else "a window"
        line = f"{about}, seen in {places} of {window.width} × {window.height}, resized to {w} × {h}"
    if window.size != (h, w) and many == 1 and 0 < (seen := int((~items).any(1).sum())) <= _FEW:
        line += f", where the hole is {seen} of {h * w} pixels; window=near looks at what is around it"
    alone = int((~items).flatten(1).all(1).sum())
    blind = f"; {alone} of these wholly hidden, so that nothing is known of what is around" if alone else ""
    return line + blind
