"""Media that a client can get wrong, by name, as parts of a chat message: vLLM alone answers some of them with 500, or dies of them."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

from PIL import Image


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def video(url: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url}}


def data(mime: str, *parts: bytes) -> str:
    return f"data:{mime};base64,{','.join(base64.b64encode(part).decode() for part in parts)}"


def picture(kind: str, width: int = 640, height: int = 480) -> bytes:
    buffer = io.BytesIO()
    Image.radial_gradient("L").resize((width, height)).convert("RGB").save(buffer, kind)
    return buffer.getvalue()


def half(whole: bytes) -> bytes:
    return whole[: len(whole) // 2]


def bomb(width: int, height: int) -> bytes:
    """A PNG of one colour that is huge only once it is unpacked."""
    rows = zlib.compress(bytes(1 + width // 8) * height, 9)
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def odd_dds() -> bytes:
    """A DDS that says of no pixel format that it has it."""
    whole = picture("DDS")
    return whole[:80] + bytes(4) + whole[84:]


def avi(header_bytes: int = 56) -> bytes:
    """An AVI without frames; with `header_bytes` too many, whoever skips the stream's header lands outside."""

    def chunk(name: bytes, content: bytes, length: int | None = None) -> bytes:
        return name + struct.pack("<I", len(content) if length is None else length) + content

    main = struct.pack("<14I", 500_000, 0, 0, 16, 0, 0, 1, 0, 64, 48, 0, 0, 0, 0)
    stream = b"vidsMJPG" + struct.pack("<12I", 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0)
    form = struct.pack("<IiiHHIIiiII", 40, 64, 48, 1, 24, 0, 0, 0, 0, 0, 0)
    headers = chunk(b"strh", stream, header_bytes) + chunk(b"strf", form)
    lists = chunk(b"LIST", b"hdrl" + chunk(b"avih", main) + chunk(b"LIST", b"strl" + headers))
    return chunk(b"RIFF", b"AVI " + lists + chunk(b"LIST", b"movi") + bytes(4096))


BAD: dict[str, dict[str, Any]] = {
    "no image": image("data:image/jpeg;base64,AAAA"),
    "half a JPEG": image(data("image/jpeg", half(picture("JPEG")))),
    "half a PNG": image(data("image/png", half(picture("PNG")))),
    "an AVIF without its end": image(data("image/avif", picture("AVIF")[:-20])),
    "a DDS without a pixel format": image(data("image/dds", odd_dds())),
    "an SVG": image(data("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'/>")),
    "1.6 gigapixels": image(data("image/png", bomb(40_000, 40_000))),
    "1.6 gigapixels in a video": video(data("video/jpeg", picture("JPEG"), bomb(40_000, 40_000))),
    "no base64": image("data:image/jpeg;base64,@@@"),
    "another encoding than base64": image("data:image/svg+xml,%3Csvg/%3E"),
    "a video in another encoding": video("data:video/mp4,abc"),
    "a data URL without data": image("data:image/jpeg;base64"),
    "a file of the server's": image("file:///etc/hostname"),
    "a scheme that nobody serves": image("ftp://127.0.0.1/x"),
    "a video that calls itself an image": image(data("image/jpeg", avi())),
    "an image that calls itself a video": video(data("video/mp4", picture("JPEG"))),
    "no video": video("data:video/mp4;base64,AAAA"),
    "JPEG video without frames": video("data:video/jpeg;base64,"),
    "AVI without frames": video(data("video/avi", avi())),
    "half an AVI": video(data("video/avi", avi()[:150])),
    "AVI whose header leads outside": video(data("video/avi", avi(0xFF000038))),
    "JPEG video of two sizes": video(data("video/jpeg", picture("JPEG"), picture("JPEG", 64, 64))),
    "audio, which the model can't hear": {"type": "audio_url", "audio_url": {"url": data("audio/wav", b"RIFF")}},
    "audio that is an image": {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(picture("JPEG")).decode(), "format": "wav"},
    },
}
