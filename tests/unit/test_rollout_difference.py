"""What is told of a Pod template that waits."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gemma_operator.desired import desired
from gemma_operator.rollout import difference
from tests.unit.builders import DEFAULTS, serving
from tests.unit.test_rollout import Object


def changed(edit: Any) -> tuple[Object, Object]:
    before = desired(serving({"interactive": {}}), DEFAULTS).children[0]["spec"]["template"]
    after = copy.deepcopy(before)
    edit(after, after["spec"]["containers"][0])
    return before, after


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda pod, engine: engine["env"].reverse(), "the order of arguments or variables"),
        (lambda pod, engine: pod["spec"]["securityContext"].update(runAsUser=1), "fields securityContext"),
        (lambda pod, engine: engine["securityContext"].update(privileged=True), "fields securityContext"),
        (lambda pod, engine: engine.update(image="b:2"), "image vllm/vllm-openai:v0.32.0 -> b:2"),
        (lambda pod, engine: engine["args"].extend(["--api-key", "secret", "--seed=1"]), "flags --api-key, --seed"),
        (lambda pod, engine: engine["args"].__setitem__(engine["args"].index("64"), "65"), "flags --max-num-seqs"),
        (lambda pod, engine: engine["env"].append({"name": "TOKEN", "value": "secret"}), "variables TOKEN"),
        (lambda pod, engine: engine["livenessProbe"].update(periodSeconds=9), "fields livenessProbe"),
        (lambda pod, engine: pod["metadata"]["annotations"].update(a="b"), "fields annotations"),
        (lambda pod, engine: pod["spec"].pop("volumes"), "fields volumes"),
        (lambda pod, engine: pod["spec"]["containers"].append({"name": "x"}), "fields sidecars"),
        (
            lambda pod, engine: (engine.update(image="b"), engine["env"].clear(), pod["spec"].update(hostname="h")),
            None,
        ),
    ],
)
def test_a_difference_names_what_differs_and_tells_no_secret(edit: Any, said: str | None) -> None:
    found = difference(*changed(edit))
    assert "secret" not in found
    if said is None:
        assert found.startswith("image vllm/vllm-openai:v0.32.0 -> b; variables HF_HOME, HOME, ")
        assert found.endswith("; fields hostname")
    else:
        assert found == said
