"""`fairssl doctor`: what is installed, which devices and data are here, which plugins work."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import platform
import re
import shutil
from dataclasses import asdict
from importlib import metadata
from typing import Any

import typer

from fairssl.cli._table import Cell, echo_facts, echo_prose, screen
from fairssl.machine import n_cores
from fairssl.types import counted

DISTRIBUTION = "fairssl"


def doctor(
    gpu: bool = typer.Option(
        False, "--gpu", help="Also train a few steps on the GPU, and say what is well and how fast."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one object."),
) -> None:
    """Look at this machine: versions, devices, data, plugins, folders. Exit code 1 if something needed is broken.

    Unlike `list`, it imports every plugin. Somebody else's that does not import is shown and leaves the exit code 0.

    `--gpu` is the first thing to run on a new GPU, and takes about a minute: whether steps can be captured, whether
    augmentation can be compiled, whether both leave the losses as they are, and the speed beside that of the model alone.

    Examples:

        fairssl doctor

        fairssl doctor --gpu
    """
    from fairssl import registry

    found: dict[str, Any] = {
        "fairssl": metadata.version(DISTRIBUTION),
        "plugin_interface": registry.INTERFACE,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "file_locks": importlib.util.find_spec("fcntl") is not None,
        **_requirements(),
        **_devices(),
        "datasets": _datasets(),
        **_plugins(),
        "cache": _folder(),
        "gpu": _gpu() if gpu else None,
    }
    found["problems"] = _problems(found)
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        _print(found)
    if found["problems"]:
        raise typer.Exit(1)


def _requirements() -> dict[str, Any]:
    """Versions of what fairssl needs, and of what its extras bring; None where it is not installed."""
    needed: dict[str, dict[str, Any]] = {}
    extras: dict[str, dict[str, str | None]] = {}
    for line in metadata.requires(DISTRIBUTION) or []:
        match = re.match(r"[\w.-]+", line)
        assert match is not None
        name = match.group()
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)
        if extra is not None:
            extras.setdefault(extra.group(1), {})[name] = _installed(name)
            continue
        low = re.search(r">=\s*([\d.]+)", line)
        needed[name] = {"version": _installed(name), "at_least": low.group(1) if low else None}
    return {"packages": needed, "extras": extras}


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> dict[str, Any]:
    """Devices that torch can use, and threads; the reason where torch does not import."""
    cores = n_cores()
    try:
        import torch
    except Exception as error:  # a broken installation fails in many ways
        return {"devices": [], "threads": None, "cores": cores, "torch_fault": _line(error)}
    devices = [{"name": "cpu", "is": platform.processor() or platform.machine()}]
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        devices.append({"name": f"cuda:{number}", "is": f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB"})
    if torch.backends.mps.is_available():
        devices.append({"name": "mps", "is": "Apple GPU"})
    return {"devices": devices, "threads": torch.get_num_threads(), "cores": cores, "torch_fault": None}


def _gpu() -> dict[str, Any]:
    """What a few steps on the first GPU say; the reason where there is none."""
    try:
        from fairssl.data.device import pick_device
        from fairssl.execute.gpu_check import check_gpu, gpu_fault
    except Exception as error:  # torch does not import, which is a problem of its own
        return {"well": [], "faults": [_line(error)]}
    fault = gpu_fault()
    if fault is not None:
        return {"well": [], "faults": [fault]}
    found = check_gpu(pick_device("auto"))
    facts = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(found).items()}
    return {**facts, "well": found.sentences()}


def _datasets() -> list[dict[str, Any]]:
    """Where each dataset was found, what to do about it where not, or what is wrong with the dataset itself."""
    from fairssl import kinds
    from fairssl.data.overview import overview

    return [
        {
            "name": state.name,
            "package": kinds.datasets.locate(state.name).package,
            "found": state.found,
            "images": state.n_images,
            "root": (state.where or "embedded") if state.found else None,
            "missing": state.missing,
            "broken": state.fault,
        }
        for state in overview()
    ]


def _plugins() -> dict[str, Any]:
    """Every package that offers plugins with how many of each kind, and every plugin that does not import."""
    from fairssl import kinds, registry

    packages: dict[str, dict[str, Any]] = {
        p.name: {"name": p.name, "module": p.module, "folders": [*map(str, p.folders)], "fault": p.fault, "plugins": 0}
        for p in registry.packages()
    }
    broken, twice = [], []
    for kind in kinds.registries.values():
        for name in kind.where():
            packages[kind.locate(name).package]["plugins"] += 1
        for name, cause in kind.broken().items():
            broken.append({"kind": kind.one, "name": name, "package": kind.locate(name).package, "cause": cause})
        for name, places in kind.offers().items():
            if len(places) > 1:
                ways = [f"{place.package}:{name}" for place in places]
                twice.append({"kind": kind.one, "name": name, "write": ways})
    return {
        "plugin_packages": list(packages.values()),
        "broken_plugins": broken,
        "names_offered_twice": twice,
        "unseen_plugins": registry.unseen_plugins() or None,
    }


def _folder() -> dict[str, Any]:
    """The cache folder, whether it can be written, and what is free where it lies; or why there is none."""
    from fairssl.data.places import cache_folder
    from fairssl.types import UserError, printable

    try:
        folder = cache_folder()
    except UserError as error:
        return {"folder": None, "writable": False, "fault": _line(error), "free_gib": None, "packs_gib": None}
    there = folder
    while not os.access(there, os.F_OK) and there != there.parent:
        there = there.parent
    sizes = 0
    for place, _, names in os.walk(folder):  # what may not be read does not count
        for name in names:
            with contextlib.suppress(OSError):
                sizes += os.stat(os.path.join(place, name)).st_size
    writable = os.access(there, os.W_OK | os.X_OK) and there.is_dir()
    return {
        "folder": printable(str(folder)),
        "writable": writable,
        "fault": None
        if writable
        else f"the cache folder {printable(str(folder))} cannot be written: set FAIRSSL_CACHE",
        "free_gib": round(shutil.disk_usage(there).free / 2**30, 1),
        "packs_gib": round(sizes / 2**30, 2),
    }


def _problems(found: dict[str, Any]) -> list[str]:
    """What stops fairssl itself from working; somebody else's broken plugin is shown and is none."""
    problems = []
    for name, package in found["packages"].items():
        version, low = package["version"], package["at_least"]
        if version is None:
            problems.append(f"{name} is not installed: pip install '{name}>={low}'" if low else f"{name} is missing")
        elif low and _numbers(version) < _numbers(low):
            problems.append(f"{name} {version} is older than {low}: pip install -U {name}")
    if not found["file_locks"]:
        problems.append("no file locks: bench and status need Linux or macOS; on Windows, use WSL")
    if found["torch_fault"]:
        problems.append(f"torch does not import: {found['torch_fault']}")
    problems += [
        f"{one['kind']} {one['name']} is broken: {one['cause']}"
        for one in found["broken_plugins"]
        if one["package"] == DISTRIBUTION
    ]
    problems += [
        f"dataset {one['name']} fails: {one['broken']}"
        for one in _failing_datasets(found)
        if one["package"] == DISTRIBUTION
    ]
    if not any(package["name"] == DISTRIBUTION for package in found["plugin_packages"]):
        problems.append("fairssl's own plugins are not found: install it again")
    if found["cache"]["fault"]:
        problems.append(found["cache"]["fault"])
    if found["gpu"]:
        problems += found["gpu"]["faults"]
    return problems


