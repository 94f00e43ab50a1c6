"""Messages that name a remedy: each remedy is typed as the message says, and helps."""

from __future__ import annotations

import re
import shlex
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from viscos import runs
from viscos.cli import main
from viscos.core.build import build
from viscos.core.errors import InputError
from viscos.core.typed import typed as typed_word
from viscos.data.images import check_unit_range
from viscos.data.sources.table import table
from viscos.flows import Flow


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Each test has an empty folder of its own, with a run and files that it may name."""
    monkeypatch.chdir(tmp_path)
    for folder in ("run", "my run (2)", "2026-11-28_10-00-00_ab"):
        Path(folder).mkdir()
        Path(folder, runs.CHECKPOINT).touch()
    np.save("pictures.npy", np.zeros((2, 8, 8)))


@pytest.fixture
def typed(monkeypatch):
    """Types a command line of which no command is run; gives the settings that one would have had."""
    seen: list[dict] = []
    for name in ("train", "impute", "eval", "bench", "table", "figure"):
        monkeypatch.setitem(sys.modules, f"viscos.commands.{name}", types.SimpleNamespace(run=seen.append))

    def run(*words: str) -> tuple[int, list[dict]]:
        seen.clear()
        return main(list(words)), list(seen)

    return run


# The words, the place of the one that is wrong, and what the message must say to type in its place.
CASES = [
    (["train", "imputers=mean,gaussian"], 1, "imputers=[mean,gaussian]", ["mean", "gaussian"]),
    (["train", "dataset.augment=flip,shift"], 1, "dataset.augment=[flip,shift]", ["flip", "shift"]),
    (["bench", "rates=0.1,0.5"], 1, "rates=[0.1,0.5]", [0.1, 0.5]),
    (["table", "runs=run,other"], 1, "runs=[run,other]", ["run", "other"]),
    (["eval", "checkpoint=my run (2)"], 1, """'checkpoint="my run (2)"'""", "my run (2)"),
    (["eval", "run"], 1, "checkpoint=run", "run"),
    (["eval", "my run (2)"], 1, """'checkpoint="my run (2)"'""", "my run (2)"),
    (["impute", "./2026-11-28_10-00-00_ab"], 1, "checkpoint=./2026-11-28_10-00-00_ab", "./2026-11-28_10-00-00_ab"),
    (["impute", "run/checkpoint.pt"], 1, "checkpoint=run/checkpoint.pt", "run/checkpoint.pt"),
    (["impute", "checkpoint=run", "pictures.npy"], 2, "input=pictures.npy", "pictures.npy"),
    (["bench", "run"], 1, "checkpoint=run", "run"),
    (["table", "run"], 1, "runs=run", "run"),
    (["figure", "name=2", "run"], 2, "run=run", "run"),
    (
        ["impute", "checkpoint=run", "mask=columns", "mask.columns=[mass (kg),age]"],
        3,
        """'mask.columns=["mass (kg)",age]'""",
        ["mass (kg)", "age"],
    ),
    (
        ["train", "dataset=table", "dataset.path=x.csv", "dataset.label=size [m]"],
        3,
        """'dataset.label="size [m]"'""",
        "size [m]",
    ),
]


@pytest.mark.parametrize(("words", "place", "remedy", "value"), CASES, ids=[" ".join(words) for words, *_ in CASES])
def test_what_is_advised_can_be_typed(words, place, remedy, value, typed, capsys):
    status, seen = typed(*words)
    line = capsys.readouterr().err
    assert status == 2 and not seen and line.count("\n") == 1 and remedy in line
    (word,) = shlex.split(remedy)
    status, (cfg,) = typed(*words[:place], word, *words[place + 1 :])
    found = cfg
    for key in word.partition("=")[0].split("."):
        found = found[key]
    assert status == 0 and found == value


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (None, "k=null"),
        ([True, None], "k=[true,null]"),
        (" b ", """'k=" b "'"""),
        ("a b", """'k="a b"'"""),
        (0.5, "k=0.5"),
        (["null", "True", "1e3", "007", "a"], """'k=["null","True","1e3",007,a]'"""),
    ],
)
def test_values_are_typed_as_hydra_reads_them(value, word):
    assert typed_word("k", value) == word


def test_a_list_is_not_advised_where_none_is_taken(typed, capsys):
    assert typed("train", "missing=0.5,0.9") == (2, [])
    line = capsys.readouterr().err
    assert line == "viscos train: missing=0.5,0.9 gives several values: add --multirun to run each\n"
    assert typed("train", "missing=0.5,0.9", "--multirun")[0] == 0


def test_a_run_folder_of_a_training_is_to_be_resumed(typed, capsys):
    assert typed("train", "run")[0] == 2
    assert capsys.readouterr().err.endswith("settings are written key=value: resume=run\n")
    typed("train", "resume=run")
    assert "cannot read 'run'" not in capsys.readouterr().err


def test_a_run_below_the_home_folder_is_found(typed, monkeypatch, capsys):
    """Of a word in quotes, in which a shell leaves the sign for it."""
    monkeypatch.setenv("HOME", str(Path.cwd()))
    assert typed("eval", "~/run")[0] == 2
    (word,) = shlex.split(capsys.readouterr().err.rpartition("key=value: ")[2])
    assert word == 'checkpoint="~/run"' and typed("eval", word)[0] == 0


def test_only_completions_have_an_input(typed, capsys):
    assert typed("eval", "pictures.npy")[0] == 2
    assert "input=" not in capsys.readouterr().err


def test_what_is_no_path_is_advised_nothing(typed, capsys):
    assert typed("eval", "nowhere")[0] == 2
    assert capsys.readouterr().err == "viscos eval: cannot read 'nowhere'; settings are written key=value\n"


@pytest.mark.parametrize("name", ["mass (kg)", "402.5", "a b", "m[1]", "a,b", "it's", 'say "q"', "é", "a=b", "back\\"])
def test_columns_of_any_name_can_be_left_out(name, typed):
    quoted = name.replace('"', '""')
    Path("x.csv").write_text(f'"{quoted}",b\n,1\n,2\n,3\n', encoding="utf-8")
    with pytest.raises(InputError, match="has no values; leave it out") as refused:
        table("train", path="x.csv")
    (word,) = shlex.split(str(refused.value).partition("leave it out, ")[2])
    status, (cfg,) = typed("train", "dataset=table", "dataset.path=x.csv", word)
    assert status == 0 and table("train", path="x.csv", drop=cfg["dataset"]["drop"]).columns == ("b",)


def test_a_column_of_text_can_be_left_out(typed):
    Path("x.csv").write_text("mass (kg),b\nheavy,1\n2,2\n")
    with pytest.raises(InputError, match="holds 'heavy'") as refused:
        table("train", path="x.csv")
    (word,) = shlex.split(re.search(r"column out \((.*) in training\)", str(refused.value))[1])
    _, (cfg,) = typed("train", "dataset=table", "dataset.path=x.csv", word)
    assert table("train", path="x.csv", drop=cfg["dataset"]["drop"]).columns == ("b",)


@pytest.mark.parametrize(
    ("shape", "words", "remedy"),
    [
        ((1, 9, 9), ["flow=iresnet"], "flow.first_squeeze=false"),
        ((1, 9, 9), ["flow=iresnet", "flow.blocks=[2,2]"], "flow.first_squeeze=false flow.blocks=[2]"),
        ((1, 14, 14), ["flow=iresnet", "flow.blocks=[2,2]"], "flow.blocks=[2]"),
        ((3, 14, 14), ["flow=iresnet164"], "flow.blocks=[18,18] flow.channels=[16,64]"),
        ((1, 12, 12), ["flow=iresnet", "flow.blocks=[1,1,1,1]"], "flow.blocks=[1,1]"),
        ((1, 9, 9), ["flow=realnvp"], "flow.blocks=[6]"),
        ((1, 9, 9), ["flow=glow"], "flow=realnvp flow.blocks=[8]"),
        ((1, 14, 14), ["flow=glow", "flow.blocks=[2,2]"], "flow.blocks=[2]"),
    ],
)
def test_images_that_cannot_be_squeezed(shape, words, remedy, typed):
    _, (cfg,) = typed("train", *words)
    with pytest.raises(InputError, match="cannot be squeezed") as refused:
        build(cfg["flow"], Flow, shape)
    assert remedy in str(refused.value)
    _, (cfg,) = typed("train", *[word for word in words if not remedy.startswith("flow=")], *shlex.split(remedy))
    assert build(cfg["flow"], Flow, shape).shape == shape


@pytest.mark.parametrize(
    ("values", "says", "remedy"),
    [
        ([0.5, 255.0], "item 1 (from 0) has 255;", "values / 255"),
        ([0.5, -0.25], "item 1 (from 0) has -0.25;", "(values + 1) / 2"),
        ([1.0000001, 0.5], "item 0 (from 0) has 1.00000012;", "values.clip(0, 1)"),
    ],
)
def test_values_that_are_no_images(values, says, remedy):
    values = torch.tensor(values).view(-1, 1, 1, 1)
    with pytest.raises(InputError) as refused:
        check_unit_range(values)
    assert says in str(refused.value) and remedy in str(refused.value)
    check_unit_range(eval(remedy))


def test_infinite_values_are_called_so():
    values = torch.tensor([0.5, torch.inf, 0.5]).view(-1, 1, 1, 1)
    with pytest.raises(InputError, match=r"item 1 \(from 0\) has inf; give NaN where a value is missing"):
        check_unit_range(values)
    check_unit_range(values.nan_to_num(posinf=torch.nan), values.isfinite())
