"""vLLM versions: reading them from an image reference, and the range whose flags we know."""

from __future__ import annotations

import re

Version = tuple[int, int, int]

# research/vllm.md section 4.2: flags were read from the wheels of these versions.
OLDEST: Version = (0, 19, 0)
NEWEST: Version = (0, 33, 0)
_NUMBER = re.compile(r"^v?(\d+)\.(\d+)(?:\.(\d+))?(?:$|[^\d].*$)")


class UnknownVersion(ValueError):
    """The engine's version can't be told, or is too old; the text says what to set."""


def parse_version(text: str) -> Version:
    """`0.32.0`, `v0.32` or `v0.32.0-cu130` as numbers. Raises UnknownVersion."""
    match = _NUMBER.match(text)
    if not match:
        raise UnknownVersion(f"{text!r} is not a vLLM version such as 0.32.0")
    major, minor, patch = match.groups()
    return int(major), int(minor), int(patch or 0)


def engine_version(image: str, explicit: str | None) -> Version:
    """Version of the engine in `image`: the explicit one, else that of the tag. Raises UnknownVersion."""
    if explicit:
        version = parse_version(explicit)
    else:
        tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
        try:
            version = parse_version(tag)
        except UnknownVersion:
            raise UnknownVersion(
                f"engine.image {image!r} has no version in its tag: set engine.version to the vLLM version in the image, for instance 0.32.0"
            ) from None
    if version < OLDEST:
        raise UnknownVersion(
            f"engine: vLLM {spell(version)} is too old: {spell(OLDEST)} is the oldest that serves Gemma 4; raise engine.image"
        )
    return version


def spell(version: Version) -> str:
    """`(0, 32, 0)` as `0.32.0`."""
    return ".".join(str(part) for part in version)
