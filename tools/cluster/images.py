"""Images without a registry: read from archives, imported into the node's containerd."""

import hashlib
import io
import json
import os
import platform
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .binaries import HERE, go_version
from .console import ClusterError, duration, say
from .process import run
from .state import State, cache_home

PAUSE = "gemmaserving.local/pause:1"
GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Archive:
    """A docker-archive or an OCI archive: its names, and a digest that changes with its content."""

    path: Path
    names: tuple[str, ...]
    digest: str


def read_archive(path: Path) -> Archive:
    try:
        with tarfile.open(path) as tar:
            members = {name.removeprefix("./") for name in tar.getnames()}
            if "manifest.json" in members:
                images = _json(tar, "manifest.json")
                names = [name for image in images for name in image.get("RepoTags") or ()]
                digest = ",".join(image["Config"] for image in images)
            elif "index.json" in members:
                manifests = _json(tar, "index.json")["manifests"]
                names = [name for one in manifests if (name := _oci_name(one.get("annotations") or {}))]
                digest = ",".join(one["digest"] for one in manifests)
            else:
                raise ClusterError(
                    f"{path} is no image archive: it holds neither manifest.json (docker) nor index.json (OCI)"
                )
    except (tarfile.TarError, OSError) as error:
        raise ClusterError(f"cannot read the image archive {path}: {error}") from error
    if not names:
        raise ClusterError(
            f"the image archive {path} names no image: save it under a name, as 'docker save NAME:TAG' does"
        )
    return Archive(path, tuple(names), digest)


def _json(tar: tarfile.TarFile, name: str) -> Any:
    for candidate in (name, f"./{name}"):
        try:
            file = tar.extractfile(candidate)
        except KeyError:
            continue
        if file:
            return json.load(file)
    raise ClusterError(f"the image archive holds no file {name}")


def _oci_name(annotations: dict[str, str]) -> str | None:
    return annotations.get("io.containerd.image.name") or annotations.get("org.opencontainers.image.ref.name")


def containerd_import(state: State, path: Path, ctr: str) -> Archive:
    """Import an archive for the kubelet; one whose content is there already is not read again."""
    archive = read_archive(path)
    names, size = ", ".join(archive.names), f"{path.stat().st_size / 1e6:.0f} MB"
    record = state.root / "containerd" / "images.json"
    known: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    command = [ctr, "--address", str(state.containerd_socket), "--namespace", "k8s.io", "images"]
    recorded = all(known.get(name) == archive.digest for name in archive.names)
    if recorded and set(archive.names) <= set(run([*command, "list", "--quiet"]).split()):
        say(f"{names} is loaded already")
        return archive
    started = time.monotonic()
    run([*command, "import", path], shown=f"loading {names} ({size})")
    record.write_text(json.dumps(known | dict.fromkeys(archive.names, archive.digest), indent=1))
    say(f"{names} loaded ({size}, {duration(time.monotonic() - started)})")
    return archive


def pause_archive() -> Path:
    """The image that holds a Pod's namespaces, made here for want of a registry: one static Go program, one layer."""
    source = HERE / "pause"
    content = b"".join(path.read_bytes() for path in sorted(source.iterdir())) + go_version().encode()
    archive = cache_home() / "images" / f"pause-{hashlib.sha256(content).hexdigest()[:16]}.tar"
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        program = Path(folder, "pause")
        env = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
        run(
            ["go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", program, "."],
            cwd=source,
            env=env,
        )
        made = Path(folder, "image.tar")
        write_archive(made, PAUSE, {"pause": program.read_bytes()}, ["/pause"])
        made.rename(archive)
    return archive


def write_archive(path: Path, name: str, programs: dict[str, bytes], entrypoint: list[str]) -> None:
    """A docker-archive of one layer that holds nothing but these programs."""
    layer = _tar({program: (data, 0o755) for program, data in programs.items()})
    machine = platform.machine()
    config = json.dumps(
        {
            "architecture": GO_ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": {"Entrypoint": entrypoint, "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    files = {"layer.tar": layer, config_name: config, "manifest.json": manifest}
    path.write_bytes(_tar({file: (data, 0o644) for file, data in files.items()}))


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, (data, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()
