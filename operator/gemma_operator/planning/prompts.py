"""Bodies of chat requests of which no two are alike, so that no cache hides what they cost."""

from __future__ import annotations

import base64
import json
import random
import string
import struct
import zlib
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 854, 480
"""Pixels of a frame: 480p, as in seed 000."""
CHARACTERS_PER_TOKEN = 4
"""Of English prose under Gemma's tokenizer, roughly; what it really was, the server's usage says."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What requests ask for."""

    prompt_tokens: int = 500
    """Text of the prompt."""
    output_tokens: int = 100
    media_share: float = 0.0
    """Share of the requests with an image or a video."""
    frames: int = 6
    """1: an image; more: a video of that many frames."""


def body_of(model: str, wanted: Wanted, with_media: bool, rng: random.Random) -> bytes:
    """The JSON of one request."""
    content: list[dict[str, Any]] = [{"type": "text", "text": _prose(wanted.prompt_tokens, rng)}]
    if with_media:
        pictures = [base64.b64encode(picture(rng)).decode() for _ in range(wanted.frames)]
        if wanted.frames > 1:
            # vLLM takes a list of pictures for a video under this name; each is told by its content, PNG or JPEG.
            content.append({"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{','.join(pictures)}"}})
        else:
            content.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pictures[0]}"}})
    return json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": wanted.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()


def picture(rng: random.Random, width: int = WIDTH, height: int = HEIGHT) -> bytes:
    """A PNG of stripes of random colours: its first row is random, the others repeat it."""
    rows = b"\x00" + rng.randbytes(3 * width) + (b"\x02" + bytes(3 * width)) * (height - 1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _prose(tokens: int, rng: random.Random) -> str:
    letters = rng.choices(string.ascii_lowercase, k=tokens * (CHARACTERS_PER_TOKEN - 1))
    words = ("".join(letters[start : start + 3]) for start in range(0, len(letters), 3))
    return " ".join(words)
