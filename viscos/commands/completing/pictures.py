"""The completed pictures of `viscos impute`: files of each, an overview, and what became of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from viscos.commands.assemble.imputing import Imputing
from viscos.commands.completing.completed import Completed
from viscos.core import atomic
from viscos.core.progress import say
from viscos.data.pictures import MODES, Picture
from viscos.data.sources.files import Framed
from viscos.data.windows import Window
from viscos.report.grid import HIDDEN
from viscos.report.overview import labelled
from viscos.report.pasted import Canvas

FOLDER = "completed"
"""Folder of the completed pictures in that of a run, a folder each."""
MANIFEST, OVERVIEW = "manifest.json", "overview.png"
LEFT = (FOLDER, MANIFEST, OVERVIEW)
"""What pictures leave in the folder of a run."""
_SHOWN = 8
"""Pictures in the overview, the first."""
_DRAWS = 4
"""Draws of each in the overview."""
MOST = 100
"""Images of an array that have files of their own, the first; of pictures all have."""
_VIOLET = (round(255 * HIDDEN[0]), round(255 * HIDDEN[1]), round(255 * HIDDEN[2]))


def drawable(job: Imputing) -> bool:
    """Whether the items are a user's own images, grey or in colour: those of arrays have names too."""
    return bool(job.items.pictures or (job.items.names and job.data.shape[0] in MODES and len(job.data.shape) == 3))


def save_pictures(job: Imputing, done: Completed) -> list[str]:
    """Writes each picture with each draw in its hole, with their mean, and a map of their standard deviation.

    A picture that lacks a draw in some window has no file of it. Deviations are black at 0, and white at the largest of
    the run. Beside these stand `overview.png` and `manifest.json`. Returns the names of what was written.
    """
    deviation = _deviation(done)
    white = 0.0 if deviation is None else float(deviation.nan_to_num(0).max())
    entries, columns = list[dict[str, Any]](), list[_Column]()
    for frame, canvas in _framed(job):
        rows = slice(frame.items.start, frame.items.stop)
        solved = done.solved[:, rows].all(1)
        pictures = _completed(canvas, done, rows, solved)
        if deviation is not None and _open(canvas) and bool(solved.any()):
            shade = canvas.spread(deviation[rows].nan_to_num(0)).div(white or 1).mul(255).round().byte()
            pictures["deviation"] = Image.fromarray(shade.numpy())
        files = {name: f"{FOLDER}/{frame.name}/{name}.png" for name in pictures}
        for name, file in files.items():
            _save(job.run_dir / file, pictures[name], canvas.picture.image.info.get("icc_profile"))
        verdict = done.worst(frame.items)
        trust = {} if verdict is None or not _open(canvas) else {"trust": verdict[0], "reason": verdict[1]}
        entries.append(_entry(frame, canvas, solved, list(files.values())) | trust)
        if _open(canvas) and len(columns) < _SHOWN:
            columns.append(_Column(frame.name, canvas, pictures))
    if columns:
        _save(job.run_dir / OVERVIEW, _overview(columns, len(done.draws), done.paired, white))
    atomic.write_json(job.run_dir / MANIFEST, _about(job, white) | {"pictures": entries})
    return [f"{FOLDER}/", *([OVERVIEW] if columns else []), MANIFEST]


def _deviation(done: Completed) -> Tensor | None:
    """The standard deviation of the draws that were solved (N, C, h, w); None of a single one."""
    if len(done.draws) < 2:
        return None
    apart = (done.draws - done.mean).square()
    count = (~apart.isnan()).sum(0)
    # The mean of pairs ±ε is that of the distribution, but for the curvature of the flow; no degree of freedom is lost.
    return (apart.nan_to_num(0).sum(0) / (count - (0 if done.paired else 1))).sqrt()


