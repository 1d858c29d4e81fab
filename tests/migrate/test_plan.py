"""Decide about one job: its target, its new bytes, and why it stays."""

import json

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.migrate.plan import KEEP, FixedTarget, MigrationPlan, RoutedTarget
from framework.route.router import Router
from framework.settings.model import RoutingRule
from tests.harness import encoded
from tests.tables import each_row


@pytest.fixture(autouse=True)
def workers():
    with registry.isolated():

        class BillWorker(ApplicationWorker):
            wire_name = "BillWorker"
            feature_category = "billing"
            aliases = ("OldBillWorker",)

            def perform(self) -> None: ...

        class PinnedWorker(ApplicationWorker):
            wire_name = "PinnedWorker"
            feature_category = "not_owned"
            queue = "pinned"
            retry_queue = "pinned_retries"

            def perform(self) -> None: ...

        class AwayWorker(ApplicationWorker):
            wire_name = "AwayWorker"
            feature_category = "search"

            def perform(self) -> None: ...

        yield


def routing(*sources, classes=()):
    rules = [
        RoutingRule(query="feature_category=billing", queue="money"),
        RoutingRule(query="feature_category=search", queue="search", shard="second"),
        RoutingRule(query="*", queue="rest"),
    ]
    return MigrationPlan(
        RoutedTarget(Router(rules, ["main", "second"]), "main", {"GoneWorker": "merged"}), sources, classes
    )


def mapping(to="new", *sources, classes=()):
    return MigrationPlan(FixedTarget(to, classes, {"GoneWorker"}), sources, classes)


@each_row(
    ("name", "queue", "fields", "target"),
    [
        ("BillWorker", "old", {}, "money"),  # out of a queue that no rule names any more
        ("BillWorker", "bill", {}, "money"),
        ("OldBillWorker", "old_bill", {}, "money"),  # under its former name
        ("BillWorker", "money", {}, ""),
        ("PinnedWorker", "old", {}, "pinned"),
        ("BillWorker", "old", {"aw_queue": "other"}, "money"),  # the push chose another queue, long ago
        ("BillWorker", "old", {"aw_shard": "main"}, "money"),
        ("BillWorker", "old", {"aw_shard": "no such shard"}, "money"),
        ("AwayWorker", "old", {"aw_shard": "main"}, "search"),
    ],
)
def test_plan_routed_job_goes_where_rules_say(name, queue, fields, target):
    verdict = routing().decide(encoded(name, queue=queue, **fields), queue)
    assert (verdict.target, verdict.reason) == (target, None)
    if target:
        assert json.loads(verdict.data) == json.loads(encoded(name, **{**fields, "queue": target}))


@each_row(
    ("name", "queue", "fields", "reason"),
    [
        ("RubyWorker", "old", {}, "unknown class"),
        ("GoneWorker", "old", {}, "retired class"),
        ("BillWorker", "old", {"aw_queue": "old"}, "chosen queue"),
        ("PinnedWorker", "pinned_retries", {"retry_queue": "pinned_retries"}, "chosen queue"),
        ("AwayWorker", "chosen", {"aw_queue": "chosen"}, "chosen queue"),
        ("AwayWorker", "old", {}, "other shard"),
        ("AwayWorker", "search", {}, "other shard"),
        ("BillWorker", "old", {"aw_shard": "second"}, "other shard"),
        ("BillWorker", "old", {"aw_shard": "second", "aw_queue": "old"}, "other shard"),
        ("BillWorker", "old", {"aw_transfer": "token"}, "in transit"),
    ],
)
def test_plan_job_that_stays_has_a_reason(name, queue, fields, reason):
    verdict = routing().decide(encoded(name, queue=queue, **fields), queue)
    assert (verdict.target, verdict.reason, verdict.queue, verdict.worker) == ("", reason, queue, name)
    assert verdict.jid == "ab" * 12


