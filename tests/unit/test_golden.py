"""What whole GemmaServings become, and that every engine version takes the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemma_operator.api.parse import parse
from gemma_operator.cli import main
from gemma_operator.desired import Defaults
from gemma_operator.engine.findings import RefusedSpec
from gemma_operator.engine.flag_table import VERSIONS
from gemma_operator.engine.flags import flag_name, known_flags
from gemma_operator.engine.versions import NEWEST, Version, spell
from tests.unit.builders import argv

ROOT = Path(__file__).parents[2]
CASES = {path.name.removesuffix(".serving.yaml"): path for path in (ROOT / "tests/golden").glob("*.serving.yaml")}
CASES["gemma4-e4b"] = ROOT / "examples/quick-start/serving.yaml"
# What a golden object may ask of a version that lacks it.
LACKING = {
    "NotInThisVersion", "MtpUnavailable", "LoadStepsUnavailable", "LoraUnavailable", "GraphsUnavailable",
    "BatchedEncoderUnavailable", "PluginUnavailable", "ModelNeedsNewerEngine", "PrefillInterval", "ArgumentUnknown",
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(CASES))
def test_a_serving_becomes_what_it_became_before(
    case: str, golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str], clean_environment: None
) -> None:
    assert main(["render", str(CASES[case])]) == 0
    golden(f"{case}.yaml", capsys.readouterr().out)


@pytest.mark.parametrize("version", VERSIONS, ids=spell)
@pytest.mark.parametrize("case", sorted(CASES))
def test_every_engine_version_takes_the_command_line_or_is_refused_for_a_field_it_lacks(
    case: str, version: Version
) -> None:
    """vLLM exits on an unknown flag and on a flag without its value, so each is checked against the version's own.

    tests/engine asks the versions' own parsers as well.
    """
    body: dict[str, Any] = yaml.safe_load(CASES[case].read_text())
    body["spec"]["engine"] = {**body["spec"].get("engine", {}), "image": "vllm:any", "version": spell(version)}
    serving, known = parse(body), known_flags(version)
    try:
        lines = {pool: argv(serving, pool, Defaults(engine_image="unused")) for pool in serving.spec.pools}
    except RefusedSpec as error:
        if not {finding.id for finding in error.findings} <= LACKING:
            raise
        return
    for arguments in lines.values():
        flags = [n for n, argument in enumerate(arguments) if argument.startswith("--")]
        for n, following in zip(flags, [*flags[1:], len(arguments)], strict=True):
            flag = known.get(flag_name(arguments[n]))
            assert flag, f"vLLM {spell(version)} doesn't know {arguments[n]}"
            values = following - n - 1 + ("=" in arguments[n])
            assert values >= 1 if flag.kind == "values" else values == flag.takes_value, arguments[n : following + 1]
        names = [name for n in flags if (name := flag_name(arguments[n])) != "--middleware"]  # of which vLLM takes each
        assert len(names) == len(set(names)), "a flag is given twice"


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_newest_version_takes_all_of_it(case: str) -> None:
    body: dict[str, Any] = yaml.safe_load(CASES[case].read_text())
    body["spec"]["engine"] = {
        **body["spec"].get("engine", {}),
        "image": f"vllm:v{spell(NEWEST)}",
        "version": spell(NEWEST),
    }
    serving = parse(body)
    assert all(argv(serving, pool) for pool in serving.spec.pools)
