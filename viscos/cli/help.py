"""Help for people. Tables are set here: importing rich would make a page of 0.3 s one of 0.4 s."""

from __future__ import annotations

from collections.abc import Iterable

from viscos.cli.outline import COMMANDS, Option, choices, explained, outline, overlays
from viscos.cli.words import figure, figures

_EXAMPLES = {
    "train": (
        ("viscos train", "bundled 8 × 8 digits, half of the pixels missing"),
        ("viscos train dataset=mnist missing=0.9", "MNIST, nine pixels in ten missing"),
        ("viscos train missing=0", "complete data: flow matching"),
        ("viscos train flow=iresnet missing=0", "complete data: maximum likelihood"),
        ("viscos train dataset=table dataset.path=FILE.csv missing=0.2", "a table; empty cells are missing too"),
        ("viscos train flow.width=64 epochs=5", "any setting can be changed"),
        ("viscos train flow._target_=M.F flow.depth=3", "code of your own: function F of module M"),
        ("viscos train --multirun missing=0.5,0.9", "one run for each value; run again, it goes on"),
        ("viscos train --multirun experiment=mnist_tables seed=0,1,2", "the runs behind the paper's tables"),
        ("viscos train experiment=debug", "two steps a phase, to see that everything runs"),
        ("viscos train resume=outputs/train/RUN", "continue a run"),
    ),
    "impute": (
        ("viscos impute checkpoint=outputs/train/RUN", "test items, with the holes of the run"),
        ("viscos impute checkpoint=RUN mask=center8 mask.size=4", "the middle missing, 4 × 4 pixels"),
        ("viscos impute checkpoint=RUN mask=half mask.side=left", "one half missing"),
        ("viscos impute checkpoint=RUN input=photos/", "your own pictures or arrays; transparent or NaN: missing"),
        ("viscos impute checkpoint=RUN input=a.png observed=mask.png", "a hole from a mask; black is hidden"),
        ("viscos impute checkpoint=latest input=FILE.csv draws=20", "a table, by the newest run"),
        ("viscos impute checkpoint=RUN imputer=knn", "by another imputer than the run's flow"),
        ("viscos impute checkpoint=RUN posterior=diagonal steps=500", "another posterior, fitted longer"),
        ("viscos impute resume=outputs/impute/RUN", "go on with a run that was interrupted"),
        (
            "viscos impute flow=foreign flow.factory=M:F checkpoint=F",
            "another library's flow, from function F of module M",
        ),
    ),
    "eval": (
        ("viscos eval checkpoint=outputs/train/RUN", "the whole test split, with the run's own masks"),
        ("viscos eval checkpoint=RUN mask=center8 mask.size=4", "other masks"),
        ("viscos eval checkpoint=RUN items=100 draws=16", "fewer items, more draws"),
    ),
    "bench": (
        ("viscos bench", "an untrained flow, on digits"),
        ("viscos bench checkpoint=outputs/train/RUN", "a trained one"),
        ("viscos bench checkpoint=RUN solvers=[anderson,paper] rates=[0.9]", "some solvers at one rate"),
        ("viscos bench checkpoint=RUN partition=maxvol", "a coupling flow, with the latents it needs"),
    ),
    "table": (
        ("viscos train --multirun experiment=mnist_tables", "makes the runs"),
        ("viscos table", "tables of those that are finished"),
        ("viscos table format=latex save=FOLDER", "for a paper, and the records to keep"),
        ("viscos table runs=FOLDER", "of other runs"),
        ("viscos table runs=FOLDER by=flow.width", "runs told apart by any setting"),
    ),
    "figure": (
        ("viscos figure name=2 run=outputs/impute/RUN", "digits: original, masked, completed"),
        ("viscos figure name=comparison run=RUN other=FILE.npz", "beside another method's completions"),
        ("viscos figure name=density run=RUN", "the density over a plane; of completions, a conditional too"),
        ("viscos figure name=samples", "says how to make the run that it needs"),
    ),
}

_OVERVIEW_EXAMPLES = (
    _EXAMPLES["train"][0],
    _EXAMPLES["train"][1],
    ("viscos train flow.width=64 epochs=5", "any setting can be changed"),
    ("viscos impute checkpoint=outputs/train/RUN mask=half", "complete test items, one half missing"),
    ("viscos eval checkpoint=outputs/train/RUN", "measure on the test split"),
)

_FLAGS = (
    ("--cfg job", "print every setting with its value, and stop"),
    ("--multirun, -m", "run once for each of the values that commas separate"),
    ("--hydra-help", "flags of Hydra, which composes the settings"),
    ("--help, -h", "this page; with a part, as flow=glow, its settings"),
)

