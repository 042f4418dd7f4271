"""vLLM's wheels, unpacked: only their Python files, for reading flags. Nothing of them is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.state import cache_home

PINS = Path(__file__).with_name("wheels.txt")
UNPACKED = cache_home() / "wheels"
Version = tuple[int, int, int]


class WheelError(Exception):
    """A wheel can't be had; the text is pip's."""


@dataclass(frozen=True)
class Pin:
    """One line of wheels.txt: a wheel of one version, by its hash."""

    requirement: str

    @property
    def version(self) -> Version:
        major, minor, patch = self.requirement.split()[0].partition("==")[2].split(".")
        return int(major), int(minor), int(patch)


def pins() -> list[Pin]:
    """Every wheel, oldest version first."""
    lines = (line for line in PINS.read_text().splitlines() if line and not line.startswith("#"))
    return sorted(map(Pin, lines), key=lambda pin: pin.version)


def folder(version: Version) -> Path:
    """Where the Python files of a version are, or would be."""
    return UNPACKED / ".".join(map(str, version))


def ensure(pin: Pin) -> Path:
    """The folder of a version, downloaded and unpacked where it isn't there yet. Raises WheelError."""
    target = folder(pin.version)
    if target.exists():
        return target
    UNPACKED.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=UNPACKED, prefix=".") as scratch:
        place = Path(scratch)
        requirements = place / "requirements.txt"
        requirements.write_text(pin.requirement)
        options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--quiet", "--dest", scratch]
        command = [sys.executable, "-m", "pip", "download", *options, "--requirement", str(requirements)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise WheelError(f"{pin.requirement.split()[0]} can't be downloaded:\n{done.stderr.strip()[-2000:]}")
        with zipfile.ZipFile(next(place.glob("*.whl"))) as wheel:
            files = [name for name in wheel.namelist() if name.startswith("vllm/") and name.endswith(".py")]
            wheel.extractall(place / "unpacked", files)
        shutil.move(place / "unpacked", target)
    return target
