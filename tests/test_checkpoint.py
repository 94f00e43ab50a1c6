"""Checkpoints: what they hold, and what is refused."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from viscos import runs
from viscos.core import atomic
from viscos.core.errors import InputError
from viscos.linear.gaussian import Gaussian
from viscos.runs import checkpoint
from viscos.runs.trained import load as load_trained
from viscos.runs.trained import model_state
from viscos.train.model import build_model


def state() -> dict:
    """Everything that a training state is made of."""
    model = torch.nn.Linear(3, 2)
    optimiser = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    return {
        "model": model.state_dict(),
        "optimiser": optimiser.state_dict(),
        "generator": torch.Generator().manual_seed(3).get_state(),
        "config": {"missing": 0.5, "blocks": [2, 6], "root": None, "download": True},
        "shape": (1, 8, 8),
        "double": torch.arange(3, dtype=torch.float64),
        "observed": torch.tensor([True, False]),
    }


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_comes_back_as_it_was(tmp_path):
    saved = state()
    path = checkpoint.save(tmp_path / "new folder" / "checkpoint.pt", saved)
    assert same(checkpoint.load(path), saved)
    assert [entry.name for entry in path.parent.iterdir()] == ["checkpoint.pt"], "no temporary file stays"


def test_device(tmp_path):
    path = checkpoint.save(tmp_path / "a.pt", {"nested": [{"x": torch.ones(2)}], "t": (torch.ones(1), 2)})
    loaded = checkpoint.load(path, "meta")
    assert loaded["nested"][0]["x"].is_meta and loaded["t"][0].is_meta and loaded["t"][1] == 2
    assert type(loaded["nested"]) is list and type(loaded["t"]) is tuple


@dataclasses.dataclass
class Settings:
    a: int = 1


REFUSED = [
    ({"a": {"b": np.ones(2)}}, "state['a']['b'] is a ndarray"),
    ({"a": [1, np.float64(2)]}, "state['a'][1] is a float64"),
    ({"a": Settings()}, "state['a'] is a Settings"),
    ({"a": torch.nn.Linear(1, 1)}, "state['a'] is a Linear"),
    ({"a": Path("x")}, "state['a'] is a"),
    ({"a": {(1, 2): 3}}, "state['a'] has the key (1, 2)"),
    ({"a": {1, 2}}, "state['a'] is a set"),
    ({"a": {True: 1}}, "state['a'] has the key True"),
    ({"a": torch.Size([1])}, "state['a'] is a Size"),
]


@pytest.mark.parametrize(("wrong", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_only_plain_things_are_saved(wrong, says, tmp_path):
    with pytest.raises(TypeError) as error:
        checkpoint.save(tmp_path / "a.pt", wrong)
    assert str(error.value).startswith(says)
    assert not list(tmp_path.iterdir())


def test_a_digest_tells_apart_what_reads_alike():
    zeros = torch.zeros(2, 3)
    each = [
        *(zeros, zeros.view(3, 2), zeros.int(), zeros.view(-1), zeros.tolist()),
        *(1, 1.0, True, "1", "True", None, "None"),
        *([1, 12], [11, 2], [1, 2], (1, 2), [[1], 2], [[1, 2]], [1, [2]], [[], 1, 2], {1: 2}, [(1, 2)], {"1": 2}),
        *(["a", "b"], ["ab"], ["a'b'"], {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2, "b": 1}),
    ]
    assert len({checkpoint.digest(value) for value in each}) == len(each)
    assert checkpoint.digest(zeros.T) == checkpoint.digest(zeros.T.contiguous())


def refused(path, says: str) -> None:
    with pytest.raises(InputError) as error:
        checkpoint.load(path)
    assert says in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


def test_missing_file(tmp_path):
    refused(tmp_path / "a.pt", "there is no checkpoint file")
    refused(tmp_path, "there is no checkpoint file")


@pytest.mark.parametrize("content", [b"", b"text", pickle.dumps({"format": 1, "state": {}})])
def test_another_kind_of_file(content, tmp_path):
    (tmp_path / "a.pt").write_bytes(content)
    refused(tmp_path / "a.pt", "is not a checkpoint of viscos")


@pytest.mark.parametrize("record", [[1], {"format": 1}, {"model": torch.ones(1)}, torch.ones(2), Settings()])
def test_another_torch_file(record, tmp_path):
    torch.save(record, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", "is not a checkpoint of viscos")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_truncated(share, tmp_path):
    path = checkpoint.save(tmp_path / "a.pt", state())
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(path, "is truncated")


def test_damaged(tmp_path):
    path = checkpoint.save(tmp_path / "a.pt", state())
    content = bytearray(path.read_bytes())
    start = content.index(b"data.pkl") + 64
    content[start : start + 200] = bytes(200)
    path.write_bytes(content)
    refused(path, "damaged")


@pytest.mark.parametrize("part", range(8))
def test_a_flipped_bit_is_refused_wherever_it_changes_anything(part, tmp_path):
    """Also in the archive's directory, which no check sum covers, and in a file without a digest of its contents."""
    saved = {"weights": torch.arange(24.0).view(4, 6), "settings": {"blocks": [2, 6], "name": "a"}}
    path = checkpoint.save(tmp_path / "a.pt", saved)
    content, refusals = path.read_bytes(), 0
    for place in range(part, len(content), 8):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place // 8 % 8
        path.write_bytes(flipped)
        try:
            assert same(checkpoint.load(path), saved), f"byte {place}"
        except InputError as error:
            assert "\n" not in str(error)
            refusals += 1
    assert refusals > 50


