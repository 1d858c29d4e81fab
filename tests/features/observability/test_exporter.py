"""Test the exporter on real shards: its answers, one read for many scrapes, and shards that are dead or frozen."""

import json
import os
import signal
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from framework.all_settings import Settings
from framework.features.observability import shard_watch
from framework.features.observability.exporter import ExporterServer
from framework.features.observability.figure_text import exposition
from framework.features.observability.fleet import FleetReader
from framework.features.observability.settings import FleetSettings
from framework.features.observability.shard_watch import Fleet, RoutedClass, RoutedClasses
from framework.process.worker_options import HealthAddress
from framework.shard.shards import open_shards
from framework.wire import keys
from tests.features.observability.test_fleet import populate
from tests.harness import ROOT, enqueue

COMMAND = str(ROOT / "scripts" / "exporter")


@pytest.fixture
def open_fleet(tmp_path):
    """Return a function that opens the figures of shards by name and URL."""
    opened = []

    def make(classes=(), groups=None, **urls):
        shards = {name: {"url": url} for name, url in urls.items()}
        settings = Settings(config_dir=tmp_path, root=tmp_path, var_dir=tmp_path, shards=shards)
        opened.append(open_shards(settings, role="exporter"))
        groups_ = FleetSettings(queue_groups=groups or {})
        fleet = Fleet(groups_, list(opened[-1].values()), FleetReader(settings), {"main": RoutedClasses(classes)})
        opened.append(fleet)
        return fleet

    yield make
    for one in opened:
        one.close()


def up(fleet):
    return {one.labels["shard"]: one.value for one in fleet.figures() if one.name == "application_worker_up"}


def names(fleet, shard):
    return {one.name for one in fleet.figures() if one.labels.get("shard") == shard}


@pytest.fixture
def asked(open_fleet, redis, redis_url):
    classes = [RoutedClass("A", "default", "high"), RoutedClass("B", "mail", "low")]
    server = ExporterServer(
        open_fleet(classes, {"all": ("default", "mail")}, main=redis_url), HealthAddress("127.0.0.1", 0)
    )
    yield server
    server.server_close()


def test_slots_needed_is_json_for_an_autoscaler(asked, redis):
    for number in range(40):
        enqueue(redis, "A", jid=f"a{number}")
    redis.lpush("queue:other", "x")
    redis.sadd(keys.QUEUES, "other")
    whole, group = (json.loads(asked.answer(f"/slots_needed?shard=main{more}").body) for more in ("", "&group=all"))
    # 40 jobs of a second each within half of the 10 s: 8 slots.
    assert group == {"slots_needed": 8, "shard": "main", "queue_group": "all"}
    assert whole == {"slots_needed": 9, "shard": "main", "groups": {"all": 8, "other": 1}}
    assert json.loads(asked.answer("/slots_needed").body) == {"shards": {"main": {"all": 8, "other": 1}}}
    series = 'application_worker_slots_needed{queue_group="all",shard="main"} 8'
    assert series in asked.answer("/metrics").body.decode().splitlines()


def test_openmetrics_are_served_to_who_asks_for_them(asked, redis):
    populate(redis)
    answer = asked.answer("/metrics", "application/openmetrics-text; version=1.0.0")
    assert answer.content_type.startswith("application/openmetrics-text")
    found = {one.name: one.type for one in text_string_to_metric_families(answer.body.decode())}
    assert (found["sidekiq_queue_size"], found["sidekiq_jobs_processed"]) == ("gauge", "counter")


