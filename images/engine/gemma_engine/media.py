"""The canary's media, made with the standard library alone: a probe has no time to import an image library."""

import base64
import struct
import zlib

SIDE = 96


def png(shift: int = 0) -> bytes:
    """A square picture with two gradients and a border; another one for every shift."""
    rows = b"".join(
        b"\0"
        + bytes(
            channel
            for x in range(SIDE)
            for channel in ((x * 2 + shift) % 256, (y * 2) % 256, 255 if min(x, y) < 8 else (x ^ y) % 256)
        )
        for y in range(SIDE)
    )
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def image_part() -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_base64(png())}"}}


def video_part(frames: int = 2) -> dict[str, object]:
    """A video as single pictures, which vLLM takes under a JPEG's name whatever their format is."""
    pictures = ",".join(_base64(png(shift=40 * frame)) for frame in range(frames))
    return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{pictures}"}}
