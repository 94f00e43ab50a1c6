"""What is to be completed and how, by the settings of `viscos impute`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from viscos.commands.assemble import floor
from viscos.commands.assemble.choice import Asked, Choice
from viscos.commands.assemble.foreign import load_foreign
from viscos.commands.assemble.framing import images_of, lines
from viscos.commands.assemble.idle import apart, of_another_imputer, of_completing, of_input, of_shares, said
from viscos.commands.assemble.imputers import MODEL, Parts, check, is_model
from viscos.commands.assemble.masks import Masks, masks_of
from viscos.commands.assemble.measuring import objective_of
from viscos.commands.assemble.paths import whole
from viscos.commands.assemble.saved import (
    check_finished,
    fitted_again,
    from_training,
    moved,
    table_is_there,
    test_masks,
    test_split,
    unfinished,
)
from viscos.core.build import allowed
from viscos.core.errors import InputError
from viscos.data.dialect import PLAIN, Dialect, dialect_of
from viscos.data.far_out import far_from_training
from viscos.data.items import Data
from viscos.data.sources.files import Framed
from viscos.data.sources.table import Rows, read_rows
from viscos.imputers import Imputer, OnFlow
from viscos.inference import Objective, refine
from viscos.inference.conditional import check_partition
from viscos.posteriors import Posterior
from viscos.runs.trained import Fitted, Saved, Trained, load_any

TEST_ITEMS = 16
"""Test items to complete unless the settings say how many."""


TOGETHER, ROWS_TOGETHER = 16, 1024
"""Images, and vectors, that are completed together unless the settings say how many."""
WEIGHED = 64
"""Draws of each item that are weighed where nobody asked and it is cheap: up to so many entries, and so many items."""
WEIGHED_ENTRIES, WEIGHED_ITEMS = 64, 1000
DRAWS, ROW_DRAWS = 8, 20
"""Draws of each item, and of each row of a table, whose intervals need them, unless the settings say how many."""
AUTO, CHECKED = "auto", 0.1
"""The setting of `check` that leaves the share open, and what that is then."""


@dataclass(frozen=True)
class Items:
    """What is to be completed, in its own units."""

    data: Data
    known: Tensor
    """Where there is a value at all (N, …), bool."""
    observed: Tensor
    """Where it is used (N, …), bool."""
    rows: Rows | None = None
    """The table that the items are from, if they are from a file with one."""
    names: tuple[str, ...] = ()
    """What each is called (N), if they have names."""
    pictures: tuple[Framed, ...] = ()
    """The pictures that the items are windows of, if they are."""
    numbers: Tensor | None = None
    """What a table of the user's own holds (N, columns), float64, NaN in holes; None for other items."""

    @property
    def signs(self) -> Dialect:
        """How numbers are written that go with the items: as in the table that they are from, if they are from one."""
        sheet = None if self.rows is None else self.rows.sheet
        return PLAIN if sheet is None else sheet.dialect

    @property
    def truth(self) -> Tensor:
        """(N, …), NaN where not even the original is known."""
        return torch.where(self.known, self.data.values, float("nan"))

    @property
    def measured(self) -> Tensor:
        """The entries whose truth is known and is not used (N, …), bool."""
        return self.known & ~self.observed


@dataclass(frozen=True, kw_only=True)
class Imputing:
    """What was trained, items with holes, and how they are completed."""

    settings: dict[str, Any]
    """As the run saves them."""
    run_dir: Path
    items: Items
    data: Data
    """The items as the model takes them."""
    saved: Saved
    """What the run knows of its data."""
    by: Choice | Imputer
    """A posterior of the run's flow, or another imputer."""
    objective: Objective
    device: torch.device
    noise: float
    """Standard deviation of the noise that is taken off draws."""
    draws: int
    batch_size: int
    learning_rate: float
    samples: int
    """Completions of each item in one step of a fit."""
    seed: int
    idle: str | None = None
    """A line on settings that were given and have no effect, if there are any."""
    refine: str | None = None
    """How exact draws are made of proposals; None: draws are of the posterior."""
    proposals: int = 0
    """Draws of each item that are weighed, for a verdict and for `refine`."""
    check: float | None = None
    """The share of known cells of a table that a second pass hides, to measure completions by; None: there is none."""

    @property
    def imputer(self) -> Imputer | None:
        """What completes, if it is another imputer than the flow with a posterior."""
        return self.by if isinstance(self.by, Imputer) else None

    @property
    def choice(self) -> Choice:
        """Which posterior of the run's flow completes; only where it is one."""
        assert isinstance(self.by, Choice)
        return self.by

    @property
    def trained(self) -> Trained:
        """The model; only where a posterior of its flow completes."""
        return self.choice.trained

    @property
    def weights(self) -> dict[str, Any]:
        """What the completions depend on besides settings and items."""
        model = dict(self.saved.model.state_dict()) if isinstance(self.saved, Trained) else {}
        return model if self.imputer is None else {"model": model, "imputer": self.imputer.state()}

    @property
    def partition(self) -> str:
        """Which latents go with hidden values; only where a posterior completes."""
        return self.choice.asked.partition

    @property
    def fits(self) -> bool:
        """Whether something is fitted to each item."""
        if self.imputer is not None or self.choice.steps == 0:
            return False
        return self.posterior(self.data.values[:1]) is not self.choice.network

    def posterior(self, like: Tensor) -> Posterior:
        """A fresh posterior for items like `like` (B, …), or the run's network."""
        return self.choice.posterior(like)