def test_damaged_weights(tmp_path):
    weights = torch.arange(1000.0)
    path = checkpoint.save(tmp_path / "a.pt", {"weights": weights})
    content = bytearray(path.read_bytes())
    content[content.index(weights.numpy().tobytes()) + 2000] ^= 1
    path.write_bytes(content)
    refused(path, "is not as it was written")


def test_an_edited_file(tmp_path):
    path = checkpoint.save(tmp_path / "a.pt", {"weights": torch.ones(2), "blocks": [1, 2]})
    for edited in ({"weights": torch.ones(2), "blocks": [1, 3]}, {"weights": torch.tensor([1, 1.5]), "blocks": [1, 2]}):
        record = torch.load(path, weights_only=True)
        torch.save(record | {"state": edited}, tmp_path / "b.pt")
        refused(tmp_path / "b.pt", "was changed after it was written")
        del record["digest"]  # else whoever takes it out may change what he likes
        torch.save(record | {"state": edited}, tmp_path / "b.pt")
        refused(tmp_path / "b.pt", "was changed after it was written")


# ----------------------------------------------------------------------------------------------- files that were edited


def edited(path, changes):
    """A small model, saved with other values in some places, or without a key where the change is None."""
    torch.manual_seed(0)
    flow = {"_target_": "viscos.flows.planar", "layers": 1}
    posterior = {"_target_": "viscos.posteriors.Amortised", "width": 4}
    model = build_model(flow, posterior, "both", (2,), 2)
    law = Gaussian(torch.zeros(2), torch.eye(2))
    model.prepare(torch.zeros(3, 2), torch.ones(3, 2).bool(), law)
    cfg = {"flow": flow, "posterior": posterior, "classifier": "both", "seed": 0}
    saved = model_state(model, cfg, (2,), 2, law, torch.zeros(2))
    for place, value in changes.items():
        *path_to, last = place.split("/")
        inner = saved
        for key in path_to:
            inner = inner[key]
        if value is None:
            del inner[last]
        else:
            inner[last] = value(inner[last])
    return checkpoint.save(path, saved)


def nan(tensor):
    return torch.full_like(tensor, float("nan"))


