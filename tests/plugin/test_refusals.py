"""What can't be read is the client's error, and what the server lacks is its own."""

from __future__ import annotations

import pytest
from gemma_engine.refusals import Video, refused, without_options


def raising(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("error", [SyntaxError("x"), NotImplementedError("x"), KeyError("x"), OSError("x")])
def test_what_cannot_be_read_is_a_value_error_that_says_what(error: Exception) -> None:
    with pytest.raises(ValueError, match=r"No image: '?x"):
        refused(raising, "No image")(error)


@pytest.mark.parametrize(
    "error", [ValueError("x"), UnicodeDecodeError("utf-8", b"", 0, 1, "x"), MemoryError(), ImportError()]
)
def test_what_says_enough_and_what_the_server_lacks_stay_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as found:
        refused(raising, "No image")(error)
    assert found.value is error


def test_what_can_be_read_is_what_it_was() -> None:
    assert refused(len, "No image")("abc") == 3


def test_a_request_has_no_options_of_its_own_and_the_servers_stay() -> None:
    assert without_options(object, {"num_frames": 6}, None) == {"num_frames": 6}
    assert without_options(object, None, {}) == {}
    with pytest.raises(ValueError, match="media_io_kwargs: how media are read is not for a request to say"):
        without_options(object, {"num_frames": 6}, {"num_frames": -1})


@pytest.mark.parametrize("place", [-1, -(1 << 31), 1 << 70])
def test_a_video_has_no_place_outside_and_says_so_without_an_error(place: int) -> None:
    video = Video(b"abc")
    assert video.seek(place) == -1
    assert video.seek(1) == 1
    assert video.read() == b"bc"