def _framed(job: Imputing) -> Iterator[tuple[Framed, Canvas]]:
    """The pictures, or the first `MOST` images of an array, and where in them completions go."""
    for frame in job.items.pictures:
        picture, hole = frame.open()
        yield frame, Canvas(picture, hole, frame.windows, frame.extra, job.data.shape[0])
    if job.items.pictures:
        return
    if (many := len(job.data)) > MOST:
        say(f"pictures of the first {MOST} of {many} images; the completions of all are in completions.npz")
    path, names = Path(job.settings["input"]), file_names(job.items.names)
    for k, values in enumerate(job.items.truth[:MOST]):
        shades = values.nan_to_num(0).mul(255).round().byte().permute(1, 2, 0).numpy()
        image = Image.fromarray(shades[..., 0] if len(values) == 1 else shades)
        hole, whole = (~job.items.observed[k]).any(0), Window.whole((image.height, image.width))
        share, windows = float(hole.double().mean()), (whole,) if bool(hole.any()) else ()
        frame = Framed(names[k], path, whole.size, share, k, windows, None)
        yield frame, Canvas(Picture(path, image, ()), hole, windows, None, len(values))


def file_names(names: Sequence[str]) -> list[str]:
    """The names of images, if files can be called so, each by its own; else their numbers."""
    parts = [part for name in names for part in name.split("/")]
    fit = all(part.isprintable() and len(part) <= 100 and part not in ("", ".", "..") for part in parts)
    return list(names) if fit and len(set(names)) == len(names) else [str(k) for k in range(len(names))]


def _open(canvas: Canvas) -> bool:
    """Whether anything of the picture is hidden, and completed."""
    return bool(canvas.windows) and bool(canvas.hole.any())


def _completed(canvas: Canvas, done: Completed, rows: slice, solved: Tensor) -> dict[str, Image.Image]:
    """The picture with each draw that was solved (K,) in all windows, and with the mean; itself if it has no hole."""
    whole = solved.nonzero().flatten().tolist() if _open(canvas) else []
    made = {f"draw-{k + 1:02}": done.draws[k, rows] for k in whole}
    if whole or not _open(canvas):
        made["mean"] = done.mean[rows]
    return {name: canvas.completed(values) for name, values in made.items()}


def _entry(frame: Framed, canvas: Canvas, solved: Tensor, files: list[str]) -> dict[str, Any]:
    """What became of a picture; plain."""
    failed = int((~solved).sum())
    status = f"{failed} of {len(solved)} draws were not solved" if failed else "completed"
    return {
        "name": frame.name,
        "input": str(frame.path.absolute()),
        "width": frame.size[1],
        "height": frame.size[0],
        "hidden": float(canvas.hole.double().mean()),
        "items": list(frame.items),
        "windows": [[window.left, window.top, window.width, window.height] for window in frame.windows],
        "status": status if _open(canvas) else "nothing hidden",
        "files": files,
    }


def _about(job: Imputing, white: float) -> dict[str, Any]:
    """What holds for all pictures; plain."""
    given = {key: job.settings[key] for key in ("input", "mask", "missing") if job.settings.get(key) is not None}
    return {
        "model": str(job.saved.path.absolute()),
        **given,
        "seed": job.seed,
        "draws": job.draws,
        "white_of_deviation": white,
    }


@dataclass(frozen=True)
class _Column:
    """A picture in the overview."""

    name: str
    canvas: Canvas
    pictures: dict[str, Image.Image]


def _overview(columns: list[_Column], draws: int, paired: bool, white: float) -> Image.Image:
    given = [column.canvas.holed(_VIOLET) for column in columns]
    rows: list[tuple[str, list[Image.Image]]] = [("given", given)]
    # Antithetic draws come in pairs; every second one shows independent draws.
    shown = range(1, draws + 1)[:: 2 if paired else 1][:_DRAWS]
    labels = {f"draw-{k:02}": f"draw {k}" for k in shown} | {"mean": "mean"}
    labels |= {"deviation": f"standard\ndeviation\n(white: {white:.2g})"} if draws > 1 else {}
    for name, label in labels.items():
        rows.append((label, [column.pictures.get(name, bare) for column, bare in zip(columns, given, strict=True)]))
    return labelled(rows, [column.name for column in columns])


def _save(path: Path, picture: Image.Image, profile: bytes | None = None) -> None:
    profile = profile if picture.mode.startswith("RGB") else None
    atomic.write(path, lambda temporary: picture.save(temporary, format="PNG", icc_profile=profile))
