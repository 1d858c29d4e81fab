"""Build the JSON of a Grafana dashboard from its table of panels.

The form is the classic dashboard model that Grafana 10 and later import; the field names are those of Grafana's published types.
Queries refer to the variables of the dashboard, ``$datasource`` and those of its table.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from framework.features.observability.rules import with_selector

PanelKind: TypeAlias = Literal["timeseries", "stat", "table"]

SCHEMA_VERSION = 38
"""The version of the model in Grafana 10.1. Later versions convert it when they import it."""
TAG = "application-worker"
"""The tag of all written dashboards: their links to each other, and the mark of an own file."""

_GRID_WIDTH = 24
_HEIGHTS: dict[PanelKind, int] = {"timeseries": 8, "stat": 4, "table": 8}
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: its queries by the legends of their series."""

    title: str
    queries: dict[str, str]
    """Expressions by legend, in Grafana's form ``{{label}}``."""
    unit: str = "short"
    """Grafana's id of a unit."""
    kind: PanelKind = "timeseries"
    width: int = 8
    """In columns of the grid, which has 24."""
    stacked: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True)
class PanelRow:
    """A row of panels below a title."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a dashboard: the values of a label of a metric."""

    name: str
    metric: str
    label: str
    all_values: bool = True


@dataclass(frozen=True, slots=True)
class Dashboard:
    """The table of one dashboard."""

    name: str
    """The name of its file, and the end of its uid."""
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[PanelRow, ...]

    def panels(self) -> Iterator[Panel]:
        """Yield the panels of all rows."""
        for row in self.rows:
            yield from row.panels

    def expressions(self) -> Iterator[str]:
        """Yield the expressions of all panels."""
        for panel in self.panels():
            yield from panel.queries.values()


def dashboard_json(one: Dashboard, *, datasource: str = "", selector: str = "") -> dict[str, Any]:
    """Return the model of a dashboard.

    ``datasource`` is the uid of the chosen data source at first, or nothing for Grafana's default; ``selector`` has matchers for
    every series of the framework.
    """
    return {
        "uid": f"{TAG}-{one.name.replace('_', '-')}",
        "title": one.title,
        "description": one.description,
        "tags": [TAG],
        "style": "dark",
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "fiscalYearStartMonth": 0,
        "links": [
            {
                "title": "application-worker",
                "type": "dashboards",
                "icon": "external link",
                "tooltip": "",
                "tags": [TAG],
                "asDropdown": True,
                "targetBlank": False,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "annotations": {"list": [_alerts_annotation()]},
        "templating": {"list": [_datasource_variable(datasource), *map(_variable, one.variables)]},
        "panels": list(_laid_out(one.rows, selector)),
    }


def _alerts_annotation() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": _DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "red",
        "expr": f'ALERTS{{alertstate="firing",service="{TAG}"}}',
    }


def _datasource_variable(chosen: str) -> dict[str, Any]:
    current = {"current": {"selected": True, "text": chosen, "value": chosen}} if chosen else {}
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", **current}


def _variable(one: Variable) -> dict[str, Any]:
    return {
        "name": one.name,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": f"label_values({one.metric}, {one.label})",
        "refresh": 2,
        "sort": 1,
        "multi": one.all_values,
        "includeAll": one.all_values,
        **(
            {"allValue": ".*", "current": {"selected": True, "text": "All", "value": "$__all"}}
            if one.all_values
            else {}
        ),
    }


def _laid_out(rows: tuple[PanelRow, ...], selector: str) -> Iterator[dict[str, Any]]:
    """Yield the rows and panels with ids and places: from left to right, a new line where the next does not fit."""
    number = y = 0
    for row in rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"h": 1, "w": _GRID_WIDTH, "x": 0, "y": y},
            "panels": [],
        }
        x, y, line = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > _GRID_WIDTH:
                x, y, line = 0, y + line, 0
            number += 1
            height = _HEIGHTS[panel.kind]
            yield _panel(panel, number, {"h": height, "w": panel.width, "x": x, "y": y}, selector)
            x, line = x + panel.width, max(line, height)
        y += line


def _panel(panel: Panel, number: int, place: dict[str, int], selector: str) -> dict[str, Any]:
    instant = panel.kind == "table"
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        **({"description": panel.description} if panel.description else {}),
        "gridPos": place,
        "datasource": _DATASOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATASOURCE,
                "expr": with_selector(expression, selector),
                "legendFormat": legend,
                "editorMode": "code",
                "range": not instant,
                "instant": instant,
                **({"format": "table"} if instant else {}),
            }
            for index, (legend, expression) in enumerate(panel.queries.items())
        ],
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": _custom(panel)}, "overrides": []},
        "options": _options(panel.kind),
    }


def _custom(panel: Panel) -> dict[str, Any]:
    if panel.kind != "timeseries":
        return {}
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 30 if panel.stacked else 10,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
    }


def _options(kind: PanelKind) -> dict[str, Any]:
    if kind == "timeseries":
        return {
            "legend": {
                "displayMode": "table",
                "placement": "bottom",
                "showLegend": True,
                "calcs": ["lastNotNull", "max"],
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if kind == "stat":
        calcs = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": calcs, "colorMode": "value", "graphMode": "area", "textMode": "auto"}
    return {"showHeader": True}
