"""What a chat request asks of the engine: prompt tokens, media, length of the answer; refused as vLLM refuses.

Text counts one token per 4 characters (English prose under Gemma's tokenizer), plus 8 per message for the chat template.
Media are counted, never decoded or fetched: `data:video/jpeg;base64,<frame>,<frame>,...` has as many frames as it has
commas, any other video the most that the server samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemma_operator.simulation.standin.arguments import AUDIO_TOKENS, IMAGE_OVERHEAD, Arguments
from gemma_operator.simulation.step_model import Media

CHARACTERS_PER_TOKEN = 4
TEMPLATE_TOKENS = 8
ANSWER_TOKENS = 128  # where the model stops by itself, unless ignore_eos
BLOCK_TOKENS = 16  # of vLLM's prefix cache
# The cost of encoding audio is not measured: as for an image of as many tokens.
AUDIO = Media(frames=1, soft_tokens=AUDIO_TOKENS, overhead=0)
_MODALITY = {"image_url": "image", "video_url": "video", "audio_url": "audio", "input_audio": "audio"}


class ApiError(Exception):
    """A refusal, with vLLM's status code and type."""

    def __init__(self, status: int, message: str, type_: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.type, self.param = status, message, type_, param

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.status}}


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the prompt for the caches: its tokens, a hash of its content, and the media item that it is."""

    tokens: int
    digest: int
    media: Media | None = None
    modality: str = ""


@dataclass(frozen=True, slots=True)
class Chat:
    """A request for a chat completion, in tokens."""

    model: str
    segments: Sequence[Segment]
    output_tokens: int
    finish_reason: str
    max_tokens: int | None
    stream: bool
    include_usage: bool
    priority: int

    @property
    def prompt_tokens(self) -> int:
        return sum(segment.tokens for segment in self.segments)

    @property
    def media(self) -> list[Segment]:
        return [segment for segment in self.segments if segment.media]


def parse_chat(body: Any, arguments: Arguments, priority_header: str | None = None) -> Chat:
    """Read the JSON body of /v1/chat/completions. Raises ApiError."""
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object with model and messages")
    model = body.get("model") or arguments.served_names[0]
    if model not in arguments.served_names:
        raise ApiError(404, f"The model `{model}` does not exist.", "NotFoundError", "model")
    if (choices := body.get("n", 1)) not in (None, 1):
        raise ApiError(400, f"n is {choices!r}, the stand-in answers with n=1 only", param="n")
    segments = list(_segments(body.get("messages"), arguments))
    _check_limits(segments, arguments)
    prompt_tokens = sum(segment.tokens for segment in segments)
    max_tokens = _integer(body, "max_completion_tokens", 1) or _integer(body, "max_tokens", 1)
    _check_length(prompt_tokens, max_tokens, arguments.max_model_len)
    room = arguments.max_model_len - prompt_tokens
    wanted = min(max_tokens or room, room)
    stops = not body.get("ignore_eos") and wanted > ANSWER_TOKENS
    return Chat(
        model=model,
        segments=segments,
        output_tokens=ANSWER_TOKENS if stops else wanted,
        finish_reason="stop" if stops else "length",
        max_tokens=max_tokens,
        stream=bool(body.get("stream")),
        include_usage=_include_usage(body.get("stream_options") or {}),
        priority=_priority(body, priority_header, arguments),
    )


def _segments(messages: Any, arguments: Arguments) -> Iterator[Segment]:
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list with at least one message", param="messages")
    for message in messages:
        if not isinstance(message, dict):
            raise ApiError(400, f"a message must be an object with role and content, not {message!r}", param="messages")
        yield Segment(TEMPLATE_TOKENS, hash(str(message.get("role"))))
        content = message.get("content") or []
        if not isinstance(content, str | list):
            raise ApiError(400, f"content must be a string or a list of parts, not {content!r}", param="messages")
        for part in [content] if isinstance(content, str) else content:
            yield from _part(part, arguments)


def _part(part: Any, arguments: Arguments) -> Iterator[Segment]:
    if isinstance(part, str):
        yield from _text(part)
        return
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        yield from _text(str(part.get("text") or ""))
    elif kind in _MODALITY:
        content = part.get(kind)
        url = content.get("url") or content.get("data") if isinstance(content, dict) else content
        if not isinstance(url, str) or not url:
            raise ApiError(400, f"a part of type {kind} needs {kind}.url", param="messages")
        media = _media(kind, url, arguments)
        yield Segment(media.tokens, hash(url), media, _MODALITY[kind])
    else:
        raise ApiError(400, f"Unknown part type: {kind}", param="messages")


def _text(text: str) -> Iterator[Segment]:
    size = BLOCK_TOKENS * CHARACTERS_PER_TOKEN
    for start in range(0, len(text), size):
        block = text[start : start + size]
        yield Segment(math.ceil(len(block) / CHARACTERS_PER_TOKEN), hash(block))


def _media(kind: str, url: str, arguments: Arguments) -> Media:
    if _MODALITY[kind] == "audio":
        return AUDIO
    if not url.startswith(("data:", "http://", "https://", "file:")):
        raise ApiError(400, "The URL must be either a HTTP, data or file URL.", param="messages")
    if kind == "image_url":
        return Media(frames=1, soft_tokens=arguments.image_soft_tokens, overhead=IMAGE_OVERHEAD)
    if url.startswith("data:video/jpeg;"):
        return Media(frames=max(1, min(url.count(","), arguments.video_frames)))
    return Media(frames=arguments.video_frames)


def _check_limits(segments: Sequence[Segment], arguments: Arguments) -> None:
    for name, count in Counter(segment.modality for segment in segments if segment.media).items():
        limit = arguments.limits[name]
        if count > limit:
            raise ApiError(
                400,
                f"At most {limit} {name}(s) may be provided in one prompt."
                " Set `--limit-mm-per-prompt` to increase this limit.",
                param=name,
            )


def _check_length(prompt_tokens: int, max_tokens: int | None, limit: int) -> None:
    if prompt_tokens >= limit:
        raise ApiError(
            400,
            f"This model's maximum context length is {limit} tokens. However, your prompt contains {prompt_tokens}"
            " input tokens. Please reduce the length of the input prompt.",
            param="input_tokens",
        )
    if max_tokens and max_tokens > limit:
        raise ApiError(
            400,
            f"max_tokens={max_tokens} cannot be greater than max_model_len={limit}",
            param="max_tokens",
        )


def _include_usage(options: Any) -> bool:
    if not isinstance(options, dict):
        raise ApiError(400, f"stream_options must be an object, not {options!r}", param="stream_options")
    return bool(options.get("include_usage"))


def _integer(body: Mapping[str, Any], name: str, least: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or value < least:
        raise ApiError(400, f"{name} is {value!r}, allowed are numbers from {least}", param=name)
    return value


def _priority(body: Mapping[str, Any], header: str | None, arguments: Arguments) -> int:
    wanted = header if header is not None else body.get("priority") or 0
    try:
        priority = int(wanted)
    except (TypeError, ValueError):
        raise ApiError(400, f"priority is {wanted!r}, allowed are integers", param="priority") from None
    if priority and not arguments.engine.priority:
        raise ApiError(
            400, f"priority is {priority}, but only --scheduling-policy priority takes one", param="priority"
        )
    return priority
