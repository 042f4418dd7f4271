"""When an engine counts as hung, and what is done about it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gemma_operator.api.base import ApiModel


class Heartbeat(ApiModel):
    """An engine hangs while requests are in it and none of its counters moves: condition EnginesProgressing names it."""

    after_seconds: Annotated[int, Field(ge=30, le=3600)] = 180
    """Time without a token, a finished request or a change of the KV cache after which an engine counts as hung."""
    restart: bool = False
    """true: the Pod of a hung engine is evicted, one at a time in all pools together, and the next not before ten minutes; its
    requests fail, as they would have."""
