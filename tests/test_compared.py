"""The comparison of imputers on one flow: tables and pictures of a record, and the page's from the one that is kept."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from script_loader import loaded

import viscos
from viscos.cli import main
from viscos.commands.assemble.imputers import described_by
from viscos.core.errors import InputError
from viscos.report.compared import pictures, table
from viscos.runs import provenance

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "compare_imputers.py"
RECORD, PAGE = ROOT / "outputs" / "reference" / "compare_imputers.json", ROOT / "docs" / "measured.md"


def figures(nominal=0.9, fid=None):
    value = {"value": 1.0, "standard_error": 0.125}
    return {
        "items": 3,
        "rmse": 0.1,
        "rmse_draw": 0.2,
        "energy": value,
        "draws": 19,
        "coverage": value | {"nominal": nominal},
        "spread_skill": value,
        "fid": fid,
    }


def method(label, found, many, **said):
    costs = {"passes_a_draw": 100.0, "seconds_a_draw": 0.5, "failed": 0.0, "notes": {}}
    return {"label": label, "first": found, "all": many} | costs | said


@pytest.fixture
def record():
    methods = {
        "viscos": method("viscos", figures(), figures(fid=12.34)),
        "d_flow": method("D-Flow", figures(), None, failed=0.015),
        "plmcmc": method("PL-MCMC", figures(nominal=1 / 3), None, notes={"observed_error": 0.0014}),
        "gaussian": method("Gaussian", figures(), figures(), passes_a_draw=0.0),
    }
    return {"settings": {"first": 3, "items": 9, "draws": 4}, "cases": {"half": {"missing": 0.5, "methods": methods}}}


def test_tables_of_a_record(record):
    first, more = table(record).split("\n\n")
    assert [line.split(" | ") for line in first.splitlines()[2:]] == [
        ["| viscos", "0.1000", "0.2000", "1.000 ± 0.125", "1.000 ± 0.125", "0", "100", "0.5", "0.0 % |"],
        ["| D-Flow", "0.1000", "0.2000", "1.000 ± 0.125", "1.000 ± 0.125", "0", "100", "0.5", "1.5 % |"],
        ["| PL-MCMC", "0.1000", "0.2000", "1.000 ± 0.125", "—", "0.001", "100", "0.5", "0.0 % |"],
        ["| Gaussian", "0.1000", "0.2000", "1.000 ± 0.125", "1.000 ± 0.125", "0", "0", "0.5", "0.0 % |"],
    ]
    assert [line.split(" | ")[0] for line in more.splitlines()[2:]] == ["| viscos", "| Gaussian"]  # the cheap ones
    assert more.splitlines()[2].endswith("| 12.3 |") and more.splitlines()[3].endswith("| — |")


def test_what_costs_nothing_is_in_no_picture_on_a_logarithmic_axis(record):
    axes = pictures(record).axes
    assert [len(axis.lines) for axis in axes] == [3, 4, 3, 4]  # the Gaussian takes seconds and no passes
    assert all(axis.get_xscale() == "log" for axis in axes)


def test_a_method_with_other_settings_is_on_the_line_of_its_usual_ones(record):
    methods = record["cases"]["half"]["methods"]
    more = method("viscos, steps=9", figures(), None) | {"passes_a_draw": 400.0}
    record["cases"]["half"]["methods"] = methods | {"viscos,steps=9": more}
    axis = pictures(record).axes[0]
    assert list(axis.lines[0].get_xdata()) == [100.0, 400.0] and len(axis.lines) == 3
    assert [text.get_text() for text in axis.texts].count("viscos") == 1


@pytest.mark.skipif(
    not (RECORD.is_file() and PAGE.is_file()), reason="the record and the page are not beside the tests"
)
def test_the_tables_of_the_page_are_those_of_the_record():
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    _, text, _ = PAGE.read_text(encoding="utf-8").split("<!-- python scripts/compare_imputers.py -->\n")
    assert text == table(record)


@pytest.fixture
def script():
    if not SCRIPT.is_file():
        pytest.skip("the scripts are not beside the tests")
    return loaded(SCRIPT)


def ran(script, monkeypatch, folder, *words):
    """Runs the script on the record in a folder."""
    files = ["--record", str(folder / "kept.json"), "--picture", str(folder / "compared.png")]
    monkeypatch.setattr(sys, "argv", ["compare_imputers.py", *files, *words])
    script.started(script.main)
    return json.loads((folder / "kept.json").read_text())


SIZE = ("--first", "3", "--items", "9")


def test_a_record_keeps_what_is_not_measured_anew(script, record, monkeypatch, tmp_path):
    record["cases"]["half"]["methods"]["viscos"]["commit"] = "before"
    (tmp_path / "kept.json").write_text(json.dumps(record))
    case = SimpleNamespace(observed=torch.zeros(2, 2, dtype=torch.bool))
    monkeypatch.setattr(script.Case, "of", lambda *about: case)
    monkeypatch.setattr(script, "measure", lambda *about: method("viscos", figures(), figures(), commit="now"))
    found = ran(script, monkeypatch, tmp_path, *SIZE, "--case", "all", "a run", "--methods", "viscos")["cases"]
    assert found["half"] == record["cases"]["half"] and found["all"]["methods"]["viscos"]["commit"] == "now"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "kept.json is of items=9, and not of items=20; take the same, or another file: --record"),
        ("{", "kept.json is no record with its settings"),
        ("[]", "kept.json is no record with its settings"),
    ],
)
def test_a_record_of_other_settings_is_refused(text, said, script, record, monkeypatch, tmp_path, capsys):
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(record) if text is None else text)
    before = kept.read_text()
    with pytest.raises(SystemExit, match="2"):
        ran(script, monkeypatch, tmp_path, "--first", "3", "--items", "20")
    line = capsys.readouterr().err
    assert said in line and line.count("\n") == 1
    assert kept.read_text() == before and not (tmp_path / "compared.png").exists()


def test_a_method_that_is_named_stands_behind_the_usual_ones(script):
    assert list(script.ordered({"plmcmc": 1, "d_flow": 2, "viscos": 3})) == ["viscos", "d_flow", "plmcmc"]
    unordered = {"d_flow": 1, "dps,steps=157": 2, "dps": 3, "plmcmc,steps=9": 4}
    assert list(script.ordered(unordered)) == ["dps,steps=157", "dps", "d_flow", "plmcmc,steps=9"]


def test_a_name_has_the_settings_behind_it(script):
    usual = described_by("dps")
    assert script.described("dps", described_by) == usual
    assert script.described("dps,steps=157,scale=0.5", described_by) == usual | {"steps": 157, "scale": 0.5}
    with pytest.raises(InputError, match=r"dps has no setting 'step'; choose from scale, steps"):
        script.described("dps,step=157", described_by)


def test_a_case_hides_what_the_mask_behind_a_run_says(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = ("train_items=40", "max_steps=1", "rounds=0", "temper=0", "test_items=1", "imputers=[]")
    assert main(["train", *short, "hydra.run.dir=run"]) == 0
    case = script.Case.of("run", "random,missing=0.75", 40)
    assert 0.7 < float((~case.observed).double().mean()) < 0.8
    case = script.Case.of("run", "center8,size=4", 3)
    assert (~case.observed).flatten(1).sum(1).tolist() == [16] * 3


def test_a_record_that_lies_in_the_tree_makes_no_commit_look_changed(monkeypatch, tmp_path):
    """Scripts write their records, which git tracks, after each method: the code is what it was at first."""
    (tmp_path / ".git").mkdir()  # the tests may run on a copy without one
    monkeypatch.setattr(viscos, "__path__", [str(tmp_path / "viscos")])
    states = iter(["", " M outputs/reference/compare_imputers.json"])
    monkeypatch.setattr(provenance, "_git", lambda tree, verb, *words: "1a2b" if verb == "rev-parse" else next(states))
    provenance.commit.cache_clear()
    try:
        assert provenance.commit() == provenance.commit() == "1a2b"
    finally:
        provenance.commit.cache_clear()
