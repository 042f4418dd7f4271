"""How changes reach the engines that run."""

from __future__ import annotations

from typing import Literal

from gemma_operator.api.base import ApiModel, ShortText


class Rollout(ApiModel):
    """How changes reach the engines that run, in all pools."""

    paused: bool = False
    """true: running engines stay as they are, whatever changes; sizes still move. A rollout that has begun halts."""
    strategy: Literal["Auto", "Surge", "Replace"] = "Auto"
    """Surge starts a new engine before it stops an old one, which takes a spare GPU; Replace stops one first; Auto
    surges, and replaces where a new engine has found no room for 10 minutes and fits in the place of an old one."""
    adopt: ShortText | None = None
    """Any text, for instance a date: changing it takes the operator's newest defaults (engine image, flags, probes),
    which otherwise come with the next change of a pool."""