FLOW, SEES = "parts/flow", "parts/latent_classifier"
EDITED = {
    "weights of the flow": (
        {f"{FLOW}/layers.1.w": nan},
        "the checkpoint's flow has values in 'layers.1.w' that",
    ),
    "weights of a classifier": ({f"{SEES}/linear.weight": nan}, "latent_classifier has values in 'linear.weight' that"),
    "the moments of one": ({f"{SEES}/norm.running_var": lambda t: t / 0}, "latent_classifier has values in"),
    "another shape": ({f"{FLOW}/layers.1.w": lambda t: t[:1]}, "the checkpoint's flow does not fit its settings"),
    "a weight that is none": ({f"{FLOW}/layers.1.w": lambda t: "much"}, "flow does not fit its settings"),
    "a weight too few": ({f"{FLOW}/layers.1.w": None}, "the checkpoint's flow does not fit its settings"),
    "a list of weights": ({FLOW: lambda parts: list(parts.values())}, "flow does not fit its settings"),
    "a part too few": ({SEES: lambda parts: 0}, "latent_classifier does not fit its settings"),
    "no part": ({"parts/latent_classifier": None}, "disagree about the latent_classifier"),
    "no parts": ({"parts": None}, "lacks 'parts'"),
    "parts that are none": ({"parts": lambda parts: 3}, "holds a int as 'parts'"),
    "settings that are none": ({"config": lambda cfg: "iresnet"}, "holds a str as 'config'"),
    "another flow": ({"config/flow": lambda flow: 7}, "holds a int as 'config.flow'"),
    "no flow": ({"config/flow": None}, "lacks 'config.flow'"),
    "a seed that is none": ({"config/seed": lambda seed: "0"}, "holds a str as 'config.seed'"),
    "a shape that is none": ({"shape": lambda shape: [2.0]}, "has shape [2.0], which is none of an item"),
    "an empty shape": ({"shape": lambda shape: [0]}, "has shape [0], which is none of an item"),
    "classes in words": ({"classes": lambda classes: "two"}, "holds a str as 'classes'"),
    "a Gaussian of NaN": ({"gaussian/mean": nan}, "has no finite gaussian.mean of shape (2,)"),
    "a Gaussian of another shape": ({"gaussian/covariance": lambda t: t[:1]}, "has no finite gaussian.covariance of"),
    "a Gaussian without means": (
        {"gaussian/observed_mean": None},
        "has no finite gaussian.observed_mean of",
    ),
    "a Gaussian that is none": ({"gaussian": lambda fitted: 1.0}, "has no finite gaussian.mean of shape (2,)"),
    "a scaling without columns": (
        {"scaling": lambda none: {"center": torch.zeros(2), "scale": torch.ones(2)}},
        "lacks 'scaling.scheme'; it is not a checkpoint of `viscos train`",
    ),
    "a scaling that is none": ({"scaling": lambda none: {"center": 0}}, "has no finite scaling.center of shape (2,)"),
}


@pytest.mark.parametrize("name", EDITED)
def test_an_edited_checkpoint_is_one_line(name, tmp_path):
    """Of a file that is whole, by its own digest, and holds nonsense."""
    changes, says = EDITED[name]
    path = edited(tmp_path / "a.pt", changes)
    with pytest.raises(InputError) as error:
        load_trained(path)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_checkpoint_that_was_not_edited_is_loaded(tmp_path):
    assert load_trained(edited(tmp_path / "a.pt", {})).model.latent_classifier is not None


