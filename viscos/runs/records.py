"""Records of trainings and evaluations, read back, and whether they may stand in one table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from viscos.core import atomic
from viscos.core.errors import InputError
from viscos.runs.folder import RECORD

RESIDUAL = "iresnet"
"""The flow of the paper, by the last part of its `_target_`."""
_FLOWS = {
    RESIDUAL: "residual flow",
    "implicit": "implicit flow",
    "continuous": "continuous flow",
    "glow": "Glow",
    "realnvp": "RealNVP",
    "planar": "planar flow",
    "radial": "radial flow",
    "sylvester": "Sylvester flow",
}
"""What flows are called in a table."""
_COMMANDS = ("train", "eval")
"""What leaves the records of tables."""
TRAINED = "trained"
"""Under this key of the settings of an evaluation are `mask` and `missing` of the training."""
_MAY_DIFFER = ("seed", "missing", "mask", "log_every", TRAINED)
"""Settings in which the runs of one table differ, or which change no number."""
_UNSAID = {"evaluation.seed": "0"}
"""What a record without a setting has of it."""
_NEEDED = ("dataset", "items", "mask_hash", "seed")
"""What a table asks of every record besides its settings."""
_KINDS = ("flow", "imputer")
"""Settings whose choice makes another kind anyway."""


@dataclass(frozen=True)
class Record:
    """What `metrics.json` of a training, or of an evaluation, on values missing at random holds."""

    name: str
    """Of the run folder or file."""
    content: dict[str, Any]
    by: str | None = None
    """The setting by which runs are told apart, besides their kind."""

    @property
    def rate(self) -> float:
        """Share of hidden values, 0 to 1, as it was set."""
        return float(self.content["config"]["missing"])

    @property
    def trained(self) -> dict[str, Any]:
        """`mask` and `missing` of the training: those that are measured, unless the record says otherwise."""
        config: dict[str, Any] = self.content["config"]
        return config.get(TRAINED) or {key: config.get(key) for key in ("mask", "missing")}

    @property
    def elsewhere(self) -> bool:
        """Whether it was measured under other holes than it was trained with."""
        config = self.content["config"]
        return any(value != config.get(key) for key, value in self.trained.items())

    @property
    def flow(self) -> str:
        """The kind of flow: the last part of its `_target_`, or `implicit`. Records of one kind are a family."""
        flow = self.content["config"].get("flow", {})
        return "implicit" if flow.get("implicit") else str(flow.get("_target_", RESIDUAL)).rpartition(".")[2]

    @property
    def flow_name(self) -> str:
        """The kind of flow, for readers."""
        return _FLOWS.get(self.flow, f"{self.flow} flow")

    @property
    def imputer(self) -> str | None:
        """What was trained or measured, for readers, if it is another imputer than a flow with its posterior."""
        name = self.content.get("imputer")
        return None if name is None else str(self.content.get("labels", {}).get(name, name))

    @property
    def group(self) -> Any:
        """The value of the setting `by`; of a part, the last word of its name."""
        node: Any = self.content["config"] | {TRAINED: self.trained}
        for key in self.by.split(".") if self.by else ():
            node = node.get(key) if isinstance(node, dict) else None
        return str(node.get("_target_")).rpartition(".")[2] if isinstance(node, dict) else node

    @property
    def family(self) -> str:
        """The kind of flow, or the other imputer, and the value of `by`; for readers."""
        kind = self.imputer or self.flow_name
        return kind if self.by in (None, *_KINDS) else f"{kind}, {self.by}={self.group}"

    @property
    def seed(self) -> int:
        """The seed of the training: that of an evaluation is another setting."""
        said = self.content["config"] if self.content["command"] == "eval" else self.content
        return int(said["seed"])

    @property
    def unit(self) -> str | None:
        """The unit of errors, in words; None where nothing was measured, or an earlier version did not say."""
        said: str | None = _entry(self, "rmse", "unit")
        return said

    @property
    def classified(self) -> str | None:
        """What the classifier that was trained along saw: `latents`, `draws` of the flow, or the network's own
        `prediction`, without the flow; None where the record does not say.
        """
        said, config = self.entry("accuracy").get("classifier"), self.content["config"]
        if said is None:
            return None
        if "latents" in said:
            return "latents"
        # Older records say "completions" of both; whose they are follows from what the network was taught.
        return "prediction" if "network" in said or config.get("posterior", {}).get("held_out") else "draws"

    def value(self, *keys: str) -> float | None:
        """The number under nested keys; None where the record lacks it."""
        *path, last = keys
        value = self.entry(*path).get(last)
        return None if value is None else float(value)

    def entry(self, *keys: str) -> dict[str, Any]:
        """All that the record says under nested keys; empty where it says nothing."""
        node: Any = self.content
        for key in keys:
            node = node.get(key) if isinstance(node, dict) else None
        return node if isinstance(node, dict) else {}


def read(folders: Iterable[str | Path], by: str | None = None) -> list[Record]:
    """The records in folders of runs, in run folders or in folders of saved records, by family, rate and seed.

    A family is of one kind of flow, or of one other imputer, and of one value of the setting `by` (dotted), if that is
    given. The residual flow comes first, the others by name, other imputers last. Raises `InputError` if there are
    none, if one is of another kind, if none has the setting, or if they may not stand in one table: all must be of the
    same data, and those of a family of the same settings.
    """
    records = [_record(path, by) for folder in folders for path in _files(Path(folder).expanduser())]
    if by in ("missing", "seed", "mask.missing"):
        raise InputError(f"by={by}: a column is of a rate, and a cell of all its seeds; take another setting")
    if by not in (None, *_KINDS) and all(record.group is None for record in records):
        raise InputError(f"by={by}: no run says anything of such a setting; `viscos train --cfg job` lists them")
    _check(records)
    return sorted(records, key=_order)


def _order(record: Record) -> tuple[Any, ...]:
    number = record.group if isinstance(record.group, (int, float)) else 0
    kind = (record.imputer is not None, record.flow != RESIDUAL, record.flow)
    return (*kind, number, record.family, record.rate, record.seed)


def families(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each family, by its name for readers, in the order in which they come."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.family, []).append(record)
    return found


def save(records: Iterable[Record], folder: str | Path) -> list[Path]:
    """Writes each record into `folder`, under a name that says which it is; `read` reads them back.

    Raises `InputError` for a folder with other records, which `read` would take for those of the same table.
    """
    folder = Path(folder).expanduser()
    named = {folder / _file_name(record): record for record in records}
    if others := [path for path in _found(folder) if path not in named]:
        raise InputError(
            f"{others[0]} would be read with what is saved there; move it out, or take another folder: save=<folder>"
        )
    return [atomic.write_json(path, record.content) for path, record in named.items()]


def _file_name(record: Record) -> str:
    kind = record.content.get("imputer") or ("" if record.flow == RESIDUAL else record.flow)
    group = "" if record.by is None else f"{record.by}_{record.group}"
    words = [re.sub(r"[^\w.+-]+", "_", word) for word in (kind, group) if word]
    return "-".join([f"missing_{record.rate:g}-seed_{record.seed}", *words]) + ".json"


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"there is no folder {str(folder)!r} with runs; give runs=<folder of a sweep>")
    found = _found(folder)
    if not found:
        below = sorted({str(path.parents[1]) for path in folder.glob(f"*/*/{RECORD}")})
        hint = f"; there are some in {', '.join(below)}, so say runs={below[0]}" if below else ""
        raise InputError(f"no run in {str(folder)!r} is finished: none holds a metrics.json{hint}")
    return found


def _found(folder: Path) -> list[Path]:
    """The records in a folder of runs, a run folder or a folder of saved records."""
    return sorted({*folder.glob(RECORD), *folder.glob(f"*/{RECORD}"), *folder.glob("*.json")})


def _record(path: Path, by: str | None) -> Record:
    name = path.parent.name if path.name == RECORD else path.stem
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON") from error
    if not isinstance(content, dict) or content.get("command") not in _COMMANDS or "config" not in content:
        raise InputError(
            f"{path} is no record of `viscos train` or `viscos eval` with its settings; move it out of the folder"
        )
    if not isinstance(content["config"], dict) or content["config"].get("missing") is None:
        raise InputError(f"{path} is of a run with another mask than mask=random; move it out of the folder")
    if lacking := [key for key in _NEEDED if key not in content]:
        raise InputError(f"{path} does not say {lacking[0]!r}, which a table needs; move it out of the folder")
    return Record(name, content, by)


def _check(records: list[Record]) -> None:
    """Refuses what does not compare."""
    _agree(records, "the data", lambda record: record.content["dataset"])
    _agree(records, "the contents of the data file", lambda record: record.entry("files").get("dataset.path"))
    _agree(records, "the number of test items", lambda record: record.content["items"])
    _agree(records, "the unit of errors", lambda record: record.unit)
    _agree(records, "the extractor behind FID", lambda record: _entry(record, "fid", "extractor_sha256"))
    _agree(records, "the number of images behind FID", lambda record: _entry(record, "fid", "reference_items"))
    for rate, seed in sorted({(record.rate, record.seed) for record in records}):
        same = [record for record in records if (record.rate, record.seed) == (rate, seed)]
        _agree(same, f"the test masks of missing={rate:g} seed={seed}", lambda record: record.content["mask_hash"])
    for family in families(records).values():
        _check_family(family)


def _drawn(record: Record, kind: str) -> Any:
    return record.entry("energy", kind).get("draws")


def _check_family(records: list[Record]) -> None:
    """Refuses records of one family that differ in more than the rate and the seed."""
    for key in sorted({key for record in records for key in _settings(record)}):
        versions = {_version(record) for record in records if key in _settings(record)}
        _agree(records, key, partial(_setting, key, versions))
    for kind in sorted({kind for record in records for kind in record.entry("energy")}):
        # Within a family: fair scores compare between those, whatever their numbers of draws.
        _agree(records, "the number of draws that are scored", partial(_drawn, kind=kind))
    if any(record.elsewhere for record in records):
        _agree(records, "the holes of the training", _holes)
    for rate, seed in sorted({(record.rate, record.seed) for record in records}):
        same = [record for record in records if (record.rate, record.seed) == (rate, seed)]
        if len(same) > 1:
            raise InputError(f"{_names(same)} are all missing={rate:g} seed={seed}; leave all but one of them out")


def _setting(key: str, versions: set[str], record: Record) -> str | None:
    """What a record says of a setting; None if the version that wrote it had none, other `versions` having it."""
    unsaid = _UNSAID.get(key, "nothing") if _version(record) in versions else _UNSAID.get(key)
    return _settings(record).get(key, unsaid)


def _holes(record: Record) -> str:
    """Those of the training, in words."""
    mask = record.trained["mask"] or {}
    kind = str(mask.get("_target_")).rpartition(".")[2]
    rest = [f"{key}={value}" for key, value in mask.items() if key != "_target_"]
    return ", ".join([kind, *rest])


def _version(record: Record) -> str:
    """Which version of the code left the record."""
    return str(record.content.get("commit") or record.entry("versions").get("viscos"))


def _agree(records: list[Record], what: str, of: Callable[[Record], Any]) -> None:
    found: dict[str, list[Record]] = {}
    for record in records:
        if (value := of(record)) is not None:
            found.setdefault(str(value), []).append(record)
    if len(found) > 1:
        sides = "; ".join(f"{value} in {_names(those)}" for value, those in found.items())
        raise InputError(
            f"these runs disagree about {what}: {sides}; give those that belong in one table, "
            "runs=[<folder>,<folder>], or tell them apart, by=<setting>"
        )


def _names(records: list[Record]) -> str:
    return ", ".join(record.name for record in records)


def _entry(record: Record, metric: str, key: str) -> Any:
    """What every number of a metric says under `key`; None where none was measured."""
    each = [entry for entry in record.content.get(metric, {}).values() if isinstance(entry, dict)]
    return next((entry[key] for entry in each if key in entry), None)


def _settings(record: Record) -> dict[str, str]:
    """The settings that runs of one table share, under dotted keys; as text, so that null is a value too.

    What a model is called among imputers says nothing of it.
    """
    left_out = _MAY_DIFFER if record.imputer else (*_MAY_DIFFER, "imputer")
    return _flat({key: value for key, value in record.content["config"].items() if key not in left_out})


def _flat(node: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in node.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: json.dumps(value)}
    return flat
