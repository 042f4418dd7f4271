"""What the operator believes of vLLM's flags, against the real argument parser of every version that is on this machine."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gemma_operator.api.serving import Spec
from gemma_operator.cli import main
from gemma_operator.engine.arguments import RESERVED, findings
from gemma_operator.engine.flag_table import FLAGS
from gemma_operator.engine.flags import UnknownFlag, canonical, known_flags
from gemma_operator.engine.versions import NEWEST, Version, spell
from gemma_operator.engine.view import PoolView
from tests.support.engine_parser import INSTALLED, Answer, EngineParser, versions

ROOT = Path(__file__).parents[2]
CASES = {path.name.removesuffix(".serving.yaml"): path for path in (ROOT / "tests/golden").glob("*.serving.yaml")}
CASES["gemma4-e4b"] = ROOT / "examples/quick-start/serving.yaml"
NO_VALUE = ("flag", "switch", "optional")
ODD_NUMBERS = [
    "1", "-1", "0", "+3", "1.5", ".5", "5.", "1e3", "4k", "2.5K", "1M", "1g", "auto", "many", "1_000", "0x10", "nan", "inf",
    "90%", "32Q", "--1",
]  # fmt: skip
EVERY_FLAG = sorted({flag for flag, *_ in FLAGS})

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", params=versions(), ids=spell)
def version(request: pytest.FixtureRequest) -> Version:
    wanted: Version = request.param
    return wanted


@pytest.fixture(scope="module")
def parser(version: Version) -> Iterator[EngineParser]:
    with EngineParser(version) as running:
        yield running


def test_the_table_has_the_parsers_flags(parser: EngineParser, version: Version) -> None:
    assert set(known_flags(version)) == set(parser.spellings.values())
    assert {spelling: canonical(spelling, version) for spelling in parser.spellings} == parser.spellings


def test_the_table_knows_which_flags_take_a_value(parser: EngineParser, version: Version) -> None:
    wants = re.compile("expected|No config file specified")
    wanting = {name for name in known_flags(version) if wants.search(parser.accepts([name]) or "")}
    assert wanting == {name for name, flag in known_flags(version).items() if flag.kind not in NO_VALUE}


@pytest.mark.parametrize("newest", [v for v in (INSTALLED, NEWEST) if v in versions()], ids=spell)
def test_a_number_that_we_let_through_is_one_to_the_parser(newest: Version) -> None:
    kinds = ("int", "float", "count")
    numbers = [name for name, flag in known_flags(newest).items() if flag.kind in kinds and name not in RESERVED]
    taken = [[f"{name}={value}"] for name in numbers for value in ODD_NUMBERS if refusal(name, value, newest) is None]
    with EngineParser(newest) as parser:
        assert [line for line in taken if "invalid" in (parser.accepts(line) or "")] == []


def refusal(name: str, value: str, version: Version) -> str | None:
    """What we say of a flag with a value, in a pool that is well otherwise."""
    pools = {"batch": {"extraArgs": [f"{name}={value}"]}}
    spec = Spec.model_validate({"model": {"id": "google/gemma-4-E4B-it"}, "pools": pools})
    return next(
        (f.message for f in findings(PoolView(spec, "batch", version), set()) if f.id == "InvalidArgument"), None
    )


def test_a_word_that_no_flag_takes_is_ignored_in_silence(parser: EngineParser) -> None:
    for stray in (["--enforce-eager", "true"], ["true", "--enforce-eager"], ["--enforce-eager", "--max-num-seqs 4"]):
        answer = parser.answer(stray)
        assert answer.error is None
        assert set(answer.flags) == {"--enforce-eager", "model_tag"}
    assert "unrecognized arguments" in (parser.accepts(["--enforce-eager", "true", "true"]) or "")


@pytest.mark.parametrize("case", sorted(CASES))
def test_every_version_takes_the_command_line_that_is_rendered_for_it(
    case: str, parser: EngineParser, version: Version, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body: dict[str, Any] = yaml.safe_load(CASES[case].read_text())
    body["spec"]["engine"] = {**body["spec"].get("engine", {}), "image": "vllm:any", "version": spell(version)}
    (tmp_path / "serving.yaml").write_text(yaml.safe_dump(body))
    if main(["render", str(tmp_path / "serving.yaml")]):
        # tests/unit/test_golden.py has what may be refused.
        assert version < NEWEST
        return
    documents = [
        document for document in yaml.safe_load_all(capsys.readouterr().out) if document["kind"] == "Deployment"
    ]
    assert documents
    for document in documents:
        arguments = document["spec"]["template"]["spec"]["containers"][0]["args"]
        meant = [canonical(argument, version) for argument in arguments if argument.startswith("-")]
        assert parser.answer(arguments) == Answer(None, list(dict.fromkeys(meant))), "each --middleware adds one"


@st.composite
def spelled(draw: st.DrawFn) -> str:
    """An argument as a person might write it: shortened, with underscores, a value, a key of JSON, or a slip."""
    name = draw(st.sampled_from([*EVERY_FLAG, "-tp", "-q", "-O", "-cc", "-asc", "--device-memory-utilization"]))
    if name.startswith("--"):
        name = "--" + draw(st.sampled_from(["", "", "", "no-", "disable-", "enable-"])) + name[2:]
    if draw(st.booleans()):
        name = name[: draw(st.integers(3, max(3, len(name))))]
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(2, len(name)))
        name = name[:at] + draw(st.sampled_from("xe-_2 ")) + name[at:]
    if draw(st.booleans()):
        name = name[:2] + name[2:].replace("-", "_")
    return name + draw(st.sampled_from(["", "", "=1", "=a.b", ".key=1", ".a_b.c-d=x", "3"]))


@pytest.mark.parametrize("version", versions()[-2:], ids=spell, scope="module", indirect=True)
@settings(max_examples=500)
@given(argument=spelled())
def test_an_argument_means_what_the_parser_takes_it_for(parser: EngineParser, version: Version, argument: str) -> None:
    try:
        expected = canonical(argument, version)
    except UnknownFlag:
        expected = None
    assume(argument != "-O")  # what follows decides
    assert meaning(parser, argument) == expected, argument


def meaning(parser: EngineParser, argument: str) -> str | None:
    """The flag for which the parser takes an argument, told from its answer; None where it refuses the spelling."""
    answer = parser.answer([argument])
    if answer.error is None:
        return next((flag for flag in answer.flags if flag != "model_tag"), None)
    if answer.error.startswith(("unrecognized arguments", "ambiguous option")):
        return None
    named = re.match(r"argument ([^:]+):", answer.error)
    assume(named)
    assert named
    return parser.spellings[named[1].split("/")[0]]
