"""Test ``application-worker cluster`` as a real process with real workers."""

import json
import os
import signal

import pytest

from framework.wire import keys
from tests.cluster.conftest import children, has_ended
from tests.harness import enqueue, until


@pytest.mark.proves("F1", "I24")
def test_cluster_killed_child_is_replaced_and_job_recovered(cluster, redis, proofs, release):
    enqueue(redis, "LongWorker", args=["one"], jid="j1")
    process = cluster("default", FRAMEWORK_HEALTH__PORT="0")
    (first,) = proofs("begun:one")
    process.line(event_name="child.started")
    assert children(process) == [int(first)]
    os.kill(int(first), signal.SIGKILL)
    assert process.line(event_name="child.died")["status"] == -signal.SIGKILL
    second = proofs("begun:one", 2)[1]
    assert children(process) == [int(first), int(second)]
    assert process.line(job_status="recovered")["jid"] == "j1"
    release("one")
    assert proofs("ended:one") == [second]
    process.line(job_status="done", jid="j1")
    # The supervisor answers health checks, its children do not.
    assert len(process.find(event_name="health.listening")) == 1
    assert process.end() == 0
    assert all(has_ended(pid) for pid in children(process))
    left = {key for key in redis.keys("*") if key.startswith((b"aw:working", b"aw:lease"))}
    assert left == set()


KILLERS = """
import os
import signal

from jobs import Base


class KillerWorker(Base):
    def perform(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.campaign
@pytest.mark.proves("F25", "R24", "R25")
def test_cluster_killing_job_is_quarantined_others_run(cluster, site, redis, proofs):
    (site.folder / "killers.py").write_text(KILLERS)
    for number in range(30):
        enqueue(redis, "NoopWorker", jid=f"before-{number}")
    enqueue(redis, "KillerWorker", jid="killer")
    for number in range(30):
        enqueue(redis, "NoopWorker", jid=f"behind-{number}")
    process = cluster("-r", "killers", "default", "--max-concurrency", "2")
    until(lambda: redis.zcard(keys.INTERRUPTED), "the killer is quarantined")
    (quarantined,) = [json.loads(data) for data in redis.zrange(keys.INTERRUPTED, 0, -1)]
    assert (quarantined["jid"], quarantined["aw_death_count"]) == ("killer", 3)
    assert process.line(job_status="quarantined")["jid"] == "killer"
    assert len(process.find(event_name="child.died")) <= 4
    wanted = {f"{where}-{number}" for where in ("before", "behind") for number in range(30)}
    until(lambda: wanted <= set(proofs("noop", 60)), "every neighbour runs")
    counts = {line["jid"]: line.get("aw_death_count") or 0 for line in process.find(job_status="done")}
    assert max(counts.values()) <= 1
    assert process.end() == 0
    assert redis.zcard(keys.INTERRUPTED) == 1


def test_cluster_starts_quiets_and_stops_its_groups(cluster, redis, proofs):
    process = cluster("default,side", "other", "--processes", "2", "--max-concurrency", "1")
    until(lambda: len(process.find(event_name="process.ready")) == 4, "four workers")
    ready = process.find(event_name="process.ready")
    assert sorted(line["queues"] for line in ready) == [["default", "side"]] * 2 + [["other"]] * 2
    assert {line["worker_id"] for line in ready} == {f"worker-{group}-{copy}" for group in (0, 1) for copy in (0, 1)}
    assert {line["pid"] for line in ready} == set(children(process))
    enqueue(redis, "LongWorker", args=["one"])
    proofs("begun:one")
    process.send(signal.SIGUSR1)  # the older signal for quiet, now TSTP
    until(lambda: len(process.find(event_name="process.quiet")) == 4, "four quiet workers")
    assert process.end(signal.SIGINT) == 0
    assert len(children(process, "stopped")) == 4
    assert all(has_ended(pid) for pid in children(process))
    assert redis.llen("queue:default") == 1  # the job is back in its queue
    assert redis.scard(keys.PROCESSES) == 0


def test_cluster_unknown_worker_module_ends_the_group(site, redis):
    (site.folder / "config" / "feature_categories.yml").write_text("feature_categories: {billing: {owner: us}}\n")
    (site.folder / "odd.py").write_text(
        "from framework import ApplicationWorker\n\nclass OddWorker(ApplicationWorker):\n"
        "    feature_category = 'biling'\n\n    def perform(self) -> None: ...\n"
    )
    shown = site.run("-m", "framework", "cluster", "default", "--processes", "2", "-r", "odd")
    assert shown.returncode == 78
    assert "'biling' is not in config/feature_categories.yml (did you mean 'billing'?)" in shown.stderr
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    assert {line["status"] for line in lines if line.get("event_name") == "child.died"} == {78}
    assert all(has_ended(line["child_pid"]) for line in lines if "child_pid" in line)


SHOP = """
import os
from pathlib import Path

from framework import ApplicationWorker

with (Path(__file__).parent / "imported").open("a") as file:
    file.write(f"{os.getpid()} ")


class IndexWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue_namespace = "search"

    def perform(self) -> None: ...


class MailWorker(ApplicationWorker):
    feature_category = "not_owned"

    def perform(self) -> None: ...
"""


def test_cluster_starts_one_child_per_planned_shard(site, second_redis_url):
    (site.folder / "shop.py").write_text(SHOP)
    imported = site.folder / "imported"
    site.write("application.yml", {"workers_module": "shop"})
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": second_redis_url}}})
    site.write("routing.yml", {"routing_rules": [["queue_namespace=search", "search"], ["*", None, "second"]]})
    assert site.run("-m", "framework", "generate-queues").returncode == 0
    imported.unlink()
    shown = site.run("-m", "framework", "cluster", "*", "--dryrun")
    assert shown.stdout.splitlines()[1].endswith("--shard main -t 25 -c 10 --no-namespaces -q search")
    assert not imported.exists()
    process = site.start("-m", "framework", "cluster", "*", "--timeout", "1")
    until(lambda: len(process.find(event_name="process.ready")) == 2, "two workers")
    ready = {line["shard"]: line["queues"] for line in process.find(event_name="process.ready")}
    assert ready == {"main": ["search"], "second": ["mail"]}  # a rule routes all jobs away from search:index
    assert sorted(map(int, imported.read_text().split())) == sorted(children(process))
    assert process.end() == 0


def test_cluster_dry_run_prints_the_plan(site):
    shown = site.run(
        "-m", "framework", "cluster", "a,b", "c", "--processes", "2", "--max-concurrency", "3", "--dryrun", "-r", "jobs"
    )
    lines = [line for line in shown.stdout.splitlines() if not line.startswith("#")]
    assert (shown.returncode, len(lines)) == (0, 4)
    assert lines[0].endswith("-m framework worker --shard main -t 25 -c 3 -r jobs -q a,1 -q b,1")
    assert lines[2].endswith("-q c")


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ((), 2, "SELECTOR"),
        (("a", "--shard", "nowhere"), 2, "nowhere"),
        (("a", "--processes", "0"), 2, "--processes"),
    ],
)
def test_cluster_wrong_usage_is_refused(site, options, status, words):
    shown = site.run("-m", "framework", "cluster", *options)
    assert (shown.returncode, words in shown.stderr, shown.stdout) == (status, True, "")
