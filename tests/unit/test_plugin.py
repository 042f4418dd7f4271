"""An image with our plugin: what its engine is given, what is refused, and that nobody else's Pods change."""

from __future__ import annotations

import ast
import itertools
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemma_operator.cli import main
from gemma_operator.desired import Defaults, desired
from gemma_operator.desired.warm_up import warm_up
from gemma_operator.engine import plugin
from gemma_operator.engine.findings import RefusedSpec
from gemma_operator.engine.versions import NEWEST
from gemma_operator.observe import Problem, is_unfit, observe
from gemma_operator.rollout import settle
from gemma_operator.settings import BadSetting, read_settings
from tests.unit.builders import DEFAULTS, argv, deployment, live, pod, serving, value_after, wanted

IMAGE = "registry.example/gemma-engine:v0.32.0"
OURS = {"image": IMAGE, "plugin": True}
WITH = Defaults(engine_image=IMAGE, engine_plugin=True)
FLAGS = ["--enable-logging-iteration-details", "--disable-log-stats", "--middleware", "--chat-template"]


def container(defaults: Defaults = DEFAULTS, pool: Any = None, **spec: Any) -> dict[str, Any]:
    children = wanted(serving({"interactive": pool or {}}, **spec), defaults)
    child = next(child for child in children if child["kind"] == "Deployment")
    found: dict[str, Any] = child["spec"]["template"]["spec"]["containers"][0]
    return found


def has_plugin(found: dict[str, Any]) -> bool:
    """Probe, flags and template go together."""
    by_probe = "exec" in found["readinessProbe"]
    assert [by_probe] * 5 == ["exec" in found["startupProbe"], *(flag in found["args"] for flag in FLAGS)]
    return by_probe


@pytest.mark.parametrize(
    ("defaults", "engine", "expected"),
    [
        pytest.param(DEFAULTS, {}, False, id="the official image is left as it is"),
        pytest.param(DEFAULTS, OURS, True, id="an own image that has it"),
        pytest.param(DEFAULTS, {"plugin": True}, True, id="the installation's image, by the serving's word"),
        pytest.param(WITH, {}, True, id="the installation's image has it"),
        pytest.param(WITH, {"plugin": False}, False, id="and the serving says no"),
        pytest.param(WITH, {"image": IMAGE}, False, id="of an own image the installation knows nothing"),
    ],
)
def test_who_says_that_an_image_has_the_plugin(defaults: Defaults, engine: Any, expected: bool) -> None:
    assert has_plugin(container(defaults, engine=engine)) is expected


def test_several_api_servers_keep_their_engine_counting() -> None:
    args = container(pool={"apiServers": 2}, engine=OURS)["args"]
    assert "--enable-logging-iteration-details" in args
    assert "--disable-log-stats" not in args


def test_an_engine_is_ready_by_the_plugins_word_and_lives_by_vllms() -> None:
    found = container(model={"id": "google/gemma-4-E4B-it", "servedName": "$(odd) name"}, engine=OURS)
    # The kubelet expands variables in a probe's command too.
    command = ["python3", "-m", "gemma_engine.probe", "ready", "--model=$$(odd) name"]
    assert found["startupProbe"]["exec"]["command"] == found["readinessProbe"]["exec"]["command"] == command
    assert found["livenessProbe"]["httpGet"]["path"] == "/health"
    assert found["startupProbe"]["timeoutSeconds"] >= 100, "golden requests may have to compile"


def test_an_own_probe_wins() -> None:
    found = container(pool={"readinessProbe": {"httpGet": {"path": "/own", "port": "http"}}}, engine=OURS)
    assert found["readinessProbe"] == {"httpGet": {"path": "/own", "port": "http"}}
    assert "exec" in found["startupProbe"]


@pytest.mark.parametrize(
    ("spec", "template"),
    [
        pytest.param({}, plugin.CHAT_TEMPLATE, id="a model of the catalog"),
        pytest.param({"model": {"id": "me/fine-tune"}}, None, id="somebody's model has its own"),
        pytest.param(
            {"model": {"id": "google/gemma-4-E4B-it", "chatTemplate": {"name": "mine", "key": "a.jinja"}}},
            "/etc/gemma/chat-template/a.jinja",
            id="the user's",
        ),
    ],
)
def test_the_images_chat_template_is_a_default(spec: Any, template: str | None) -> None:
    args = argv(serving({"interactive": {}}, engine=OURS, **spec), "interactive")
    assert (value_after(args, "--chat-template") if "--chat-template" in args else None) == template


def test_a_limit_on_a_steps_encoding_is_rendered_for_the_plugins_class() -> None:
    args = argv(serving({"interactive": {"encoder": {"tokensPerStep": 800}}}, engine=OURS), "interactive")
    assert json.loads(value_after(args, "--ec-manager-config")) == {
        "encoder_cache_manager_cls": "gemma_engine.budget.StepLimitedEncoderCacheManager",
        "manager_config": {"encoder_tokens_per_step": 800},
    }


