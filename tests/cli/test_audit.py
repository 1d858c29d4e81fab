"""Test `application-worker audit`: what commands record, and what it shows. Each command is known as a reader or as an action."""

import inspect
import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from framework.cli.audit import audit
from framework.cli.main import main
from framework.process.identity import operator_name
from tests.harness import enqueue

READERS = {
    *("acl", "attributes", "audit", "batches list", "batches show", "breakers show", "check-compat", "cron history"),
    *(
        "cron leader",
        "cron list",
        "cron next",
        "diagnose",
        "encryption show",
        "exporter",
        "flags list",
        "jobs counters",
    ),
    *(
        "jobs deferred show",
        "jobs explain",
        "jobs flags show",
        "jobs held show",
        "jobs leases show",
        "jobs limits show",
    ),
    *("jobs list", "jobs locks show", "jobs memory", "jobs paused", "jobs ping", "jobs processes", "jobs profile"),
    *("jobs queues", "jobs show", "jobs stack", "jobs stats", "jobs story", "jobs top", "jobs workflow", "ledger diff"),
    *("limiters list", "limiters show", "lint-workers", "monitoring thresholds", "payloads show", "pushes list"),
    *(
        "retired",
        "route",
        "shards status",
        "store status",
        "tasks failures",
        "tasks list",
        "tasks show",
        "top",
        "workflows list",
    ),
}
NO_SHARD = {
    *(
        "cluster",
        "dashboard",
        "deploy chart",
        "deploy image",
        "deploy kubernetes",
        "deploy systemd",
        "encryption new-key",
    ),
    *("generate-queues", "monitoring write", "payloads create", "payloads sweep", "store start", "store stop"),
    *("simulate", "tasks migrate", "tasks prune", "worker"),
}
"""They write files, tables or blobs, or run processes: no jobs of a shard. The pages of the dashboard record their own actions."""
PUSHES = {"jobs enqueue", "pushes replay"}
"""They push as an application does, with the rights of a producer."""


@pytest.fixture
def recorded(jobs):
    def read(*words):
        ended = CliRunner().invoke(audit, ["--json", *words])
        assert ended.exit_code == 0, ended.output
        return json.loads(ended.stdout)["actions"]

    return read


def test_command_is_recorded_with_its_options(jobs, redis, recorded):
    enqueue(redis, "Mail", queue="mailers", jid="j1")
    jobs("pause-queue", "mailers", "--reason", "the provider is down")
    (one,) = recorded()
    assert (one["shard"], one["actor"], one["source"]) == ("main", operator_name(), "command")
    assert (one["action"], one["end"], one["count"]) == ("jobs pause-queue", "done", 1)
    assert one["what"] == {"queue": "mailers", "reason": "the provider is down"}


def test_bulk_action_is_recorded_with_its_number_of_jobs(jobs, redis, recorded):
    for jid in ("j1", "j2"):
        enqueue(redis, "Mail", queue="mailers", jid=jid)
    jobs("clear", "mailers", "--class", "Mail", "--dry-run")
    assert recorded() == []
    jobs("clear", "mailers", "--class", "Mail", "--yes")
    assert [(one["action"], one["count"]) for one in recorded()] == [("jobs clear", 2)]
    assert recorded("--action", "clear")[0]["what"] == {"queue_name": "mailers", "worker": "Mail"}
    assert recorded("--actor", "another person") == []


def test_actions_are_shown_as_a_table(jobs, redis):
    enqueue(redis, "Mail", queue="mailers", jid="j1")
    jobs("pause-queue", "mailers")
    text = CliRunner().invoke(audit, ["--since", "1h"]).output
    assert "jobs pause-queue" in text
    assert "queue=mailers" in text


def test_audit_names_a_dead_shard_and_shows_the_others(jobs, redis, tmp_path):
    enqueue(redis, "Mail", queue="mailers", jid="j1")
    jobs("pause-queue", "mailers")
    (tmp_path / "redis.yml").write_text("shards: {main: {url: embedded}, away: {url: 'redis://127.0.0.1:1/0'}}")
    ended = CliRunner().invoke(audit, ["--json"])
    found = json.loads(ended.stdout)
    assert (ended.exit_code, found["unanswered"]) == (1, ["away"])
    assert [one["action"] for one in found["actions"]] == ["jobs pause-queue"]
    assert "'away' is unavailable" in ended.stderr


def leaves(command, path=""):
    """Yield the path of each command."""
    if not isinstance(command, click.Group):
        yield path.strip(), command
        return
    for name in command.commands:
        yield from leaves(command.commands[name], f"{path} {name}")


def test_each_command_that_changes_a_shard_is_recorded():
    acting = {path: command for path, command in leaves(main) if path not in READERS | NO_SHARD | PUSHES}
    assert len(acting) > 35
    for path, command in acting.items():
        source = Path(inspect.getfile(inspect.unwrap(command.callback))).read_text()
        assert re.search(r"\brecorded\(|\.(change|tell)\(", source), f"{path}: wrap its step in recorded(...)"
