"""What is installed: metadata, the console script, and a wheel that holds the YAML files."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from importlib.resources import files
from pathlib import Path

import viscos
from viscos.core.version import __version__

SOURCE = Path(__file__).parents[1]


def test_version_is_said_once():
    assert __version__ == metadata.version("viscos")


def test_what_is_imported_late_is_listed():
    listed = subprocess.run([sys.executable, "-c", "import viscos; print(dir(viscos))"], capture_output=True, text=True)
    assert set(viscos.__all__) <= set(ast.literal_eval(listed.stdout))


def test_console_script():
    (script,) = metadata.entry_points(group="console_scripts", name="viscos")
    assert script.load() is sys.modules["viscos.cli"].main


def test_settings_are_installed():
    installed = {str(path) for path in files("viscos.configs").iterdir()}
    assert any(name.endswith("train.yaml") for name in installed)


def test_extras_and_requirements():
    requirements = metadata.requires("viscos") or []
    assert any(line.startswith("hydra-core") and "<1.4" in line for line in requirements)
    assert {"test", "lint", "launchers"} <= set(metadata.metadata("viscos").get_all("Provides-Extra"))


def test_a_wheel_holds_every_yaml_and_every_module(tmp_path):
    source = tmp_path / "source"
    ignore = shutil.ignore_patterns(".*", "build", "outputs", "*.egg-info", "__pycache__")
    shutil.copytree(SOURCE, source, ignore=ignore)
    words = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *words], check=True, timeout=120)
    (wheel,) = tmp_path.glob("viscos-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    configs = {f"viscos/{path.relative_to(source)}" for path in (source / "configs").rglob("*.yaml")}
    modules = {str(path.relative_to(source)) for path in (source / "viscos").rglob("*.py")}
    assert configs and configs | modules | {"viscos/metrics/mnist_extractor.pt", "viscos/py.typed"} <= names
    tops = {name.split("/")[0] for name in names}
    assert tops == {"viscos", f"viscos-{__version__}.dist-info"}, "no tests, no top-level configs"
    assert any(name.endswith("licenses/LICENSE") or name.endswith("/LICENSE") for name in names)
