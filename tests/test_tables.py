"""Tables: exact texts from small records, the paper's numbers as printed, and what is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from viscos.cli import main
from viscos.report import tables
from viscos.runs import records

RANDOM = {"_target_": "viscos.data.masks.RandomMask", "missing": 0.5}
RECORD = {
    "command": "train",
    "dataset": "mnist",
    "items": 10000,
    "mask_hash": "0123",
    "seed": 0,
    "config": {"missing": 0.5, "seed": 0, "mask": RANDOM, "flow": {"channels": 32}, "epochs": 4, "max_steps": None},
    "accuracy": {"value": 0.95, "classifier": "trained along, on the inference network's own completions and masks"},
    "rmse": {"mean": {"pooled": 0.1}, "draw": {"pooled": 0.14}, "gaussian_mean": {"pooled": 0.11}},
}
EXTRACTOR = {"extractor_sha256": "ab" * 32}
FID = {"fid": {"draw": {"value": 1.25, **EXTRACTOR}, "real": {"value": 0.5, **EXTRACTOR}}}


def changed(record: dict, **changes) -> dict:
    """A record with other values under dotted keys; __ stands for a dot."""
    record = copy.deepcopy(record)
    for key, value in changes.items():
        *path, last = key.split("__")
        node = record
        for name in path:
            node = node[name]
        node[last] = value
    return record


def put(folder: str, **runs: dict) -> Path:
    """Writes run folders."""
    for name, record in runs.items():
        Path(folder, name).mkdir(parents=True)
        Path(folder, name, "metrics.json").write_text(json.dumps(record))
    return Path(folder)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Each test has an empty folder of its own."""
    monkeypatch.chdir(tmp_path)


def printed(capsys, *words: str) -> str:
    assert main(["table", *words]) == 0
    assert not list(Path("outputs").rglob("*")), "a table leaves nothing behind"
    return capsys.readouterr().out


MARKDOWN = """\
**Top-1 accuracy of a classifier that was trained along, on incomplete images** (higher is better)

| missing | 0.5 | 0.6 | 0.7 | 0.8 | 0.9 |
| --- | --- | --- | --- | --- | --- |
| VISCOS (paper) | 0.9616 | 0.9588 | 0.9485 | 0.9355 | 0.886 |
| viscos, classifier on its network's completion, without the flow | 0.9500 ± 0.0141 | — | — | — | 0.8000 |

**Top-1 accuracy of a classifier that was trained on complete images, on the completions** (higher is better)

| missing | 0.5 | 0.6 | 0.7 | 0.8 | 0.9 |
| --- | --- | --- | --- | --- | --- |
| MisGAN (paper) | 0.968 | 0.945 | 0.872 | 0.690 | 0.334 |
| PL-MCMC (paper) | — | — | — | — | — |
| MCFlow (paper) | 0.985 | 0.979 | 0.963 | 0.905 | 0.705 |
| viscos, posterior mean | — | — | — | — | — |
| viscos, one draw | — | — | — | — | 0.7000 |
| viscos, its network\'s own prediction | — | — | — | — | — |
| Gaussian conditional, mean | — | — | — | — | — |
| Gaussian conditional, one draw | — | — | — | — | — |
| mean imputation | — | — | — | — | — |
| the complete test images | — | — | — | — | — |

**FID of the completions** (lower is better)

| missing | 0.5 | 0.6 | 0.7 | 0.8 | 0.9 |
| --- | --- | --- | --- | --- | --- |
| MisGAN (paper) | 0.3634 | 0.8870 | 1.324 | 2.334 | 6.325 |
| PL-MCMC (paper) | — | 5.7 | — | — | 87 |
| MCFlow (paper) | 0.8366 | 0.9082 | 1.951 | 6.765 | 15.11 |
| VISCOS (paper) | 0.2692 | 0.4398 | 0.7823 | 1.5491 | 7.315 |
| viscos, posterior mean | — | — | — | — | — |
| viscos, one draw | — | — | — | — | 1.250 |
| viscos, its network\'s own prediction | — | — | — | — | — |
| Gaussian conditional, mean | — | — | — | — | — |
| Gaussian conditional, one draw | — | — | — | — | — |
| mean imputation | — | — | — | — | — |
| the complete test images | — | — | — | — | 0.500 |

The paper's extractor was never published, so its FIDs and ours are distances between other features; the last row is \
the least that can be expected here.

**RMSE on hidden pixels, in [0, 1], pooled** (lower is better)

| missing | 0.5 | 0.6 | 0.7 | 0.8 | 0.9 |
| --- | --- | --- | --- | --- | --- |
| MisGAN (paper) | 0.12174 | 0.13393 | 0.15445 | 0.19455 | 0.27806 |
| PL-MCMC (paper) | — | 0.1585 | — | — | 0.261 |
| MCFlow (paper) | 0.10045 | 0.11255 | 0.12996 | 0.15806 | 0.20801 |
| VISCOS (paper) | 0.1127 | 0.1221 | 0.1340 | 0.1470 | 0.1924 |
| viscos, posterior mean | 0.1000 ± 0.0000 | — | — | — | 0.1900 |
| viscos, one draw | 0.1400 ± 0.0000 | — | — | — | 0.1400 |
| viscos, its network\'s own prediction | — | — | — | — | — |
| Gaussian conditional, mean | 0.1100 ± 0.0000 | — | — | — | 0.1100 |
| Gaussian conditional, one draw | — | — | — | — | — |
| mean imputation | — | — | — | — | — |

3 runs on mnist, 10000 test items, seeds 0, 1; mean ± standard deviation over the seeds, without ± of one seed.
"""

