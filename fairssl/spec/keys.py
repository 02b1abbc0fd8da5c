"""Canonical JSON, hashes of it, and seeds derived from names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def canonical(content: Any) -> str:
    """Equal content, equal text: JSON with sorted keys and no blanks."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_fields(fields: Mapping[str, str]) -> str:
    """`digest` of an object whose fields are canonical JSON already."""
    return _hash("{" + ",".join(f'"{name}":{fields[name]}' for name in sorted(fields)) + "}")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def digest(content: Any) -> str:
    """First 80 bits of SHA-256 of the canonical JSON, in hex."""
    return _hash(canonical(content))


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from names and numbers: independent streams that do not move when another is added."""
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:16], 16) >> 1
