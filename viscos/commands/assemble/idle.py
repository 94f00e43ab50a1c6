"""Settings that were given and change nothing, by what else was chosen: they are said, so that nobody waits for them.

What contradicts another setting is refused where both are read; here is what only data, flow and run decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from viscos.commands.assemble.data import Dataset
from viscos.data.dialect import SIGNS
from viscos.train import Trainer
from viscos.train.model import Model

GIVEN = "given"
"""Where the command line says which settings were typed; nothing of it is saved with a run."""


def apart(cfg: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The settings, and the names of those that were given."""
    return {key: value for key, value in cfg.items() if key != GIVEN}, tuple(cfg.get(GIVEN, ()))


def said(given: Iterable[str], idle: dict[str, str]) -> str | None:
    """A line that names what was given and does nothing, with the reasons in `idle`; None if all has an effect."""
    found = [
        f"{name} ({reason})"
        for name in given
        for key, reason in idle.items()
        if name == key or name.startswith(f"{key}.")
    ]
    return f"without effect here: {', '.join(dict.fromkeys(found))}" if found else None


def of_training(cfg: dict[str, Any], trainer: Trainer, hides: bool) -> dict[str, str]:
    """What has no effect on a training by the settled settings `cfg`, and why."""
    model, teach, shape = trainer.model, cfg["teach"], trainer.data.shape
    found = of_denoising(model, Dataset(cfg["dataset"]).gaussian_noise)
    if teach not in ("regression", "both"):
        found["teach_masks"] = "only regression has masks to teach under"
    if not hides or teach == "bound":
        found |= dict.fromkeys(("rounds", "redraw", "temper", "imputed_weight"), "for regression on data with holes")
    elif not model.flow.trained_by_matching:
        found["imputed_weight"] = "this flow has no matching loss"
    if not cfg["rounds"]:
        found.setdefault("redraw", "nothing is drawn anew, as rounds is 0")
    if model.posterior is not None and not model.posterior.tempers:
        found.setdefault("temper", "this network has no temperature")
    if not model.holds_out:
        found["pretrain"] = "no held-out entries teach"
    if not hides:
        found["posterior.held_out"] = "for data with holes"
    if teach == "none":
        found["posterior"] = "teach=none trains no inference network"
    if model.posterior is not None and not (model.holds_out or model.posterior.regressed):
        found["posterior.corrects"] = "all that it gives is taught by the bound"
    if cfg["posterior"].get("channels") is not None:
        found["posterior.width"] = "posterior.channels says the widths"
    if teach in ("none", "regression"):
        found["lad"] = "only the bound has its gradient"
    if model.classifier is None:
        found["classifier"] = "these data have no classes"
    if len(shape) == 1:
        found["flow.first_squeeze"] = "vectors are not squeezed"
    if cfg["dataset"].get("learning_rate", cfg["learning_rate"]) != cfg["learning_rate"]:
        found["dataset.learning_rate"] = "learning_rate says it, or no flow is matched on data with holes"
    if cfg["flow"].get("steps") == 1:
        found["flow.grid"] = "one step has no grid"
    return found


def of_completing(model: Model, noise: float, *, fitted: bool, free: bool) -> dict[str, str]:
    """What has no effect on completions, and why: without a fit, and, if the posterior was left `free`, of a fit."""
    found = of_denoising(model, noise)
    if not fitted:
        found |= dict.fromkeys(("learning_rate", "samples", "lad"), "there is no fit; steps=200 makes one")
        found |= {"posterior": "the run's network is taken; steps=200 fits one"} if free else {}
    return found


def of_input(*, pictures: bool, table: bool, holes: bool) -> dict[str, str]:
    """What has no effect on items that are no pictures, or no rows of a table, or of one without `holes` of its own."""
    found = {} if pictures else {"window": "for pictures"}
    found |= {} if holes else {"check": "for a table with holes of its own, and no mask"}
    return found | ({} if table else dict.fromkeys(SIGNS, "for tables"))


def of_another_imputer(*, draws: bool = True, flow: bool = True) -> dict[str, str]:
    """What has no effect where no posterior of the run's flow completes, and why.

    `draws` says whether there are any, `flow` whether they are of the run's flow all the same.
    """
    names = ("posterior", "solver", "lad", "start", "steps", "learning_rate", "partition", "samples", "proposals")
    found = dict.fromkeys(names, "another imputer completes")
    found |= {} if flow else {"denoise": "only draws of the flow carry its noise"}
    return found if draws else found | {"draws": "it gives one completion"}


def of_shares() -> dict[str, str]:
    """The same where draws of the flow are moved to a mean that imputers share."""
    return {name: why for name, why in of_another_imputer().items() if name != "solver"}


def of_fitting() -> dict[str, str]:
    """What has no effect on the training of another imputer than a flow, and why."""
    parts = ("flow", "posterior", "solver", "lad", "epochs", "learning_rate", "schedule", "warmup", "ema", "accumulate")
    of_network = ("pretrain", "teach", "teach_masks", "classifier")
    phases = (*of_network, "rounds", "redraw", "temper", "imputed_weight", "max_steps")
    kept = ("validation", "patience", "denoise")
    data = (f"dataset.{name}" for name in ("noise", "augment", "epochs", "learning_rate"))
    return dict.fromkeys((*parts, *phases, *kept, *data), "no flow is trained")


def of_denoising(model: Model, noise: float) -> dict[str, str]:
    """What has no effect on draws, of a model that was trained on values with so much noise."""
    if not model.flow.can_denoise:
        return {"denoise": "this flow has no noise to take off"}
    return {} if noise else {"denoise": "there was no noise in training"}