def _failing_datasets(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Datasets that import and then fail with an error of their own."""
    broken = {one["name"] for one in found["broken_plugins"] if one["kind"] == "dataset"}
    return [one for one in found["datasets"] if one["broken"] and one["name"] not in broken]


def _numbers(version: str) -> tuple[int, ...]:
    """The release numbers of a version, without trailing zeros; what follows them is not compared."""
    match = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(n) for n in match.group().split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _print(found: dict[str, Any]) -> None:
    there = screen()

    def section(name: str) -> None:
        typer.echo("\n" + there.style(name, bold=True))

    echo_prose(f"fairssl {found['fairssl']}, Python {found['python']}, {found['platform']}")
    section("packages")
    echo_facts(
        [
            (name, f"{p['version'] or 'missing'}{f'  (at least {low})' if (low := p['at_least']) else ''}")
            for name, p in found["packages"].items()
        ],
        indent=2,
    )
    states = {
        extra: ", ".join(f"{name} {version or 'not installed'}" for name, version in packages.items())
        for extra, packages in found["extras"].items()
    }
    echo_facts([(f"[{extra}]", state) for extra, state in states.items()], indent=2)
    section(f"devices ({found['threads']} threads on {found['cores']} cores)")
    echo_facts([(device["name"], device["is"]) for device in found["devices"]], indent=2)
    section("datasets")
    echo_facts([(row["name"], _dataset_state(row)) for row in found["datasets"]], indent=2)
    section(f"plugins (interface {found['plugin_interface']})")
    rows = [(package["name"], _package_state(package)) for package in found["plugin_packages"]]
    rows += [
        (f"{one['kind']} {one['name']}", Cell(f"broken: {one['cause']}", "red")) for one in found["broken_plugins"]
    ]
    for one in found["names_offered_twice"]:
        rows.append(
            (f"{one['kind']} {one['name']}", Cell(f"offered twice; write {' or '.join(one['write'])}", "yellow"))
        )
    echo_facts(rows, indent=2)
    section("cache")
    cache = found["cache"]
    if cache["folder"]:
        echo_facts([(cache["folder"], f"{cache['packs_gib']} GiB, {cache['free_gib']} GiB free")], indent=2)
    if found["gpu"] and found["gpu"]["well"]:
        section(f"steps on {found['gpu']['device']}")
        for text in found["gpu"]["well"]:
            echo_prose(text, indent=2)
    typer.echo()
    if found["unseen_plugins"]:
        echo_prose(f"note: {found['unseen_plugins']}")
    for problem in found["problems"]:
        echo_prose(there.style("problem", "red") + f": {problem}")
    if not found["problems"]:
        echo_prose(_verdict(found))


def _dataset_state(row: dict[str, Any]) -> str | Cell:
    if row["broken"]:
        return Cell(f"broken: {row['broken']}", "red")
    return f"{counted(row['images'], 'image')}, {row['root']}" if row["found"] else f"not found: {row['missing']}"


def _package_state(package: dict[str, Any]) -> Cell:
    if package["fault"]:
        return Cell(f"broken: {package['fault']}", "red")
    return Cell(f"{counted(package['plugins'], 'plugin')} in {', '.join(package['folders'])}")


def _verdict(found: dict[str, Any]) -> str:
    """The last line, where fairssl has no problem of its own."""
    plugins = [one for one in found["broken_plugins"] if one["package"] != DISTRIBUTION]
    packages = [one for one in found["plugin_packages"] if one["fault"]]
    datasets = [one for one in _failing_datasets(found) if one["package"] != DISTRIBUTION]
    counts = [
        counted(len(items), what)
        for items, what in ((plugins, "plugin"), (packages, "plugin package"), (datasets, "dataset"))
        if items
    ]
    if not counts:
        return screen().style("all is well", "green")
    one = len(plugins) + len(packages) + len(datasets) == 1
    return f"fairssl itself is well; {' and '.join(counts)} of others {'is' if one else 'are'} broken, see above"
