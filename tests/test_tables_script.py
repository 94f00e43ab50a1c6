"""The benchmark of tables: what is hidden, what the imputers see, and figures with known answers."""

import json
from pathlib import Path

import numpy as np
import pytest
from script_loader import loaded

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "tables.py"
RECORD, PAGE = ROOT / "outputs" / "reference" / "tables.json", ROOT / "docs" / "measured.md"
pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the scripts are not beside the tests")


@pytest.fixture(scope="module")
def script():
    return loaded(SCRIPT)


def test_tables_are_complete_and_every_column_varies(script):
    for name in script.TABLES:
        values = script.complete(name)
        assert np.isfinite(values).all() and (values.std(0) > 0).all() and 20 <= len(values) <= 600


def test_what_is_hidden(script):
    """A share at random; or more where a column, itself complete, is large; the same for a seed."""
    values = script.complete("friedman1")
    for share in (0.1, 0.3, 0.5):
        assert abs(script.hidden(values, f"{100 * share:.0f} %", 0).mean() - share) < 0.025
    gone = script.hidden(values, "30 % by a column", 3)
    (by,) = np.flatnonzero(~gone.any(0))
    others, large = np.delete(gone, by, 1), values[:, by] > np.median(values[:, by])
    assert abs(others.mean() - 0.3) < 0.025
    assert abs(others[large].mean() - 0.45) < 0.04 and abs(others[~large].mean() - 0.15) < 0.04
    assert (gone == script.hidden(values, "30 % by a column", 3)).all()
    assert (gone != script.hidden(values, "30 % by a column", 4)).any()
    small = script.complete("linnerud")
    for seed in range(20):
        assert (np.nanstd(np.where(script.hidden(small, "50 %", seed), np.nan, small), 0) > 0).all()


def test_errors_and_coverage_of_known_completions(script, monkeypatch):
    """An imputer never sees a hidden cell; an error of half a deviation is 0.5; 81 of 99 draws are inside."""
    values, scale = script.complete("iris"), script.complete("iris").std(0)
    gone = script.hidden(values, "30 %", 0)

    def known(rows, seed):
        assert np.isnan(rows[gone]).all() and (rows[~gone] == values[~gone]).all()
        places = np.arange(gone.sum()) % 10
        moved = np.linspace(-1, 1, script.DRAWS)[:, None, None] * np.ones_like(values)
        moved[:, gone] += np.where(places < 8, 0.0, 0.95)
        return values + scale / 2, values + moved

    monkeypatch.setitem(script.METHODS, "known", known)
    found = script.measured("known", values, gone, 0)
    assert found["rmse"] == pytest.approx(0.5)
    assert found["coverage"] == pytest.approx((np.arange(gone.sum()) % 10 < 8).mean())


def test_the_tables_and_the_picture_of_a_record(script):
    ours, rivals, means = script.OURS, list(script.METHODS)[1:-1], script.MEANS
    errors = {1: (0.5, 0.6, 1.0), 2: (1.5, 0.5, 1.0)}  # ours, all rivals, means
    cases = {}
    for seed, (best, theirs, mean) in errors.items():
        for name, error in ((ours, best), *((rival, theirs) for rival in rivals), (means, mean)):
            cases[script.key("wine", "30 %", seed, name)] = {"rmse": error, "seconds": 2.0, "coverage": 0.9}
    cases[script.key("iris", "30 %", 1, ours)] = {"rmse": 9.0, "seconds": 2.0, "coverage": 0.9}  # no rival's yet
    record = {"seeds": 2, "cases": cases}
    found = script.summary(record)
    assert found[ours] == pytest.approx({"rank": 3.5, "rmse": 1.0, "worse": 0.5, "coverage": 0.9, "seconds": 2.0})
    level = (len(rivals) + 1) / 2
    assert found[rivals[0]]["rank"] == pytest.approx((level + 1 + level) / 2)
    text = script.markdown(record)
    assert "| wine | 1.000 |" in text and "| 30 % missing | 1.000 |" in text and "iris" not in text
    assert len(script.picture(record).axes) == 2


def test_a_run_goes_on_where_it_ended(script, monkeypatch, tmp_path, capsys):
    """Cases that the record has are not run again, and it is written after each."""
    calls = []

    def counted(rows, seed):
        calls.append(seed)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return np.where(np.isnan(rows), 0.0, rows), None

    monkeypatch.setattr(script, "METHODS", {script.OURS: counted, script.MEANS: counted})
    paths = ["--record", str(tmp_path / "record.json"), "--picture", str(tmp_path / "picture.png")]
    monkeypatch.setattr("sys.argv", ["tables.py", "--tables", "iris", "--losses", "30 %", "--seeds", "2", *paths])
    monkeypatch.setattr(script, "markdown", lambda record: "")
    monkeypatch.setattr(script, "picture", lambda record: __import__("matplotlib.figure").figure.Figure())
    with pytest.raises(KeyboardInterrupt):
        script.main()
    assert len(json.loads((tmp_path / "record.json").read_text())["cases"]) == 2
    script.main()
    assert calls == [1, 1, 2, 2, 2]
    assert len(json.loads((tmp_path / "record.json").read_text())["cases"]) == 4
    assert (tmp_path / "picture.png").is_file()


@pytest.mark.skipif(
    not (RECORD.is_file() and PAGE.is_file()), reason="the record and the page are not beside the tests"
)
def test_the_tables_of_the_page_are_those_of_the_record(script):
    """And what the page says of them."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    marker = "<!-- python scripts/tables.py -->\n"
    _, text, after = PAGE.read_text(encoding="utf-8").split(marker)
    assert text == script.markdown(record)
    figures = script.summary(record)
    assert min(figures, key=lambda name: figures[name]["rank"]) == script.OURS
    assert round(figures[script.OURS]["worse"] * len(record["cases"]) / len(script.METHODS), 6) == 1
    assert "and in one it was worse than theirs (0.534 after 0.474, of six hidden cells)" in after.replace("\n", " ")
    assert 0.88 <= figures[script.OURS]["coverage"] <= 0.92
    assert f"Over all cases intervals cover {figures[script.OURS]['coverage']:.3f};" in after
