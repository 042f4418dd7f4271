"""Gemma 4's chat template: what the model is given to read, and that vLLM's parser reads the marks back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from tools.images.recipes import ROOT

TEMPLATE = (ROOT / "images" / "engine" / "chat_template_gemma4.jinja").read_text()
QUIET = "<|channel>thought\n<channel|>"

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "A town"}, "days": {"type": "integer"}},
            "required": ["place"],
        },
    },
}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "function": {"name": "weather", "arguments": {"place": "Ulm", "days": 2}}}],
}
RESPONSE = {"role": "tool", "tool_call_id": "1", "content": "rain"}
CALLED = '<|tool_call>call:weather{days:2,place:<|"|>Ulm<|"|>}<tool_call|>'
RESPONDED = '<|tool_response>response:weather{value:<|"|>rain<|"|>}<tool_response|>'


def rendered(messages: list[dict[str, Any]], tools: list[Any] | None = None, prompt: bool = True, **rest: Any) -> str:
    found, _ = render_jinja_template(
        [messages], tools=tools, chat_template=TEMPLATE, add_generation_prompt=prompt, bos_token="<bos>", **rest
    )
    text: str = found[0]
    return text


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


ASKED = "<|turn>user\nHi<turn|>\n"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param([user("Hi")], f"<bos>{ASKED}<|turn>model\n{QUIET}", id="a question"),
        pytest.param(
            [{"role": "system", "content": " Be brief. "}, user("Hi")],
            f"<bos><|turn>system\nBe brief.<turn|>\n{ASKED}<|turn>model\n{QUIET}",
            id="with instructions",
        ),
        pytest.param(
            [user([{"type": "image"}, {"type": "video"}, {"type": "text", "text": "What?"}])],
            f"<bos><|turn>user\n<|image|><|video|>What?<turn|>\n<|turn>model\n{QUIET}",
            id="media in their order",
        ),
        pytest.param(
            [user("Hi"), {"role": "assistant", "content": "<|channel>thought\nhm<channel|>Hello"}, user("Hi")],
            f"<bos>{ASKED}<|turn>model\nHello<turn|>\n{ASKED}<|turn>model\n{QUIET}",
            id="earlier thinking is left out",
        ),
        pytest.param(
            [user("Hi"), CALL, RESPONSE],
            f"<bos>{ASKED}<|turn>model\n{CALLED}{RESPONDED}",
            id="a tool's response: the model goes on in its turn",
        ),
        pytest.param(
            [user("Hi"), CALL, RESPONSE, {"role": "assistant", "content": "Rain."}, user("Hi")],
            f"<bos>{ASKED}<|turn>model\n{CALLED}{RESPONDED}Rain.<turn|>\n{ASKED}<|turn>model\n{QUIET}",
            id="an answer after a tool, then a question",
        ),
        pytest.param(
            [user("Hi"), {**CALL, "reasoning": "It depends."}, RESPONSE],
            f"<bos>{ASKED}<|turn>model\n<|channel>thought\nIt depends.\n<channel|>{CALLED}{RESPONDED}",
            id="thinking before a call of this turn stays",
        ),
    ],
)
def test_what_the_model_reads(messages: list[dict[str, Any]], expected: str) -> None:
    assert rendered(messages) == expected


def test_thinking_is_asked_for_in_the_system_turn() -> None:
    assert (
        rendered([user("Hi")], enable_thinking=True) == f"<bos><|turn>system\n<|think|>\n<turn|>\n{ASKED}<|turn>model\n"
    )


def test_tools_are_declared_in_the_system_turn() -> None:
    text = rendered([user("Hi")], tools=[WEATHER], prompt=False)
    declared = (
        'declaration:weather{description:<|"|>The weather of a place<|"|>,parameters:{properties:{days:{type:<|"|>INTEGER<|"|>},'
        'place:{description:<|"|>A town<|"|>,type:<|"|>STRING<|"|>}},required:[<|"|>place<|"|>],type:<|"|>OBJECT<|"|>}}'
    )
    assert text == f"<bos><|turn>system\n<|tool>{declared}<tool|><turn|>\n{ASKED}"


words = st.text("abcxyz ,:{}[]\n'é", min_size=1, max_size=12)
arguments = st.dictionaries(
    st.text("abc_", min_size=1, max_size=5),
    st.one_of(words, st.integers(-99, 99), st.booleans(), st.lists(words, max_size=3)),
    max_size=4,
)


@given(arguments)
def test_vllms_parser_reads_a_call_back(given_arguments: dict[str, Any]) -> None:
    from vllm.parser.gemma4 import _parse_gemma4_args

    call = {"id": "1", "function": {"name": "f", "arguments": given_arguments}}
    text = rendered([user("Hi"), {"role": "assistant", "content": "", "tool_calls": [call]}], prompt=False)
    inside = text.split("call:f{", 1)[1].rsplit("}<tool_call|>", 1)[0]
    assert _parse_gemma4_args(inside) == {key: bare(item) for key, item in given_arguments.items()}


def bare(item: Any) -> Any:
    """Numbers and booleans come back as text: vLLM turns them into what the tool's schema says later."""
    return json.dumps(item) if isinstance(item, int) else item
