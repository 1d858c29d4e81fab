"""Test the order of causes, and that every alert has some."""

import re

import pytest

from framework.admin.diagnosis.cause import Cause, in_order
from framework.admin.diagnosis.diagnose import alerts, readers
from framework.admin.diagnosis.facts import redis_cli
from framework.admin.diagnosis.of_server import AWAY_ALERTS
from framework.store.connect import Endpoint
from tests.harness import ROOT

PAGE = ROOT / "docs" / "operate" / "troubleshooting.md"


def cause(code, *, certainty=5.0, jobs=10, classes=(), queues=(), hides=(), shard="main"):
    return Cause(
        code=code,
        shard=shard,
        cause=code,
        evidence=[],
        remedy="",
        effect="",
        certainty=certainty,
        jobs=jobs,
        classes=frozenset(classes),
        queues=frozenset(queues),
        hides=frozenset(hides),
    )


def codes(*causes):
    return [one.code for one in in_order(causes)]


def test_causes_more_certain_comes_first():
    assert codes(cause("hint", certainty=1), cause("sure", certainty=9)) == ["sure", "hint"]


def test_causes_many_jobs_outweigh_some_certainty():
    assert codes(cause("sure", certainty=9, jobs=9), cause("likely", certainty=6, jobs=9_999)) == ["likely", "sure"]


def test_causes_explained_one_is_left_out():
    pause = cause("pause", queues=["a"], hides=["flood"])
    assert codes(pause, cause("flood", queues=["a"], jobs=9_999)) == ["pause"]


@pytest.mark.parametrize("fields", [{"queues": ["b"]}, {"queues": ["a"], "shard": "second"}])
def test_causes_of_another_place_are_not_explained(fields):
    pause = cause("pause", queues=["a"], hides=["flood"])
    assert (
        codes(pause, cause("flood", **fields)) == ["pause", "flood"]
        or codes(pause, cause("flood", **fields))[0] == "flood"
    )
    assert len(in_order([pause, cause("flood", **fields)])) == 2


def test_causes_of_a_shard_explain_those_of_all_queues():
    assert codes(cause("full", hides=["flood"]), cause("flood", queues=["a"])) == ["full"]


def test_alerts_page_lists_every_cause_with_its_alerts():
    table = PAGE.read_text().partition("## What it finds")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (.+) \|$", table, re.MULTILINE)
    listed = {code: sorted(re.findall(r"`(\w+)`", names)) for code, names in rows}
    known = {
        code: sorted(names)
        for one in (AWAY_ALERTS, *(kind.alerts for kind in readers()))
        for code, names in one.items()
    }
    assert listed == known


def test_alerts_of_the_written_rules_have_causes():
    rules = pytest.importorskip("framework.features.observability.alerts")
    assert set(rules.ALERT_NAMES) - alerts().keys() == set()


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        (Endpoint("redis://user:secret@host:6379/0"), "redis-cli -u redis://host:6379/0"),
        (Endpoint("unix:///run/a b.sock"), "redis-cli -s '/run/a b.sock'"),
        (
            Endpoint("redis://x", sentinels=(("s1", 26379),), sentinel_name="m;x"),
            "set -- $(redis-cli -h s1 -p 26379 SENTINEL GET-MASTER-ADDR-BY-NAME 'm;x'); redis-cli -h $1 -p $2",
        ),
    ],
)
def test_redis_cli_names_the_server_without_password(endpoint, words):
    assert redis_cli(endpoint) == words
