"""gemma-operator render: every object of a serving, and the reason for each flag and variable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gemma_operator.api.serving import GemmaServing
from gemma_operator.cli import main
from gemma_operator.cli.render import explanation
from gemma_operator.desired import desired
from tests.unit.builders import DEFAULTS, serving

pytestmark = pytest.mark.usefixtures("clean_environment")

EVERYTHING: dict[str, Any] = {
    "prefixCaching": {"enabled": True, "hash": "sha256_cbor", "salt": 1},
    "mtp": {"enabled": True, "tokens": 3, "byLoad": [{"requests": 8, "tokens": 2}]},
    "modalities": {
        "image": {"count": 2, "softTokens": 560},
        "video": {"count": 1, "frames": 8, "fps": 1},
        "audio": {"count": 1},
    },
    "encoder": {"processorCacheGb": 2},
    "loras": [{"name": "a", "path": "/a"}],
    "loraRank": 32,
    "maxModelLen": 8192,
    "maxNumSeqs": 32,
    "maxNumBatchedTokens": 4096,
    "admission": {"enabled": True, "maxQueuedRequests": 8},
    "gpuMemoryUtilization": 0.9,
    "kvCacheDtype": "fp8",
    "kvOffload": {"sizeGib": 16},
    "tensorParallel": 2,
    "pipelineParallel": 2,
    "apiServers": 2,
    "drainSeconds": 60,
    "extraArgs": ["--enforce-eager", "--tokenizer=$(X)"],
}
MODEL = {
    "id": "google/gemma-4-E4B-it", "revision": "main", "servedName": "chat", "aliases": ["gemma"], "loadFormat": "safetensors",
    "loaderConfig": {"enable_multithread_load": True}, "reasoning": {"enabled": True}, "toolCalling": {"enabled": True},
    "chatTemplate": {"name": "t"}, "tokenSecretRef": {"name": "hub"}, "cache": {"size": "100Gi"},
}  # fmt: skip
ALL = serving({"interactive": EVERYTHING, "batch": {}}, model=MODEL, engine={"apiKeySecretRef": {"name": "key"}})


def explained(of: GemmaServing) -> str:
    return explanation(of, desired(of, DEFAULTS))


@pytest.mark.parametrize(
    "of",
    [ALL, serving(), serving({"batch": {"gpus": 0}}, model={"id": "my/own"})],
    ids=["everything", "minimal", "own model"],
)
def test_every_flag_and_variable_has_a_reason(of: GemmaServing) -> None:
    text = explained(of)
    for engine in desired(of, DEFAULTS).engines.values():
        for setting in engine.command.settings:
            assert setting.why, setting.flag
            assert " ".join((setting.flag, *setting.values)) in text
        for variable in engine.environment:
            assert variable.why, variable.name
            assert f"{variable.name}=" in text
    rows = [
        line for line in text.splitlines() if line.startswith("  ") and not line.startswith(("  python3", "  vllm"))
    ]
    assert [row for row in rows if not row.strip()] == []


def test_a_reason_names_the_field_the_default_or_the_rule() -> None:
    text = explained(ALL)
    for flag, why in [
        ("--model google/gemma-4-E4B-it", "spec.model.id"),
        ("--served-model-name chat gemma", "spec.model.servedName"),
        ("--max-num-seqs 32", "spec.pools.interactive.maxNumSeqs"),
        ("--max-num-seqs 256", "default of class batch"),
        ("--dtype bfloat16", "rule: Gemma 4 answers only <pad> in fp16"),
        ("--port 8000", "operator: Service, probes and metrics use it"),
        ("--enforce-eager", "spec.pools.interactive.extraArgs"),
        ("--tokenizer=$(X)", "spec.pools.interactive.extraArgs"),
        ("HF_TOKEN=(from a Secret)", "spec.model.tokenSecretRef"),
    ]:
        line = next(line for line in text.splitlines() if line.strip().startswith(flag))
        assert why in line, line


def test_a_long_argument_has_its_reason_on_the_next_line() -> None:
    lines = explained(ALL).splitlines()
    place = next(n for n, line in enumerate(lines) if "--custom-histogram-buckets" in line)
    assert lines[place].endswith("}")
    assert lines[place + 1].strip().startswith("operator: an edge exactly at the TTFT target")


def test_the_image_the_program_and_the_class_are_told() -> None:
    text = explained(ALL)
    assert "chat, pool interactive (interactive): vllm/vllm-openai:v0.32.0\n  vllm serve\n" in text
    assert (
        "chat, pool batch (batch): vllm/vllm-openai:v0.32.0\n  python3 -m vllm.entrypoints.openai.api_server\n" in text
    )


def test_warnings_come_last() -> None:
    of = serving({"interactive": {"extraArgs": ["--max-num-seqs=4"]}})
    last = explained(of).rstrip("\n").splitlines()[-1]
    assert (
        last
        == "warning UserArgumentWins: pools.interactive.extraArgs: --max-num-seqs replaces what the operator would set"
    )
    assert "warning" not in explained(serving())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "serving.yaml"
    made.write_text(yaml.safe_dump({"apiVersion": "gemmaserving.dev/v1alpha1", "kind": "GemmaServing", "metadata": {"name": "chat"},
                                    "spec": {"model": {"id": "google/gemma-4-E4B-it", "cache": {"size": "1Gi"}}}}))  # fmt: skip
    return made


def test_explain_prints_reasons_instead_of_objects(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", str(file), "--explain"]) == 0
    out = capsys.readouterr().out
    assert "apiVersion" not in out
    assert "spec.model.id" in out


def test_objects_on_disk_have_no_owner_and_the_namespace_that_is_asked_for(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["render", str(file), "-n", "ai"]) == 0
    children = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [child["kind"] for child in children] == [
        "PersistentVolumeClaim",
        *(("Deployment", "Service", "PodDisruptionBudget") * 2),
        "Service",
    ]
    assert {child["metadata"]["namespace"] for child in children} == {"ai"}
    assert not [child for child in children if "ownerReferences" in child["metadata"]]


def test_explain_and_diff_exclude_each_other(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["render", str(file), "--explain", "--diff"])
    assert "not allowed with" in capsys.readouterr().err


def test_a_diff_without_a_cluster_is_told_in_one_line(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    assert main(["render", str(file), "--diff"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