AT_90 = changed(
    RECORD | FID,
    config__missing=0.9,
    mask_hash="9",
    accuracy__value=0.8,
    rmse__mean__pooled=0.19,
    accuracy_complete={"draw": {"value": 0.7}},
)
SEEDS = {"a": changed(RECORD, accuracy__value=0.94), "b": changed(RECORD, seed=1, mask_hash="1", accuracy__value=0.96)}


def test_markdown(capsys):
    put("runs", **SEEDS, c=AT_90)
    assert printed(capsys, "runs=runs") == MARKDOWN
    assert printed(capsys, "runs=[runs/a,runs/b,runs/c]") == MARKDOWN


def test_the_last_line_names_the_commits_of_the_runs(capsys):
    """Each once, in short, of those that know theirs."""
    at = {"a": "0123456789ab", "b": "0123456789ab", "c": "9876543210ab+", "d": None}
    put("runs", **{name: changed(RECORD, seed=seed, commit=at[name]) for seed, name in enumerate(at)})
    last = printed(capsys, "runs=runs").splitlines()[-1]
    assert last.startswith("4 runs on mnist, 10000 test items, seeds 0, 1, 2, 3, at commits 0123456, 9876543+; mean")
    last = printed(capsys, "runs=runs/a").splitlines()[-1]
    assert last == "1 run on mnist, 10000 test items, seed 0, at commit 0123456."


def test_a_cell_is_the_mean_over_the_seeds():
    """And their standard deviation with n − 1; of three values apart, none of which is the mean."""
    values = (0.1, 0.2, 0.6)
    put("runs", **{f"s{k}": changed(RECORD, seed=k, rmse__mean__pooled=value) for k, value in enumerate(values)})
    *_, rmse = tables.tables(records.read(["runs"]))
    (row,) = (row for row in rmse.rows if row.method == "viscos, posterior mean")
    assert (row.cells[0].mean, row.cells[0].spread) == ("0.3000", "0.2646")


def test_saved_records_give_the_same_tables(capsys):
    put("runs", **SEEDS, c=AT_90)
    assert printed(capsys, "runs=runs", "save=kept") == MARKDOWN
    kept = sorted(path.name for path in Path("kept").iterdir())
    assert kept == ["missing_0.5-seed_0.json", "missing_0.5-seed_1.json", "missing_0.9-seed_0.json"]
    assert json.loads(Path("kept/missing_0.9-seed_0.json").read_text()) == AT_90
    assert printed(capsys, "runs=kept") == MARKDOWN


def test_a_folder_of_saved_records_holds_those_of_one_table(capsys):
    """Its own may be written again; others would stand in the next table with them."""
    put("runs", **SEEDS, c=AT_90)
    printed(capsys, "runs=[runs/a,runs/c]", "save=kept")
    printed(capsys, "runs=[runs/a,runs/c]", "save=kept")
    printed(capsys, "runs=kept", "save=kept")
    before = {path: path.read_bytes() for path in Path("kept").iterdir()}
    line = one_line(capsys, "runs=[runs/a,runs/b]", "save=kept")
    assert "kept/missing_0.9-seed_0.json would be read with what is saved there; move it out, or take another" in line
    assert {path: path.read_bytes() for path in Path("kept").iterdir()} == before
    assert "runs/a/metrics.json would be read with what is saved there" in one_line(capsys, "runs=runs", "save=runs")


def test_latex(capsys):
    put("runs", **{name: changed(record, dataset="digits") for name, record in SEEDS.items()})
    text = printed(capsys, "runs=runs", "format=latex")
    behind, _, rest = text.partition("\n\n")
    assert behind.splitlines() == [
        "% 2 runs on digits, 10000 test items, seeds 0, 1; "
        "mean +- standard deviation over the seeds, without +- of one seed",
        r"% \usepackage{booktabs} in the preamble",
    ]
    assert rest.startswith(
        r"""\begin{table}
\centering
\caption{Top-1 accuracy of a classifier that was trained along, on incomplete images """
        r"""(higher is better; the best in bold).}
\label{tab:accuracy}
\begin{tabular}{lc}
\toprule
missing & 0.5 \\
\midrule
viscos, classifier on its network's completion, without the flow & \textbf{0.9500 $\pm$ 0.0141} \\
\bottomrule
\end{tabular}
\end{table}
"""
    )
    assert r"mean imputation & -- \\" in text and text.isascii()


def test_the_best_of_each_column_is_bold(capsys):
    """Of those that the same network judged; the complete images are no method."""
    draw = changed(AT_90, accuracy_complete={"draw": {"value": 0.7}, "mean": {"value": 0.7}, "real": {"value": 0.99}})
    put("runs", a=draw)
    lines = printed(capsys, "runs=runs", "format=latex").splitlines()
    for row in (
        r"MCFlow (paper) & \textbf{0.985} & \textbf{0.979} & \textbf{0.963} & \textbf{0.905} & \textbf{0.705} \\",
        r"viscos, one draw & -- & -- & -- & -- & \textbf{0.7000} \\",
        r"viscos, posterior mean & -- & -- & -- & -- & \textbf{0.7000} \\",  # what is equally good is bold too
        r"viscos, one draw & -- & -- & -- & -- & \textbf{1.250} \\",  # another network than that of the paper's 6.325
        r"the complete test images & -- & -- & -- & -- & 0.500 \\",
        r"viscos, one draw & -- & -- & -- & -- & 0.1400 \\",
        r"Gaussian conditional, mean & -- & -- & -- & -- & \textbf{0.1100} \\",
    ):
        assert row in lines
    fid = next(line for line in lines if line.startswith(r"\caption{FID"))
    assert "(lower is better; the best by each network in bold)" in fid
    rows = [number for number, line in enumerate(lines) if line == r"\midrule"]
    assert lines[rows[1] - 1].startswith("VISCOS") and lines[rows[1] + 1].startswith("viscos"), "a rule between both"


