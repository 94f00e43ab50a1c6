"""A run that was trained, and what its settings say of its data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from viscos import runs
from viscos.commands.assemble.data import Dataset
from viscos.commands.assemble.imputers import FromTraining, complete_gaussian
from viscos.commands.assemble.masks import Masks
from viscos.commands.assemble.splits import MASKS
from viscos.core.errors import InputError
from viscos.core.progress import note
from viscos.core.typed import typed
from viscos.data.incomplete import IncompleteData
from viscos.data.items import Data
from viscos.data.mask_files import load_masks
from viscos.data.rows import fingerprints
from viscos.data.vectors import Vectors
from viscos.imputers import Imputer
from viscos.runs.trained import Fitted, Saved
from viscos.train.validation import validation_order

S = TypeVar("S", bound=Saved)
PLACE = ("path", "root", "download")
"""Settings of a data set that say where it lies."""


def dataset_of(trained: Saved) -> Dataset:
    """What the run was trained on."""
    return Dataset(trained.cfg["dataset"])


def split_of(trained: Saved, split: str, limit: int | None) -> Data:
    """A split of the run's data; raises `InputError` that says what can be done where they are gone."""
    dataset = dataset_of(trained)
    try:
        return dataset.load(split, limit)
    except InputError as error:
        path = dataset.settings.get("path")
        if path is None or Path(path).exists():
            raise
        raise InputError(f"{error}; if the data have moved, say where they are now: dataset.path=…") from error


def unfinished(trained: Saved) -> tuple[str, ...]:
    """A line on a training that did not come to its end, or has not yet; none where the run folder is not there."""
    folder, state = trained.path.parent, trained.state
    learnt = "trainer" in state or "finished" in state  # what another library trained has neither
    if not learnt or trained.record is not None or not (folder / runs.CONFIG).is_file():
        return ()
    at = f" (it stands at step {state['trainer']['step']})" if "trainer" in state else ""
    goes_on = f"`viscos train {typed('resume', folder)}` goes on with it"
    return (f"this training has not come to its end{at} and was not measured; {goes_on}",)


def check_finished(trained: Fitted, imputer: dict[str, Any]) -> None:
    """Raises `InputError` if `imputer` describes what a run trains and has not trained to its end."""
    if imputer == trained.cfg["imputer"] and not trained.state.get("finished", True):
        alone = f"{trained.path} holds a training that has not come to its end; go on with it in its run folder"
        raise InputError(next(iter(unfinished(trained)), alone))


def fitted_again(trained: Fitted, imputer: dict[str, Any]) -> tuple[str, ...]:
    """A line if `imputer` describes what a run trained, but with other settings; else none."""
    own = trained.cfg["imputer"]
    if imputer == own or imputer["_target_"] != own["_target_"]:
        return ()
    return (f"fits {trained.imputer.label} again, as the settings are not the run's; for its own leave imputer out",)


def unfinished_step(trained: Saved) -> int | None:
    """The step at which a training stands that has not come to its end; None where it has, or cannot be told."""
    return int(trained.state["trainer"]["step"]) if unfinished(trained) and "trainer" in trained.state else None


def moved(trained: S, place: dict[str, Any] | None) -> S:
    """The run with its data where `place`, the settings of a data set, says that they are now.

    Raises `InputError` for another data set than the run's.
    """
    if not place:
        return trained
    own = trained.cfg.get("dataset")
    if own is None:
        raise InputError("this flow came without data, so dataset has no effect; leave it out")
    if place.get("name", own["name"]) != own["name"]:
        raise InputError(f"the run was trained on dataset={own['name']}; only the place of its data may change")
    where = {key: value for key, value in place.items() if key in PLACE and value is not None}
    if not where:
        raise InputError(f"dataset says nothing of where the data lie; only {', '.join(PLACE)} may change")
    return replace(trained, cfg=trained.cfg | {"dataset": own | where})


@dataclass(frozen=True)
class TestSplit:
    """The test items of a run."""

    data: Data
    """In their own units."""
    changed: bool
    """Whether the table is another one than in training, so that masks saved for its rows mean nothing."""