def test_plan_chosen_queue_of_the_rules_is_kept():
    assert routing().decide(encoded("BillWorker", queue="money", aw_queue="money"), "money") is KEEP
    # On this shard, as when it is due, although its class is routed to another.
    assert routing().decide(encoded("AwayWorker", queue="search", aw_queue="search"), "search") is KEEP


@each_row("data", [b"", b"\xff", b"{", b"[1]", b'{"class":"BillWorker"}', b'{"args":[],"jid":"x"}', b"NaN"])
@each_row("plan", [routing, mapping])
def test_plan_malformed_job_stays(plan, data):
    verdict = plan().decide(data, "old")
    assert (verdict.target, verdict.reason, verdict.queue) == ("", "unreadable", "old")
    assert verdict.jid == ("x" if b'"jid"' in data else "")


def test_plan_fixed_target_overrides_rules_and_choices():
    data = encoded("BillWorker", queue="old", aw_queue="old", retry_queue="old")
    verdict = mapping("new", "old").decide(data, "old")
    assert verdict.target == "new"
    assert json.loads(verdict.data) == {
        **json.loads(data),
        **dict.fromkeys(["queue", "aw_queue", "retry_queue"], "new"),
    }
    assert mapping("new", "old").decide(encoded("BillWorker", queue="old", retry_queue="r"), "old").data == encoded(
        "BillWorker", queue="new", retry_queue="r"
    )


def test_plan_fixed_target_needs_unknown_classes_by_name():
    ruby, gone = encoded("RubyWorker", queue="old"), encoded("GoneWorker", queue="old")
    assert [mapping().decide(data, "old").reason for data in (ruby, gone)] == ["unknown class", "retired class"]
    named = mapping(classes=["RubyWorker", "GoneWorker"])
    assert [named.decide(data, "old").target for data in (ruby, gone)] == ["new", "new"]


def test_plan_job_outside_of_the_migration_is_kept():
    bill, ruby = encoded("BillWorker", queue="old"), encoded("RubyWorker", queue="old")
    assert mapping("new", "other").decide(bill, "old") is KEEP
    assert mapping("new", classes=["PinnedWorker"]).decide(bill, "old") is KEEP
    assert routing(classes=["BillWorker"]).decide(ruby, "old") is KEEP
    assert routing(classes=["BillWorker"]).decide(b"\xff no job", "old") is KEEP
    escaped = bill.replace(b"BillWorker", b"\\u0042illWorker")
    assert mapping("new", classes=["BillWorker"]).decide(escaped, "old").target == "new"
    # An argument that is spelt like the class is no class.
    assert mapping("new", classes=["BillWorker"]).decide(encoded("RubyWorker", args=["BillWorker"]), "old") is KEEP


def test_plan_without_place_payload_names_the_queue():
    assert routing().decide(encoded("BillWorker", queue="old")).queue == "old"
    assert mapping("new", "old").decide(encoded("BillWorker", queue="other")) is KEEP
    nameless = json.dumps({"class": "BillWorker", "args": []}).encode()
    assert json.loads(routing().decide(nameless).data) == {"class": "BillWorker", "args": [], "queue": "money"}
    assert routing().decide(nameless.replace(b"{", b'{"queue":7,')).target == "money"


@pytest.mark.proves("R51", "I5")
@pytest.mark.parametrize(
    "data",
    [
        b'{"args":[{"queue":"old"},1e999, 1.50],"class":"BillWorker" , "queue":"old","x":"\\u00e9\\/"}',
        b'{ "class" : "BillWorker", "args" : [ {"queue":"old"} ], "queue" : "old" }',
        b'{"queue":"older","class":"BillWorker","args":["\\"queue\\":\\"old\\""],"\\u0071ueue":"old","n":'
        + b"9" * 40
        + b"}",
    ],
)
def test_plan_other_bytes_of_a_job_stay(data):
    changed = mapping("new", "old").decide(data, "old").data
    assert json.loads(changed)["queue"] == "new"
    assert changed.replace(b'"new"', b'"old"') == data.replace(b'"older"', b'"old"')
