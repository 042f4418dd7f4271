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
from gemma_operator.engine.flags import flag_name, known_flags
from gemma_operator.engine.versions import Version, spell
from tests.unit.builders import argv

ROOT = Path(__file__).parents[2]
CASES = {path.name.removesuffix(".serving.yaml"): path for path in (ROOT / "tests/golden").glob("*.serving.yaml")}
CASES["gemma4-e4b"] = ROOT / "examples/gemma4-e4b.yaml"
VERSIONS = [(0, minor, 0) for minor in range(19, 34)]


@pytest.mark.parametrize("case", sorted(CASES))
def test_a_serving_becomes_what_it_became_before(
    case: str, golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str], clean_environment: None
) -> None:
    assert main(["render", str(CASES[case])]) == 0
    golden(f"{case}.yaml", capsys.readouterr().out)


@pytest.mark.parametrize("version", VERSIONS, ids=spell)
@pytest.mark.parametrize("case", sorted(CASES))
def test_every_engine_version_takes_the_command_line(case: str, version: Version) -> None:
    """vLLM exits on an unknown flag and on a flag without its value, so each is checked against the version's own."""
    body: dict[str, Any] = yaml.safe_load(CASES[case].read_text())
    image = {**body["spec"].pop("engine", {}), "image": "vllm:any", "version": spell(version)}
    body["spec"]["engine"] = image
    if version < (0, 26, 0):
        body["spec"].get("pools", {}).get("interactive", {}).pop("mtp", None)
    serving, known = parse(body), known_flags(version)
    for pool in serving.spec.pools:
        arguments = argv(serving, pool, Defaults(engine_image="unused"))
        flags = [n for n, argument in enumerate(arguments) if argument.startswith("--")]
        for n, following in zip(flags, [*flags[1:], len(arguments)], strict=True):
            flag = known.get(flag_name(arguments[n]))
            assert flag, f"vLLM {spell(version)} doesn't know {arguments[n]}"
            values = following - n - 1 + ("=" in arguments[n])
            assert values == (1 if flag.takes_value else 0), arguments[n : following + 1]
        names = [flag_name(arguments[n]) for n in flags]
        assert len(names) == len(set(names)), "a flag is given twice"