@pytest.mark.parametrize(
    ("engine", "pool", "middleware"),
    [
        pytest.param(OURS, {"admission": {"enabled": True}}, [plugin.MIDDLEWARE, plugin.SHEDDING], id="limits, and our image"),
        pytest.param(OURS, {"admission": {"enabled": False}}, [plugin.MIDDLEWARE], id="no limits: nothing is refused"),
        pytest.param({}, {"admission": {"enabled": True}}, [], id="vLLM's own refusals"),
    ],
)  # fmt: skip
def test_who_words_a_refusal(engine: Any, pool: Any, middleware: list[str]) -> None:
    args = argv(serving({"interactive": pool}, engine=engine), "interactive")
    assert [value for flag, value in itertools.pairwise(args) if flag == "--middleware"] == middleware


@pytest.mark.parametrize("own", ["my.Mid", plugin.MIDDLEWARE, plugin.SHEDDING])
def test_a_middleware_of_ones_own_stands_beside_ours_and_none_is_there_twice(own: str) -> None:
    """vLLM takes each; of two of the same the outer one would hold streams back to their end."""
    extra = [f"--middleware={own}", "--middleware", "my.Other"]
    of = serving({"interactive": {"admission": {"enabled": True}, "extraArgs": extra}}, engine=OURS)
    args = argv(of, "interactive")
    assert args[-3:] == extra
    ours = [value for flag, value in itertools.pairwise(args[:-3]) if flag == "--middleware"]
    assert ours == [name for name in (plugin.MIDDLEWARE, plugin.SHEDDING) if name != own]
    assert not {"ArgumentTwice", "UserArgumentWins"} & {warning.id for warning in desired(of, DEFAULTS).warnings}


@pytest.mark.parametrize(
    ("engine", "pool", "said"),
    [
        ({"image": "v:0.25.1", "plugin": True}, {}, "engine.plugin is true: gemma_engine works with vLLM 0.26 to 0.33, and ends the start of 0.25.1"),
        ({"image": "v:0.34.0", "plugin": True}, {}, "ends the start of 0.34.0"),
        ({}, {"encoder": {"tokensPerStep": 800}}, "pools.interactive.encoder.tokensPerStep: only an engine with our plugin has this limit"),
        ({"image": "v:0.27.1", "plugin": True}, {"encoder": {"tokensPerStep": 800}}, "vLLM 0.27.1 has no --ec-manager-config"),
    ],
)  # fmt: skip
def test_what_an_engine_cannot_do_is_refused(engine: Any, pool: Any, said: str) -> None:
    with pytest.raises(RefusedSpec) as refused:
        wanted(serving({"interactive": pool}, engine=engine))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("value", "is_told"),
    [("", True), ("other", True), ("gemma_engine", True), ("gemma_engine, gemma_engine_stats,other", False)],
)
def test_a_plugin_that_is_switched_off_by_the_environment_is_told(value: str, is_told: bool) -> None:
    own = serving({"interactive": {"env": [{"name": "VLLM_PLUGINS", "value": value}]}}, engine=OURS)
    told = [warning.message for warning in desired(own, DEFAULTS).warnings if warning.id == "PluginSwitchedOff"]
    assert bool(told) is is_told
    assert all(f"VLLM_PLUGINS is {value!r}" in text for text in told)


def test_an_installation_that_takes_our_image_restarts_no_engine() -> None:
    """The promise of decision 0007, for this default too."""
    of = serving({"interactive": {}})
    before = live(of, wanted(of)[0])
    kept, waits = settle(of, wanted(of, WITH)[0], before)
    assert kept["spec"]["template"]["spec"]["containers"][0]["image"] == DEFAULTS.engine_image
    assert waits
    changed = serving({"interactive": {}}, engine={"plugin": True})
    assert has_plugin(settle(changed, wanted(changed)[0], before)[0]["spec"]["template"]["spec"]["containers"][0])


def test_a_heartbeat_is_no_part_of_a_pod() -> None:
    of = serving({"interactive": {}})
    told = serving({"interactive": {}}, heartbeat={"afterSeconds": 60, "restart": True})
    assert settle(told, wanted(told)[0], live(of, wanted(of)[0]))[1] == []
    assert wanted(told)[0]["spec"] == wanted(of)[0]["spec"]


def test_the_charts_word() -> None:
    assert read_settings({"GEMMA_ENGINE_PLUGIN": "true"}).defaults.engine_plugin
    assert not read_settings({}).defaults.engine_plugin
    with pytest.raises(BadSetting, match="GEMMA_ENGINE_PLUGIN is 'perhaps': it must be one of true, false"):
        read_settings({"GEMMA_ENGINE_PLUGIN": "perhaps"})