def test_split(trained: Saved, limit: int | None) -> TestSplit:
    """The first `limit` test items, or all; rows of a changed table that the run was trained on are not among them.

    Raises `InputError` where none is left.
    """
    scaling, seen = trained.scaling, trained.rows
    test = split_of(trained, "test", limit)
    if scaling is None or seen is None or not isinstance(test, Vectors):  # no table
        return TestSplit(test, False)
    if _same_rows(trained):
        return TestSplit(test, False)
    fresh = ~torch.isin(fingerprints(scaling.aligned(test)), seen)
    left_out = f"{int((~fresh).sum())} of {len(test)} test rows were trained on and are left out"
    if not bool(fresh.any()):
        raise InputError(f"{test.name!r} has changed since the training: {left_out}, so there is nothing to measure on")
    notes = (*test.notes, f"{test.name!r} has changed since the training: {left_out}")
    return TestSplit(replace(test.at(fresh), notes=notes), True)


def table_is_there(trained: Saved) -> bool:
    """Whether the table that a run was trained on is there, with the same rows."""
    try:
        return _same_rows(trained)
    except InputError:
        return False


def rows_now(trained: Saved) -> Tensor | None:
    """Fingerprints of the rows for training in the table as it is now, to which an imputer may be fitted; or None."""
    return _rows_of(trained, split_of(trained, "train", trained.cfg["train_items"]))


def _same_rows(trained: Saved) -> bool:
    return _same(trained, rows_now(trained))


def _same(trained: Saved, now: Tensor | None) -> bool:
    """Whether they are those that the run was trained on; true where there is no table."""
    return now is None or trained.rows is None or torch.equal(now, trained.rows)


def _rows_of(trained: Saved, train: Data) -> Tensor | None:
    """Fingerprints of rows; None where there is no table."""
    if trained.scaling is None or trained.rows is None or not isinstance(train, Vectors):
        return None
    return fingerprints(trained.scaling.aligned(train))


def test_masks(trained: Saved, masks: Masks | None, test: Data, changed: bool = False) -> Tensor:
    """Masks of the test items (N, …): those asked for, or those of the run itself, made anew if the data `changed`."""
    if masks is not None:
        return masks.of(test, "test")
    if changed:
        return Masks(trained.cfg["mask"], trained.cfg["seed"]).of(test, "test")
    saved = trained.path.parent / MASKS.format(split="test")
    if saved.is_file():
        observed = load_masks(saved)
        if len(observed) >= len(test) and observed.shape[1:] == torch.Size(test.shape):
            return observed[: len(test)] & test.known
    return Masks(trained.cfg["mask"], trained.cfg["seed"]).of(test, "test")


def from_training(trained: Saved) -> FromTraining:
    """What the run knows of its training data."""

    def data() -> IncompleteData:
        train = split_of(trained, "train", trained.cfg["train_items"])
        saved = trained.path.parent / MASKS.format(split="train")
        masks = Masks(trained.cfg["mask"], trained.cfg["seed"])
        same = _same(trained, _rows_of(trained, train))
        train = trained.standardised(train)
        if not same:
            note((f"{train.name!r} has changed since the training, and an imputer is fitted to what it holds now",))
        observed = load_masks(saved) if same and saved.is_file() else masks.of(train, "train")
        if observed.shape != train.values.shape:
            observed = masks.of(train, "train")
        order, learnt = validation_order(len(train), trained.cfg["validation"], trained.cfg["seed"])
        train, observed = train.at(order), observed[order]
        return IncompleteData(train.values, observed & train.known, train.labels).first(learnt)

    def complete() -> Imputer:
        items, floor = trained.cfg["train_items"], trained.cfg["gaussian_floor"]
        return complete_gaussian(dataset_of(trained), items, trained.scaling, floor)

    means = trained.means
    shape = tuple(trained.state["shape"])
    known = "dataset" in trained.cfg  # a flow of another library came without
    return FromTraining(
        None if means is None else means.view(shape),
        lambda: trained.clean_gaussian,
        data if known else None,
        complete,
    )
