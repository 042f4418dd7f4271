"""`gemma-operator top` and `explain` against a real API server: with rights and without, with half of an object, live."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kube import Kube, eventually

SERVING = {
    "apiVersion": "gemmaserving.dev/v1alpha1",
    "kind": "GemmaServing",
    "metadata": {"name": "chat"},
    "spec": {"model": {"id": "google/gemma-4-E4B-it"}, "pools": {"interactive": {"replicas": {"min": 1, "max": 4}}}},
}
NOW = "2026-11-30T00:00:00Z"
STATUS = {
    "observedGeneration": 1,
    "conditions": [
        {"type": kind, "status": status, "reason": reason, "message": reason, "lastTransitionTime": NOW}
        for kind, status, reason in (("Ready", "True", "PoolsReady"), ("SLOMet", "True", "Met"))
    ],
    "pools": {
        "interactive": {
            "class": "interactive", "desired": 3, "ready": 2, "pending": 1, "p95Milliseconds": 287,
            "lastDecision": {"replicas": 3, "reason": "Demand", "message": "2 -> 3 replicas: a load of 1.9"},
        }
    },
}  # fmt: skip


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "gemma_operator", *arguments]


def environment(kubeconfig: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": str(Path("operator").resolve()), **more}


def run(kube: Kube, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    own = [*arguments, "-n", kube.namespace] if "-A" not in arguments else list(arguments)
    return subprocess.run(
        command(*own), env=environment(kube.kubeconfig, **more), capture_output=True, text=True, check=False
    )


@pytest.fixture
def chat(kube: Kube) -> Kube:
    """A namespace with one GemmaServing, as an operator would have left it."""
    kube.apply(SERVING)
    kube.run("patch", "gsv", "chat", "--subresource=status", "--type=merge", "-p", json.dumps({"status": STATUS}))
    return kube


def test_top_and_kubectl_tell_the_same(chat: Kube) -> None:
    done = run(chat, "top", "--once", COLUMNS="40")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "chat  Ready  SLO met"
    assert [line.strip() for line in lines[1:]] == [
        "interactive  2/3 ready +1 starting",
        "p95 287/300 ms",
        "Demand: 2 -> 3 replicas: a load of …",
    ]
    assert max(map(len, lines)) <= 40
    heads, cells = (line.split() for line in chat.run("get", "gsv").stdout.splitlines())
    told = dict(zip([head for head in heads if head not in ("TTFT", "MS", "BATCH")], cells, strict=True))
    assert (told["READY"], told["SLO"], told["INTERACTIVE"], told["P95"]) == ("True", "True", "2", "287")


def test_all_namespaces_as_json(chat: Kube) -> None:
    done = run(chat, "top", "-A", "-o", "json")
    assert done.returncode == 0, done.stderr
    found = [one for one in json.loads(done.stdout)["servings"] if one["namespace"] == chat.namespace]
    assert [(one["name"], one["pools"][0]["reason"]) for one in found] == [("chat", "Demand")]


def test_the_operators_events_are_the_history(chat: Kube) -> None:
    about = {"apiVersion": SERVING["apiVersion"], "kind": "GemmaServing", "name": "chat", "namespace": chat.namespace}
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 600))
    chat.apply(
        {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "chat.1"}, "type": "Normal", "reason": "Scaled",
            "message": "pool interactive: 2 -> 3 replicas: a load of 1.9", "involvedObject": about,
            "firstTimestamp": stamp, "lastTimestamp": stamp, "source": {"component": "gemma-operator"},
        }
    )  # fmt: skip
    pool = json.loads(run(chat, "top", "-o", "json").stdout)["servings"][0]["pools"][0]
    assert [value for _, value in pool["history"]["replicas"]] == [2, 3, 3]
    assert "engines " in run(chat, "top", "--once").stdout


@pytest.fixture
def nobody(chat: Kube, tmp_path: Path) -> Kube:
    """A user who may do nothing."""
    chat.run("create", "serviceaccount", "nobody")
    token = chat.run("create", "token", "nobody").stdout.strip()
    config = json.loads(chat.run("config", "view", "--raw", "--flatten", "-o", "json").stdout)
    config["users"] = [{"name": "nobody", "user": {"token": token}}]
    for context in config["contexts"]:
        context["context"]["user"] = "nobody"
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    return Kube(path, chat.namespace)


@pytest.mark.parametrize("arguments", [("top",), ("top", "-A"), ("explain", "chat")], ids=" ".join)
def test_without_rights_one_line_says_which(nobody: Kube, arguments: tuple[str, ...]) -> None:
    done = run(nobody, *arguments)
    assert done.returncode == 2
    assert "is forbidden: User" in done.stderr
    assert "gemmaservings" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_rights_to_servings_alone_are_enough(nobody: Kube, chat: Kube) -> None:
    """Events are a courtesy."""
    chat.run("create", "role", "reader", "--verb=get,list", "--resource=gemmaservings.gemmaserving.dev")
    chat.run("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={chat.namespace}:nobody")
    done = eventually("the right", lambda: (d := run(nobody, "top")).returncode == 0 and d)
    assert done.stdout.startswith("chat  Ready")


def test_an_object_that_is_half_deleted(chat: Kube) -> None:
    chat.run("patch", "gsv", "chat", "--type=merge", "-p", '{"metadata": {"finalizers": ["example.com/held"]}}')
    chat.run("delete", "gsv", "chat", "--wait=false")
    try:
        done = run(chat, "top", "--once")
        assert done.returncode == 0, done.stderr
        assert "chat  Deleting" in done.stdout
        assert "held by example.com/held" in done.stdout
        assert run(chat, "explain", "chat").returncode == 0
    finally:
        chat.run("patch", "gsv", "chat", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    eventually("it is gone", lambda: chat.get("gsv", "chat") is None)
    done = run(chat, "top")
    assert (done.returncode, done.stderr) == (0, f"there is no GemmaServing in namespace {chat.namespace}\n")
    assert run(chat, "explain", "chat").returncode == 2


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, arguments: list[str], env: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        # A shell's background job, as a test run may be, ignores Ctrl-C, and so would all that it starts.
        arguments = ["env", "--default-signal=INT", *arguments]
        self.process = subprocess.Popen(arguments, env=env, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
        os.close(theirs)
        self.text = ""

    def read(self) -> str:
        """All that came so far."""
        while select.select([self._ours], [], [], 0.1)[0]:
            try:
                self.text += os.read(self._ours, 65536).decode(errors="replace")
            except OSError:
                break
        return self.text


@pytest.fixture
def live(chat: Kube) -> Iterator[Terminal]:
    env = environment(chat.kubeconfig, COLUMNS="60", LINES="20", TERM="xterm")
    terminal = Terminal(command("top", "-n", chat.namespace, "--interval", "1"), env)
    yield terminal
    terminal.process.kill()
    terminal.process.wait()


def test_live_it_follows_and_ends_at_ctrl_c(chat: Kube, live: Terminal) -> None:
    eventually("the first look", lambda: "2/3 ready" in live.read(), 30)
    changed: dict[str, Any] = {"status": {"pools": {"interactive": {"ready": 3, "pending": 0, "p95Milliseconds": 191}}}}
    chat.run("patch", "gsv", "chat", "--subresource=status", "--type=merge", "-p", json.dumps(changed))
    eventually("the next look", lambda: "3/3 ready" in live.read() and "191/300" in live.read(), 30)
    live.process.send_signal(signal.SIGINT)
    eventually("it ends", lambda: live.process.poll() is not None and live.read() is not None, 20)
    assert live.process.returncode == 0
    assert "Traceback" not in live.read()