def test_a_metric_of_ones_own_has_a_table_as_it_says(capsys):
    told = {"key": "worst", "title": "Largest error", "better": "lower", "decimals": 3}
    numbers = {"mean": {"value": 0.51234}, "gaussian_mean": {"value": 0.4}}
    put("runs", a=changed(AT_90, measures=[told], worst=numbers), b=changed(RECORD, worst=numbers))
    own = printed(capsys, "runs=runs").partition("**Largest error** (lower is better)")[2]
    assert "| viscos, posterior mean | 0.512 | — | — | — | 0.512 |" in own
    for number, broken in enumerate(([{"key": "worst", "label": "?"}], ["x"], [{}], None, 3)):
        put(f"edited{number}", a=changed(AT_90, measures=broken, worst=numbers))
        assert "what a says of its measures cannot be tabulated" in one_line(capsys, f"runs=edited{number}")


def test_what_knows_the_truth_is_not_bold(capsys):
    oracle, label = "gaussian_complete_mean", "Gaussian of complete training data, mean"
    put("runs", a=changed(AT_90, labels={oracle: label}, rmse__gaussian_complete_mean={"pooled": 0.05}))
    lines = printed(capsys, "runs=runs", "format=latex").splitlines()
    assert rf"{label} & -- & -- & -- & -- & 0.0500 \\" in lines
    assert r"Gaussian conditional, mean & -- & -- & -- & -- & \textbf{0.1100} \\" in lines


def test_nearer_is_better_where_the_table_says_so(capsys):
    scores = changed(SCORED, spread_skill={"draw": {"value": 1.2}, "gaussian_draw": {"value": 0.9}}, dataset="digits")
    put("runs", a=scores)
    lines = printed(capsys, "runs=runs", "format=latex").splitlines()
    assert r"Gaussian conditional, draws & \textbf{0.900} \\" in lines and r"viscos, draws & 1.200 \\" in lines
    assert r"Gaussian conditional, draws & \textbf{0.610} \\" in lines and r"viscos, draws & 0.580 \\" in lines


def test_labels_of_ones_own_are_escaped(capsys):
    own = changed(RECORD, labels={"own": r"R&D_1 #2 $x$ {a} ~ ^ \b 5 % | c"}, rmse__own={"pooled": 0.1})
    put("runs", a=own)
    escaped = r"R\&D\_1 \#2 \$x\$ \{a\} \textasciitilde{} \textasciicircum{} \textbackslash{}b 5 \% | c & "
    assert escaped in printed(capsys, "runs=runs", "format=latex")
    assert r"| R&D_1 #2 $x$ {a} ~ ^ \b 5 % \| c | " in printed(capsys, "runs=runs")


def test_csv(capsys):
    put("runs", a=AT_90)
    lines = printed(capsys, "runs=runs", "format=csv").splitlines()
    along = '"viscos, classifier on its network\'s completion, without the flow"'
    assert lines[0] == "table,method,source,missing,value,standard_deviation,n,seeds,extractor,mark"
    assert lines[5:7] == ["accuracy,VISCOS,paper,0.9,0.886,,10000,,,", f"accuracy,{along},run,0.5,,,,,,"]
    assert f'fid,"viscos, one draw",run,0.9,1.250,,10000,0,{"ab" * 32},' in lines
    assert "fid,PL-MCMC,paper,0.6,5.7,,10000,,unpublished," in lines
    assert "rmse,PL-MCMC,paper,0.6,0.1585,,10000,,," in lines
    assert len(lines) == 1 + 5 * sum(len(table.rows) for table in tables.tables(records.read(["runs"])))


def test_csv_of_several_seeds(capsys):
    failed = changed(SEEDS["b"], rmse__mean={"pooled": 0.1, "items": 9990, "failed_items_left_out": 10})
    put("runs", a=SEEDS["a"], b=failed)
    lines = printed(capsys, "runs=runs", "format=csv").splitlines()
    assert 'rmse,"viscos, posterior mean",run,0.5,0.1000,0.0000,9990-10000,0 1,,' in lines


# ------------------------------------------------------------------------------------------------ what sets cells apart

FEW = changed(
    RECORD | FID,
    items=100,
    fid__draw__items=100,
    fid__real__items=100,
    rmse__draw={"pooled": 0.14, "items": 90, "failed_items_left_out": 10},
)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ("markdown", ["| viscos, one draw | 1.250 (a) |", "\n(a) of 100 images, and FID is larger of fewer.\n"]),
        ("latex", [r"viscos, one draw & 1.250 (a) &", "(a) of 100 images, and FID is larger of fewer.}"]),
        ("csv", [f'0.5,1.250,,100,0,{"ab" * 32},"of 100 images, and FID is larger of fewer"']),
    ],
)
def test_an_fid_of_few_items_is_marked_beside_a_printed_one_of_many(form, says, capsys):
    put("runs", a=FEW)
    text = printed(capsys, "runs=runs", f"format={form}")
    assert not [each for each in says if each not in text], text
    assert text.count("FID is larger of fewer") == (2 if form == "csv" else 1)


