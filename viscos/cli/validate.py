"""Types and ranges of every setting, as a table.

Hydra refuses keys that do not exist; wrong values are refused here, before torch is imported. Words are looked up in
the code that takes them.
"""

from __future__ import annotations

import math
from typing import Any

from viscos.cli.outline import outline, overlays
from viscos.cli.rules import (
    Rule,
    device,
    either,
    empty,
    flag,
    integer,
    list_of,
    number,
    one_of,
    optional,
    sign,
    text,
    word_of,
)
from viscos.cli.words import constant
from viscos.core.build import outside
from viscos.core.errors import InputError
from viscos.runs.folder import find_checkpoint

_SIGNS = ("delimiter", "decimal", "thousands")
RULES: dict[str, Rule] = {
    "missing": optional(number(0, 1)),
    "epochs": optional(integer(1)),
    "batch_size": integer(1),
    "learning_rate": optional(number(0, inside=True)),
    "teach": optional(word_of("teach")),
    "teach_masks": optional(word_of("teach_masks")),
    "rounds": optional(integer(0)),
    "redraw": integer(1),
    "imputed_weight": optional(number(0, inside=True)),
    "temper": integer(0),
    "pretrain": optional(number(0)),
    "classifier": word_of("classifier"),
    "schedule": word_of("schedule"),
    "warmup": optional(integer(0)),
    "ema": optional(number(0, 1)),
    "accumulate": integer(1),
    "gaussian_floor": number(0, inside=True),
    "denoise": flag,
    "calibration": optional(flag),
    "draws": integer(1),
    "imputers": either(empty, list_of(text, "[mean,knn]")),
    "metrics": either(empty, list_of(text, "[mymodule.MyMetric]")),
    "allow": optional(either(text, list_of(text))),
    "completions": optional(text),
    "inception": optional(text),
    "train_items": optional(integer(1)),
    "test_items": optional(integer(1)),
    "max_steps": optional(integer(1)),
    "log_every": integer(1),
    "validation": number(0, 0.9),
    "patience": optional(integer(1)),
    "seed": integer(0),
    "threads": optional(integer(1)),
    "device": device,
    "devices": integer(1),
    "precision": word_of("precision"),
    "verbosity": word_of("verbosity"),
    "resume": optional(text),
    "checkpoint": optional(text),
    "input": optional(text),
    "items": optional(integer(1)),
    "window": optional(word_of("window")),
    "check": optional(either(one_of("auto"), number(0, 1, inside=True))),
    "overwrite": flag,
    "steps": optional(integer(0)),
    "samples": integer(1),
    "partition": word_of("partition"),
    "refine": optional(word_of("refine")),
    "proposals": optional(integer(0)),
    "start": optional(word_of("start")),
    "solvers": list_of(word_of("solvers"), "[auto,path]"),
    "rates": list_of(number(0, 1), "[0.5,0.9]"),
    "center": optional(integer(0)),
    "repeats": integer(1),
    "runs": either(text, list_of(text)),
    "by": optional(text),
    "format": word_of("format"),
    "save": optional(text),
    "name": lambda value: word_of("name")(str(value)),
    "run": optional(text),
    "other": optional(text),
    "dataset.name": text,
    "dataset.root": optional(text),
    "dataset.download": flag,
    "dataset.path": text,
    "dataset.label": optional(either(text, integer(0))),
    "dataset.drop": optional(list_of(either(text, integer(0)))),
    "dataset.categories": optional(list_of(either(text, integer(0)))),
    "dataset.log": optional(either(empty, list_of(either(text, integer(0))))),
    **{f"{part}{name}": optional(sign) for part in ("dataset.", "") for name in _SIGNS},
    **{f"{part}encoding": optional(text) for part in ("dataset.", "")},
    **{f"{part}holes": optional(list_of(either(text, number(-math.inf)))) for part in ("dataset.", "")},
    "dataset.items": integer(2),
    "dataset.spread": number(0),
    "dataset.channels": word_of("dataset.channels"),
    "dataset.size": optional(integer(1)),
    "dataset.noise": either(number(0), one_of("uniform")),
    "dataset.levels": integer(2),
    "dataset.augment": either(one_of("none"), either(word_of("dataset.augment"), list_of(word_of("dataset.augment")))),
    "dataset.epochs": optional(integer(1)),
    "dataset.learning_rate": number(0, inside=True),
    "posterior.gaussian": optional(flag),
    "posterior.corrects": optional(flag),
    "posterior.held_out": number(0, 1),
    "posterior.width": integer(1),
    "mask.missing": optional(number(0, 1)),
    "mask.size": integer(1),
    "mask.side": word_of("mask.side"),
    "mask.path": text,
    "mask.hole": word_of("mask.hole"),
    "mask.threshold": optional(number(0, 1)),
    "mask.columns": list_of(either(text, integer(0))),
    "flow.factory": text,
    "flow.blocks": list_of(integer(1)),
    "flow.channels": either(integer(1), list_of(integer(1))),
    "flow.fully_connected": integer(0),
    "flow.activation": word_of("flow.activation"),
    "flow.coefficient": number(0, 1, inside=True),
    "flow.start": optional(word_of("flow.start")),
    "flow.first_squeeze": flag,
    "flow.implicit": flag,
    "flow.layers": integer(1),
    "flow.columns": integer(1),
    "flow.reflections": integer(0),
    "flow.steps": integer(1),
    "flow.method": word_of("flow.method"),
    "flow.width": integer(1),
    "flow.grid": number(0, inside=True),
    "flow.series.terms": integer(1),
    "flow.series.roulette": number(0),
    "flow.series.count": integer(1),
    "posterior.channels": optional(list_of(integer(1))),
    "posterior.reflections": integer(0),
    "posterior.components": integer(1),
    "solver.tolerance": number(0, inside=True),
    "solver.budget": integer(1),
    "solver.memory": integer(1),
    "solver.parallel": flag,
    "solver.restart": integer(1),
    "solver.newton_budget": integer(1),
    "solver.mixing": number(0, 1, inside=True),
    "solver.decay": number(0, 1),
    "lad.probes": integer(1),
    "imputer.rows": integer(1),
    "imputer.neighbours": integer(1),
    "imputer.rounds": integer(1),
    "imputer.trees": integer(1),
    "imputer.features": integer(1),
    "imputer.floor": number(0, inside=True),
    "imputer.noise": number(0),
    "imputer.steps": integer(1),
    "imputer.resamplings": integer(1),
    "imputer.averages": integer(1),
    "imputer.iterations": integer(1),
    "imputer.scale": number(0, inside=True),
    "imputer.alpha": number(0),
    "imputer.learning_rate": number(0, inside=True),
    "imputer.prior": number(0),
    "imputer.sigma": number(0, inside=True),
    "imputer.resample": number(0, 1),
    "imputer.epochs": integer(1),
    "imputer.batch_size": integer(1),
    "imputer.first": integer(1),
    "imputer.weight": number(0, inside=True),
    "imputer.couplings": integer(1),
    "imputer.width": optional(integer(1)),
    "imputer.levels": integer(1),
    "imputer.largest": number(0, inside=True),
    "imputer.samples": integer(1),
    "imputer.fresh": flag,
    "imputer.imputer_rate": number(0, inside=True),
    "imputer.critics": integer(1),
    "imputer.beta": number(0),
    "imputer.widths": list_of(integer(1)),
    "imputer.imputer_width": optional(integer(1)),
    "imputer.sees_mask": flag,
}

