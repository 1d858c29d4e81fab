"""The log schema: what it refuses, that the tests ask it, and that the pages have exactly its fields."""

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

from framework.declare import registry
from framework.execute.stats import RunningJobs
from framework.telemetry import logs
from framework.text import underscored
from tests import log_lines
from tests.harness import server_lines
from tests.reference_pages import names, text_of

SCHEMA = json.loads(files("framework.telemetry").joinpath("log_schema.json").read_text())
LINE = SCHEMA["$defs"]["line"]
PATTERNS = {
    "meta.*": "meta.user",
    "extra.CLASS.*": "extra.job_worker.rows",
    "deduplication.options.*": "deduplication.options.ttl",
    "db_NAME_count": "db_main_count",
    "db_NAME_duration_s": "db_main_duration_s",
}
"""Names on the pages that stand for many fields, with one of them."""
GITLAB = Path(__file__).resolve().parents[2] / "docs" / "reference" / "log_fields_gitlab.md"


def refused(**fields):
    line = {"severity": "INFO", "time": "2026-11-29T17:43:50.617Z", "message": "x", **fields}
    log_lines.check(json.dumps(line))
    try:
        log_lines.raise_invalid(may_be_invented=False)
    except AssertionError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "fields",
    [
        {"job_status": "done", "duration_s": 0.5, "meta.user": 5, "extra.job_worker.rows": {"a": []}, "jid": None},
        {"job_status": "running", "files": 3, "count": "many"},
        {"event_name": "process.ready", "queues": ["a"], "db_main_count": 1},
        {"logger": "sqlalchemy.engine"},
    ],
)
def test_schema_admits_lines_of_each_kind(fields):
    assert refused(**fields) is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"job_status": "done", "duration_s": "0.5"}, "duration_s"),
        ({"job_status": "done", "duration_s": -0.5}, "duration_s"),
        ({"job_status": "ended"}, "job_status"),
        ({"job_status": "done", "files": 3}, "files"),
        ({"job_status": "running", "class": 5}, "class"),
        ({"event_name": "process.ready", "extra.rows": 3}, "extra.rows"),
        ({"event_name": "process.ready", "time": "now"}, "time"),
        ({}, "anyOf"),
    ],
)
def test_schema_refuses_other_fields_and_types(fields, reason):
    assert reason in refused(**fields)


def test_line_of_this_process_is_checked():
    with registry.isolated(), server_lines("info") as read:
        logs.logger().info("x", event_name="process.ready", invented=5)
        read()
    with pytest.raises(AssertionError, match="invented"):
        log_lines.raise_invalid(may_be_invented=False)


def test_pages_have_the_fields_of_the_schema():
    page = set(names("Log fields"))
    statuses = set(
        re.findall(
            r"^\| `(\w+)` \|", text_of("Log fields").partition("## Job status\n")[2].partition("\n## ")[0], re.MULTILINE
        )
    )
    in_schema = set(LINE["properties"]) | set(PATTERNS)
    assert sorted(in_schema - page) == [], "say in log_fields.md, or on the page of the feature, what it means"
    assert sorted(page - statuses - in_schema) == [], "no line has it"


def test_table_of_gitlabs_fields_is_that_of_the_schema():
    rows = re.findall(r"^\| (`.*?) \| (.*?) \| (.*?) ?\|$", GITLAB.read_text(), re.MULTILINE)
    assert len(rows) > 30
    for gitlab, here, reason in rows:
        fields = re.findall(r"`([^`]+)`", gitlab)
        same = [name for name in fields if name in LINE["properties"] or name in PATTERNS]
        if here == "same":
            assert fields == same, "a field that is called the same is not in the schema"
        else:
            assert reason, f"argue the difference: {gitlab}"
            assert not same, f"{same} is in the schema"
            assert here == "none" or set(re.findall(r"`([^`]+)`", here)) <= set(LINE["properties"])
    for name in PATTERNS.values():
        assert any(re.search(pattern, name) for pattern in LINE["patternProperties"]), name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Orders::SyncWorker", "orders_sync_worker"),
        ("HTTPHookWorker", "http_hook_worker"),
        ("Ci::Build2Job", "ci_build2_job"),
    ],
)
def test_class_in_extra_fields_is_underscored_as_gitlab_does(name, shown):
    assert underscored(name) == shown


def test_line_of_a_job_is_never_that_of_another():
    job = {"class": "Orders::SyncWorker", "jid": "mine"}
    with server_lines("info") as read:
        log = RunningJobs().logger(job)
        log.info(
            'done\n{"severity":"ERROR"}',
            files=3,
            count="many",
            **{
                "jid": "other",
                "class": "OtherWorker",
                "job_status": "done",
                "severity": "FATAL",
                "time": 5,
                "message": "x",
                "pid": 1,
                "meta.user": "x",
                "event_name": "import.refused",
            },
        )
        log.error("failed", error="no exception")
        line, plain = read()
    assert (line["class"], line["jid"], line["job_status"], line["severity"]) == (*job.values(), "running", "INFO")
    assert (line["files"], line["count"], line["message"]) == (3, "many", 'done\n{"severity":"ERROR"}')
    assert line["extra.orders_sync_worker.jid"] == "other"
    assert line["extra.orders_sync_worker.time"] == 5
    assert line["event_name"] == "import.refused", "jobs may have events of their own"
    assert not {"pid", "meta.user"} & line.keys()
    assert plain["error"] == "no exception"
