"""Weights that somebody else has trained: read safely, kept by their content, and matched to an encoder by their names."""

from __future__ import annotations

import argparse
import hashlib
import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fairssl.data.places import cache_fault, cache_folder, writable_folder
from fairssl.types import UserError

# A classifier, a projector and the like, which are no part of a backbone: left out without a word of blame.
HEADS = re.compile(
    r"^(fc|head|heads|classifier|projector|projection\w*|predictor|prediction\w*|prototypes|last_layer|mlp)\b"
)
# Of several copies that fit alike, the one that a project does not evaluate.
SECOND_CHOICE = re.compile(r"momentum|encoder_k|student|(^|\.)key")
# lightly writes a torchvision ResNet as a sequence of its children: what it is called -> its number there.
SEQUENCE = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5", "layer3": "6", "layer4": "7"}
# timm's name of a vision transformer's array -> torchvision's; the two lay queries, keys and values out alike.
TRANSFORMER = {
    "cls_token": "class_token",
    "pos_embed": "encoder.pos_embedding",
    "patch_embed.proj": "conv_proj",
    "norm": "encoder.ln",
    "norm1": "ln_1",
    "norm2": "ln_2",
    "attn.qkv": "self_attention.in_proj",
    "attn.proj": "self_attention.out_proj",
    "mlp.fc1": "mlp.0",
    "mlp.fc2": "mlp.3",
}
OLDER_TRANSFORMER = TRANSFORMER | {"mlp.fc1": "mlp.linear_1", "mlp.fc2": "mlp.linear_2"}  # as its files have it
# Of what a training writes beside its arrays, its own options: they hold values, and reading them runs nothing.
PLAIN_OBJECTS: list[Any] = [argparse.Namespace]


@dataclass(frozen=True)
class Weights:
    """A file that has been read: `digest` names its content, `half_pixels` says that its pixels had mean and scale 0.5."""

    digest: str
    half_pixels: bool


def take(path: Path) -> Weights:
    """Read a file of weights and keep its arrays in the cache folder under a hash of the file's bytes.

    A safetensors file, or what `torch.save` wrote, of which `weights_only=True` alone is used: nothing in it is run.
    Errors: `UserError` for a file that is not there, is neither, holds other objects, or no arrays.
    """
    try:
        digest = _digest(path)
    except OSError as error:
        raise UserError(f"--weights {path}: cannot be read: {error.strerror or error}") from error
    try:
        metadata, arrays = _safetensors(path)
    except SafetensorError:
        metadata, arrays = {}, _pickled(path)
    if not arrays:
        raise UserError(f"--weights {path}: holds no arrays of numbers; name a state dict")
    kept = _kept(digest)
    if not kept.is_file():
        folder = writable_folder(kept.parent)
        partial = folder / f".{digest}-{id(arrays)}"
        try:
            save_file({name: value.contiguous().clone() for name, value in arrays.items()}, partial)
            partial.replace(kept)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise cache_fault(folder, error) from error
    return Weights(digest, metadata.get("pixel_mean") == "0.5")


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:20]


def _kept(digest: str) -> Path:
    return cache_folder() / "weights" / f"{digest}.safetensors"


def _safetensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {}), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _pickled(path: Path) -> dict[str, Tensor]:
    try:
        with torch.serialization.safe_globals(PLAIN_OBJECTS):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        cause = next((line for line in str(error).splitlines() if "GLOBAL" in line or "nsupported" in line), "")
        raise UserError(
            f"--weights {path}: neither safetensors nor a file of plain arrays, which alone is read, since anything else "
            f"could run code{f' ({cause.strip()[:120]})' if cause else ''}; save its state dict as safetensors"
        ) from error
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"--weights {path}: neither safetensors nor what torch.save writes: {cause[:120]}") from error
    return dict(_flat(content))