RULES_OF: dict[str, dict[str, Rule]] = {
    "impute": {"batch_size": optional(integer(1)), "draws": optional(integer(1))},
    "eval": {"checkpoint": text},
}
"""Where a command takes more than others, or less."""


def validate(command: str, cfg: dict[str, Any]) -> None:
    """Raises `InputError` for the first setting of `cfg` that `command` cannot use."""
    _check_keys(command, cfg)
    for key, rule in (RULES | RULES_OF.get(command, {})).items():
        for value in _lookup(cfg, key) if _is_known(cfg, key) else []:
            complaint = rule(value)
            if complaint:
                raise InputError(f"{key}={shown(value)}: {complaint}")
    if cfg.get("checkpoint") is not None:
        find_checkpoint(cfg["checkpoint"])


def shown(value: Any) -> str:
    """A value as one would type it."""
    if isinstance(value, list):
        return "[" + ",".join(map(shown, value)) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def _check_keys(command: str, cfg: dict[str, Any]) -> None:
    page = outline(command)
    parts = {part.name for part in page.parts if part.default != "null" and not overlays(part.name)}
    needed = {option.name for option in page.options} | parts
    for key in sorted(needed - cfg.keys()):
        raise InputError(f"{key} is not set")
    for key in sorted(cfg.keys() - needed - {part.name for part in page.parts}):
        raise InputError(f"there is no option {key!r}; `viscos {command} --help` lists them")
    for part in page.parts:
        if not isinstance(cfg.get(part.name, {}), dict):
            raise InputError(f"{part.name}={shown(cfg[part.name])}: must be one of its choices")


def _is_known(cfg: dict[str, Any], key: str) -> bool:
    """Whether a setting means what it means in viscos: what code of one's own takes, it alone knows."""
    part, _, name = key.partition(".")
    node = cfg.get(part)
    own = isinstance(node, dict) and outside(str(node.get("_target_", "")))
    return not own or (part == "dataset" and name in constant("viscos.data.sources.registry.OF_TRAINING"))


def _lookup(cfg: dict[str, Any], key: str) -> list[Any]:
    """The value at a dotted key in a list, or an empty list if there is none."""
    node: Any = cfg
    for name in key.split("."):
        if not isinstance(node, dict) or name not in node:
            return []
        node = node[name]
    return [node]