def test_what_the_operator_knows_of_the_plugin_is_what_it_says_of_itself() -> None:
    folder = Path("images/engine")
    told = re.search(r"^OLDEST, NEWEST = (.*)$", (folder / "gemma_engine/plugin.py").read_text(), re.MULTILINE)
    assert told
    assert ast.literal_eval(told[1]) == (plugin.OLDEST, plugin.NEWEST)
    points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
    assert tuple(name for group in points.values() for name in group) == plugin.NAMES
    for dockerfile in ("Dockerfile", "cpu.Dockerfile"):
        at, name = plugin.CHAT_TEMPLATE.rsplit("/", 1)
        assert f"COPY images/engine/{name} {at}/" in (folder / dockerfile).read_text()
    for middleware in (plugin.MIDDLEWARE, plugin.SHEDDING):
        package, module, name = middleware.split(".")
        assert f"\nclass {name}:" in (folder / package / f"{module}.py").read_text()
    assert NEWEST[:2] == plugin.NEWEST, "the flag table is newer than the plugin: it should follow"


WHY = "gemma_engine is not active, so vLLM's own vision encoder serves"
RUNS = {"name": "engine", "state": {"running": {}}, "ready": False}
PROBED = {"spec": {"containers": [{"name": "engine", "readinessProbe": {"exec": {"command": plugin.probe("m")}}}]}}


def unready(log: str, **status: Any) -> Problem | None:
    found = pod(container={**RUNS, **status}) | PROBED
    return observe([deployment(readyReplicas=0)], [found], last_words={"p1": log})["interactive"].problem


@pytest.mark.parametrize(
    ("log", "message"),
    [
        pytest.param(f"INFO started\ngemma_engine.probe: not ready: {WHY}\nINFO x\n", WHY, id="told"),
        pytest.param(f"gemma_engine.probe: not ready: asleep\ngemma_engine.probe: not ready: {WHY}\n", WHY, id="the newest"),
        pytest.param(f"gemma_engine.probe: not ready: {WHY}\ngemma_engine.probe: ready\n", None, id="mended"),
        pytest.param("INFO loading\n", None, id="nothing told"),
    ],
)  # fmt: skip
def test_why_an_engine_gets_no_requests_is_told(log: str, message: str | None) -> None:
    expected = Problem("EngineUnfit", f"Pod p1 gets no requests: {message}", terminal=False)
    assert unready(log) == (expected if message else None)


def test_an_engine_that_never_gets_fit_needs_a_person() -> None:
    killed = {"restartCount": 3, "lastState": {"terminated": {"exitCode": 143, "reason": "Error"}}}
    found = unready(f"gemma_engine.probe: not ready: {WHY}\n", **killed)
    assert found == Problem("EngineUnfit", f"Pod p1 gets no requests: {WHY}", terminal=True)


def test_a_crash_that_is_known_is_told_first() -> None:
    died = {"lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    found = unready("gemma_engine.probe: not ready: x\ntorch.OutOfMemoryError: CUDA out of memory\n", **died)
    assert found
    assert found.reason == "OutOfGpuMemory"


def test_only_the_plugins_probe_is_asked_for_its_reason() -> None:
    assert is_unfit(pod(container=RUNS) | PROBED)
    assert not is_unfit(pod(container=RUNS))
    assert not is_unfit(pod(container={**RUNS, "ready": True}) | PROBED)
    assert not is_unfit(pod() | PROBED)


CACHED = {"model": {"id": "google/gemma-4-E4B-it", "cache": {"size": "100Gi"}}}


def test_a_warm_up_is_the_engine_without_what_makes_it_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = {"interactive": {"sidecars": [{"name": "s", "image": "s:1"}]}, "batch": {}}
    of = {"apiVersion": "gemmaserving.dev/v1alpha1", "kind": "GemmaServing", "metadata": {"name": "chat"}}
    file = tmp_path / "serving.yaml"
    file.write_text(json.dumps({**of, "spec": {**CACHED, "engine": OURS, "pools": pools}}))
    assert main(["render", str(file), "--warm-up"]) == 0
    job, other = yaml.safe_load_all(capsys.readouterr().out)
    assert job["metadata"]["name"].startswith("chat-interactive-warm")
    assert other["metadata"]["name"].startswith("chat-batch-warm")
    pod = job["spec"]["template"]
    (once,) = pod["spec"]["containers"]
    engine = container(**CACHED, engine=OURS)
    assert once["command"] == ["python3", "-m", "gemma_engine.warm", "--"]
    assert [once[same] for same in ("args", "env", "image", "resources", "volumeMounts")] == [
        engine[same] for same in ("args", "env", "image", "resources", "volumeMounts")
    ]
    assert not once.keys() & {"readinessProbe", "startupProbe", "livenessProbe", "lifecycle"}
    assert not any(label.startswith("gemmaserving.dev/") for label in pod["metadata"]["labels"]), "no Service finds it"
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["initContainers"] == [{"name": "s", "image": "s:1", "restartPolicy": "Always"}]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"engine": OURS}, "pools.interactive: a warm-up needs model.cache: an emptyDir is gone with its Pod"),
        (CACHED, "pools.interactive: a warm-up needs engine.plugin"),
    ],
)
def test_a_warm_up_that_would_help_nothing_is_refused(spec: Any, said: str) -> None:
    of = serving({"interactive": {}}, **spec)
    want = desired(of, DEFAULTS)
    made = next(child for child in want.children if child["kind"] == "Deployment")
    with pytest.raises(RefusedSpec, match=said):
        warm_up(of, "interactive", want.engines["interactive"], made)