def _flat(content: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """The arrays of nested dictionaries, by the names on the way to them."""
    if isinstance(content, Tensor):
        yield prefix.removesuffix("."), content
    elif isinstance(content, Mapping):
        for name, inner in content.items():
            yield from _flat(inner, f"{prefix}{name}.")


@dataclass(frozen=True)
class Match:
    """How a file fits an encoder: `found`, the encoder's names -> arrays; `prefix`, where they stood; `missing`, what the
    encoder has and the file lacks, or has in another shape; `strange`, what stands beside them and fits nowhere; `heads`, how
    many arrays are of heads on top of it; `elsewhere`, how many are of other networks."""

    found: Mapping[str, Tensor]
    prefix: str
    missing: tuple[str, ...]
    strange: tuple[str, ...]
    heads: int
    elsewhere: int


def match(arrays: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Match:
    """Find an encoder's arrays in a file, whatever stands before their names: `backbone.`, `module.encoder_q.`,
    `state_dict.`, `teacher.backbone.` and so on, as timm, torchvision, DINO, MoCo, solo-learn and lightly write them."""
    best: tuple[tuple[int, bool, int], Match] | None = None
    for spelled in (_as_it_is, _in_sequence, _as_torchvision, _as_older_torchvision):
        names = {name: spelled(name) for name in wanted}
        for prefix in _prefixes(arrays, list(names.values())):
            one = _at(arrays, wanted, names, prefix)
            rank = (len(one.found), SECOND_CHOICE.search(prefix) is None, -len(prefix))
            if best is None or rank > best[0]:
                best = rank, one
    if best is None:
        return Match({}, "", tuple(wanted), (), 0, len(arrays))
    return best[1]


def _as_it_is(name: str) -> str:
    return name


def _in_sequence(name: str) -> str:
    first, dot, rest = name.partition(".")
    return f"{SEQUENCE.get(first, first)}{dot}{rest}"


def _as_torchvision(name: str) -> str:
    return _of_transformer(name, TRANSFORMER)


def _as_older_torchvision(name: str) -> str:
    return _of_transformer(name, OLDER_TRANSFORMER)


def _of_transformer(name: str, called: Mapping[str, str]) -> str:
    """`blocks.3.attn.qkv.weight` -> `encoder.layers.encoder_layer_3.self_attention.in_proj_weight`."""
    body, dot, last = name.rpartition(".") if name.endswith((".weight", ".bias")) else (name, "", "")
    layer, inner = "", body
    if body.startswith("blocks."):
        _, number, inner = body.split(".", 2)
        layer = f"encoder.layers.encoder_layer_{number}."
    joint = "_" if inner == "attn.qkv" else dot  # torch's attention holds that array itself, in no layer of its own
    return f"{layer}{called.get(inner, inner)}{joint}{last}"


def _prefixes(arrays: Mapping[str, Tensor], names: list[str]) -> list[str]:
    """What stands before the first, a middle or the last of the names."""
    some = {names[0], names[len(names) // 2], names[-1]}
    return sorted(
        {key[: -len(n)] for n in some for key in arrays if key == n or key.endswith(f".{n}")}, key=lambda p: (len(p), p)
    )


def _at(arrays: Mapping[str, Tensor], wanted: Mapping[str, Tensor], names: Mapping[str, str], prefix: str) -> Match:
    found, missing, used = dict[str, Tensor](), list[str](), set[str]()
    for name, place in wanted.items():
        array = arrays.get(prefix + names[name])
        if array is None:
            if not name.endswith("num_batches_tracked"):  # which older files lack, and nothing reads
                missing.append(name)
        elif array.shape != place.shape:
            missing.append(f"{name} {tuple(array.shape)} instead of {tuple(place.shape)}")
            used.add(prefix + names[name])
        else:
            found[name] = array
            used.add(prefix + names[name])
    beside = [key[len(prefix) :] for key in arrays if key.startswith(prefix) and key not in used]
    heads = [name for name in beside if HEADS.search(name)]
    strange = tuple(name for name in beside if name not in set(heads))
    return Match(found, prefix, tuple(missing), strange, len(heads), len(arrays) - len(used) - len(beside))


def load(encoder: nn.Module, digest: str, partial: bool, file: str = "") -> str:
    """Put the kept weights into an encoder; what was done, in a sentence.

    `partial`: what does not match stays as it is drawn, or is left out. Otherwise every array of the encoder must be in the
    file, and beside them nothing but heads: else `UserError`, as for weights that are not in the cache folder.
    """
    kept, what = _kept(digest), f"--weights {file or digest}"
    if not kept.is_file():
        raise UserError(f"the weights {digest} are not on this machine; name their file: --weights FILE")
    body = getattr(encoder, "net", encoder)
    one = match(_safetensors(kept)[1], body.state_dict())
    n = len(one.found) + len(one.missing)
    near = f" (nearest: {one.prefix}*)" if one.prefix else ""
    way = "name the --encoder that they are of, or take what fits by --set encoder.partial=true"
    if not one.found:
        raise UserError(f"{what}: none of the encoder's {n} arrays is in it; name the --encoder that they are of")
    if one.missing and not partial:
        raise UserError(f"{what}: {_some(one.missing)} of the encoder's {n} arrays not in it{near}; {way}")
    if one.strange and not partial:
        raise UserError(f"{what}: {_some(one.strange)} in it fit nowhere in the encoder{near}; {way}")
    body.load_state_dict(
        {name: value.to(body.state_dict()[name].dtype) for name, value in one.found.items()}, strict=False
    )
    left = [
        f"{count} {kind}"
        for count, kind in (
            (len(one.missing), f"drawn at random ({_some(one.missing)})"),
            (len(one.strange), f"left out ({_some(one.strange)})"),
            (one.heads, "of heads left out"),
            (one.elsewhere, "of other networks left out"),
        )
        if count
    ]
    place = f"{one.prefix}*" if one.prefix else "the file"
    return ", ".join([f"{len(one.found)} of {n} arrays from {place}", *left])


def _some(names: tuple[str, ...]) -> str:
    """The first few of the names, and how many there are more."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
