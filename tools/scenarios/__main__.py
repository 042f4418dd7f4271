"""`python -m tools.scenarios NAME`: plays a scene on a real node, and writes its data and its picture into docs/.

The node is made and ended here, unless one runs already. CONTEXT=<kube context> uses a cluster of yours, as the demo does.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import signal
import sys
from pathlib import Path

from tools.demo import deploy
from tools.demo.console import DemoError, Shell, say
from tools.scenarios.picture import draw
from tools.scenarios.play import play, table
from tools.scenarios.recording import Recording
from tools.scenarios.scenes import Scene, scenes

GPUS = 16


def main() -> int:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up as Ctrl-C does
    shell = Shell(str(deploy.ROOT))
    was_there = deploy.cluster_exists(shell)
    try:
        scene = scenes(options.short)[options.name]
        _prepare(shell)
        _write(scene, asyncio.run(_play(scene, shell)), options)
    except DemoError as error:
        say(f"\n{error}", indent=0)
        return 1
    except KeyboardInterrupt:
        say("\nInterrupted.", indent=0)
        return 130
    finally:
        if not options.keep and not was_there:
            deploy.stop(shell)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.scenarios", description=__doc__)
    parser.add_argument("name", choices=tuple(scenes()))
    parser.add_argument("--short", action="store_true", help="a fraction of the time, as the tests play it")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running, for the next scene")
    parser.add_argument("--out", type=Path, default=deploy.ROOT / "docs", help="folder with data/ and pictures/ (docs)")
    return parser


def _prepare(shell: Shell) -> None:
    deploy.start_cluster(shell)
    if not os.environ.get("CONTEXT"):
        shell.read([deploy.PYTHON, "-m", "tools.cluster", "up", "--gpus", str(GPUS)])
    if not shell.read([*deploy.HELM, "status", deploy.RELEASE, "--namespace", deploy.SYSTEM_NAMESPACE], needed=False):
        deploy.load_images(shell, "standin")
        deploy.install_chart(shell)
    if not shell.read([*deploy.KUBECTL, "get", "namespace", deploy.NAMESPACE], needed=False):
        shell.show([*deploy.KUBECTL, "create", "namespace", deploy.NAMESPACE])


async def _play(scene: Scene, shell: Shell) -> list[Recording]:
    """All runs side by side: what they are compared by is then the same machine at the same time."""
    say(f"\n{scene.title}: {', '.join(run.name for run in scene.runs)}", indent=0)
    playing = (
        play(run, shell, deploy.KUBECTL, deploy.NAMESPACE, f"scene-{number}")
        for number, run in enumerate(scene.runs, 1)
    )
    recordings = list(await asyncio.gather(*playing))
    for recording in recordings:
        say(f"\n{recording.name}\n{table(recording)}")
    return recordings


def _write(scene: Scene, recordings: list[Recording], options: argparse.Namespace) -> None:
    data = {
        "command": f"python -m tools.scenarios {scene.name}{' --short' if options.short else ''}",
        "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "title": scene.title,
        "runs": [recording.as_json() for recording in recordings],
    }
    file, picture = (
        options.out / "data" / f"scene-{scene.name}.json",
        options.out / "pictures" / f"scene-{scene.name}.png",
    )
    for path in (file, picture):
        path.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data, indent=None, separators=(",", ":")) + "\n")
    draw(scene.title, recordings, picture)
    say(f"\nData: {file}\nPicture: {picture}")


if __name__ == "__main__":
    sys.exit(main())
