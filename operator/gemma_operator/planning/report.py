"""A plan in words, as tables for people and as data for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from gemma_operator.planning.load import STEP
from gemma_operator.planning.memory import Memory
from gemma_operator.planning.plan import HOUR, Fleet, Plan, Wish

_HOURS_SHOWN = 24


def show(plan: Plan, wish: Wish, console: Console) -> None:
    """Print the tables."""
    facts = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _facts(plan, wish):
        facts.add_row(name, value)
    console.print(facts)
    console.print()
    console.print(_fleets(plan, wish))
    console.print(_day(plan))
    console.print(_changes(plan, wish))
    advice = plan.encoder_pool
    console.print(
        f"A pool of its own for the vision encoder {'may pay' if advice.pays else 'would not pay'}: {advice.why}."
    )
    if plan.memory:
        console.print()
        for line in _memory(plan.memory):
            console.print(line)
    for note in plan.notes:
        console.print(f"note: {note}")


def figures(plan: Plan, wish: Wish) -> dict[str, Any]:
    """The same as data; hours are of GPUs, times in seconds."""
    memory = plan.memory
    return {
        "workload": {
            "seconds": plan.seconds,
            "requests": plan.requests,
            "meanRate": plan.mean_rate,
            "peakRate": plan.peak_rate,
            "mediaShare": plan.media_share,
            "burstiness": plan.burstiness,
        },
        "slo": {"percentile": wish.slo.percentile, "seconds": wish.slo.seconds},
        "profile": wish.profile.name,
        "requestsPerSecondPerEngine": plan.per_engine,
        "maxQueuedTokens": plan.queued_tokens,
        "fleet": _data(plan.fleet, wish),
        "pools": {name: _data(fleet, wish) for name, fleet in plan.pools.items()},
        "replicas": {
            "stepSeconds": STEP,
            "interactive": plan.interactive.tolist(),
            "needed": plan.needed.tolist(),
            "batch": plan.batch,
        },
        "expected": {"attainment": plan.seen.attainment, "ttft": plan.seen.usual, "ttftAtPeak": plan.seen.worst},
        "changes": [
            {"what": change.what, "said": change.said, "fleet": _data(change.fleet, wish) if change.fleet else None}
            for change in plan.changes
        ],
        "encoderPool": {"pays": plan.encoder_pool.pays, "why": plan.encoder_pool.why},
        "memory": memory
        and {
            "gpu": memory.gpu,
            "totalGiB": memory.total,
            "weightsGiB": memory.weights,
            "encoderGiB": memory.encoder,
            "kvGiB": memory.kv_room,
            "kvBytesPerToken": memory.kv_per_token,
            "kvTokens": memory.kv_tokens,
            "requestsAtOnce": memory.requests,
            "kvTokensTextOnly": memory.text_only_tokens,
            "fits": memory.fits,
        },
        "notes": list(plan.notes),
    }


def _facts(plan: Plan, wish: Wish) -> list[tuple[str, str]]:
    seen = plan.seen
    name, target = f"p{wish.slo.percentile:g} TTFT", f"{wish.slo.seconds * 1000:g} ms"
    media = f"{plan.media_share:.0%} with media" if plan.media_share else "text only"
    rates = f"{plan.mean_rate:.3g}/s, {plan.peak_rate:.3g}/s at the peak"
    usual, worst = f"{seen.usual * 1000:.0f} ms", f"{seen.worst * 1000:.0f} ms at the peak"
    limit = plan.queued_tokens and f"admission.maxQueuedTokens {plan.queued_tokens:,}: prompt tokens that it works off"
    queue = [("its queue", f"{limit} within {target}, media included")] if limit else []
    return [
        ("workload", f"{plan.requests:,} requests in {plan.seconds / HOUR:.3g} h: {rates}, {media}"),
        (
            "one engine",
            f"{plan.per_engine:.3g} requests/s of this mix, {name} within {target} (profile {wish.profile.name})",
        ),
        *queue,
        ("clients see", f"{seen.attainment:.2%} within {target}; {name} {usual}, {worst} (step model)"),
    ]


def _fleets(plan: Plan, wish: Wish) -> Table:
    table = Table(title="Fleet", title_justify="left")
    table.add_column("pool")
    for column in ("engines at the peak", "GPUs", "GPU-hours, autoscaled", "GPU-hours, always the peak"):
        table.add_column(column, justify="right")
    if wish.price is not None:
        table.add_column("cost", justify="right")
    rows = plan.pools | ({"all": plan.fleet} if len(plan.pools) > 1 else {})
    for name, fleet in rows.items():
        cells = [
            name,
            f"{fleet.peak}",
            f"{fleet.peak * wish.gpus}",
            f"{fleet.gpu_hours:.1f}",
            f"{fleet.static_gpu_hours:.1f}",
        ]
        if wish.price is not None:
            cells.append(f"{fleet.gpu_hours * wish.price:,.2f} of {fleet.static_gpu_hours * wish.price:,.2f}")
        table.add_row(*cells)
    return table


def _day(plan: Plan) -> Table:
    """Engines of the interactive pool by the hour, or by less for a shorter workload."""
    table = Table(title="Replicas over time (interactive)", title_justify="left")
    for column in ("from", "requests/s", "needed", "up"):
        table.add_column(column, justify="right")
    steps = len(plan.interactive)
    width = max(1, -(-steps // _HOURS_SHOWN))
    for start in range(0, steps, width):
        part = slice(start, start + width)
        minutes = round(start * STEP / 60)
        low, high = plan.interactive[part].min(), plan.interactive[part].max()
        table.add_row(
            f"{minutes // 60:02d}:{minutes % 60:02d}",
            f"{plan.rates[part].mean():.3g}",
            f"{plan.needed[part].max()}",
            f"{low}" if low == high else f"{low} to {high}",
        )
    return table


def _changes(plan: Plan, wish: Wish) -> Table:
    table = Table(title="What would change", title_justify="left")
    table.add_column("with")
    table.add_column("engines at the peak", justify="right")
    table.add_column("GPU-hours", justify="right")
    table.add_column("why")
    table.add_row("as planned", f"{plan.fleet.peak}", f"{plan.fleet.gpu_hours:.1f}", "")
    for change in plan.changes:
        fleet = change.fleet
        peak, hours = (f"{fleet.peak}", f"{fleet.gpu_hours:.1f}") if fleet else ("-", "-")
        table.add_row(change.what, peak, hours, change.said)
    return table


def _memory(memory: Memory) -> list[str]:
    lines = [
        f"Memory of {memory.gpu} ({memory.total:.0f} GiB): weights {memory.weights:.1f} GiB{_encoder(memory)}, "
        f"{max(0.0, memory.kv_room):.1f} GiB for KV cache."
    ]
    if not memory.fits:
        lines.append(
            "The model doesn't fit: take more GPUs per engine (--gpus), a larger GPU or a smaller --precision."
        )
    elif memory.kv_tokens is not None:
        lines.append(
            f"That is {memory.kv_tokens:,} tokens of long contexts, or {memory.requests:,} requests of the mean length at once."
        )
        if memory.text_only_tokens:
            lines.append(
                f"A text-only pool leaves the encoder out, {memory.encoder:.1f} GiB of weights and the room that it computes in: "
                f"about {memory.text_only_tokens:,} tokens (+12.6 %, seed 001)."
            )
    return lines


def _encoder(memory: Memory) -> str:
    return f" ({memory.encoder:.1f} of them the vision encoder)" if memory.encoder else ""


def _data(fleet: Fleet, wish: Wish) -> dict[str, Any]:
    cost = (
        {}
        if wish.price is None
        else {"cost": fleet.gpu_hours * wish.price, "staticCost": fleet.static_gpu_hours * wish.price}
    )
    return {
        "peakEngines": fleet.peak,
        "peakGpus": fleet.peak * wish.gpus,
        "gpuHours": fleet.gpu_hours,
        "staticGpuHours": fleet.static_gpu_hours,
        **cost,
    }
