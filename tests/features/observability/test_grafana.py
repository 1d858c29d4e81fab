"""The JSON of dashboards, as Grafana's own types read it."""

import json
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel
from grafana_foundation_sdk.models.prometheus import Dataquery

from framework.features.observability.dashboards import DASHBOARDS
from framework.features.observability.grafana import dashboard_json


@pytest.fixture(scope="module", autouse=True)
def plugins():
    """Let the types of panels and of Prometheus' queries read their parts."""
    register_default_plugins()


def unread(ours: Any, read: Any, path: str = "") -> list[str]:
    """Return the paths of our fields that Grafana's types do not know, or change."""
    if isinstance(ours, dict) and isinstance(read, dict):
        return [one for key in ours for one in unread(ours[key], read.get(key, "nothing"), f"{path}/{key}")]
    if isinstance(ours, list) and isinstance(read, list) and len(ours) == len(read):
        return [one for pair in zip(ours, read, strict=True) for one in unread(*pair, f"{path}[]")]
    return [] if ours == read and type(ours) is type(read) else [f"{path}: {ours!r} is read as {read!r}"]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.name)
def test_grafana_reads_every_field_of_a_dashboard(dashboard):
    model = dashboard_json(dashboard, datasource="prometheus-1", selector='environment="production"')
    read = Dashboard.from_json(model)
    assert unread(model, json.loads(JSONEncoder().encode(read))) == []
    queries = [query for one in read.panels if isinstance(one, Panel) for query in one.targets]
    assert len(queries) == len(list(dashboard.expressions()))
    assert all(isinstance(one, Dataquery) for one in queries)
