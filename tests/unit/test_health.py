"""What Argo CD's Lua and kstatus make of every state that the operator writes (recorded by tests/apiserver/test_health_states.py)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa import lua51

from tests.support.kstatus import kstatus

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/argocd"
STATES: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "tests/golden/health").glob("*.yaml"))
}
HEALTH = {
    "new": "Progressing",
    "not-seen-yet": "Progressing",
    "paused": "Suspended",
    "ready": "Healthy",
    "refused": "Degraded",
    "rolling-out": "Progressing",
    "scaling": "Healthy",
    "stalled": "Degraded",
    "starting": "Progressing",
}
KSTATUS = {"Healthy": "Current", "Suspended": "Current", "Progressing": "InProgress", "Degraded": "Failed"}


def judged(obj: dict[str, Any]) -> tuple[str, str]:
    """Status and message by health.lua, with no library that Argo CD doesn't give it."""
    lua = lua51.LuaRuntime()  # type: ignore[attr-defined]
    for library in ("string", "math", "io", "os", "debug"):
        lua.globals()[library] = None
    lua.globals().obj = lua.table_from(obj, recursive=True)
    found = lua.execute((EXAMPLE / "health.lua").read_text())
    return str(found.status), str(found.message)


def test_every_recorded_state_is_judged() -> None:
    assert set(STATES) == set(HEALTH)


@pytest.mark.parametrize("state", HEALTH)
def test_health_of_a_state(state: str) -> None:
    health, message = judged(STATES[state])
    assert health == HEALTH[state]
    assert message
    shown = {c["message"] for c in STATES[state]["status"].get("conditions", [])}
    assert message in shown or "operator has not" in message


@pytest.mark.parametrize("state", HEALTH)
def test_kstatus_agrees(state: str) -> None:
    assert kstatus(STATES[state]) == KSTATUS[HEALTH[state]]


def test_before_the_operator_there_is_no_health_to_fail() -> None:
    """As of a CRD without our default, and of one whose status holds conditions of another program."""
    bare = {**STATES["new"], "status": {}}
    assert judged({key: value for key, value in bare.items() if key != "status"})[0] == "Progressing"
    assert judged(bare)[0] == "Progressing"
    foreign = {"observedGeneration": 1, "conditions": [{"type": "Other", "status": "True"}]}
    assert judged({**bare, "status": foreign})[0] == "Progressing"


def test_degraded_and_failed_mean_stalled_whatever_else_is_true() -> None:
    """Degraded ends a sync, so a model that loads for an hour must never be it."""
    for ready, reconciling, stalled in itertools.product(("True", "False", "Unknown"), repeat=3):
        values = {"Ready": ready, "Reconciling": reconciling, "Stalled": stalled}
        conditions = [{"type": t, "status": s, "reason": "R", "message": t} for t, s in values.items()]
        obj = {**STATES["ready"], "status": {"observedGeneration": 1, "conditions": conditions}}
        assert (judged(obj)[0] == "Degraded") == (stalled == "True")
        if (reconciling, stalled) != ("True", "True"):  # the operator never writes both
            assert kstatus(obj) == KSTATUS[judged(obj)[0]]


def test_the_patch_of_argocd_cm_holds_the_script_byte_for_byte() -> None:
    data = yaml.safe_load((EXAMPLE / "argocd-cm.yaml").read_text())["data"]
    assert data == {
        "resource.customizations.health.gemmaserving.dev_GemmaServing": (EXAMPLE / "health.lua").read_text()
    }
