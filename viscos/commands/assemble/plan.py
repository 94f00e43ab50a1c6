"""How a run is trained, by its settings: what is null as it suits the data and the flow, and the plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from viscos.commands.assemble.data import Dataset
from viscos.core.build import makes
from viscos.core.errors import InputError
from viscos.posteriors import InferenceNetwork, Posterior
from viscos.train import Plan
from viscos.train.phases import Phase, on_complete_data, on_incomplete_data

_STEPS, _PASSES = 400, (20, 120)  # of a phase, and the fewest and most passes over data that leave them open
_IMPUTED_WEIGHT = 0.2  # of pictures
_ROUNDS, _ENOUGH = 2, 10_000  # and the training pictures from which on a flow that is matched does without redrawing
_FEW = 480  # steps of the flow below which a network corrects a filling: it has no time to find what is better
_MATCHING_EPOCHS = 4  # times those of a dataset, on complete data: steps of flow matching are many and noisy


def started(flow: dict[str, Any], shape: Sequence[int], *, table: bool) -> dict[str, Any]:
    """The description of a flow of items of `shape` with the first layer that suits them, where it says none.

    Columns of a table may be as good as copies of each other, and so may neighbours in a photograph: behind a layer
    that whitens, a flow begins as their Gaussian. Grey pictures of strokes have pixels that hardly vary.
    """
    unsaid = "start" in flow and flow["start"] is None
    colour = len(shape) == 3 and shape[0] > 1
    return flow | {"start": "gaussian" if table or colour else "standardise"} if unsaid else flow


def passes(dataset: dict[str, Any], items: int, batch_size: int) -> dict[str, Any]:
    """The description of a data set of so many items with the passes over them that suit it, where it says none.

    A small table is learnt in more: its steps are few else.
    """
    if dataset["epochs"] is not None:
        return dataset
    return dataset | {"epochs": min(max(_PASSES[0], math.ceil(_STEPS / math.ceil(items / batch_size))), _PASSES[1])}


def settled(cfg: dict[str, Any], shape: Sequence[int], items: int, *, matches: bool, hides: bool) -> dict[str, Any]:
    """The settings with what is null as it suits a flow, which may be trained by matching, and data, so many training
    items of `shape`, which may have holes.

    Raises `InputError` for a way of teaching that this flow, or these data, cannot be taught by.
    """
    if cfg["patience"] and not cfg["validation"]:
        raise InputError("patience ends a training by items that are held back; say how many, e.g. validation=0.1")
    teach = _teach(cfg, matches, hides)
    em = hides and teach != "bound"
    dataset_epochs = cfg["dataset"]["epochs"]
    slow = cfg["dataset"].get("learning_rate", 0.003) if matches else 0.003
    usual = {
        "epochs": dataset_epochs * (_MATCHING_EPOCHS if matches and not hides else 1),
        "ema": (0.998 if em else 0.999) if matches or em else 0,
        "learning_rate": slow if em else 0.005,
        # A column without holes in training may have some later, and masks of a few holes teach nothing else.
        "teach_masks": "any" if not hides else "own" if len(shape) == 3 else "both",
        "imputed_weight": _IMPUTED_WEIGHT if hides and len(shape) == 3 else 1.0,
        "rounds": 0 if matches and len(shape) == 3 and items >= _ENOUGH else _ROUNDS,
    }
    if not hides and cfg["teach_masks"] in ("own", "both"):
        raise InputError(f"teach_masks={cfg['teach_masks']} needs data with holes; take any, or leave it out")
    cfg = {**cfg, "teach": teach, **{key: value for key, value in usual.items() if cfg[key] is None}}
    if teach in ("regression", "both"):
        held_out = {} if hides else {"held_out": 0.0}
        cfg["posterior"] = cfg["posterior"] | {"regressed": True} | held_out
    if cfg["posterior"].get("corrects", False) is None:
        short = _steps(cfg, items) < _FEW
        cfg["posterior"] = cfg["posterior"] | {"corrects": len(shape) == 1 or short}
    passed = cfg["epochs"]  # by a training without phases, in all
    if cfg["max_steps"] is not None:
        passed = min(passed, cfg["max_steps"] * cfg["batch_size"] / items)
    pretrain = cfg["epochs"] * (5 / 6) if em else passed * (1 / 5)
    return cfg | {"pretrain": pretrain if cfg["pretrain"] is None else cfg["pretrain"]}


def _teach(cfg: dict[str, Any], matches: bool, hides: bool) -> str:
    amortised = makes(cfg["posterior"], InferenceNetwork)
    if hides and not amortised:
        raise InputError("training on incomplete data needs posterior=amortised; `viscos impute` fits the others")
    teach = cfg["teach"] or ("none" if not amortised else "bound" if hides and not matches else "regression")
    if teach != "none" and not amortised:
        raise InputError(f"teach={teach} is for posterior=amortised; `viscos impute` fits the others to each item")
    if hides and teach == "none":
        raise InputError("data with holes need an inference network; take teach=regression, bound or both")
    if not hides and teach in ("bound", "both"):
        raise InputError(f"teach={teach} needs data with holes; on complete data take teach=regression or none")
    if matches and hides and teach == "bound":
        raise InputError("a flow that is trained by matching learns from completions; take teach=regression or both")
    if hides and teach != "bound" and not cfg["posterior"].get("held_out"):
        raise InputError(f"teach={teach} begins with held-out entries; take posterior.held_out above 0, e.g. 0.2")
    if teach in ("bound", "both") and cfg["posterior"].get("components", 1) > 1:
        raise InputError(f"teach={teach} is for posterior.components=1; a mixture is taught by regression")
    return teach


def plan_of(cfg: dict[str, Any], items: int, hides: bool, network: Posterior | None) -> Plan:
    """The plan for settings that are `settled`, for so many training items, and an inference network, if there is one.

    Raises `InputError` where held-out entries alone would teach, to the last step.
    """
    dataset = Dataset(cfg["dataset"])
    steps = _steps(cfg, items)
    pretrain = round(cfg["pretrain"] * items / cfg["batch_size"])
    tempering = cfg["temper"] if network is not None and network.tempers else 0
    phases = _phases(cfg, steps, pretrain, items, hides, tempering)
    if not phases and network is not None and network.held_out and pretrain >= steps:
        raise InputError(
            f"pretrain={cfg['pretrain']:g} is {pretrain} steps and the training has {steps}, so the flow would learn "
            "nothing; lower pretrain, or raise epochs or max_steps"
        )
    return Plan(
        cfg["epochs"],
        cfg["batch_size"],
        cfg["learning_rate"],
        cfg["schedule"],
        cfg["max_steps"],
        warmup=cfg["warmup"],
        noise=dataset.noise,
        levels=dataset.levels,
        augment=dataset.augment,
        accumulate=cfg["accumulate"],
        ema=cfg["ema"],
        pretrain=pretrain,
        phases=phases,
        masks=cfg["teach_masks"],
        redraw=cfg["redraw"],
        imputed_weight=cfg["imputed_weight"],
        patience=cfg["patience"],
        seed=cfg["seed"],
    )


def _steps(cfg: dict[str, Any], items: int) -> int:
    """The steps of a training without phases, or of the flow's first phase."""
    steps: int = cfg["epochs"] * math.ceil(items / cfg["batch_size"])
    return steps if cfg["max_steps"] is None else min(steps, cfg["max_steps"])


def _phases(
    cfg: dict[str, Any], steps: int, pretrain: int, items: int, hides: bool, tempering: int
) -> tuple[Phase, ...]:
    """None where all is learnt together."""
    if cfg["teach"] in ("bound", "none"):
        return ()
    if not hides:
        return on_complete_data(steps)
    return on_incomplete_data(
        steps,
        prediction=pretrain if cfg["max_steps"] is None else min(pretrain, cfg["max_steps"]),
        rounds=cfg["rounds"],
        redrawing=min(math.ceil(min(cfg["redraw"], items) / cfg["batch_size"]), cfg["max_steps"] or math.inf),
        tempering=min(tempering, cfg["max_steps"] or tempering),
        bound=cfg["teach"] == "both",
    )
