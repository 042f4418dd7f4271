"""Media that a client got wrong, or wants to be read in a way of its own, are refused with 400, and end nothing.

vLLM 0.26 to 0.33 answer 400 to a ValueError (`create_error_response`) and 500 to most else, and expect little but OSError of Pillow.
Its formats raise more: a picture too large to unpack is a DecompressionBombError, a truncated AVIF a SyntaxError, an odd DDS a
NotImplementedError. vLLM itself raises NotImplementedError (501) for a data URL without base64, RuntimeError for a file's URL.
"""

import functools
import importlib
import importlib.util
import io
from collections.abc import Callable
from typing import Any

GUARDED = (0, 31)
"""vLLM takes `mm_processor_kwargs` and `media_io_kwargs` of a request from here on only with --trust-request-mm-kwargs. Before, from
anyone: {"patch_size": 1} ends the engine (0.32 with that flag, tried), and {"video": {"num_frames": -1}} reads all of a video."""

OURS = (ImportError, MemoryError)
"""What is amiss with the server, whatever the client sent."""


def refused(load: Callable[..., Any], what: str) -> Callable[..., Any]:
    """`load`, whose errors are ValueErrors that begin with `what`, but for those that are the server's."""

    @functools.wraps(load)
    def loaded(*args: Any, **kwargs: Any) -> Any:
        try:
            return load(*args, **kwargs)
        except (ValueError, *OURS):
            raise
        except Exception as error:
            raise ValueError(f"{what}: {error}") from error

    return loaded


def refuse_options(given: Any, name: str) -> None:
    """ValueError where a request says how its media are to be read."""
    if given:
        raise ValueError(f"{name}: how media are read is not for a request to say; the server's own {name} may be set")


def without_options(_: type, default_kwargs: Any, runtime_kwargs: Any) -> dict[str, Any]:
    """In the place of `MediaIO.merge_kwargs`, which lays a request's options over the server's."""
    refuse_options(runtime_kwargs, "media_io_kwargs")
    return dict(default_kwargs or {})


class Video(io.BytesIO):
    """A video for OpenCV, which ends the process with a segmentation fault where `seek` raises (seen with 5.0.0)."""

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """-1, FFmpeg's sign of an error, for a place that there is not: headers may name any."""
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return -1


@functools.cache
def install(version: tuple[int, int]) -> None:
    """Once in a process, in the place of what vLLM of this version reads media with. The processor refuses its part itself."""
    from vllm.multimodal.media.base import MediaIO
    from vllm.multimodal.media.connector import MediaConnector
    from vllm.multimodal.media.image import ImageMediaIO

    for owner, name, what in (
        (ImageMediaIO, "load_bytes", "Failed to load image"),
        (MediaConnector, "_load_data_url", "Failed to load the data URL"),
        (MediaConnector, "_load_file_url", "Failed to load the file URL"),
    ):
        setattr(owner, name, refused(getattr(owner, name), what))
    opencv_reader().BytesIO = Video
    if version < GUARDED:
        MediaIO.merge_kwargs = classmethod(without_options)


def opencv_reader() -> Any:
    """vLLM's module that opens a video with OpenCV; it moved in 0.29."""
    moved = importlib.util.find_spec("vllm.multimodal.video_decoders")
    return importlib.import_module("vllm.multimodal.video_decoders.opencv" if moved else "vllm.multimodal.video")