def test_an_fid_of_few_items_alone_needs_no_mark(capsys):
    put("runs", a=changed(FEW, dataset="digits"))
    assert "FID is larger" not in printed(capsys, "runs=runs")
    put("other", a=changed(FEW, dataset="digits", fid__draw__items=90))
    assert "| viscos, one draw | 1.250 (a) |" in printed(capsys, "runs=other"), "beside the complete images"


def test_figures_of_a_selection_are_marked(capsys):
    put("runs", a=FEW)
    text = printed(capsys, "runs=runs")
    assert "| viscos, one draw | 0.1400 (a) |" in text
    assert "\n(a) without the 10 % of items whose solves failed.\n" in text
    put("few", a=changed(FEW, rmse__draw={"pooled": 0.14, "items": 99, "failed_items_left_out": 1}))
    assert "whose solves failed" not in printed(capsys, "runs=few")


def test_scores_without_draws_that_failed_are_marked(capsys):
    """An item counts that two draws were solved of; the others may be the difficult ones."""
    failed = {"items": 90, "draws": 10, "failed_items_left_out": 10, "failed_draws_left_out": 270}
    few = failed | {"failed_items_left_out": 1, "failed_draws_left_out": 18}
    for metric, row in SCORED.items():
        if metric in ("energy", "coverage", "spread_skill"):
            said = {f"{metric}__draw": row["draw"] | failed, f"{metric}__gaussian_draw": row["gaussian_draw"] | few}
            put(metric, a=changed(SCORED, dataset="digits", **said))
            text = printed(capsys, f"runs={metric}")
            assert "\n(a) without the 10 % of items and 30 % of draws whose solves failed.\n" in text
            assert text.count(" (a) |") == 1 and "(b)" not in text
            put(f"{metric}_draws", a=changed(SCORED, **{f"{metric}__draw": row["draw"] | few | {"draws": 5}}))
            assert "\n(a) without the 4 % of draws whose solves failed.\n" in printed(capsys, f"runs={metric}_draws")


def test_intervals_of_another_level_than_the_titles_are_marked(capsys):
    """Of fewer draws: their nominal level is 0.6, the title's is 0.9."""
    low = changed(SCORED, dataset="digits")
    high = changed(far(low), coverage={"draw": {"value": 0.88, "nominal": 0.9}})
    put("runs", a=low, b=high)
    text = printed(capsys, "runs=runs")
    assert "the central 90 % interval of draws** (nearer to 0.90 is better)" in text
    assert "| viscos, draws | 0.580 (a) | 0.880 |" in text and "\n(a) of 60 % intervals.\n" in text
    latex = printed(capsys, "runs=runs", "format=latex")
    assert r"viscos, draws & 0.580 (a) & \textbf{0.880} \\" in latex, "and does not compete"
    assert 'coverage,"viscos, draws",run,0.5,0.580,,10000,0,,of 60 % intervals' in (
        printed(capsys, "runs=runs", "format=csv").splitlines()
    )
    put("seeds", a=low, b=changed(high, seed=1, config__missing=0.5, mask_hash="1"))
    assert "(a) of 60 % and 90 % intervals." in printed(capsys, "runs=seeds")


@pytest.mark.parametrize(
    ("classifier", "config", "label"),
    [
        ("trained along, on latents", {"held_out": 0.2}, "classifier on latents"),
        (
            "trained along, on completions and masks",
            {"held_out": 0.2},
            "classifier on its network's completion, without",
        ),
        ("trained along, on completions and masks", {"held_out": 0.0}, "classifier on draws"),
        (None, {"held_out": 0.2}, "classifier trained along"),
    ],
)
def test_the_row_of_the_classifier_trained_along_says_what_it_saw(classifier, config, label, capsys):
    accuracy = {"value": 0.95} if classifier is None else {"value": 0.95, "classifier": classifier}
    put("runs", a=changed(RECORD, accuracy=accuracy, config__posterior=config))
    text = printed(capsys, "runs=runs")
    assert f"| viscos, {label}" in text.split("**Top-1")[1] and "| viscos | " not in text


def test_both_classifiers_of_a_run_have_rows(capsys):
    latents = {"value": 0.91, "classifier": "trained along, on latents, leaving the flow as it is"}
    put("runs", a=changed(RECORD, accuracy_latents=latents))
    text = printed(capsys, "runs=runs").split("**Top-1")[1]
    network, beside = [line for line in text.splitlines() if line.startswith("| viscos")]
    assert network.startswith("| viscos, classifier on its network's completion, without the flow | 0.9500 |")
    assert beside.startswith("| viscos, classifier on latents | 0.9100 |")


