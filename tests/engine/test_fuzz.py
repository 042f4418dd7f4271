"""Generated specs before the real judges: refused in words, or served by objects and a command line that are taken.

GEMMA_FUZZ_EXAMPLES=10000 runs more of them (`make fuzz`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from gemma_operator.api.crd import crd
from tests.support.engine_parser import INSTALLED, EngineParser
from tests.support.fuzz import Judges
from tests.support.kube import Kube, eventually
from tests.support.specs import specs
from tools.cluster.control_plane import ControlPlane

EXAMPLES = int(os.environ.get("GEMMA_FUZZ_EXAMPLES", "150"))


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    """An API server that knows GemmaServings."""
    with ControlPlane.start("fuzz") as running:
        kube = Kube(running.kubeconfig)
        kube.run("create", "-f", "-", stdin=json.dumps(crd()))
        eventually("GemmaServings are known", lambda: kube.run("get", "gsv", check=False).returncode == 0)
        yield running


def test_a_generated_spec_is_refused_in_words_or_served(
    plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    with EngineParser(INSTALLED) as parser:
        judges = Judges(plane, parser)

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(specs())
        def judge(spec: Any) -> None:
            judges.judge(spec)

        judge()
    with capsys.disabled():
        print(f"\n{sum(judges.outcomes.values())} specs: {judges.summary()}")
    assert judges.outcomes["served"], "specs that are all wrong prove little"
