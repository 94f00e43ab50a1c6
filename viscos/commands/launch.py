"""Starts a task on one device, or on several: a process for each."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import torch

from viscos.commands.assemble.machine import Machine
from viscos.commands.interrupt import held
from viscos.core.build import allowed, allowing
from viscos.core.errors import InputError
from viscos.train.devices import Devices, OneDevice

Task = Callable[[dict[str, Any], Devices], dict[str, Any]]


def launch(task: Task, cfg: dict[str, Any], machine: Machine) -> dict[str, Any]:
    """Calls `task(cfg, devices)` in every process; returns what the first one returns, a record of some kilobytes.

    `task` is a function of a module, so that other processes can be told of it. Raises `InputError` if the machine
    does not have the devices that the settings ask for, or if a process raised it; `KeyboardInterrupt` if one did.
    """
    device = machine.use()
    _check(machine, device)
    if machine.devices == 1 and machine.precision == 32:
        return task(cfg, OneDevice(device))
    from viscos.train.fabric import FabricDevices

    devices: Any = FabricDevices(device, machine.devices, machine.precision)
    return devices.launch(_alone, task, cfg) if machine.devices == 1 else _together(devices, task, cfg, machine)


def _check(machine: Machine, device: torch.device) -> None:
    devices, precision = machine.devices, machine.precision
    if device.type == "cpu" and precision != 32:
        raise InputError(
            f"precision={precision} is for a GPU, where it saves time; this run is on a CPU: leave it at 32"
        )
    if devices > 1 and device.index is not None:
        raise InputError(
            f"device={machine.device} is one device, and devices={devices} are asked for; take device=cuda"
        )
    if devices > 1 and device.type == "cuda" and torch.cuda.device_count() < devices:
        seen = torch.cuda.device_count()
        raise InputError(f"devices={devices}, but torch sees {seen} GPU here; lower devices, or take device=cpu")
    if (devices > 1 or precision != 32) and importlib.util.find_spec("lightning_fabric") is None:
        asked = f"devices={devices}" if devices > 1 else f"precision={precision}"
        raise InputError(f"{asked} needs Lightning Fabric, which is not installed: pip install 'viscos[devices]'")


def _alone(devices: Devices, task: Task, cfg: dict[str, Any]) -> dict[str, Any]:
    return task(cfg, devices)


def _together(devices: Any, task: Task, cfg: dict[str, Any], machine: Machine) -> dict[str, Any]:
    """Starts the processes and waits for them; what one of them raised is raised here, once."""
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

    errors = multiprocessing.get_context("spawn").SimpleQueue()  # torch passes a traceback's text on, and no more
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else each process advises against what we need
    with held(_pass_on) as interrupted:
        try:
            # Fabric looks for modules inside what it hands on, and refuses frozen dataclasses: not the machine itself.
            result = devices.launch(_work, task, cfg, machine.use, errors, allowed())
        except (ProcessRaisedException, ProcessExitedException) as error:
            if interrupted():
                raise KeyboardInterrupt("interrupted") from None
            if not errors.empty():
                raise InputError(errors.get()) from None
            if isinstance(error, ProcessExitedException):
                raise InputError(f"one of the {machine.devices} processes was ended: {error}") from None
            raise
    if isinstance(result, str):
        raise KeyboardInterrupt(result)
    return result


def _work(
    devices: Any, task: Task, cfg: dict[str, Any], use: Callable[[], Any], errors: Any, own: tuple[str, ...]
) -> dict[str, Any] | str:
    """One process of several; an interruption is returned as what it says, since the first process must return."""
    os.setpgrp()  # Ctrl-C at a terminal reaches the process that waits, and from there the others, once
    use()
    try:
        with allowing(own):
            return task(cfg, devices)
    except KeyboardInterrupt as interrupt:
        return str(interrupt) or "interrupted"
    except InputError as error:
        errors.put(str(error))
        raise


def _pass_on(number: int) -> None:
    for child in multiprocessing.active_children():
        if child.pid is not None:
            os.kill(child.pid, number)
