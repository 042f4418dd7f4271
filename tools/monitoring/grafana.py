"""A Grafana dashboard as data: panels in rows, laid out from left to right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 24
"""Columns of a dashboard."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA = 39
"""Of Grafana 10.4; newer ones migrate it."""


@dataclass(frozen=True, slots=True)
class Query:
    """One line or more of a panel."""

    expression: str
    legend: str = "{{serving}}/{{pool}}"
    dashed: bool = False
    """A target or a limit."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; `unit` is Grafana's name of it (s, percentunit, short)."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    text: str = ""
    """What one should see in it."""
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    most: float | None = None
    """Upper end of the axis."""


Row = tuple[str, Sequence[Panel]]


def dashboard(uid: str, title: str, variables: Sequence[dict[str, Any]], rows: Sequence[Row]) -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": uid,
        "title": title,
        "tags": ["gemma-serving", "vllm"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), *variables]},
        "panels": list(_laid_out(rows)),
    }


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    """A choice of label values, several or all."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _source() -> dict[str, Any]:
    return {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus", "refresh": 1}


def _laid_out(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    number, top = 1, 0
    for title, panels in rows:
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": _at(0, top, WIDTH, 1),
        }
        number, top, left, height = number + 1, top + 1, 0, 8
        for panel in panels:
            if left + panel.width > WIDTH:
                left, top = 0, top + height
            yield _panel(panel, number, _at(left, top, panel.width, height))
            number, left = number + 1, left + panel.width
        top += height


def _at(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": query.expression, "legendFormat": query.legend}
        | ({"instant": True} if panel.kind == "stat" else {})
        for at, query in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": list(_dashes(panel))},
        "options": _OPTIONS.get(panel.kind, {}),
    }


_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "value_and_name", "colorMode": "none"},
    "state-timeline": {"showValue": "never", "mergeValues": True},
}


def _defaults(panel: Panel) -> dict[str, Any]:
    drawn = {"lineWidth": 2, "fillOpacity": 15 if panel.stacked else 0, "spanNulls": False}
    stacking = {"stacking": {"mode": "normal" if panel.stacked else "none"}}
    found: dict[str, Any] = {"unit": panel.unit, "custom": drawn | stacking if panel.kind == "timeseries" else {}}
    if panel.kind == "timeseries":
        found["min"] = 0
    return found if panel.most is None else {**found, "max": panel.most}


def _dashes(panel: Panel) -> Iterator[dict[str, Any]]:
    for at, query in enumerate(panel.queries):
        if query.dashed:
            style = [
                {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
                {"id": "custom.fillOpacity", "value": 0},
                {"id": "custom.stacking", "value": {"mode": "none"}},
            ]
            yield {"matcher": {"id": "byFrameRefID", "options": chr(ord("A") + at)}, "properties": style}
