"""What the scripts say of wrong options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


def run(words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script, *options = words.split()
    command = [sys.executable, str(SCRIPTS / f"{script}.py"), *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    "words, said",
    [
        ("bench_flows nope", "there is no run folder or checkpoint file"),
        ("bench_flows nope --rates 1.5", "'1.5' is no share between 0 and 1"),
        ("bench_normflows --repeats 0", "'0' is no whole number of 1 or more"),
        ("tables --seeds two", "'two' is no whole number of 1 or more"),
        ("compare_imputers --case a nope", "there is no run folder or checkpoint file"),
        ("two_dimensions --methods nope --steps 2", "there is no method 'nope'; choose from viscos, diagonal"),
        ("train_extractor", "the following arguments are required: FILE.pt"),
    ],
)
def test_refusals(words, said, tmp_path):
    found = run(words, tmp_path)
    assert found.returncode == 2 and said in found.stderr and "Traceback" not in found.stderr, found.stderr
    assert not list(tmp_path.iterdir())


def test_help_is_no_job(tmp_path):
    found = run("train_extractor --help", tmp_path)
    assert found.returncode == 0 and "where the weights are written" in found.stdout and not list(tmp_path.iterdir())
