"""One HTML page about a run, which opens without a network: figures, picture, decisions, events."""

import base64
from html import escape

from tools.demo import plot
from tools.demo.recording import Recording, Row, decisions, milliseconds, share, shortfalls, summarise

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1f2328; --soft: #57606a; --line: #d8dce1; --box: #f5f7f9;
  --good: #14693d; --bad: #b42323; }
@media (prefers-color-scheme: dark) { :root { --page: #15191f; --ink: #e3e7ec; --soft: #a0aab6; --line: #363d47;
  --box: #1d232b; --good: #4cc38a; --bad: #ff7b72; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1.25rem; background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p, ul { margin: .4rem 0; } .soft { color: var(--soft); }
.verdict { border-left: .3rem solid; padding: .6rem .9rem; background: var(--box); margin: 1rem 0; }
.good { border-color: var(--good); } .bad { border-color: var(--bad); }
.good strong { color: var(--good); } .bad strong, td.miss { color: var(--bad); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th { color: var(--soft); font-weight: 600; font-size: .87rem; }
th:first-child, .words td, .words th { text-align: left; }
td { white-space: nowrap; } .words td:last-child { white-space: normal; } img { width: 100%; height: auto; display: block; }
@media (max-width: 30rem) { th, td { padding: .35rem .3rem; font-size: .84rem; } body { padding: 1rem .6rem; } }
pre { background: var(--box); padding: .75rem; overflow-x: auto; font-size: .84rem; line-height: 1.45; }
summary { cursor: pointer; }
"""


def html(recording: Recording) -> str:
    rows = summarise(recording)
    title = f"{recording.serving} under load"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="soft">{escape(recording.started)} · engine: {escape(recording.engine)}</p>
{_verdict(recording, rows)}
<h2>What happened</h2>
{_picture(recording, rows)}
<h2>By phase</h2>
{_table([_cells(row, recording.slo) for row in rows])}
<p class="soft">p95 by the client counts every interactive request from the moment it was due; one that failed counts
as never answered. p95 by Prometheus is the highest value seen in the phase; far above the SLO it is a guess between
distant edges of the histogram (1 s and 2.5 s, for instance), at the SLO there is an edge. Attainment: share of requests
answered within {milliseconds(recording.slo)}. Engines: Ready ones at the phase's beginning and end. Batch: requests
completed by the batch pool meanwhile.</p>
<h2>Decisions for the interactive pool</h2>
{_words("When", "Decision", [(f"{at:.0f} s", text) for at, text in decisions(recording)])}
<h2>Kubernetes events</h2>
{_words("When", "Event", [(f"{e.at:.0f} s", f"{e.about}: {e.reason}: {e.message}") for e in recording.events])}
<h2>How it was made</h2>
<pre>{escape(chr(10).join(recording.commands))}</pre>
<details><summary>The GemmaServing as applied</summary><pre>{escape(recording.deployed)}</pre></details>
</body>
</html>
"""


def table(recording: Recording) -> str:
    """The figures by phase, for a terminal."""
    lines = [_HEADINGS, *([text for text, _ in _cells(row, recording.slo)] for row in summarise(recording))]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


_HEADINGS = [
    *("phase", "seconds", "req/s", "requests", "failed"),
    *("p95 client", "p95 Prometheus", "attainment", "engines", "batch done"),
]


def _cells(row: Row, slo: float) -> list[tuple[str, bool]]:
    """Each cell's text, and whether it shows a miss."""
    engines = "-" if row.replicas is None else " → ".join(str(count) for count in dict.fromkeys(row.replicas))
    return [
        (row.phase.name, False),
        (f"{row.phase.end - row.phase.start:.0f}", False),
        (f"{row.phase.rate:g}", False),
        (str(row.requests), False),
        (str(row.failed), row.failed > 0),
        (milliseconds(row.p95), row.p95 is not None and row.p95 > slo),
        (milliseconds(row.p95_prometheus), row.p95_prometheus is not None and row.p95_prometheus > slo),
        (share(row.attainment), row.attainment is not None and row.attainment < 0.95),
        (engines, False),
        (str(row.batch_done), False),
    ]


def _verdict(recording: Recording, rows: list[Row]) -> str:
    missing = shortfalls(recording)
    if missing:
        items = "".join(f"<li>{escape(text)}</li>" for text in missing)
        return f'<div class="verdict bad"><strong>The run fell short.</strong><ul>{items}</ul></div>'
    warm, peak, recovered = rows
    before, after = (row.replicas[1] if row.replicas else 0 for row in (warm, recovered))
    story = (
        f"With {before} engine{'s' * (before > 1)} p95 TTFT was {milliseconds(warm.p95)} at {warm.phase.rate:g} requests "
        f"a second. At {peak.phase.rate:g} a second Prometheus showed up to {milliseconds(peak.p95_prometheus)}; the "
        f"operator went to {after} engines, and under the same load p95 came back to {milliseconds(recovered.p95)} "
        f"({share(recovered.attainment)} of requests within {milliseconds(recording.slo)})."
    )
    return f'<div class="verdict good"><strong>SLO held again.</strong> {escape(story)}</div>'


def _table(rows: list[list[tuple[str, bool]]]) -> str:
    """Phases side by side, because that fits a phone."""
    lines = [
        f"<tr><th>{escape(heading)}</th>{''.join(_cell(*row[column]) for row in rows)}</tr>"
        for column, heading in enumerate(_HEADINGS)
    ]
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _cell(text: str, miss: bool) -> str:
    return f'<td class="miss">{escape(text)}</td>' if miss else f"<td>{escape(text)}</td>"


def _words(when: str, what: str, rows: list[tuple[str, str]]) -> str:
    if not rows:
        return '<p class="soft">None.</p>'
    body = "".join(f"<tr><td>{escape(at)}</td><td>{escape(text)}</td></tr>" for at, text in rows)
    return f'<table class="words"><thead><tr><th>{when}</th><th>{what}</th></tr></thead><tbody>{body}</tbody></table>'


def _picture(recording: Recording, rows: list[Row]) -> str:
    """Four drawings; the browser takes the one for its width and colour scheme."""
    sources = "".join(
        f'<source media="{media}" srcset="{_data(plot.png(recording, theme, narrow=narrow))}">'
        for media, theme, narrow in (
            ("(max-width: 640px) and (prefers-color-scheme: dark)", plot.DARK, True),
            ("(max-width: 640px)", plot.LIGHT, True),
            ("(prefers-color-scheme: dark)", plot.DARK, False),
        )
    )
    said = "; ".join(f"{r.phase.name}: {r.phase.rate:g} requests per second, p95 {milliseconds(r.p95)}" for r in rows)
    alt = f"Load, p95 TTFT and engines over time. {said}."
    return f'<picture>{sources}<img src="{_data(plot.png(recording, plot.LIGHT))}" alt="{escape(alt)}"></picture>'


def _data(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
