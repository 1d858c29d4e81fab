"""Test `payloads`: the sweep deletes what no job on any shard names, and nothing else."""

import json
import os
import time

import pytest
from click.testing import CliRunner

from framework.cli.main import main
from framework.features.batches import keys as batch_keys
from framework.features.batches.payload import Callback
from framework.features.encryption.blob_store import FolderStore
from framework.features.encryption.offload import PayloadOffload
from framework.wire import keys
from framework.wire.compress import deflate_arguments
from framework.wire.json import dumps
from tests.harness import ROOT

COMMAND = str(ROOT / "scripts" / "payloads")
DAY_S = 86_400


@pytest.fixture
def site(site):
    site.write("application.yml", {"payload_offload": {"url": f"file://{site.folder}/payloads", "keep": DAY_S}})
    return site


def test_folder_without_the_marker_is_no_store(site, short_path):
    """An unmounted store looks like an empty folder: it must not look like a store without blobs."""
    (short_path / "payloads").mkdir()
    for verb in ("show", "sweep"):
        done = site.run(COMMAND, verb)
        assert (done.returncode, done.stdout) == (1, "")
        assert "is no payload store: it lacks the file payload-store: it is not mounted" in done.stderr
    assert list((short_path / "payloads").iterdir()) == []


def test_sweep_deletes_what_no_job_names(site, redis, short_path, monkeypatch):
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(short_path / "config"))
    for words in ("is a payload store now", "was a payload store before"):
        made = CliRunner().invoke(main, ["payloads", "create"])
        assert (made.exit_code, made.output) == (0, f"file://{short_path}/payloads {words}\n")
    offload = PayloadOffload(FolderStore(short_path / "payloads"), "", 1)
    jobs = [job(offload, number) for number in range(8)]
    redis.lpush(keys.queue("default"), jobs[0])
    redis.zadd(keys.SCHEDULE, {jobs[1]: 4e9})
    redis.zadd(keys.RETRY, {jobs[2]: 4e9})
    redis.zadd(keys.DEAD, {jobs[3]: time.time()})
    redis.lpush(keys.working("host:1:2"), jobs[4])
    redis.zadd(keys.paused_jobs("Job"), {b"ticket\n" + jobs[5]: 1})
    # A callback waits in its batch, however long that lasts.
    callback = job(offload, 8)
    redis.zadd(batch_keys.BATCHES, {"b": 4e9})
    redis.hset(batch_keys.batch("b"), "on_success", json.dumps([Callback("default", callback).encode()]))
    assert run(site, "show", "--json")["blobs"] == 9
    age(short_path, "blobs/*/*")
    # Job 7 is young: its push may be on its way.
    young = job(offload, 9)
    assert run(site, "sweep", "--dry-run", "--json")["unnamed"] == 2
    assert not list(short_path.glob("payloads/unnamed/*"))
    # The first sweep only notes; a job that appears again keeps its blob.
    assert run(site, "sweep", "--json")["deleted"] == 0
    age(short_path, "payloads/unnamed/*")
    redis.zadd(keys.DEAD, {jobs[6]: time.time()})
    done = run(site, "sweep", "--json")
    assert (done["blobs"], done["candidates"], done["unnamed"], done["deleted"]) == (10, 9, 1, 1)
    left = {path.name for path in short_path.glob("payloads/blobs/*/*")}
    assert left == {json.loads(one)["args"][0] for one in [*jobs[:7], callback, young]}
    assert not list(short_path.glob("payloads/unnamed/*"))
    # A shard that does not answer may name each blob.
    site.write("redis.yml", {"shards": {"main": {"url": "redis://127.0.0.1:1"}}})
    done = site.run(COMMAND, "sweep", role="operator")
    assert (done.returncode, "Nothing was deleted" in done.stderr) == (1, True)


def age(folder, pattern):
    """Make files two days old."""
    then = time.time() - 2 * DAY_S
    for path in folder.glob(pattern if pattern.startswith("payloads") else f"payloads/{pattern}"):
        os.utime(path, (then, then))


def job(offload, number):
    arguments = dumps([number])
    payload = {"class": "Job", "jid": f"{number:024}", "queue": "default", "compressed": True}
    payload["args"] = [deflate_arguments(arguments).decode()]
    offload.move_out(payload)
    assert "aw_offloaded" in payload
    return dumps(payload)


def run(site, *words):
    done = site.run(COMMAND, *words, role="operator")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)
