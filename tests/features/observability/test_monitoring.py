"""Dashboards and alerts that ``monitoring write`` makes."""

import json
import re
import subprocess
from collections import Counter

import pytest
import yaml
from click.testing import CliRunner

from framework.features.observability.alert_rules import RECORDED, RULES, THRESHOLDS
from framework.features.observability.alerts import ALERT_NAMES, ALERTS
from framework.features.observability.catalogue import METRICS
from framework.features.observability.dashboards import DASHBOARDS
from framework.features.observability.grafana import dashboard_json
from framework.features.observability.monitoring_commands import monitoring
from framework.features.observability.rules import metric_names
from tests.harness import ROOT
from tests.prometheus import promtool

__all__ = ["promtool"]

SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds."""


def written(folder, *options):
    return CliRunner().invoke(monitoring, ["write", str(folder), *options])


def expressions():
    yield from RECORDED.values()
    for rule in RULES:
        yield rule.expression
    for one in DASHBOARDS:
        yield from one.expressions()
        yield from (f"{variable.metric}{{{variable.label}=''}}" for variable in one.variables)


def metric_of(series):
    """Return the metric of a series, which a histogram has with three endings."""
    for name in (series, *(series.removesuffix(end) for end in ("_sum", "_count", "_bucket"))):
        if name in METRICS:
            return METRICS[name]
    return None


def test_queries_read_metrics_of_the_catalogue():
    read = {name for one in expressions() for name in metric_names(one)}
    assert sorted(name for name in read if metric_of(name) is None) == []


def test_queries_match_labels_that_the_metrics_have():
    wrong = [
        (series, label)
        for one in expressions()
        for series, matchers in re.findall(r"(?<![\w:])(\w+)\{([^}]*)\}", one)
        if (metric := metric_of(series)) is not None
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)
        if label not in {*metric.labels, *SCRAPED}
    ]
    assert wrong == []


def test_each_alert_has_a_rule_and_each_rule_an_alert():
    assert list(dict.fromkeys(rule.alert for rule in RULES)) == [*dict.fromkeys(ALERT_NAMES)]


def test_rules_use_all_thresholds():
    used = {name for rule in RULES for name in re.findall(r"<([a-z]\w*)>", rule.expression)}
    assert used == set(THRESHOLDS)


def split(folder):
    """Write the tests of each alert again, with its rules alone and what they read; return the files.

    promtool evaluates all rules of a file in each of its tests: 80 times 70 rules, of which one or two count.
    """
    recorded, alerts = yaml.safe_load((folder / "alerts.yml").read_text())["groups"]
    whole = yaml.safe_load((folder / "alerts_test.yml").read_text())
    for alert in dict.fromkeys(rule["alert"] for rule in alerts["rules"]):
        own = [rule for rule in alerts["rules"] if rule["alert"] == alert]
        needed = [rule for rule in recorded["rules"] if any(rule["record"] in one["expr"] for one in own)]
        groups = [{**recorded, "rules": needed}, {**alerts, "rules": own}]
        (folder / f"{alert}.yml").write_text(json.dumps({"groups": groups}))
        tests = [one for one in whole["tests"] if one["name"].split(" ")[0] == alert]
        assert len(tests) == 2 * len(own)
        file = folder / f"{alert}_test.yml"
        file.write_text(json.dumps({**whole, "rule_files": [f"{alert}.yml"], "tests": tests}))
        yield file


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.campaign)], ids=["by alert", "whole"])
def test_promtool_accepts_the_rules_and_their_tests(promtool, tmp_path, whole):
    """Each rule fires in one test of the file, and stays silent in another."""
    done = written(tmp_path, "--selector", 'environment="production", team=~".*"', "--threshold", "held_jobs=500")
    assert done.exit_code == 0, done.output
    subprocess.run(
        [promtool, "check", "rules", "--lint-fatal", tmp_path / "alerts.yml"], check=True, capture_output=True
    )
    tests = yaml.safe_load((tmp_path / "alerts_test.yml").read_text())["tests"]
    assert len(tests) == 2 * len(RULES)
    files = [tmp_path / "alerts_test.yml"] if whole else split(tmp_path)
    subprocess.run([promtool, "test", "rules", *files], check=True, capture_output=True)


def test_alerts_say_whom_to_ask_and_what_to_run(tmp_path):
    written(tmp_path, "--owner", "night-watch")
    rules = [
        rule for group in yaml.safe_load((tmp_path / "alerts.yml").read_text())["groups"] for rule in group["rules"]
    ]
    alerts = [rule for rule in rules if "alert" in rule]
    for one in alerts:
        assert one["labels"]["owner"] == "night-watch"
        assert one["labels"]["severity"] in ("page", "ticket")
        assert one["annotations"]["runbook"] == f"application-worker diagnose --alert {one['alert']}"
        assert one["annotations"]["summary"]
        assert one["annotations"]["description"]
    unique = Counter((one["alert"], json.dumps(one["labels"])) for one in alerts)
    assert unique.most_common(1)[0][1] == 1


def test_window_scale_shortens_windows_and_waits(tmp_path):
    written(tmp_path, "--window-scale", "0.005")
    rules = yaml.safe_load((tmp_path / "alerts.yml").read_text())["groups"][1]["rules"]
    skipped = next(rule for rule in rules if rule["alert"] == "JobsSkippedTooLong")
    assert skipped["for"] == "54s"
    assert "[9s]" in skipped["expr"]


def test_page_has_every_alert_with_its_severity():
    page = (ROOT / "docs" / "operate" / "monitoring.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|.*\| (page|ticket) \|$", page, re.MULTILINE) == [
        (one.name, one.severity) for one in ALERTS
    ]


def test_inhibition_names_existing_alerts(tmp_path):
    written(tmp_path)
    text = (tmp_path / "alertmanager.yml").read_text()
    named = {name for names in re.findall(r'alertname =~? "([^"]*)"', text) for name in names.split("|")}
    assert named
    assert named <= set(ALERT_NAMES)


def test_second_write_changes_nothing(tmp_path):
    assert "wrote" in written(tmp_path).output
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    second = written(tmp_path)
    assert second.exit_code == 0
    assert "wrote" not in second.output
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("name", "text"), [("alerts.yml", "groups: []\n"), ("dashboards/fleet.json", '{"title": "mine"}')]
)
def test_files_of_another_origin_stay(name, text, tmp_path):
    foreign = tmp_path / name
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_text(text)
    done = written(tmp_path)
    assert done.exit_code == 1
    assert "was not written by this command" in done.output
    assert foreign.read_text() == text
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [foreign]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--threshold=held_job=3", "held_jobs"),
        ("--threshold=held_jobs=many", "needs a number"),
        ("--threshold=held_jobs=nan", "needs a number"),
        ("--selector=environment=production", "not 'environment=production'"),
        ('--selector={environment="production"}', "--selector has matchers"),
        ('--selector=environment="production",team', "--selector has matchers"),
    ],
)
def test_wrong_option_is_wrong_usage(word, message, tmp_path):
    done = written(tmp_path, word)
    assert done.exit_code == 2
    assert message in done.output
    assert not list(tmp_path.iterdir())


def test_excluded_class_counts_for_no_service_level(tmp_path):
    written(tmp_path, "--exclude", "Chaos::SlowWorker=2999-12-31", "--exclude", "MailWorker=2999-12-31")
    recorded, alerts = yaml.safe_load((tmp_path / "alerts.yml").read_text())["groups"]
    for one in recorded["rules"]:
        assert one["expr"].count('{worker!~"Chaos::SlowWorker|MailWorker"}') == len(metric_names(one["expr"])), one[
            "expr"
        ]
    assert "MailWorker" not in json.dumps(alerts)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("MailWorker", "needs its last day"),
        ("MailWorker=soon", "needs its last day"),
        ("MailWorker=2026-01-01", "has ended on 2026-01-01"),
        ("Mail|.*=2999-12-31", "is no name of a class"),
    ],
)
def test_wrong_exclusion_is_wrong_usage(word, message, tmp_path):
    done = written(tmp_path, "--exclude", word)
    assert done.exit_code == 2
    assert message in done.output
    assert not list(tmp_path.iterdir())


def test_thresholds_lists_all_names():
    shown = CliRunner().invoke(monitoring, ["thresholds"]).output
    assert [line.split()[0] for line in shown.splitlines()[1:]] == list(THRESHOLDS)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.name)
def test_panels_do_not_overlap(dashboard):
    panels = dashboard_json(dashboard)["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
    cells = Counter(
        (place["x"] + x, place["y"] + y)
        for place in (one["gridPos"] for one in panels)
        for x in range(place["w"])
        for y in range(place["h"])
    )
    assert max(x for x, _ in cells) < 24
    assert cells.most_common(1)[0][1] == 1
