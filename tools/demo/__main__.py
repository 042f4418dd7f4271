"""`python -m tools.demo`: the whole path, from no cluster at all to a report. `python -m tools.demo down` cleans up.

CONTEXT=<kube context> uses a cluster of yours in place of one made here.
"""

import argparse
import asyncio
import datetime
import signal
import sys
from pathlib import Path

from tools.demo import deploy
from tools.demo.answers import check_answers
from tools.demo.console import DemoError, Shell, Steps, say
from tools.demo.recording import Recording, shortfalls
from tools.demo.report import html, table
from tools.demo.story import Story
from tools.demo.watch import watch

ENGINES = {
    "standin": "stand-in (vLLM 0.32 API, timing of Gemma 4 E4B on a GPU)",
    "vllm": "vLLM 0.32 on CPU, tiny Gemma 4",
}
SLO_SECONDS = 0.3


def main() -> int:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up as Ctrl-C does
    try:
        return _run(options, Shell(str(deploy.ROOT)))
    except DemoError as error:
        say(f"\n{error}", indent=0)
        return 1


def _run(options: argparse.Namespace, shell: Shell) -> int:
    if options.action == "down":
        deploy.stop(shell)
        return 0
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for earlier in ("report.html", "recording.json", "diagnostics.txt"):
        (folder / earlier).unlink(missing_ok=True)
    leave = deploy.remove if deploy.cluster_exists(shell) else deploy.stop
    try:
        failures = asyncio.run(_demo(shell, options.engine, folder))
        if failures:
            say("\nThe demo failed:\n- " + "\n- ".join(failures + deploy.troubled_pods(shell)), indent=0)
            say(f"What the cluster looked like: {deploy.diagnose(shell, folder)}", indent=0)
        return 1 if failures else 0
    except KeyboardInterrupt:
        say("\nInterrupted.", indent=0)
        return 130
    finally:
        if options.keep:
            say(_LOOK_AROUND, indent=0)
        else:
            say("\nCleaning up (--keep leaves everything running)", indent=0)
            leave(shell)


_LOOK_AROUND = f"""
The cluster keeps running. To look around:
      eval "$(python3 -m tools.cluster env)"
      kubectl get gemmaservings,pods --namespace {deploy.NAMESPACE}
      python3 -m tools.demo down   # when you have seen enough"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=__doc__)
    parser.add_argument("action", nargs="?", choices=("run", "down"), default="run", help="default: run")
    parser.add_argument("--engine", choices=tuple(ENGINES), default="standin", help="default: standin")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running, to look around in it")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for the report (out/demo)")
    return parser


async def _demo(shell: Shell, engine: str, folder: Path) -> list[str]:
    """The demo's steps; what failed, or nothing."""
    try:
        return await _steps(shell, engine, folder, Steps(7 if engine == "standin" else 6))
    except DemoError as error:
        return [str(error)]


async def _steps(shell: Shell, engine: str, folder: Path, steps: Steps) -> list[str]:
    with steps.step("A Kubernetes cluster of one node"):
        deploy.start_cluster(shell)
    with steps.step("Images, built and loaded into the cluster"):
        deploy.load_images(shell, engine)
    with steps.step("The operator and Prometheus, installed with Helm"):
        deploy.install_chart(shell)
    with steps.step("One GemmaServing applied"):
        name, deployed = deploy.apply_example(shell, engine, folder)
    async with watch(shell, deploy.KUBECTL, deploy.NAMESPACE, name) as cluster:
        with steps.step("Both pools become Ready"):
            await deploy.await_ready(cluster, deploy.READY_WITHIN_SECONDS[engine])
        if engine == "vllm":
            with steps.step("Text, image and video through both Services"):
                return await check_answers(cluster)
        started = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        recording = Recording(name, ENGINES[engine], started, SLO_SECONDS, shell.shown, deployed)
        with steps.step("Chats on the interactive pool, work on the batch pool: below, over, and again within the SLO"):
            await Story(cluster, recording).tell()
    with steps.step("The report"):
        (folder / "recording.json").write_text(recording.to_json())
        (folder / "report.html").write_text(html(recording))
        say(table(recording))
        say(f"\nReport: {folder / 'report.html'}")
    return shortfalls(recording)


if __name__ == "__main__":
    sys.exit(main())