def test_scaled_object_of_the_page_reads_this_answer(asked, redis):
    """The trigger of KEDA's metrics-api scaler: its URL is answered, and its valueLocation has a number."""
    page = (ROOT / "docs" / "operate" / "autoscaling.md").read_text()
    found = yaml.safe_load(page.partition("```yaml keda\n")[2].partition("```")[0])
    assert (found["apiVersion"], found["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = found["spec"]
    assert spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
    (trigger,) = spec["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("metrics-api", "AverageValue")
    url = urllib.parse.urlsplit(trigger["metadata"]["url"])
    assert url.port == 9168
    answer = asked.answer(f"{url.path}?{url.query.replace('=default', '=all')}")
    assert (answer.well, json.loads(answer.body)[trigger["metadata"]["valueLocation"]]) == (True, 0)
    # KEDA refuses values that are no text.
    assert all(isinstance(value, str) for value in trigger["metadata"].values())


@pytest.mark.parametrize(("query", "known"), [("shard=other", ["main"]), ("group=mial", ["all"])])
def test_unknown_shard_or_group_is_refused_with_the_known_ones(asked, redis, query, known):
    answer = asked.answer(f"/slots_needed?{query}")
    assert (answer.well, json.loads(answer.body)["known"]) == (False, known)


def test_several_scrapes_at_once_cost_one_read(open_fleet, redis, redis_url):
    fleet = open_fleet(main=redis_url)
    fleet.figures()
    fleet._read_at = -shard_watch._FRESH_S
    redis.config_resetstat()
    threads = [threading.Thread(target=fleet.figures) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    calls = redis.info("commandstats")
    assert {name: calls[f"cmdstat_{name}"]["calls"] for name in ("evalsha", "info")} == {"evalsha": 1, "info": 1}


def test_killed_shard_has_up_0_and_no_other_figures(open_fleet, redis, redis_url, make_server):
    server = make_server()
    fleet = open_fleet(main=redis_url, second=server.url)
    assert up(fleet) == {"main": 1, "second": 1}
    server.kill()
    fleet._read_at = -shard_watch._FRESH_S
    assert up(fleet) == {"main": 1, "second": 0}
    assert names(fleet, "second") == {"application_worker_up", "application_worker_shard_state"}
    assert 'application_worker_shard_state{shard="second",state="open"} 1' in exposition(fleet.figures())
    assert "sidekiq_jobs_enqueued_size" in names(fleet, "main")
    server.start()
    fleet._read_at = -shard_watch._FRESH_S
    assert up(fleet) == {"main": 1, "second": 1}


def test_frozen_shard_delays_no_other_and_is_read_once(open_fleet, redis, redis_url, make_server):
    server = make_server()
    fleet = open_fleet(main=redis_url, second=server.url)
    assert up(fleet) == {"main": 1, "second": 1}
    os.kill(server.pid, signal.SIGSTOP)
    try:
        for _ in range(3):
            fleet._read_at = -shard_watch._FRESH_S
            assert up(fleet) == {"main": 1, "second": 0}
            # The read that hangs goes on: no second thread waits for the same shard.
            assert sum(one.name == "figures second" for one in threading.enumerate()) <= 1
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.fixture
def exporter(site):
    """Start the command; return the process and a function that gets a path."""
    process = site.start(COMMAND, "-r", "jobs", "--listen", "127.0.0.1:0")
    port = process.line(event_name="health.listening")["port"]

    def get(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Content-Type"], error.read().decode()

    return process, get


def test_exporter_serves_with_the_rights_of_read_only(exporter, redis):
    """The server of the test refuses what the role has not; promtool reads a real scrape of a populated shard."""
    populate(redis)
    process, get = exporter
    status, kind, text = get("/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert 'application_worker_up{shard="main"} 1' in text.splitlines()
    assert "application_worker_redis_used_memory_bytes" in text
    assert get("/healthz")[0] == 200
    status, kind, text = get("/slots_needed?shard=main&group=default")
    assert (status, kind, json.loads(text)["queue_group"]) == (200, "application/json", "default")
    assert get("/slots_needed?shard=none")[0] == 503
    assert get("/other")[0] == 404
    assert process.end() == 0


def test_exporter_runs_while_its_shard_is_down_and_warns(site, redis):
    site.write("redis.yml", {"shards": {"main": {"url": "redis://127.0.0.1:1"}}})
    site.write("application.yml", {"fleet": {"queue_groups": {"all": ["defalt", "default", "of_another_program"]}}})
    process = site.start(COMMAND, "-r", "jobs", "--listen", "127.0.0.1:0")
    port = process.line(event_name="health.listening")["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert b'application_worker_up{shard="main"} 0\n' in answer.read()
    assert "pid" in process.line(event_name="exporter.shard_away", shard="main")
    (warned,) = process.find(event_name="boot.unknown_queue")
    assert (warned["queue"], warned["nearest"]) == ("defalt", "default")
    assert process.end(signal.SIGINT) == 0
