"""Fills the caches of a pool and ends: `python3 -m gemma_engine.warm -- SERVER ARGUMENTS`, in a Job with the pool's cache volume.

Starts the server with the pool's own arguments, waits until the probe finds it ready (so that compiling, tuning and the first
requests have happened), and stops it. Exits 0 when the caches are full, else with the server's or the probe's reason.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import probe

SERVER = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
PORT = 8000
PAUSE_SECONDS = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m gemma_engine.warm", description=__doc__.split("\n\n")[0])
    parser.add_argument("--within", type=float, default=1800, help="seconds the server may take (default: %(default)s)")
    parser.add_argument("arguments", nargs="+", help="the server's arguments, after --")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen([*SERVER, *options.arguments, "--host", "127.0.0.1", "--port", str(PORT)])
        try:
            reason = wait(process, Path(folder, "marker"), started + options.within)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
    print(reason or f"the caches are full after {time.monotonic() - started:.0f} s", flush=True)
    return int(bool(reason))


def wait(process: subprocess.Popen[bytes], marker: Path, deadline: float) -> str:
    """'' once the server is ready, else why it isn't."""
    server = probe.Server(f"http://127.0.0.1:{PORT}", seconds=600)
    reason = "the server has not started"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return f"the server ended with {process.returncode}"
        try:
            probe.check_ready(server, "", marker, canary=True)
        except probe.NotReady as found:
            reason = str(found)
            time.sleep(PAUSE_SECONDS)
        else:
            return ""
    return f"not ready in time: {reason}"


if __name__ == "__main__":
    sys.exit(main())
