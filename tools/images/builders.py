"""The two programs that build an image from a Dockerfile: Docker where its daemon answers, else buildah."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Protocol

from .console import ImagesError, output, run_logged, say
from .debian import need
from .recipes import CACHE, Recipe

LOCAL_BASE = "localhost/gemma-serving/debian:bookworm"
DEBIAN_SUITE = "bookworm"
UNNEEDED = ("/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/doc/*")
MOST_UNNAMED_IMAGES = 20

# The machine's certificates, which matter behind a proxy: mounted while packages are fetched, never part of an image
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
SECRETS = [f"--secret=id=ca-bundle,src={CA_BUNDLE}"] if CA_BUNDLE.exists() else []


class Builder(Protocol):
    def build(self, recipe: Recipe, context: Path, log: Path) -> None: ...

    def save(self, recipe: Recipe, archive: Path, log: Path) -> None: ...


class Docker:
    def build(self, recipe: Recipe, context: Path, log: Path) -> None:
        names = ["--tag", recipe.reference, "--file", str(context / recipe.dockerfile)]
        command = ["docker", "build", *SECRETS, *names, str(context)]
        run_logged(f"building {recipe.reference} with docker", command, log)

    def save(self, recipe: Recipe, archive: Path, log: Path) -> None:
        run_logged(f"saving {recipe.reference}", ["docker", "save", "--output", archive, recipe.reference], log)


class Buildah:
    """Works without a daemon and without user namespaces; its images are in our cache, not in the machine's.

    One at a time: whatever another build left there is taken for a leftover.
    """

    def __init__(self) -> None:
        need("Building images without Docker", {"buildah": "buildah", "mmdebstrap": "mmdebstrap"})
        if os.geteuid() != 0:
            raise ImagesError("buildah is used as root only here. Run this as root, or start a Docker daemon.")
        store = CACHE / "buildah"
        store.mkdir(parents=True, exist_ok=True)
        driver = "overlay" if _overlay_works(store) else "vfs"
        self._buildah = ["buildah", f"--root={store}/storage", f"--runroot={store}/run", f"--storage-driver={driver}"]

    def build(self, recipe: Recipe, context: Path, log: Path) -> None:
        self._remove_leftovers()
        self._need_base(log)
        options = ["--isolation=chroot", "--network=host", *SECRETS, f"--build-arg=BASE={LOCAL_BASE}"]
        options.append(f"--layers={str(recipe.keeps_layers).lower()}")
        names = ["--tag", recipe.reference, "--file", str(context / recipe.dockerfile)]
        command = [*self._buildah, "build", *options, *names, str(context)]
        run_logged(f"building {recipe.reference} with buildah", command, log)

    def save(self, recipe: Recipe, archive: Path, log: Path) -> None:
        target = f"docker-archive:{archive}:{recipe.reference}"
        run_logged(f"saving {recipe.reference}", [*self._buildah, "push", recipe.reference, target], log)
        if not recipe.keeps_layers:
            output(*self._buildah, "rmi", recipe.reference)

    def _remove_leftovers(self) -> None:
        """Containers of builds that were killed, and layers once there are many: nothing else ever removes those."""
        if output(*self._buildah, "containers", "--quiet"):
            output(*self._buildah, "rm", "--all")
        if len(output(*self._buildah, "images", "--quiet", "--filter", "dangling=true").split()) > MOST_UNNAMED_IMAGES:
            say("removing layers of earlier builds")
            output(*self._buildah, "rmi", "--prune")

    def _need_base(self, log: Path) -> None:
        """Debian's minimal system, from Debian's own packages: what the public image in the Dockerfiles is made of."""
        if output(*self._buildah, "images", "--quiet", "--filter", f"reference={LOCAL_BASE}"):
            return
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            system = Path(folder, "debian.tar")
            without = [f"--dpkgopt=path-exclude={pattern}" for pattern in UNNEEDED]
            keep = "--dpkgopt=path-include=/usr/share/doc/*/copyright"
            command = ["mmdebstrap", "--variant=minbase", *without, keep, DEBIAN_SUITE, system]
            run_logged(f"making a Debian {DEBIAN_SUITE} base", command, log)
            container = output(*self._buildah, "from", "scratch")
            try:
                output(*self._buildah, "add", container, system, "/")
                output(*self._buildah, "commit", container, LOCAL_BASE)
            finally:
                output(*self._buildah, "rm", container)


def find_builder() -> Builder:
    if shutil.which("docker"):
        answer = subprocess.run(["docker", "version"], capture_output=True, text=True, check=False, timeout=30)
        if answer.returncode == 0:
            return Docker()
        say("docker is here, but no daemon answers; using buildah")
    return Buildah()


def _overlay_works(folder: Path) -> bool:
    """buildah itself doesn't notice a file system that overlay can't be stacked on (such as overlay)."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for name in ("lower", "upper", "work", "merged"):
            Path(place, name).mkdir()
        layers = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work"
        command = ["mount", "-t", "overlay", "overlay", "-o", layers, f"{place}/merged"]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return False
        subprocess.run(["umount", f"{place}/merged"], check=True)
    return True
