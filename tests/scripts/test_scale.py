"""Test the commands and the router with two hundred worker classes. Their speed is measured elsewhere."""

import importlib
import sys

import pytest
import yaml

from framework.declare import registry
from framework.route.router import Router
from framework.settings.model import RoutingRule
from tests.harness import ROOT

COUNT = 200
WORKER = """
class Job{number}Worker(ApplicationWorker):
    feature_category = "not_owned"
    urgency = "{urgency}"
    queue_namespace = "ns{namespace}"
    tags = ("t{tag}",)

    def perform(self, project_id: int, mode: str = "full", rows: list[int] | None = None) -> None: ...
"""
RULES = [
    ["urgency=high&tags=t1,t2", "urgent"],
    ["queue_namespace=ns3|queue_namespace=ns5", "pair"],
    ["urgency!=low", None],
]


@pytest.fixture
def many(site):
    classes = [
        WORKER.format(number=n, urgency=("high", "low", "throttled")[n % 3], namespace=n % 7, tag=n % 11)
        for n in range(COUNT)
    ]
    (site.folder / "many_jobs.py").write_text("from framework import ApplicationWorker\n" + "".join(classes))
    site.write("routing.yml", {"routing_rules": [*RULES, ["*", "default"]]})
    site.write("application.yml", {"workers_module": "many_jobs"})
    return site


def script(site, name, *arguments):
    return site.run(str(ROOT / "scripts" / name), *arguments)


@pytest.mark.campaign
@pytest.mark.refused("role-producer srandmember")
def test_commands_handle_two_hundred_workers(many):
    assert script(many, "generate_queues").returncode == 0
    entries = yaml.safe_load((many.folder / "workers" / "all_queues.yml").read_text())
    assert len({entry["name"] for entry in entries}) == COUNT
    assert script(many, "generate_queues", "--check").returncode == 0
    assert len(script(many, "route").stdout.splitlines()) == COUNT + 1
    assert script(many, "route", "--lint").stdout.splitlines()[-1] == f"4 rules, {COUNT} workers: 0 findings"
    booted = many.run(
        "-c", "import framework\nfrom framework.declare import registry\nregistry.load(['many_jobs'])\nframework.boot()"
    )
    assert (booted.returncode, booted.stderr) == (0, "")


class CountingRouter(Router):
    """The router itself, which counts its decisions."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.decisions = 0

    def _compute_route(self, declaration):
        self.decisions += 1
        return super()._compute_route(declaration)


def test_routing_is_decided_once_per_class(many, monkeypatch):
    monkeypatch.syspath_prepend(str(many.folder))
    with registry.isolated():
        importlib.import_module("many_jobs")
        declarations = [worker.declaration() for worker in registry.workers()]
    del sys.modules["many_jobs"]
    router = CountingRouter([RoutingRule(*rule) for rule in RULES], ["main"])
    routes = [router.route(declarations[call % COUNT]) for call in range(10_000)]
    assert (len(declarations), router.decisions) == (COUNT, COUNT)
    assert routes[:COUNT] * (10_000 // COUNT) == routes
