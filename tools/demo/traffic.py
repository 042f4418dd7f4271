"""Chat requests prepared once, so that sending one costs next to nothing beside the engines on the same machine."""

import base64
import io
import itertools
import json
import random
from collections.abc import Iterator

from PIL import Image, ImageDraw

from tools.demo.load import Body

FRAME_SIZE = (640, 480)
FRAMES_PER_VIDEO = 6
TEXT_CHARACTERS = 2000  # about 500 tokens
_WORDS = ("load", "moves", "over", "two", "pools", "while", "every", "engine", "keeps", "its", "own", "queue", "short")
_QUESTION: dict[str, object] = {"type": "text", "text": "What happens here?"}


def text_body(
    model: str, seed: int, *, max_tokens: int = 10, stream: bool = True, characters: int = TEXT_CHARACTERS
) -> Body:
    words = random.Random(seed)
    text = f"{seed}:"  # a beginning of its own: no prefix is shared
    while len(text) < characters:
        text += " " + words.choice(_WORDS)
    return _body("text", model, [{"type": "text", "text": text}], max_tokens, stream)


def image_body(model: str, seed: int, *, max_tokens: int = 10, stream: bool = True) -> Body:
    url = "data:image/jpeg;base64," + _frame(seed, 0)
    return _body("image", model, [{"type": "image_url", "image_url": {"url": url}}, _QUESTION], max_tokens, stream)


def video_body(model: str, seed: int, *, max_tokens: int = 10, stream: bool = True) -> Body:
    """A clip of 6 frames at 480p; `data:video/jpeg` with comma-separated frames is vLLM's form for decoded frames."""
    frames = ",".join(_frame(seed, number) for number in range(FRAMES_PER_VIDEO))
    url = "data:video/jpeg;base64," + frames
    return _body("video", model, [{"type": "video_url", "video_url": {"url": url}}, _QUESTION], max_tokens, stream)


def mixed(model: str, video_share: float, *, seed: int, pool: int = 12) -> Iterator[Body]:
    """Without end: a random mix of `pool` prepared texts and as many prepared videos."""
    draw = random.Random(seed)
    texts = [text_body(model, seed + n) for n in range(pool)]
    videos = [video_body(model, seed + n) for n in range(pool)]
    return (draw.choice(videos if draw.random() < video_share else texts) for _ in itertools.repeat(None))


def batch(model: str, *, seed: int, max_tokens: int = 64, pool: int = 4) -> Iterator[Body]:
    """Without end: longer answers to videos and texts in turn, not streamed, as offline work is."""
    bodies = [
        make(model, seed + number, max_tokens=max_tokens, stream=False)
        for number in range(pool)
        for make in (video_body, text_body)
    ]
    return itertools.cycle(bodies)


def _body(kind: str, model: str, content: list[dict[str, object]], max_tokens: int, stream: bool) -> Body:
    request: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": stream,
    }
    return Body(kind, json.dumps(request).encode())


def _frame(seed: int, number: int) -> str:
    """A 480p JPEG: a ball that moves over a coloured ground, another one for each seed."""
    colours = random.Random(seed)
    ground, ball = (tuple(colours.randrange(256) for _ in range(3)) for _ in range(2))
    image = Image.new("RGB", FRAME_SIZE, ground)
    left = 60 + 80 * number
    ImageDraw.Draw(image).ellipse((left, 140, left + 160, 300), fill=ball)
    jpeg = io.BytesIO()
    image.save(jpeg, "JPEG", quality=80)
    return base64.b64encode(jpeg.getvalue()).decode()
