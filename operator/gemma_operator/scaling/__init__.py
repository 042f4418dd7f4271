"""Scaling: raw counters become a window, a window becomes a verdict, a verdict becomes a decision. Pure, no clock."""

from .decide import decide, judge
from .types import (
    Decision,
    EngineSample,
    Fleet,
    Judgement,
    Memory,
    Missing,
    MissingReason,
    Policy,
    PoolKey,
    Reading,
    Reason,
    Slo,
    Verdict,
    Window,
)
from .window import History, observe

__all__ = [
    "Decision",
    "EngineSample",
    "Fleet",
    "History",
    "Judgement",
    "Memory",
    "Missing",
    "MissingReason",
    "Policy",
    "PoolKey",
    "Reading",
    "Reason",
    "Slo",
    "Verdict",
    "Window",
    "decide",
    "judge",
    "observe",
]