_OF_RUN: dict[str, tuple[str, ...]] = {"dataset": (), "flow": ("foreign",)}
"""What there is to choose of a part that the run has, where a command leaves it to the run."""


def overview() -> str:
    """The page of `viscos --help`."""
    return "\n".join(
        (
            "viscos: conditional samples of normalizing flows when parts of an observation are missing",
            "",
            "Usage: viscos COMMAND [key=value ...]",
            "",
            "Commands:",
            _table(tuple(COMMANDS.items())),
            "",
            "Examples:",
            _table(_OVERVIEW_EXAMPLES),
            "",
            "More:",
            _table(
                (
                    ("viscos COMMAND --help", "options, their meaning and default, and examples"),
                    ("viscos COMMAND --cfg job", "every setting with its value"),
                    ("viscos --version", "the version"),
                    ('eval "$(viscos --completion bash)"', "completion of commands, keys and values, in bash"),
                )
            ),
            "",
            "Each run has a folder of its own, outputs/COMMAND/<date>_<time>_<id>, below the current folder.",
        )
    )


def command(name: str, arguments: Iterable[str] = ()) -> str:
    """The page of `viscos <name> --help`; with choices of parts among the arguments, what these can be set to."""
    page = outline(name)
    chosen = [(part.name, word) for part in page.parts for word in _chosen(part.name, arguments)]
    if chosen:
        return "\n\n".join(_settings(*each) for each in chosen)
    lines = [page.about, "", f"Usage: viscos {name} [key=value ...]", ""]
    lines += ["Examples:", _table(_EXAMPLES[name]), ""]
    lines += ["Options, with their defaults:", _table(tuple(_row(option) for option in page.options)), ""]
    lines += _parts(page.parts) if page.parts else []
    lines += ["Figures:", _table(_figures()), ""] if name == "figure" else []
    lines += ["Flags:", _table(_FLAGS), ""]
    if name == "table":
        return "\n".join([*lines, "The tables are printed; nothing is left in outputs/."])
    lines += [f"The run's folder is outputs/{name}/<date>_<time>_<id>, below the current folder."]
    return "\n".join(lines)


def _chosen(part: str, arguments: Iterable[str]) -> list[str]:
    words = [word.partition("=")[2] for word in arguments if word.partition("=")[0] == part]
    return [word for word in words if word in choices(part) and not overlays(part)]


def _settings(part: str, choice: str) -> str:
    """What a choice of a part is, and its settings."""
    rows = tuple(_row(option) for option in explained(part, choice))
    return f"{part}={choice}\n{choices(part)[choice]}\n" + (_table(rows) if rows else "  nothing to be set")


def _parts(parts: tuple[Option, ...]) -> list[str]:
    lines = ["Parts; each is one of several choices, * is the default:"]
    for part in parts:
        lines += [f"  {part.name}=…  {part.meaning}", *([_table(rows, indent=6)] if (rows := _choices(part)) else [])]
    shown = "flow=continuous" if _makes_flows(parts) else "mask=center8"
    how = f"A part's own settings are written with a dot: {_dotted(parts)}; {shown} --help explains them."
    return [*lines, "", how, ""]


def _figures() -> tuple[tuple[str, str], ...]:
    numbered = ((f"name={number} or {name}" if number else f"name={name}", name) for name, number in figures().items())
    return tuple((left, figure(name, "__doc__").splitlines()[0].partition(": ")[2]) for left, name in numbered)


def _dotted(parts: tuple[Option, ...]) -> str:
    return "flow.width=64" if _makes_flows(parts) else "mask=center8 mask.size=4"


def _makes_flows(parts: tuple[Option, ...]) -> bool:
    return any(part.name == "flow" and part.default != "null" for part in parts)


def _row(option: Option) -> tuple[str, str]:
    needed = option.default == "???"
    return f"{option.name}={'…' if needed else option.default}", option.meaning + (" (needed)" if needed else "")


def _choices(part: Option) -> tuple[tuple[str, str], ...]:
    of_run = _OF_RUN.get(part.name) if part.default == "null" else None
    found = {name: text for name, text in choices(part.name).items() if of_run is None or name in of_run}
    return tuple((name + (" *" if name == part.default else ""), meaning) for name, meaning in found.items())


def _table(rows: tuple[tuple[str, str], ...], indent: int = 2) -> str:
    width = max(len(left) for left, _ in rows)
    return "\n".join(f"{'':{indent}}{left:{width}}  {right}".rstrip() for left, right in rows)