def test_rates_that_the_paper_has_not_are_columns_of_their_own():
    put("runs", a=changed(RECORD, config__missing=0.95), b=RECORD)
    *_, rmse = tables.tables(records.read(["runs"]))
    assert rmse.rates == (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    assert rmse.rows[0].cells[-1] is None and rmse.rows[4].cells[-1].mean == "0.1000"


def test_the_paper_says_nothing_of_other_data():
    put("runs", a=changed(RECORD, dataset="digits"))
    assert not any(row.of_paper for table in tables.tables(records.read(["runs"])) for row in table.rows)


def test_a_table_without_a_number_is_left_out():
    put("runs", a=changed(RECORD, dataset="digits", fid={}))
    keys = [table.spec.key for table in tables.tables(records.read(["runs"]))]
    assert "rmse" in keys and "fid" not in keys


REFUSED = [
    (
        changed(RECORD, seed=1, mask_hash="1", files={"dataset.path": "cd"}),
        "disagree about the contents of the data file: cd in b; ab in z",
    ),
    (changed(RECORD, seed=1, dataset="digits"), "disagree about the data: mnist in a; digits in b"),
    (changed(RECORD, seed=1, items=1000), "disagree about the number of test items: 10000 in a; 1000 in b"),
    (changed(RECORD, mask_hash="f"), "disagree about the test masks of missing=0.5 seed=0: 0123 in a; f in b"),
    (RECORD, "a, b are all missing=0.5 seed=0; leave all but one of them"),
    (changed(RECORD, seed=1, config__flow__channels=64), "disagree about flow.channels: 32 in a; 64 in b"),
    (changed(RECORD, seed=1, config__epochs=9), "disagree about epochs: 4 in a; 9 in b"),
    (changed(RECORD, seed=1, config__max_steps=9), "disagree about max_steps: null in a; 9 in b"),
    (
        {key: value for key, value in changed(RECORD, command="eval").items() if key != "config"},
        "metrics.json is no record of `viscos train` or `viscos eval` with its settings",
    ),
    (
        changed(RECORD, command="eval", config__evaluation={"seed": 0}),
        "a, b are all missing=0.5 seed=0; leave all but one of them",
    ),
    (
        changed(RECORD, command="eval", config__evaluation={"seed": 3}, config__seed=1, seed=3),
        "disagree about evaluation.seed: 0 in a; 3 in b",
    ),
    (changed(RECORD, seed=1, config__flow__steps=2), "disagree about flow.steps: nothing in a; 2 in b"),
    (
        changed(
            RECORD, command="eval", config__seed=1, config__trained={"mask": RANDOM | {"missing": 0.9}, "missing": 0.9}
        ),
        "disagree about the holes of the training: RandomMask, missing=0.5 in a; RandomMask, missing=0.9 in b",
    ),
    (
        changed(RECORD, command="eval", config__seed=1, config__unfinished_at_step=7),
        "disagree about unfinished_at_step: nothing in a; 7 in b",
    ),
    (
        changed(RECORD, config__mask={"_target_": "viscos.data.masks.CenterMask"}, config__missing=None),
        "another mask than mask=random",
    ),
    ([], "metrics.json is no record of `viscos train`"),
    (changed(RECORD, config=[]), "another mask than mask=random"),
    *(
        ({key: value for key, value in RECORD.items() if key != lacking}, f"runs/b/metrics.json does not say {said}")
        for lacking, said in (("items", "'items', which"), ("mask_hash", "'mask_hash', which"))
    ),
]


def test_a_setting_that_an_earlier_version_had_not_is_no_difference():
    later = changed(RECORD, seed=1, config__flow__steps=2, commit="2")
    put("runs", a=changed(RECORD, commit="1"), b=later)
    assert len(records.read(["runs"])) == 2


def test_one_model_under_several_holes_is_a_table_and_two_models_are_told_apart():
    def measured(missing, **about):
        holes = {"config__missing": missing, "config__mask": RANDOM | {"missing": missing}}
        return changed(RECORD, command="eval", **holes, **about)

    half = {"mask": RANDOM, "missing": 0.5}
    several = put("one", a=RECORD, b=measured(0.7, config__trained=half), c=measured(0.9, config__trained=half))
    assert [record.rate for record in records.read([several])] == [0.5, 0.7, 0.9]
    put("two", a=measured(0.7, config__trained=half), b=measured(0.7, config__trained={"mask": RANDOM, "missing": 0.9}))
    put("own", a=RECORD, b=measured(0.7), c=measured(0.9))  # each trained under the holes that it is measured under
    assert len(records.read(["own"])) == 3
    families = [record.family for record in records.read(["two"], "trained.missing")]
    assert families == ["residual flow, trained.missing=0.5", "residual flow, trained.missing=0.9"]


def one_line(capsys, *words: str) -> str:
    capsys.readouterr()
    assert main(["table", *words]) == 2
    captured = capsys.readouterr()
    assert not captured.out and captured.err.count("\n") == 1 and captured.err.startswith("viscos table: ")
    return captured.err


@pytest.mark.parametrize(("second", "says"), REFUSED, ids=[says[:40] for _, says in REFUSED])
def test_runs_that_do_not_belong_in_one_table(second, says, capsys):
    put("runs", a=RECORD, b=second)
    if "contents" in says:
        put("runs", z=changed(RECORD, seed=2, mask_hash="2", files={"dataset.path": "ab"}))
    assert says in one_line(capsys, "runs=runs")


def test_runs_by_another_extractor(capsys):
    other = changed(RECORD | FID, seed=1, fid__draw__extractor_sha256="cd" * 32)
    put("runs", a=RECORD | FID, b=other, c=changed(RECORD | {"fid": {"reason": "no extractor"}}, seed=2))
    says = f"disagree about the extractor behind FID: {'ab' * 32} in a; {'cd' * 32} in b"
    assert says in one_line(capsys, "runs=runs")
    put(
        "others",
        a=changed(RECORD | FID, fid__draw__reference_items=60000),
        b=changed(AT_90, fid__draw__reference_items=9),
    )
    assert "disagree about the number of images behind FID: 60000 in a; 9 in b" in one_line(capsys, "runs=others")


def test_no_runs(capsys):
    assert "there is no folder 'outputs/sweeps/mnist_tables' with runs" in one_line(capsys)
    Path("runs/unfinished").mkdir(parents=True)
    assert "no run in 'runs' is finished" in one_line(capsys, "runs=runs")
    Path("runs/train/one").mkdir(parents=True)
    Path("runs/train/one/metrics.json").touch()
    assert one_line(capsys, "runs=runs").rstrip().endswith("there are some in runs/train, so say runs=runs/train")
    Path("runs/broken.json").write_text("{")
    assert "runs/broken.json cannot be read as JSON" in one_line(capsys, "runs=runs")


def test_evaluations_of_other_imputers_stand_beside_the_training(capsys):
    """One for each imputer, whatever the seed of the evaluation; and what stood beside has rows, as in a training."""
    beside = {"labels": {"other_mean": "another, mean"}, "rmse": {"other_mean": {"pooled": 0.3}}}
    dps = {"labels": {"dps_mean": "DPS, mean"}, "rmse": {"dps_mean": {"pooled": 0.2}}, "imputer": "dps"}
    dps |= {"energy": {"dps_draw": {"value": 3.0, "draws": 8}, "gaussian_draw": {"value": 3.5, "draws": 4}}}
    made = changed(RECORD, command="eval", seed=5, config__evaluation={"seed": 5})
    put("runs", a=SCORED, b=made | beside | {"imputer": "given"}, c=made | dps)
    rmse = printed(capsys, "runs=runs").partition("**RMSE")[2]
    for row in ("viscos, residual flow, posterior mean | 0.1000", "DPS, mean | 0.2000", "another, mean | 0.3000"):
        assert f"| {row} |" in rmse
    assert "3 runs on mnist, 10000 test items, 1 of a residual flow, 1 of dps, 1 of given, seed 0." in rmse
    two = changed(made, config__evaluation={"seed": 6}, config__missing=0.9, mask_hash="9")
    put("two", a=made | dps, b=two | dps)
    assert "disagree about evaluation.seed: 5 in a; 6 in b" in one_line(capsys, "runs=two")


# ------------------------------------------------------------------------------------------------------ scores of draws

SCORED = RECORD | {
    "energy": {"draw": {"value": 3.12345, "draws": 4}, "gaussian_draw": {"value": 3.5, "draws": 4}},
    "coverage": {"draw": {"value": 0.58, "nominal": 0.59997}, "gaussian_draw": {"value": 0.61, "nominal": 0.6}},
    "spread_skill": {"draw": {"value": 0.93}, "gaussian_draw": {"value": None}},
}
SCORES = """\
**Energy score of independent draws, over an item's hidden pixels at once** (lower is better)

| missing | 0.5 | 0.9 |
| --- | --- | --- |
| viscos, draws | 3.1235 | — |
| Gaussian conditional, draws | 3.5000 | — |

**Spread of independent draws over the error of their mean** (nearer to 1 is better)

| missing | 0.5 | 0.9 |
| --- | --- | --- |
| viscos, draws | 0.930 | — |
| Gaussian conditional, draws | — | — |

**Coverage: share of hidden pixels, of those that vary, in the central 60 % interval of draws** (nearer \
to 0.60 is better)

| missing | 0.5 | 0.9 |
| --- | --- | --- |
| viscos, draws | 0.580 | — |
| Gaussian conditional, draws | 0.610 | — |

Ends count as inside, so that right draws of pixels that are often exactly 0 cover more.

2 runs on digits, 10000 test items, seed 0.
"""


def test_scores_beside_an_older_record_without_them(capsys):
    put("runs", a=changed(SCORED, dataset="digits"), b=changed(AT_90, dataset="digits"))
    assert printed(capsys, "runs=runs").endswith(SCORES)
    text = printed(capsys, "runs=runs", "format=latex")
    assert r"the central 60 \% interval of draws (nearer to 0.60 is better; the best in bold)." in text
    assert text.isascii()
    assert (
        'spread_skill,"viscos, draws",run,0.5,0.930,,10000,0,,'
        in printed(capsys, "runs=runs", "format=csv").splitlines()
    )


def test_scores_have_tables_beside_the_papers_and_in_other_units(capsys):
    put("runs", a=changed(SCORED, rmse__mean={"pooled": 0.1, "unit": "standard deviations"}))
    *_, energy, _, coverage = tables.tables(records.read(["runs"]))
    assert energy.rates == (0.5, 0.6, 0.7, 0.8, 0.9) and energy.rows[0].cells[0].mean == "3.1235"
    assert "hidden entries" in energy.spec.title and "hidden entries" in coverage.spec.title


def test_the_unit_of_errors_is_that_of_any_kind_of_completion_in_any_record(capsys):
    """An imputer that is no flow has no posterior mean, and a run on complete data no error at all."""
    whole = {key: value for key, value in KNN.items() if key != "rmse"} | {"mask_hash": "0"}
    knn = changed(KNN, rmse__gaussian_mean={"pooled": 0.11, "unit": "standard deviations"})
    put("runs", a=changed(whole, config__missing=0.0), b=knn)
    assert "**RMSE on hidden entries, in standard deviations, pooled**" in printed(capsys, "runs=runs")
    pixels = changed(KNN, seed=1, rmse__knn={"pooled": 0.1, "unit": "pixel values in [0, 1]"})
    put("mixed", a=knn, b=pixels)
    says = "disagree about the unit of errors: standard deviations in a; pixel values in [0, 1] in b"
    assert says in one_line(capsys, "runs=mixed")


def test_scores_of_two_numbers_of_draws_do_not_compare(capsys):
    put("runs", a=SCORED, b=changed(SCORED, seed=1, energy__draw={"value": 3.0, "draws": 20}))
    assert "disagree about the number of draws that are scored: 4 in a; 20 in b" in one_line(capsys, "runs=runs")


# ------------------------------------------------------------------------------------------------------- several flows

RESIDUAL = changed(RECORD, dataset="digits", config__flow={"_target_": "viscos.flows.iresnet", "channels": 32})
CONTINUOUS = changed(
    RESIDUAL,
    config__flow={"_target_": "viscos.flows.continuous", "width": 16},
    config__max_steps=9,
    accuracy__value=0.97,
    rmse={"mean": {"pooled": 0.08}, "gaussian_mean": {"pooled": 0.110001}, "mean_imputation": {"pooled": 0.3}},
)
FLOWS = """\
**RMSE on hidden pixels, in [0, 1], pooled** (lower is better)

| missing | 0.5 | 0.9 |
| --- | --- | --- |
| viscos, residual flow, posterior mean | 0.1000 | — |
| viscos, residual flow, one draw | 0.1400 | — |
| viscos, residual flow, its network's own prediction | — | — |
| viscos, continuous flow, posterior mean | 0.0800 | 0.1900 |
| viscos, continuous flow, one draw | — | — |
| viscos, continuous flow, its network's own prediction | — | — |
| Gaussian conditional, mean | 0.1100 | 0.2000 |
| Gaussian conditional, one draw | — | — |
| mean imputation | 0.3000 | 0.3000 |

3 runs on digits, 10000 test items, 1 of a residual flow, 2 of a continuous flow, seed 0.
"""


def far(record, **changes):
    return changed(record, config__missing=0.9, mask_hash="9", **changes)


def test_each_kind_of_flow_has_rows_of_its_own(capsys):
    at_90 = far(CONTINUOUS, rmse__mean__pooled=0.19, rmse__gaussian_mean__pooled=0.2)
    put("runs", a=CONTINUOUS, b=RESIDUAL, c=at_90)
    text = printed(capsys, "runs=[runs/a,runs/b,runs/c]", "save=kept")
    assert text.endswith(FLOWS)
    saw = "classifier on its network's completion, without the flow"
    assert (
        f"| viscos, residual flow, {saw} | 0.9500 | — |\n| viscos, continuous flow, {saw} | 0.9700 | 0.9700 |" in text
    )
    kept = sorted(path.name for path in Path("kept").iterdir())
    both = "missing_0.5-seed_0-continuous.json", "missing_0.5-seed_0.json"
    assert kept == [*both, "missing_0.9-seed_0-continuous.json"]
    assert printed(capsys, "runs=kept") == text
    csv = printed(capsys, "runs=kept", "format=csv").splitlines()
    assert 'rmse,"viscos, continuous flow, posterior mean",run,0.9,0.1900,,10000,0,,' in csv
    assert r"viscos, continuous flow, posterior mean & \textbf{0.0800}" in printed(capsys, "runs=kept", "format=latex")


def test_baselines_that_differ_between_flows_stand_apart():
    put("runs", a=RESIDUAL, b=changed(CONTINUOUS, rmse__gaussian_mean__pooled=0.12))
    *_, rmse = tables.tables(records.read(["runs"]))
    rows = {row.method: row.cells[0] and row.cells[0].mean for row in rmse.rows}
    assert rows["Gaussian conditional, mean (beside the residual flow)"] == "0.1100"
    assert rows["Gaussian conditional, mean (beside the continuous flow)"] == "0.1200"
    assert rows["mean imputation"] == "0.3000" and "Gaussian conditional, mean" not in rows


def test_a_seed_that_two_flows_share_counts_once_among_baselines():
    other = changed(CONTINUOUS, seed=1, mask_hash="1", rmse__gaussian_mean__pooled=0.13)
    put("runs", a=RESIDUAL, b=CONTINUOUS, c=other)
    *_, rmse = tables.tables(records.read(["runs"]))
    (gaussian,) = (row.cells[0] for row in rmse.rows if row.method == "Gaussian conditional, mean")
    assert (gaussian.mean, gaussian.spread, gaussian.seeds) == ("0.1200", "0.0141", (0, 1))


def test_flows_have_names():
    implicit = changed(RESIDUAL, config__flow__implicit=True)
    kinds = {"x.iresnet": "residual flow", "viscos.flows.glow": "Glow", "my.own": "own flow"}
    for target, name in kinds.items():
        assert records.Record("a", changed(RESIDUAL, config__flow___target_=target)).flow_name == name
    assert records.Record("a", implicit).flow_name == "implicit flow"
    assert records.Record("a", RECORD).flow_name == "residual flow"


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (far(CONTINUOUS, config__flow__width=32), "disagree about flow.width: 16 in a; 32 in c"),
        (far(CONTINUOUS, config__max_steps=5), "disagree about max_steps: 9 in a; 5 in c"),
        (CONTINUOUS, "a, c are all missing=0.5 seed=0"),
        (far(CONTINUOUS, items=10), "disagree about the number of test items"),
        (changed(CONTINUOUS, seed=1, dataset="mnist"), "disagree about the data: "),
    ],
)
def test_within_a_kind_of_flow_and_about_the_data_runs_agree(second, says, capsys):
    put("runs", a=CONTINUOUS, b=RESIDUAL, c=second)
    assert says in one_line(capsys, "runs=runs")


