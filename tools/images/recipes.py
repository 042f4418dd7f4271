"""The images, and what goes into each: read from its Dockerfile, so that the two can't differ."""

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.binaries import TOOLS, ensure
from tools.cluster.state import cache_home

from .console import ImagesError

PROGRAMS = "bin/"
"""A Dockerfile that copies `bin/NAME` gets the program NAME that tools/cluster compiles."""

ROOT = Path(__file__).resolve().parents[2]
CACHE = cache_home()


@dataclass(frozen=True)
class Recipe:
    name: str
    dockerfile: str
    reference: str  # as containerd spells it; a Pod may leave "docker.io/" out
    keeps_layers: bool = False  # worth the disk where the last steps change much oftener than the first

    def files(self) -> list[Path]:
        """Every file that the Dockerfile copies from the tree, and itself; relative to the tree's root."""
        found = {Path(self.dockerfile)}
        for source in self._sources():
            if source.startswith(PROGRAMS):
                continue
            path = ROOT / source
            if not path.exists():
                raise ImagesError(f"{self.dockerfile} copies {source}, but there is no such file in {ROOT}.")
            inside = [path] if path.is_file() else path.rglob("*")
            found |= {file.relative_to(ROOT) for file in inside if file.is_file()}
        return sorted(file for file in found if "__pycache__" not in file.parts)

    def programs(self) -> list[str]:
        """Names of the compiled programs that the Dockerfile copies."""
        return [source.removeprefix(PROGRAMS) for source in self._sources() if source.startswith(PROGRAMS)]

    def digest(self) -> str:
        return digest(self.files(), [TOOLS[name].cached.parent.name for name in self.programs()])

    def _sources(self) -> list[str]:
        return _copied((ROOT / self.dockerfile).read_text())

    def archive(self) -> Path:
        return CACHE / "images" / f"{self.name}-{self.digest()}.tar"

    def copy_context(self, folder: Path) -> None:
        """The build context: the files that the image is made of and nothing else."""
        for file in self.files():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, folder / file)
        for name, program in ensure(self.programs()).items():
            (folder / PROGRAMS).mkdir(exist_ok=True)
            shutil.copy2(program, folder / PROGRAMS / name)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("operator", "images/operator/Dockerfile", "docker.io/gemma-serving/operator:dev", keeps_layers=True),
        Recipe("prometheus", "images/prometheus/Dockerfile", "docker.io/gemma-serving/prometheus:dev"),
        Recipe(
            "engine-cpu", "images/engine/cpu.Dockerfile", "docker.io/gemma-serving/engine-cpu:0.32.0", keeps_layers=True
        ),
    )
}


def digest(files: list[Path], programs: Sequence[str] = ()) -> str:
    """A short hash of the names, executable bits and contents of files of the tree, and of programs' names with their hash."""
    total = hashlib.sha256("\n".join(programs).encode())
    for file in files:
        path = ROOT / file
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{file} {os.access(path, os.X_OK)} {content}\n".encode())
    return total.hexdigest()[:16]


def _copied(dockerfile: str) -> list[str]:
    lines = (line.split() for line in dockerfile.splitlines() if line.startswith("COPY "))
    return [source for _, *words in lines if not words[0].startswith("--from") for source in words[:-1]]
