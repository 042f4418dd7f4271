"""Argo CD's own Lua, with our argocd-cm, judges the recorded states as the unit test does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_health import HEALTH, STATES, judged
from tools.argocd.rig import health


@pytest.mark.parametrize("state", HEALTH)
def test_argo_cds_own_lua_agrees(state: str) -> None:
    code, message = judged(STATES[state])
    said = health(Path(f"tests/golden/health/{state}.yaml").resolve(), Path("examples/argocd/argocd-cm.yaml").resolve())
    assert said.split("\n")[:2] == [f"STATUS: {code}", f"MESSAGE: {message}"]
