"""Series for promtool: engines and an operator, minute by minute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

POOL = {"namespace": "ns", "serving": "chat", "pool": "interactive"}
BATCH = {**POOL, "pool": "batch"}
EDGES = ("0.1", "0.3", "0.5", "1.0", "+Inf")
PerMinute = Callable[[int], float]
Series = dict[str, str]


def named(name: str, labels: Mapping[str, str]) -> str:
    return f"{name}{{{','.join(f'{key}=' + chr(34) + value + chr(34) for key, value in labels.items())}}}"


def numbers(values: list[float]) -> str:
    return " ".join(f"{value:g}" for value in values)


def always(value: float) -> PerMinute:
    return lambda _: value


def between(start: int, end: int, inside: float, outside: float = 0.0) -> PerMinute:
    """`inside` from minute `start` up to, and without, minute `end`."""
    return lambda minute: inside if start <= minute < end else outside


NONE, TWO, USUAL, TOKENS = always(0), always(2), always(60), always(600)


@dataclass
class Engine:
    """`good` requests a minute within 0.3 s, `slow` ones in 0.5 to 1 s; scraped up to minute `until`."""

    pod: str = "p0"
    good: PerMinute = USUAL
    slow: PerMinute = NONE
    running: PerMinute = TWO
    refused: PerMinute = NONE
    aborted: PerMinute = NONE
    tokens: PerMinute = TOKENS
    until: int | None = None
    edges: tuple[str, ...] = EDGES
    rank: str = "0"
    labels: Mapping[str, str] = field(default_factory=lambda: POOL)
    more: Mapping[str, PerMinute] = field(default_factory=dict)
    """Further counters."""

    def series(self, minutes: int) -> Series:
        own = {**self.labels, "pod": self.pod, "engine": self.rank, "model_name": "m", "job": "gemma-engines"}
        last = minutes if self.until is None else self.until

        def counted(per_minute: PerMinute) -> str:
            return numbers(list(accumulate(per_minute(minute) for minute in range(last))))

        ttft = "vllm:time_to_first_token_seconds"
        found = {
            named(f"{ttft}_bucket", {**own, "le": edge}): counted(self._within(edge)) for edge in self.edges
        }  # fmt: skip
        found |= {
            named(f"{ttft}_count", own): counted(lambda m: self.good(m) + self.slow(m)),
            named("vllm:generation_tokens_total", own): counted(self.tokens),
            named("vllm:prompt_tokens_total", own): counted(self.tokens),
            named("vllm:num_requests_running", own): numbers([self.running(m) for m in range(last)]),
            named("vllm:num_requests_waiting", own): numbers([0.0] * last),
            named("vllm:request_success_total", {**own, "finished_reason": "stop"}): counted(self.good),
            named("vllm:request_success_total", {**own, "finished_reason": "abort"}): counted(self.aborted),
            named("vllm:admission_rejections_total", {**own, "reason": "max_num_queued_reqs"}): counted(self.refused),
        }
        found |= {named(name, own): counted(per_minute) for name, per_minute in self.more.items()}
        return _ended(found, self.until)

    def _within(self, edge: str) -> PerMinute:
        limit = float(edge)
        return lambda minute: (self.good(minute) if limit >= 0.3 else 0.0) + (self.slow(minute) if limit >= 1 else 0.0)


INTERACTIVE = {
    "slo_ttft_target_seconds": 0.3, "slo_ttft_percentile": 95, "attainment_low": 0.98, "attainment_high": 1,
    "desired_replicas": 1, "wanted_replicas": 1, "ready_replicas": 1, "pending_replicas": 0, "unschedulable_replicas": 0,
    "lent_replicas": 0, "min_replicas": 1, "max_replicas": 4, "metrics_missing": 0, "cold_start_seconds": 300,
    'scaling_term{term="fast"}': 0.5, 'scaling_term{term="operating_point"}': 1, 'scaling_term{term="correction"}': 1,
    'decision_reason{reason="Steady"}': 1, 'decision_reason{reason="BudgetSpent"}': 0,
    'finding{kind="SloInfeasible"}': 0, 'finding{kind="ProfileStale"}': 0,
}  # fmt: skip
"""A healthy pool, as its operator tells it."""


@dataclass
class Operator:
    """What the operator tells of one pool; `changes` are values over time."""

    changes: Mapping[str, float | PerMinute] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=lambda: POOL)
    until: int | None = None
    ticks_until: int | None = None
    base: Mapping[str, float] = field(default_factory=lambda: INTERACTIVE)
    instance: str = "o1"
    leading: float = 1

    def series(self, minutes: int) -> Series:
        last = minutes if self.until is None else self.until
        target = {"job": "gemma-operator", "instance": self.instance}
        ticks = [60.0 * min(minute, self.ticks_until or minute) for minute in range(last)]
        found = {
            named("gemma_operator_last_tick_timestamp_seconds", target): numbers(ticks),
            named("gemma_operator_leading", target): numbers([self.leading] * last),
        }
        for name, value in {**self.base, **self.changes}.items():
            plain, _, rest = name.partition("{")
            own = {**self.labels, **target}
            if rest:
                label, _, text = rest.rstrip("}").partition("=")
                own[label] = text.strip('"')
            per_minute = value if callable(value) else always(value)
            found[named(f"gemma_operator_{plain}", own)] = numbers([per_minute(minute) for minute in range(last)])
        return _ended(found, self.until)


def _ended(series: Series, until: int | None) -> Series:
    """A failed scrape ends every series of a target at once."""
    return series if until is None else {name: f"{values} stale" for name, values in series.items()}
