"""`fairssl doctor`: what is installed, which devices and data are here, which plugins work."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

from fairssl.machine import n_cores

DISTRIBUTION = "fairssl"


def doctor(as_json: bool = typer.Option(False, "--json", help="Print one object.")) -> None:
    """Look at this machine: versions, devices, data, plugins, folders. Exit code 1 if something needed is broken.

    Unlike `list`, it imports every plugin.
    """
    found: dict[str, Any] = {
        "fairssl": metadata.version(DISTRIBUTION),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "file_locks": importlib.util.find_spec("fcntl") is not None,
        **_requirements(),
        **_devices(),
        "datasets": _datasets(),
        **_plugins(),
        "cache": _folder(),
    }
    found["problems"] = _problems(found)
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False) if as_json else _text(found))
    if found["problems"]:
        raise typer.Exit(1)


# --------------------------------------------------------------------------- what is looked at


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


def _datasets() -> list[dict[str, Any]]:
    """Where each dataset was found, or what to do about it."""
    from fairssl import kinds
    from fairssl.data.files import data_root
    from fairssl.types import UserError

    rows = []
    for name in kinds.datasets.where():
        row: dict[str, Any] = {"name": name, "found": False, "images": None, "root": None, "missing": None}
        try:
            dataset = kinds.datasets.build(name, {})
            root = None if dataset.card.embedded else data_root(None, name)
            facts = dataset.inspect(root)
            row |= {"found": True, "images": facts.n_images, "root": "embedded" if root is None else str(root)}
        except UserError as error:
            row["missing"] = _line(error)
        rows.append(row)
    return rows


def _plugins() -> dict[str, Any]:
    """Every package that offers plugins with how many of each kind, and every plugin that does not import."""
    from fairssl import kinds, registry

    packages: dict[str, dict[str, Any]] = {
        p.name: {"name": p.name, "module": p.module, "fault": p.fault, "plugins": 0} for p in registry.packages()
    }
    broken, twice = [], []
    for kind in kinds.registries.values():
        for name in kind.where():
            place = kind.locate(name)
            packages[place.package]["plugins"] += 1
            try:
                kind.get(name)
            except registry.BrokenPlugin as error:
                broken.append({"kind": kind.one, "name": name, "package": place.package, "cause": _line(error)})
        for name, places in kind.offers().items():
            if len(places) > 1:
                ways = [f"{place.package}:{name}" for place in places]
                twice.append({"kind": kind.one, "name": name, "write": ways})
    return {"plugin_packages": list(packages.values()), "broken_plugins": broken, "names_offered_twice": twice}


def _folder() -> dict[str, Any]:
    """The cache folder, whether it can be written, and what is free where it lies."""
    from fairssl.data.files import cache_folder

    folder = cache_folder()
    there = folder
    while not there.exists():
        there = there.parent
    usage = shutil.disk_usage(there)
    return {
        "folder": str(folder),
        "writable": os.access(there, os.W_OK) and there.is_dir(),
        "free_gib": round(usage.free / 2**30, 1),
        "packs_gib": round(sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file()) / 2**30, 2),
    }


# --------------------------------------------------------------------------- what is wrong


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
    if not any(package["name"] == DISTRIBUTION for package in found["plugin_packages"]):
        problems.append("fairssl's own plugins are not found: install it again")
    if not found["cache"]["writable"]:
        problems.append(f"the cache folder {found['cache']['folder']} cannot be written: set FAIRSSL_CACHE")
    return problems


def _numbers(version: str) -> tuple[int, ...]:
    """The release numbers of a version, without trailing zeros; what follows them is not compared."""
    match = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(n) for n in match.group().split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# --------------------------------------------------------------------------- as text


def _text(found: dict[str, Any]) -> str:
    lines = [f"fairssl {found['fairssl']}, Python {found['python']}, {found['platform']}", "", "packages"]
    for name, package in found["packages"].items():
        low = f"  (at least {package['at_least']})" if package["at_least"] else ""
        lines.append(f"  {name:<14} {package['version'] or 'missing'}{low}")
    for extra, packages in found["extras"].items():
        state = ", ".join(f"{name} {version or 'not installed'}" for name, version in packages.items())
        lines.append(f"  [{extra}] {state}")
    lines += ["", f"devices ({found['threads']} threads on {found['cores']} cores)"]
    lines += [f"  {device['name']:<14} {device['is']}" for device in found["devices"]]
    lines += ["", "datasets"]
    for row in found["datasets"]:
        state = f"{row['images']:,} images, {row['root']}" if row["found"] else f"not found: {row['missing']}"
        lines.append(f"  {row['name']:<14} {state}")
    lines += ["", "plugins"]
    for package in found["plugin_packages"]:
        state = f"broken: {package['fault']}" if package["fault"] else f"{package['plugins']} plugins"
        lines.append(f"  {package['name']:<14} {state}")
    lines += [f"  broken: {one['cause']}" for one in found["broken_plugins"]]
    for one in found["names_offered_twice"]:
        lines.append(f"  {one['kind']} {one['name']} is offered twice; write {' or '.join(one['write'])}")
    cache = found["cache"]
    lines += ["", "cache", f"  {cache['folder']}: {cache['packs_gib']} GiB, {cache['free_gib']} GiB free"]
    lines += ["", *(f"problem: {problem}" for problem in found["problems"])]
    if not found["problems"]:
        lines.append("all is well")
    return "\n".join(lines)