def test_flows_under_different_masks_do_not_compare(capsys):
    put("runs", a=CONTINUOUS, b=changed(RESIDUAL, mask_hash="f"))
    assert "disagree about the test masks of missing=0.5 seed=0" in one_line(capsys, "runs=runs")


PAGE = Path(__file__).parents[1] / "docs" / "measured.md"
REFERENCE = Path(__file__).parents[1] / "outputs" / "reference"


@pytest.mark.skipif(
    not (REFERENCE.is_dir() and PAGE.is_file()), reason="the reference records are not beside the tests"
)
def test_the_tables_of_the_page_are_those_of_the_reference_records(capsys):
    """Figures cannot stand in the page without the records behind them, nor records without their figures."""
    page = PAGE.read_text(encoding="utf-8")
    folders = sorted(path.name for path in REFERENCE.iterdir() if path.is_dir())
    assert folders
    for folder in folders:
        _, text, _ = page.split(f"<!-- viscos table runs=outputs/reference/{folder} -->\n")
        assert text == printed(capsys, f"runs={REFERENCE / folder}")
    assert page.count("<!-- viscos table runs=") == 2 * len(folders)


# -------------------------------------------------------------------------------------------------------------- groups

KNN = changed(
    RECORD | {"imputer": "knn", "labels": {"knn": "nearest neighbours"}},
    rmse={"knn": {"pooled": 0.17}, "gaussian_mean": {"pooled": 0.11}},
)
del KNN["accuracy"]