def imputing(cfg: dict[str, Any], device: torch.device) -> Imputing:
    """Assembles what `viscos impute` does on a device, by its checked settings.

    Raises `InputError` for items, masks or a posterior that do not suit the run.
    """
    cfg, given = apart(cfg)
    masks = masks_of(cfg)
    trained = moved(_trained(cfg, device), cfg.get("dataset"))
    items = _items(cfg, trained, masks)
    cfg |= {"draws": cfg["draws"] or (DRAWS if items.rows is None else ROW_DRAWS)}
    data = trained.standardised(items.data)
    data = replace(data, notes=(*data.notes, *unfinished(trained)))
    if isinstance(trained, Trained):
        trained.model.flow.check(data.values.nan_to_num(0))
    own = items.rows is not None and masks is None and not bool(items.observed.all())
    objective = objective_of(cfg["solver"], cfg["lad"])
    subject = cfg.get("imputer") or trained.cfg.get("imputer") or MODEL
    by: Choice | Imputer
    if (found := _floor(cfg, trained, items)) is not None:
        by, idle = floor.stacked(found, _parts(cfg, trained, objective, device)), of_shares()
        data = replace(data, notes=(*data.notes, floor.line(found)))
    elif is_model(subject) and isinstance(trained, Trained):
        by, idle = _choice(cfg, trained, data)
    else:
        if isinstance(trained, Fitted):
            check_finished(trained, subject)
            data = replace(data, notes=(*data.notes, *fitted_again(trained, subject)))
        by = _imputer(cfg, trained, subject, objective, device)
        idle = of_another_imputer(draws=by.draw is not None, flow=isinstance(by, OnFlow))
    return Imputing(
        settings=_with_whole_paths(cfg),
        run_dir=Path(cfg["run_dir"]),
        items=items,
        data=data,
        saved=trained,
        by=by,
        objective=objective,
        device=device,
        noise=trained.taken_off(cfg["denoise"]),
        draws=cfg["draws"],
        batch_size=cfg["batch_size"] or (TOGETHER if len(data.shape) > 1 else ROWS_TOGETHER),
        learning_rate=cfg["learning_rate"],
        samples=cfg["samples"],
        seed=cfg["seed"],
        idle=said(given, idle | of_input(pictures=bool(items.pictures), table=items.rows is not None, holes=own)),
        refine=cfg["refine"],
        proposals=_proposals(cfg, by, data),
        check=(CHECKED if cfg["check"] == AUTO else cfg["check"]) if own else None,
    )


def _floor(cfg: dict[str, Any], trained: Saved, items: Items) -> dict[str, Any] | None:
    """What was measured of simpler imputers, if one does better on tables than the flow, and nothing was asked for."""
    asked = Asked(cfg["posterior"], cfg["partition"], cfg["steps"], cfg["start"])
    left_open = cfg.get("imputer") is None and cfg.get("flow") is None and cfg["refine"] is None
    if items.rows is None or not left_open or asked.fit or not asked.open or not isinstance(trained, Trained):
        return None
    found = floor.of_run(trained)
    if found is None or found["best"] == floor.FLOW:
        return None
    there = not floor.has_neighbours(found) or table_is_there(trained)
    return found if there else floor.without_neighbours(found)


def _choice(cfg: dict[str, Any], trained: Trained, data: Data) -> tuple[Choice, dict[str, str]]:
    """Which posterior completes, and the settings that have no effect then."""
    choice = Choice(trained, Asked(cfg["posterior"], cfg["partition"], cfg["steps"], cfg["start"]))
    posterior = choice.posterior(data.values[:1])
    check_partition(cfg["partition"], posterior)
    taken = posterior is choice.network
    fitted, known = not taken and choice.steps > 0, trained.taken_off(True)
    return choice, of_completing(trained.model, known, fitted=fitted, free=choice.asked.open and taken)


