"""Test the checks of the round of guards: each way to break a promise is found."""

from random import Random

from framework.features.encryption.blob_store import FolderStore
from framework.features.encryption.offload import PayloadOffload
from framework.wire import keys
from framework.wire.compress import deflate_arguments
from framework.wire.json import dumps
from tests.chaos.rounds.effects import BEGUN, ENDED, Effect
from tests.chaos.rounds.faults import Injection
from tests.chaos.rounds.guard_load import MARKER, GuardLoad
from tests.chaos.rounds.jobs import LOCK_S, LOCKED, SEALED, SEPARATE
from tests.chaos.rounds.producer import AcceptedPushes

BEGAN = 1_000.0


def ran(serial, begun, ended=None, pid=1):
    effects = [Effect(BEGUN, serial, pid, BEGAN + begun)]
    return effects + ([Effect(ENDED, serial, pid, BEGAN + ended)] if ended is not None else [])


def test_account_of_guards_finds_each_broken_promise(redis, short_path):
    files = short_path / "files"
    files.mkdir()
    load = GuardLoad(dict.fromkeys((LOCKED, SEALED, SEPARATE)), short_path, 10.0, Random(1))
    load.begin(BEGAN)

    def found(*jobs, injections=()):
        for base in load.workers:
            count = len({one[0].serial for one in jobs if one[0].serial // 10**8 == base // 10**8})
            load._times[base] = AcceptedPushes([BEGAN] * count, [BEGAN] * count)
        return load.found([effect for job in jobs for effect in job], injections, {"main": redis}, files)

    # Limits: an end makes room at the same instant, a kill ends a block, and so does the end of its lock.
    two = [ran(LOCKED, 1, 2), ran(LOCKED + 1, 1, 2)]
    assert not found(*two, ran(LOCKED + 2, 2, 3)).over
    assert len(found(*two, ran(LOCKED + 2, 1.5, 3)).over) == 1
    killed = [ran(LOCKED, 1, pid=2), ran(LOCKED, 3, 4), ran(LOCKED + 1, 1, 4), ran(LOCKED + 2, 2, 4)]
    seen = found(*killed[:1], *killed[2:], injections=[Injection("kill", 2, BEGAN + 1.5)])
    assert (seen.over, seen.locked.lost) == ([], [0])
    assert not found(ran(LOCKED, 1, 60), ran(LOCKED + 1, 1, 60), ran(LOCKED + 2, 1 + LOCK_S, 60)).over
    # Isolated jobs: a process that outlived the kill ends after the next run has begun.
    assert found(ran(SEPARATE, 1, 5, pid=7), ran(SEPARATE, 4, 6, pid=8)).overlapping == ["0: 1.000 s"]
    assert found(ran(SEPARATE, 1, pid=7), ran(SEPARATE, 4, 6, pid=8)).overlapping == []
    assert found(ran(SEPARATE, 1, pid=7)).separate.lost == [0]
    assert found(ran(SEALED, 1)).sealed.lost == [0]
    # Sealed jobs: a text that can be read, and blobs.
    (files / "appendonly.aof").write_bytes(b"..." + MARKER.encode())
    offload = PayloadOffload(FolderStore(short_path / "payloads"), "", 1)
    named, left = (sealed(offload, number) for number in range(2))
    redis.zadd(keys.DEAD, {named: 1})
    load._look_into_a_blob()
    seen = found()
    assert len(seen.readable) == 2
    assert (seen.blobs_left, seen.blobs_kept) == (2, 1)
    assert left != named


def sealed(offload, number):
    payload = {
        "class": "SealedWorker",
        "compressed": True,
        "args": [deflate_arguments(dumps([number, MARKER])).decode()],
    }
    offload.move_out(payload)
    return dumps(payload)
