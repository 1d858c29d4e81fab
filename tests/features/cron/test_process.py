"""Check cron in real processes: which process leads, what a boot refuses, and what the payload of a tick has."""

import json
from contextlib import closing
from dataclasses import asdict

from framework.features.moves.records import MoveRecord
from tests.harness import Site, until
from tests.process.conftest import proofs, release
from tests.servers.guarded import with_all_rights

__all__ = ["proofs", "release"]

TICKS = """
import os

import redis

from framework import CronWorker, leader


class TickWorker(CronWorker):
    feature_category = "not_owned"
    cron = "* * * * * *"

    def perform(self) -> None:
        with redis.Redis.from_url(os.environ["PROOF_URL"]) as client:
            client.rpush("proof:leads", str(leader.is_leader()))
"""


def test_process_runs_the_job_of_a_tick_and_stops(site, proofs, redis):
    (site.folder / "ticks.py").write_text(TICKS)
    process = site.worker("-r", "ticks", "-q", "cronjob").ready()
    assert proofs("leads", 2)[:2] == ["True", "True"]
    pushed = process.line(event_name="cron.pushed", entry="TickWorker")
    done = process.line(job_status="done", jid=pushed["jid"])
    assert done["meta.caller_id"] == "Cronjob"
    assert process.end() == 0
    assert process.find(event_name="cron.leader")[-1]["leads"] is False
    assert not redis.exists("aw:leader:default")


def test_dead_main_stops_no_tick_of_another_shard(short_path, make_server, second_redis, second_redis_url):
    """Decision 286: each shard has a leader of its own."""
    main = make_server()
    with closing(Site(short_path, main.url, second_redis_url)) as site:
        site.proofs_url = with_all_rights(second_redis_url)
        (site.folder / "ticks.py").write_text(TICKS.replace("    cron =", '    shard = "second"\n    cron ='))
        process = site.worker("-r", "ticks", "-q", "cronjob", "--shard", "second").ready()
        process.line(event_name="cron.pushed", entry="TickWorker")
        main.kill()
        before = len(process.find(event_name="cron.pushed"))
        until(lambda: len(process.find(event_name="cron.pushed")) > before + 1, "the ticks go on")
        process.line(job_status="done", jid=process.find(event_name="cron.pushed")[-1]["jid"])
        assert second_redis.get("aw:leader:default").decode() == process.identity
        assert process.end() == 0


def test_process_that_may_not_lead_pushes_nothing(site, proofs, redis):
    (site.folder / "ticks.py").write_text(TICKS)
    other = site.worker("-r", "ticks", "-q", "none", FRAMEWORK_CRON__ENABLED="false").ready()
    leader = site.worker("-r", "ticks", "-q", "cronjob").ready()
    assert proofs("leads")[0] == "True"
    assert redis.get("aw:leader:default").decode() == leader.identity
    assert not other.find(event_name="cron.leader")


def test_processes_with_different_classes_push_their_entries(site, redis):
    (site.folder / "ticks.py").write_text(TICKS.replace('    cron = "* * * * * *"\n', ""))
    entries = {
        "here": {"cron": "* * * * * *", "class": "TickWorker"},
        "there": {"cron": "* * * * * *", "class": "NoopWorker"},
    }
    site.write("schedule.yml", {"schedule": entries})
    one = site.start("-m", "framework", "worker", "-r", "ticks", "-q", "none").ready()
    other = site.worker("-q", "none").ready()
    one.line(event_name="cron.pushed", entry="here")
    other.line(event_name="cron.pushed", entry="there")
    assert not one.find(event_name="cron.pushed", entry="there")
    assert one.line(event_name="cron.unknown_classes")["classes"] == ["NoopWorker"]
    assert until(lambda: redis.keys("aw:leader:default:*"), "their leaders")


def test_entry_added_at_run_time_survives_deploy_and_move(two_shards, redis, second_redis):
    site = two_shards
    (site.folder / "ticks.py").write_text(TICKS.replace('    cron = "* * * * * *"\n', ""))
    before = site.hurried_worker("-q", "none").ready()
    assert not redis.exists("aw:leader:default")
    facts = {"cron": "* * * * * *", "class": "NoopWorker", "missed": "all", "reason": "audit", "added_by": "ada@host"}
    redis.hset("aw:cron_entries:default", "extra", json.dumps(facts))
    before.line(event_name="cron.pushed", entry="extra")
    assert before.end() == 0
    # The jobs of the class go to another shard from now on. The entry stays, and each tick has one job.
    move = MoveRecord("1", "class", "NoopWorker", "main", "second", 100, 1, "moved")
    redis.hset("aw:moves", "1", json.dumps(asdict(move)))
    after = site.worker("-r", "ticks", "-q", "none").ready()
    pushed = after.line(event_name="cron.pushed", entry="extra")
    until(lambda: second_redis.llen("queue:default"), "a job of the entry on the other shard")
    assert after.end() == 0
    places = ((redis, "queue:default"), (second_redis, "queue:default"), (redis, "aw:moving:1:queue:default"))
    jobs = [json.loads(data) for shard, key in places for data in shard.lrange(key, 0, -1)]
    # A page in flight is on both.
    ticks = sorted(tick for tick, _ in {(job["cron"]["tick"], job["jid"]) for job in jobs})
    assert pushed["tick"] in ticks
    assert ticks == list(range(ticks[0], ticks[0] + len(ticks)))


def test_process_with_a_wrong_schedule_ends_with_78(site):
    entries = {
        "noop": {"cron": "* * * *", "class": "NoopWorker"},
        "unknown": {"cron": "@daily", "class": "TikWorker"},
        "args": {"cron": "@daily", "class": "TickWorker", "args": [1, 2, 3]},
    }
    site.write("schedule.yml", {"schedule": entries})
    refused = site.worker("-q", "none")
    assert refused.wait() == 78
    assert "schedule.noop.cron: must be a cron expression" in refused.output
    del entries["noop"]
    site.write("schedule.yml", {"schedule": entries})
    (site.folder / "ticks.py").write_text(TICKS)
    refused = site.worker("-r", "ticks", "-q", "none", FRAMEWORK_WORKERS_MODULE="ticks")
    assert refused.wait() == 78
    assert (
        "schedule.unknown.class: no worker has the wire name 'TikWorker' (did you mean 'TickWorker'?)" in refused.output
    )
    assert "schedule.args.args: TickWorker: " in refused.output
