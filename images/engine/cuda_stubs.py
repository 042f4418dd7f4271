"""Replaces the CUDA libraries that PyTorch links against by stubs, for an engine that runs on the CPU only.

PyTorch's package needs 3.5 GB of NVIDIA libraries to be imported, though a CPU run never calls one of them. A stub library
defines the names that PyTorch looks for (with their symbol versions) and stops the process when one is called.
libcudart is not replaced: PyTorch registers its kernels with it while it is loaded.

    python3 cuda_stubs.py SITE_PACKAGES      (needs gcc and binutils)
"""

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

NVIDIA = re.compile(r"lib(cu|nccl|nv)\w*\.so\.\d+")
REAL = {"libcudart.so.13", "libcuda.so.1"}

SOURCE = """
extern int dprintf(int, const char *, ...);
extern void abort(void);
void called(void) { dprintf(2, "A CUDA function was called, but this image runs on the CPU only.\\n"); abort(); }
"""


def lines(*command: str) -> list[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def needed(library: Path) -> set[str]:
    """The NVIDIA libraries that a library is linked against."""
    entries = (line for line in lines("readelf", "--dynamic", str(library)) if "(NEEDED)" in line)
    return {match[0] for match in map(NVIDIA.search, entries) if match}


def undefined(library: Path) -> set[tuple[str, str]]:
    """(name, version) of the symbols that a library expects from others; the version is often empty."""
    symbols = (line.split()[-1] for line in lines("nm", "--dynamic", "--undefined-only", str(library)))
    return {(name, version) for name, _, version in (symbol.partition("@") for symbol in symbols)}


def write_stub(symbols: set[tuple[str, str]], path: Path) -> None:
    versions = defaultdict(list)
    for name, version in symbols:
        versions[version].append(name)
    names = sorted({name for name, _ in symbols})
    source = SOURCE + "\n".join(f'void {name}(void) __attribute__((alias("called")));' for name in names)
    nodes = [f"{version} {{ global: {'; '.join(members)}; }};" for version, members in versions.items() if version]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "versions")
        script.write_text("\n".join(nodes))
        command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-fno-builtin", "-s", "-x", "c", "-", "-o", str(path)]
        subprocess.run([*command, f"-Wl,--version-script={script}"], input=source, text=True, check=True)


def main(site_packages: Path) -> None:
    folder = site_packages / "torch" / "lib"
    libraries = sorted(folder.glob("lib*.so"))
    wanted = set().union(*map(needed, libraries)) - REAL
    prefixes = ("cu", "nccl", "nv")
    symbols = {
        (name, version)
        for library in libraries
        for name, version in undefined(library)
        if version not in REAL and (version in wanted or name.startswith(prefixes))
    }
    write_stub(symbols, folder / "libcuda_stubs.so")
    for name in sorted(wanted):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("libcuda_stubs.so")
    print(f"{len(symbols)} functions of {len(wanted)} CUDA libraries replaced by {folder / 'libcuda_stubs.so'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