def rows_of(by: str | None = None) -> dict[str, str | None]:
    """The figures at 50 % of the table of errors, by the label of their row."""
    *_, rmse = tables.tables(records.read(["runs"], by))
    return {row.method: row.cells[0] and row.cells[0].mean for row in rmse.rows if not row.of_paper}


def test_runs_are_told_apart_by_any_setting(capsys):
    """Refused without it; what needs no flow stands once."""
    wide = changed(RECORD, config__flow__channels=128, rmse__mean__pooled=0.09)
    put("runs", narrow=RECORD, wide=wide)
    assert main(["table", "runs=runs"]) == 2 and "tell them apart, by=<setting>" in capsys.readouterr().err
    found = rows_of("flow.channels")
    labels = [label for label in found if "posterior mean" in label]
    assert labels == [f"viscos, residual flow, flow.channels={n}, posterior mean" for n in (32, 128)], "as numbers go"
    assert [found[label] for label in labels] == ["0.1000", "0.0900"] and found[
        "Gaussian conditional, mean"
    ] == "0.1100"
    text = printed(capsys, "runs=runs", "by=flow.channels", "save=kept")
    assert "1 of a residual flow, flow.channels=32" in text
    assert printed(capsys, "runs=kept", "by=flow.channels") == text, "saved records go by names of their own"


