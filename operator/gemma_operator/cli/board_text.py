"""The board of `gemma-operator top` as text: pieces that flow into lines of any width. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group
from rich.text import Text

from gemma_operator.cli.board import Pool, Samples, Serving, stepped

BARS = "▁▂▃▄▅▆▇█"
LEAST_SPARK, MOST_SPARK = 8, 40
BESIDE, ALONE = 94, 22
"""Characters of a line with two graphs that are none of theirs."""
SECONDS = 3600.0
"""How far back the little graphs go."""
Piece = Text
_SLO = {"True": ("SLO met", "green"), "False": ("SLO missed", "red"), "Unknown": ("SLO unknown", "yellow")}


def board(servings: Sequence[Serving], now: float, width: int, namespaces: bool, note: str = "") -> Group:
    """All servings; `namespaces`: name theirs; `note` stands last."""
    lines = [line for serving in servings for line in _serving(serving, now, width, namespaces)]
    if note:
        lines.append(_cut(Text(note, style="yellow"), width))
    return Group(*lines)


def spark(values: Iterable[float | None], top: float) -> str:
    """One character per value, from 0 to `top`; a blank for what isn't known."""
    known = len(BARS) - 1
    return "".join(
        " " if value is None else BARS[min(known, round(max(0.0, value) / top * known)) if top > 0 else 0]
        for value in values
    )


def _serving(serving: Serving, now: float, width: int, namespaces: bool) -> Iterator[Text]:
    colour = {True: "green", False: "red", None: "yellow"}[serving.good]
    name = f"{serving.namespace}/{serving.name}" if namespaces else serving.name
    slo, slo_colour = _SLO.get(serving.slo, _SLO["Unknown"])
    yield from _flow(
        [Text(name, style="bold"), Text(serving.state, style=colour), Text(slo, style=slo_colour)], width, ""
    )
    if serving.problem:
        yield _cut(Text(f"  {serving.problem}", style="red" if serving.good is False else "yellow"), width)
    if not serving.pools:
        yield _cut(Text("  no pools in its status yet", style="dim"), width)
    for pool in serving.pools:
        yield from _pool(pool, now, width)


def _pool(pool: Pool, now: float, width: int) -> Iterator[Text]:
    # Beside the numbers where both graphs fit there, else on a line of their own.
    cells = min(MOST_SPARK, max(LEAST_SPARK, (width - BESIDE) // 2 if width >= BESIDE + 20 else (width - ALONE) // 2))
    is_late = pool.p95 is not None and pool.target is not None and pool.p95 > pool.target
    pieces = [
        Text(pool.name, style="bold cyan"),
        Text(_engines(pool)),
        Text(_p95(pool), style="red" if is_late else ""),
    ]
    if pool.attainment:
        pieces.append(Text(pool.attainment.partition(" ")[0] + " in time"))
    top = max([2 * (pool.target or 0), *(value for _, value in pool.history.p95)], default=0.0)
    pieces += _graph("p95", pool.history.p95, top, now, cells)
    most = max((value for _, value in pool.history.replicas), default=0.0)
    pieces += _graph("engines", pool.history.replicas, most, now, cells)
    yield from _flow([piece for piece in pieces if piece.plain], width, "  ")
    if pool.message or pool.reason:
        said = ": ".join(part for part in (pool.reason, pool.message) if part)
        yield _cut(Text(f"    {said}", style="dim"), width)


def _engines(pool: Pool) -> str:
    if pool.desired is None:
        return "engines unknown"
    starting = f" +{pool.pending} starting" if pool.pending else ""
    return f"{pool.ready or 0}/{pool.desired} ready{starting}"


def _p95(pool: Pool) -> str:
    if pool.p95 is None:
        return "" if pool.target is None else f"p95 -/{pool.target:g} ms"
    return f"p95 {pool.p95:g}" + ("" if pool.target is None else f"/{pool.target:g}") + " ms"


def _graph(name: str, samples: Samples, top: float, now: float, cells: int) -> list[Text]:
    if len(samples) < 2:
        return []
    since = max(now - SECONDS, min(at for at, _ in samples))
    drawn = spark(stepped(samples, since, now, cells), top).lstrip()
    return [Text.assemble((f"{name} ", "dim"), (drawn, "blue"))] if drawn else []


def _flow(pieces: Sequence[Text], width: int, indent: str) -> Iterator[Text]:
    """Pieces two blanks apart, as many in a line as fit; further lines are indented more."""
    line = Text(indent)
    for piece in pieces:
        gap = "  " if line.plain.strip() else ""
        if gap and line.cell_len + len(gap) + piece.cell_len > width:
            yield line
            line, gap = Text(indent + "  "), ""
        line = line + Text(gap) + piece
        line.truncate(width, overflow="ellipsis")
    yield line


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    return text
