"""Which release of SGLang this version is for."""

from __future__ import annotations

import re
from importlib import metadata


def required_sglang() -> str | None:
    """The one release of SGLang that this version is for; None if swift-tiers is not installed here."""
    try:
        requirements = metadata.requires("swift-tiers") or []
    except metadata.PackageNotFoundError:
        return None
    found = [match[1] for text in requirements if (match := re.match(r"sglang\s*==\s*([^;\s]+)", text))]
    return found[0] if found else None
