"""`python -m gemma_operator.simulation.standin`: start, serve, drain on SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from gemma_operator.engine.versions import UnknownVersion, Version, parse_version
from gemma_operator.simulation.standin.arguments import Arguments, parse_arguments
from gemma_operator.simulation.standin.engine_loop import EngineLoop
from gemma_operator.simulation.standin.metrics import EngineMetrics
from gemma_operator.simulation.standin.server import Server
from gemma_operator.simulation.step_model import Costs

logger = logging.getLogger("standin")
# vLLM's own words (0.32 v1/worker/gpu_model_runner.py), by which the operator tells the phases of a start.
_PHASES = (
    "Starting to load model",
    "Loading safetensors checkpoint shards:   0% Completed",
    "Model loading took 15.2 GiB memory and 1.0 seconds",
    "Graph capturing finished in 1 secs",
)
_FLUSH_SECONDS = 5.0  # for the last chunks of aborted or drained answers


class BadEnvironment(ValueError):
    """A STANDIN_ variable that can't be used; the text says what is allowed."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The STANDIN_ variables."""

    version: Version
    version_text: str
    startup_seconds: float
    batched_encoder: bool
    speed: float
    hang_file: Path | None
    """While it exists, the engine hangs in its next step, behind a server that answers."""


def read_environment(environ: Mapping[str, str]) -> Environment:
    """Raises BadEnvironment."""
    text = environ.get("STANDIN_VERSION", "0.32.0")
    try:
        version = parse_version(text)
    except UnknownVersion as error:
        raise BadEnvironment(f"STANDIN_VERSION: {error}") from None
    batched = environ.get("STANDIN_BATCHED_ENCODER", "1")
    if batched not in ("0", "1"):
        raise BadEnvironment(f"STANDIN_BATCHED_ENCODER is {batched!r}, allowed are 0 and 1")
    startup_seconds = _number(environ, "STANDIN_STARTUP_SECONDS", "2", least=0)
    speed = _number(environ, "STANDIN_SPEED", "1", least=0.001)
    hang_file = environ.get("STANDIN_HANG_FILE")
    return Environment(version, text, startup_seconds, batched == "1", speed, Path(hang_file) if hang_file else None)


def _number(environ: Mapping[str, str], name: str, default: str, *, least: float) -> float:
    text = environ.get(name, default)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise BadEnvironment(f"{name} is {text!r}, allowed are numbers from {least:g}")
    return value


async def serve(arguments: Arguments, environment: Environment) -> None:
    """Until SIGTERM or SIGINT, and through the drain after it."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if await _start(environment.startup_seconds, stop):
        return
    metrics = EngineMetrics(arguments)
    hang = environment.hang_file
    engine = EngineLoop(
        arguments, Costs().scaled(1 / environment.speed), metrics, hang.exists if hang else lambda: False
    )
    app = Server(arguments, engine, metrics, environment.version_text).application()
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_FLUSH_SECONDS)
    await runner.setup()
    await web.TCPSite(runner, arguments.host, arguments.port).start()
    logger.info("Application startup complete: %s on port %s", ", ".join(arguments.served_names), arguments.port)
    computing, stopping = asyncio.create_task(engine.run()), asyncio.create_task(stop.wait())
    await asyncio.wait((computing, stopping), return_when=asyncio.FIRST_COMPLETED)
    if computing.done():
        computing.result()  # an engine never ends by itself: raise what killed it
    mode = "drain" if arguments.shutdown_timeout else "abort"
    logger.info("Shutdown: mode=%s timeout=%ss requests=%s", mode, arguments.shutdown_timeout, engine.unfinished)
    await engine.shut_down(arguments.shutdown_timeout)
    await runner.cleanup()
    logger.info("Shutdown complete")


async def _start(seconds: float, stop: asyncio.Event) -> bool:
    """Take as long as an engine that loads a model; true where it was stopped meanwhile."""
    for phase in _PHASES:
        logger.info(phase)
        try:
            await asyncio.wait_for(stop.wait(), seconds / len(_PHASES))
        except TimeoutError:
            continue
        return True
    return False


def main() -> None:
    logging.basicConfig(format="%(levelname)s %(asctime)s %(name)s: %(message)s", level=logging.INFO)
    try:
        environment = read_environment(os.environ)
    except BadEnvironment as error:
        sys.exit(f"standin: {error}")
    arguments = parse_arguments(sys.argv[1:], environment.version, batched_encoder=environment.batched_encoder)
    asyncio.run(serve(arguments, environment))


if __name__ == "__main__":
    main()