def test_a_number_that_is_zero_has_its_row():
    none = changed(RECORD, rmse__gaussian_mean={"pooled": 0.0})
    put("runs", narrow=none, wide=changed(RECORD, config__flow__channels=128))
    found = {label: cell for label, cell in rows_of("flow.channels").items() if "Gaussian conditional, mean" in label}
    assert sorted(found.values()) == ["0.0000", "0.1100"] and len(found) == 2


def test_what_a_model_is_called_among_imputers_tells_no_runs_apart(capsys):
    one, two = (changed(RECORD, config__imputer={"_target_": f"viscos.imputers.{name}"}, seed=k)
                for k, name in enumerate(("Flow", "Viscos")))  # fmt: skip
    put("runs", one=one, two=changed(two, config__seed=1))
    assert "2 runs" in printed(capsys, "runs=runs")


def test_other_imputers_have_a_row_beside_a_flow():
    put("runs", flow=RECORD, knn=KNN)
    found = rows_of()
    assert found["nearest neighbours"] == "0.1700" and found["Gaussian conditional, mean"] == "0.1100"
    assert found["viscos, residual flow, posterior mean"] == "0.1000"
    assert not any("viscos, nearest" in row for row in found)
    assert rows_of("imputer") == found == rows_of("flow")


def test_settings_of_another_imputer_tell_its_runs_apart():
    few, many = (
        changed(KNN, config__imputer={"neighbours": n}, rmse__knn__pooled=error) for n, error in ((3, 0.2), (30, 0.16))
    )
    put("runs", few=few, many=many)
    found = rows_of("imputer.neighbours")
    labels = [label for label in found if "neighbours=" in label]
    assert [found[label] for label in labels] == ["0.2000", "0.1600"] and "imputer.neighbours=3" in labels[0]
    assert not any(label.startswith("viscos") for label in found), "no flow was trained"


@pytest.mark.parametrize(("by", "said"), [("seed", "a cell of all its seeds"), ("flow.depth", "no run says anything")])
def test_groups_that_there_are_not(capsys, by, said):
    put("runs", a=RECORD)
    assert main(["table", "runs=runs", f"by={by}"]) == 2 and said in capsys.readouterr().err
