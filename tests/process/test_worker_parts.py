"""Join the parts of all features in a worker process: the order of admission and of periodic work as a whole."""

import pytest

from framework.all_settings import load
from framework.execute.job_log import JobLog
from framework.feature import Late
from framework.process import worker_parts
from framework.process.events import ProcessEvents
from framework.process.worker_parts import ProcessContext, WorkerPart, WorkerParts
from framework.push.protection import NO_PROTECTION
from framework.route.router import open_router
from framework.shard.shard import Shard
from framework.store.embedded import endpoint_of
from framework.testing.fake_worker import silent_log
from framework.wire import keys

LOG = JobLog(silent_log(), jobs=False)


@pytest.fixture
def process(tmp_path):
    settings = load({}, tmp_path)
    shard = Shard("main", endpoint_of(settings, "main"), role="test")
    return ProcessContext(
        settings, open_router(settings), shard, "host:1:a", (), ProcessEvents("main"), NO_PROTECTION, LOG
    )


def parts_of(process):
    return WorkerParts(process, WorkerPart())


def test_worker_parts_policies_are_asked_in_this_order(process):
    chain = parts_of(process).chain("owner")
    assert [type(one).__name__ for one in chain._local] == [
        "DropFlag",
        "AsidePolicy",
        "PausePolicy",
        "DeferFlag",
        "HealthPolicy",
    ]
    assert [type(one).__name__ for one in chain._remote] == [
        "QueueLimit",
        "ClassLimit",
        "CapacityLimit",
        "DedupPositions",
        "ConsistencyPolicy",
        "DedupLock",
    ]


def test_worker_parts_periodic_work_has_this_order(process):
    assert [step.__qualname__ for step in parts_of(process).periodic] == [
        "PauseResumer.resume_ended",
        "DatabaseLoad.write",
        "Throttle.adjust",
        "LimitSweeper.sweep",
        "SkipTracker.warn_stale",
        "ParkedJobs.release",
        "BatchEventLog.step",
        "TaskUpkeep.step",
        "HeldUnpacker.step",
        "DeferredUnpacker.step",
    ]


def test_worker_parts_state_is_read_in_this_order(process):
    parts = parts_of(process)._parts
    assert [one.refresh.__qualname__ for one in parts if one.refresh] == [
        "PauseStrategies.poll",
        "WorkerFlags.refresh",
        "MemoryPressure.refresh",
        "MoveFollower.refresh",
    ]


def test_worker_parts_of_capsules_share_state_not_slots(process):
    parts = parts_of(process)
    first, second = (parts.chain(owner) for owner in ("first", "second"))
    by_name = [{type(one).__name__: one for one in chain._remote} for chain in (first, second)]
    assert by_name[0]["ConsistencyPolicy"] is by_name[1]["ConsistencyPolicy"]
    assert by_name[0]["DedupLock"]._consistency is by_name[0]["ConsistencyPolicy"]
    assert [one["ClassLimit"]._slots.owner for one in by_name] == ["first", "second"]
    assert by_name[0]["ClassLimit"]._limits is by_name[1]["ClassLimit"]._limits


class Counted:
    made = 0

    def __init__(self, process):
        del process
        Counted.made += 1


def test_process_context_makes_one_service_of_a_kind(process):
    kind = Late(f"{__name__}:Counted")
    assert process.service(kind) is process.service(Late(f"{__name__}:Counted"))
    assert Counted.made == 1


def test_process_context_invalidates_the_chains_of_all_capsules(process):
    parts = parts_of(process)
    chains = [parts.chain(owner) for owner in ("first", "second")]
    cleared = []
    for chain in chains:
        chain.invalidate = lambda chain=chain: cleared.append(chain)
    process.invalidate()
    assert cleared == chains


def test_worker_parts_join_sub_queues_and_checks(process, monkeypatch):
    monkeypatch.setattr(worker_parts, "features", tuple)
    asked = []
    parts = WorkerParts(process, WorkerPart(sub_queues={"fair"}, check=lambda: asked.append("first")))
    parts.add(WorkerPart(sub_queues={"urgent"}, check=lambda: asked.append("last")))
    assert parts.sub_queues == {"fair", "urgent"}
    parts.check()
    assert asked == ["first", "last"]


def test_worker_parts_without_features_admit_every_job(process, monkeypatch):
    monkeypatch.setattr(worker_parts, "features", tuple)
    parts = parts_of(process)
    chain = parts.chain("owner")
    assert (chain._local, chain._remote, parts.periodic, parts.sub_queues) == ((), (), [], frozenset())
    parts.refresh()
    parts.check()
    parts.serve()


def test_worker_parts_have_what_features_do_in_runs(process):
    parts = parts_of(process)
    assert [type(one).__name__ for one in parts.around] == ["RedisProfiles"]
    assert parts.detached is None
    first, second = (parts.cursors(owner) for owner in ("first", "second"))
    assert (first.working, second.working) == (keys.working("first"), keys.working("second"))
    process.isolates = True
    assert type(parts_of(process).detached).__name__ == "IsolatedRuns"