def _imputer(
    cfg: dict[str, Any], trained: Trained | Fitted, subject: dict[str, Any], objective: Objective, device: torch.device
) -> Imputer:
    """The imputer that `subject` describes: the run's own, or another by its flow or fitted to its training data."""
    check(subject, trained.model.flow if isinstance(trained, Trained) else None)
    if isinstance(trained, Fitted) and subject == trained.cfg["imputer"]:
        return trained.imputer
    return _parts(cfg, trained, objective, device).imputer(subject)


def _parts(cfg: dict[str, Any], trained: Saved, objective: Objective, device: torch.device) -> Parts:
    """What imputers are made of."""
    model, noise = trained.model if isinstance(trained, Trained) else None, trained.taken_off(cfg["denoise"])
    return Parts(from_training(trained), model, objective.solver, noise, cfg["seed"], device)


def _proposals(cfg: dict[str, Any], by: Choice | Imputer, data: Data) -> int:
    """How many draws of each item are weighed; raises `InputError` if they do not serve to refine."""
    entries, asked, method = data.values.shape[1:].numel(), cfg["proposals"], cfg["refine"]
    if not isinstance(by, Choice):
        if method is not None:
            why = f"this run trained {by.label}" if cfg.get("imputer") is None else "leave imputer out"
            raise InputError(f"refine={method} makes draws of a flow's own posterior exact; {why}")
        return 0
    flow = by.trained.model.flow
    if method is None:
        cheap = entries <= min(WEIGHED_ENTRIES, flow.dense_below) and len(data) <= WEIGHED_ITEMS
        return int(asked) if asked is not None else WEIGHED * cheap
    count = refine.proposals_for(cfg["draws"]) if asked is None else int(asked)
    refine.check(method, cfg["draws"], count)
    refine.check_exact(flow, entries)
    return count


def _with_whole_paths(cfg: dict[str, Any]) -> dict[str, Any]:
    """The settings with paths that find the same files from any folder."""
    cfg = whole(cfg, ("checkpoint", "input"))
    return cfg | {part: whole(cfg[part], ("path", "root")) for part in ("mask", "dataset") if cfg.get(part)}


def _trained(cfg: dict[str, Any], device: torch.device) -> Trained | Fitted:
    if cfg.get("flow") is not None:
        factory = str(cfg["flow"].get("factory", ""))
        module = factory.partition(":")[0]
        if cfg["resume"] and not any(f"{module}.".startswith(f"{name}.") for name in allowed()):
            # It stands in the run's file, which may be somebody else's, and not in the command.
            raise InputError(f"flow.factory={factory} is code, which would be run; if you trust it, say allow={module}")
        return load_foreign(factory, cfg["checkpoint"], cfg["input"], device)
    if cfg["checkpoint"] is None:
        raise InputError("checkpoint=… is needed: run folder of `viscos train`, or a checkpoint file")
    return load_any(cfg["checkpoint"], device)


def _items(cfg: dict[str, Any], trained: Trained | Fitted, masks: Masks | None) -> Items:
    file, count, shape = cfg["input"], cfg["items"], tuple(trained.state["shape"])
    example = "mask=center8" if len(shape) == 3 else "missing=0.3"
    if file is None:
        split = test_split(trained, count or TEST_ITEMS)
        data = split.data
        observed = test_masks(trained, masks, data, split.changed)
        if bool(observed.all()):
            under = "the masks of the run" if masks is None else "these masks"
            raise InputError(f"nothing is hidden under {under}; say what is missing, e.g. {example}")
        return Items(data, data.known, observed)
    if len(shape) == 3:
        found, observed = images_of(cfg, trained, masks, shape)
        data = replace(found.data, notes=lines(found, observed))
        return Items(data, found.known, observed, None, found.names, found.pictures)
    signs = dialect_of("", trained.cfg.get("dataset", {}), cfg)
    rows = read_rows(file, trained.scheme, count, signs)
    if trained.scaling is not None:
        far = far_from_training(trained.scaling, rows.data.values, signs)
        rows = replace(rows, data=replace(rows.data, notes=(*rows.data.notes, *far)))
    observed = rows.data.known if masks is None else rows.data.known & masks.of(rows.data, "input")
    scheme = trained.scheme
    rows.check(scheme, ~observed[:, list(scheme.first)].all(0))  # before anything is computed
    return Items(rows.data, rows.data.known, observed, rows, numbers=rows.numbers)