@pytest.mark.parametrize("other", [0, 1, 99])
def test_another_format(other, tmp_path):
    torch.save({"format": other, "viscos": "9.9", "digest": checkpoint.digest({}), "state": {}}, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", f"has checkpoint format {other}, of viscos 9.9; this viscos, ")
    refused(tmp_path / "a.pt", "reads format 3 alone; make it anew, or take the viscos that wrote it")


def test_nothing_in_a_file_is_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "touched",)

    torch.save({"format": checkpoint.FORMAT, "state": Evil()}, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", "is not a checkpoint of viscos")
    assert not (tmp_path / "touched").exists()


def test_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = checkpoint.save(tmp_path / "a.pt", {"step": 1})

    write = Path.write_bytes

    def stops_half_way(path, content):
        write(path, bytes(content)[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", stops_half_way)
    with pytest.raises(InputError, match=rf"a\.pt cannot be written: the disk of {tmp_path} is full \(.* MiB free\)"):
        checkpoint.save(path, {"step": 2})
    monkeypatch.undo()
    assert checkpoint.load(path) == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = atomic.write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(TypeError):
        atomic.write_json(path, {"a": object()})
    assert path.read_text() == '{\n  "a": 1\n}\n'
    assert json.loads(atomic.write_json(path, {"a": [1.5, math.nan], "b": math.inf}).read_text()) == {
        "a": [1.5, None],
        "b": None,
    }


def test_what_a_killed_write_left_is_removed_and_a_write_that_goes_on_is_left_alone(tmp_path):
    path = tmp_path / "a.json"
    code = """
import sys, time
from viscos.core import atomic
atomic.write(sys.argv[1], lambda temporary: (temporary.write_text("half"), print("half", flush=True), time.sleep(60)))
"""
    writers = [subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for writer in writers:
            assert writer.stdout.readline() == b"half\n"
        writers[0].send_signal(signal.SIGKILL)
        writers[0].wait()
        other = tmp_path / ".a-b-12345678.json"  # of a-b.json
        other.touch()
        assert len(list(tmp_path.glob(".a-????????.json"))) == 2
        atomic.write_json(path, {"a": 1})
        assert len(list(tmp_path.glob(".a-????????.json"))) == 1 and other.exists()
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
            writer.stdout.close()


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "the disk of {folder} is full"),
        (errno.EDQUOT, "the disk of {folder} is full"),
        (errno.EROFS, "nothing may be written to {folder} (Read-only file system); change its permissions"),
        (errno.EACCES, "nothing may be written to {folder} (Permission denied); change its permissions"),
        (errno.EPERM, "nothing may be written to {folder} (Operation not permitted); change its permissions"),
        (errno.EIO, "cannot be written: Input/output error"),
    ],
)
@pytest.mark.parametrize("where", ["mkdtemp", "write", "fsync"])
def test_a_write_that_the_system_refuses(number, says, where, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    if where != "write":
        monkeypatch.setattr(*{"mkdtemp": (atomic.tempfile, "mkstemp"), "fsync": (atomic.os, "fsync")}[where], refuse)
    with pytest.raises(InputError) as error:
        atomic.write(tmp_path / "new" / "a.txt", refuse if where == "write" else lambda path: path.write_text("a"))
    says = says.format(folder=tmp_path / "new")
    assert str(tmp_path / "new" / "a.txt") in str(error.value) and says in str(error.value)
    assert "\n" not in str(error.value) and not list((tmp_path / "new").iterdir())


def test_an_error_without_a_number_is_a_full_disks_where_little_is_left(tmp_path, monkeypatch):
    def fails(path):
        raise OSError("fwrite failed")

    for free, says in ((2**20 - 1, "is full (1.0 MiB free)"), (2**20, "cannot be written: fwrite failed")):
        monkeypatch.setattr(atomic.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        with pytest.raises(atomic.WriteError, match=re.escape(says)):
            atomic.write(tmp_path / "a.txt", fails)


def test_what_is_written_is_read_by_others_and_has_its_ending_from_the_start(tmp_path):
    def write(path):
        assert path.suffix == ".txt" and path.parent == tmp_path
        path.write_text("a")

    before = os.umask(0o022)
    try:
        assert atomic.write(tmp_path / "a.txt", write).stat().st_mode & 0o777 == 0o644
        os.umask(0o077)
        assert atomic.write(tmp_path / "b.txt", write).stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_a_name_is_no_pattern_for_what_a_killed_write_left(tmp_path):
    own, other = tmp_path / ".a[1]-12345678.json", tmp_path / ".a1-12345678.json"
    own.touch()
    other.touch()
    atomic.write_json(tmp_path / "a[1].json", {})
    assert other.exists() and not own.exists()


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done, sync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append(os.fstat(file).st_ino), sync(file)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append(os.stat(a).st_ino), replace(a, b)))
    path = atomic.write_json(tmp_path / "a.json", {})
    assert done == [path.stat().st_ino] * 2


def test_settings_of_a_run(tmp_path):
    cfg = {"missing": 0.5, "tolerance": 1e-5, "blocks": [2, 6], "root": None, "name": "null", "path": "é"}
    runs.save_config(tmp_path, cfg | {"run_dir": str(tmp_path)})
    assert runs.load_config(tmp_path) == cfg


def test_empty_run_folders_are_discarded(tmp_path):
    (tmp_path / "run" / "tensorboard").mkdir(parents=True)
    runs.save_config(tmp_path / "run", {})
    runs.discard_if_empty(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    runs.discard_if_empty(tmp_path / "run")
    runs.save_config(tmp_path / "run", {})
    (tmp_path / "run" / "metrics.json").touch()
    runs.discard_if_empty(tmp_path / "run")
    assert (tmp_path / "run" / "metrics.json").exists()
