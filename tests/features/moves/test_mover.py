"""Move jobs between two real servers: none is lost or doubled, and the order is kept, whatever ends a mover."""

import json
import time
from collections import Counter

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.errors import MoveRefusedError, TargetRefusedError
from framework.features.moves import keys as own_keys
from framework.features.moves import mover as module
from framework.features.moves.mover import MoveProgress, Mover, places_left
from framework.features.moves.moves import ShardMoves, check_distinct
from framework.features.moves.store import TAKE_ASIDE
from framework.features.packing.deferred_packer import DeferredPacker
from framework.features.packing.held_packer import HeldPacker
from framework.fetch.held_blocks import expand_member
from framework.migrate import queues
from framework.store.steps import UNPACED
from framework.wire import keys
from framework.wire.blocks import is_block
from framework.wire.json import dumps
from framework.wire.sub_queues import aside_list
from tests.harness import encoded, forked, full_memory, opened
from tests.migrate.ways import EACH_WAY
from tests.proofs.crash_points.wire import Fault, Line, install

QUEUE = keys.queue("old")
MOVED = "MoveWorker"


def job(serial, name=MOVED, **fields):
    return encoded(name, queue="old", jid=f"{serial:024x}", args=[serial], **fields)


def jobs_of(count):
    """Every third is of another class, every seventh is no job."""
    return [
        b"\xff no job %d" % serial if serial % 7 == 3 else job(serial, "StayWorker" if serial % 3 == 0 else MOVED)
        for serial in range(count)
    ]


def moves_away(data):
    return MOVED.encode() in data


def waiting(redis, key=QUEUE):
    """Return the jobs of a queue, the next to run first."""
    return redis.lrange(key, 0, -1)[::-1]


@pytest.fixture
def small_pages(monkeypatch):
    monkeypatch.setattr(queues, "PAGE", (7, 7))
    monkeypatch.setattr(module, "PAGE_JOBS", (5, 5))


@pytest.fixture
def moves(redis_url, second_redis_url, small_pages):
    return opened_moves(redis_url, second_redis_url)


def opened_moves(url, second_url):
    made = ShardMoves({"main": opened(url), "second": opened(second_url, "second")})
    made.read()
    return made


PAUSED, LIMIT = keys.paused_jobs(MOVED), keys.limit("queue/old")
HELD_SETS = (f"{LIMIT}:waiting:", PAUSED)
HELD_WAITING = [job(serial, "StayWorker" if serial == 101 else MOVED) for serial in range(100, 104)]
HELD_PAUSED = [job(serial, aw_accepted=5) for serial in range(200, 208)]
CURSORS = [keys.iteration(f"{serial:024x}") for serial in (2, 102, 205)]
"""Of a job that waits, of one at the limit, and of one in a block of the pause."""


def hold(redis):
    """Hold jobs of the queue at a limit and by a pause, some of the latter in a block."""
    redis.sadd(keys.LIMITS_WAITING, LIMIT)
    redis.zadd(f"{LIMIT}:turns", {"": 1})
    redis.sadd(keys.PAUSED_CLASSES, MOVED)
    redis.hset(keys.ACCEPTED_JOBS, MOVED, len(HELD_PAUSED))
    for key in CURSORS:
        redis.hset(key, mapping={"ex": 1, "c": f'"{key}"'})
    for key, jobs in zip(HELD_SETS, (HELD_WAITING, HELD_PAUSED), strict=True):
        redis.zadd(key, {b'["old"]\n' + data: 1_000.5 + at for at, data in enumerate(jobs)})
    packer = HeldPacker(redis, PAUSED.encode(), 2, 3)
    while packer.step():
        pass
    assert any(map(is_block, redis.zrange(PAUSED, 0, -1)))


def held(redis):
    """Return the held jobs, those at the limit first."""
    found = [expand_member(redis, *one) for key in HELD_SETS for one in redis.zrange(key, 0, -1, withscores=True)]
    return [one.data.partition(b"\n")[2] for members in found for one in members]


def begin(moves, kind="class", name=MOVED, percent=100):
    record = moves.begun(moves.new(kind, name, "main", "second", percent), 0)
    moves.publish(record)
    return record


def run(moves, record):
    while moves.run(record, MoveProgress(), UNPACED):
        pass


def fill(redis, count=40):
    jobs = jobs_of(count)
    redis.lpush(QUEUE, *jobs)
    for key in module.SETS:
        redis.zadd(key, {data: 1_700_000_000.25 + index for index, data in enumerate(jobs_of(12))})
    return jobs


def check_moved(redis, second_redis, jobs):
    """Check that every movable job is on the second shard, once and in its order, and each other one where it was."""
    assert waiting(second_redis) == [data for data in jobs if moves_away(data)]
    assert waiting(redis) == [data for data in jobs if not moves_away(data)]
    for key in module.SETS:
        scores = {data: 1_700_000_000.25 + index for index, data in enumerate(jobs_of(12))}
        assert dict(second_redis.zscan_iter(key)) == {data: score for data, score in scores.items() if moves_away(data)}
        assert dict(redis.zscan_iter(key)) == {data: score for data, score in scores.items() if not moves_away(data)}


def check_unmoved(redis, second_redis, jobs):
    # The jobs of the page that was refused stand in front of those of their page that stay in any case.
    for leaves in (True, False):
        assert [data for data in waiting(redis) if moves_away(data) is leaves] == [
            data for data in jobs if moves_away(data) is leaves
        ]
    assert [redis.zcard(key) for key in module.SETS] == [12] * len(module.SETS)
    assert not second_redis.exists(QUEUE, *module.SETS)


def test_move_takes_jobs_of_all_places_in_their_order(moves, redis, second_redis):
    jobs = fill(redis)
    second_redis.lpush(QUEUE, job(999))
    record = begin(moves)
    run(moves, record)
    assert second_redis.rpop(QUEUE) == job(999)
    check_moved(redis, second_redis, jobs)
    assert second_redis.smembers(keys.QUEUES) == {b"old"}
    assert moves.counts(record).moved == sum(map(moves_away, jobs)) + len(module.SETS) * sum(
        map(moves_away, jobs_of(12))
    )
    assert not any(places_left(redis, record.id).values())


def test_move_of_a_part_takes_equal_jobs_together(moves, redis, second_redis):
    jobs = [job(serial, idempotency_key=keys.lock(str(serial % 20))) for serial in range(60)]
    redis.lpush(QUEUE, *jobs)
    run(moves, begin(moves, percent=50))
    here, there = ({json.loads(data)["idempotency_key"] for data in waiting(one)} for one in (redis, second_redis))
    assert len(here) + len(there) == 20
    assert min(len(here), len(there)) > 4


def test_move_takes_packed_deferred_jobs(moves, redis, second_redis):
    start = round(time.time()) + 1_000.0
    jobs = {job(serial, deferred=True, deferred_by="flag"): start + serial for serial in range(20)}
    redis.zadd(keys.SCHEDULE, jobs)
    with registry.isolated():
        body = {"feature_category": "not_owned", "wire_name": MOVED, "perform": lambda self: None}
        type("MoveWorker", (ApplicationWorker,), body)
        packer = DeferredPacker(redis, 5, 4, 2)
        while packer.step():
            pass
    assert redis.zcard(keys.DEFERRED_PACKED) == 4
    run(moves, begin(moves))
    assert dict(second_redis.zscan_iter(keys.SCHEDULE)) == jobs
    assert not redis.exists(keys.SCHEDULE, keys.DEFERRED_PACKED, keys.DEFERRED_BLOCKS, keys.PACKED_HELD)


def test_move_takes_held_jobs_before_those_of_their_queue(moves, redis, second_redis):
    jobs = fill(redis)
    hold(redis)
    record = begin(moves)
    progress = MoveProgress()
    Mover(record, moves.route_moves, *moves._shards.values(), progress).preview()
    run(moves, record)
    moved = [*filter(moves_away, HELD_WAITING), *HELD_PAUSED]
    assert waiting(second_redis)[: len(moved)] == moved
    second_redis.ltrim(QUEUE, 0, -len(moved) - 1)
    check_moved(redis, second_redis, jobs)
    assert held(redis) == [HELD_WAITING[1]]
    assert progress.report.moved.total() == moves.counts(record).moved
    # What names held jobs knows the job that stays, and no longer the paused class.
    assert redis.smembers(keys.LIMITS_WAITING) == {LIMIT.encode()}
    assert redis.zrange(f"{LIMIT}:turns", 0, -1) == [b""]
    assert not redis.exists(PAUSED, keys.PAUSED_CLASSES, keys.PACKED_HELD)


def test_move_of_the_last_held_jobs_ends_their_limit(moves, redis):
    hold(redis)
    redis.zrem(HELD_SETS[0], b'["old"]\n' + HELD_WAITING[1])
    run(moves, begin(moves))
    assert not redis.exists(*HELD_SETS, keys.LIMITS_WAITING, f"{LIMIT}:turns")


def test_move_of_held_jobs_leaves_what_has_no_ticket(moves, redis, second_redis):
    members = {b"no ticket\n" + job(1): 1, job(2): 2, b'["old",1,["k"]]\n' + job(3): 3, b'["high"]\n' + job(4): 4}
    redis.sadd(keys.PAUSED_CLASSES, MOVED)
    redis.zadd(PAUSED, members)
    progress = MoveProgress()
    moves.run(begin(moves), progress, UNPACED)
    assert redis.zrange(PAUSED, 0, -1) == list(members)[:2]
    assert waiting(second_redis) == [job(3)]
    assert waiting(second_redis, keys.queue("high")) == [job(4)]
    assert {reason for reason, *_ in progress.report.skipped[PAUSED]} == {"unreadable"}


def test_lock_of_a_held_job_lasts_as_usual_again(moves, redis, second_redis):
    own = keys.lock("own")
    redis.hset(own, mapping={"v": "1", "jid": f"{1:024x}", "class": MOVED, "since": "1.5"})
    redis.pexpire(own, 86_400_000)
    redis.sadd(keys.PAUSED_CLASSES, MOVED)
    ticket = dumps(["old", 1, [own, f"{1:024x}", 500_000]])
    redis.zadd(PAUSED, {b"%b\n%b" % (ticket, job(1, idempotency_key=own)): 1})
    run(moves, begin(moves))
    assert 400_000 < second_redis.pttl(own) <= 500_000
    assert not redis.hexists(own, "jid")


def test_move_takes_jobs_that_were_set_aside(moves, redis, second_redis):
    aside, other = aside_list("old", MOVED), aside_list("old", "StayWorker")
    redis.sadd(keys.QUEUES, "old", aside, other)
    redis.sadd(keys.ASIDE, aside, other)
    redis.lpush(QUEUE, job(40))
    # Where the text of a class is among the arguments of another job, it is set aside with those of the class.
    mixed = [job(serial, "StayWorker" if serial == 8 else MOVED) for serial in range(30)]
    redis.lpush(keys.queue(aside), *mixed)
    redis.lpush(keys.queue(other), job(1, "StayWorker"))
    run(moves, begin(moves))
    assert waiting(second_redis) == [*filter(moves_away, mixed), job(40)]
    assert second_redis.smembers(keys.QUEUES) == {b"old"}
    assert waiting(redis, keys.queue(aside)) == [mixed[8]]
    redis.delete(keys.queue(aside))
    redis.lpush(keys.queue(aside), job(50))
    run(moves, moves.records[0])
    assert redis.smembers(keys.ASIDE) == {other.encode()}
    assert waiting(redis, keys.queue(other)) == [job(1, "StayWorker")]


def test_move_takes_what_belongs_to_a_job(moves, redis, second_redis):
    jid, other = f"{1:024x}", f"{2:024x}"
    redis.lpush(QUEUE, job(1, status_expiration=60, aw_result=[60, "caller"]), job(2), job(3, aw_accepted=7))
    cursor = {b"ex": b"2", b"c": b'["\xff", 5]', b"aw_done": b"5"}
    for name in (jid, other):
        redis.hset(keys.iteration(name), mapping=cursor)
        redis.set(keys.status(name), "retrying", ex=500)
    redis.expire(keys.iteration(jid), 500)
    redis.set(keys.result(jid), '{"end":"dead"}')
    redis.zadd(keys.CANCELLED, {jid: 5.25, "another": 6})
    redis.hset(keys.ACCEPTED_JOBS, MOVED, 2)
    redis.hset(keys.ACCEPTED_BYTES, MOVED, 10)
    second_redis.hset(keys.iteration(jid), "cancelled", 9)
    run(moves, begin(moves))
    assert second_redis.hgetall(keys.iteration(jid)) == {**cursor, b"cancelled": b"9"}
    assert second_redis.hgetall(keys.iteration(other)) == cursor
    assert 400 < second_redis.ttl(keys.iteration(jid)) <= 500
    assert second_redis.ttl(keys.iteration(other)) == -1
    assert (second_redis.get(keys.status(jid)), second_redis.ttl(keys.status(jid))) in [
        (b"retrying", 500),
        (b"retrying", 499),
    ]
    assert second_redis.get(keys.result(jid)) == b'{"end":"dead"}'
    assert second_redis.zrange(keys.CANCELLED, 0, -1, withscores=True) == [(jid.encode(), 5.25)]
    # The other job is not tracked: what has the name of its state is not its own.
    assert redis.exists(keys.status(other)) == 1
    assert not redis.exists(*map(keys.iteration, (jid, other)), keys.status(jid), keys.result(jid))
    for key, here, there in ((keys.ACCEPTED_JOBS, b"1", b"1"), (keys.ACCEPTED_BYTES, b"3", b"7")):
        assert (redis.hget(key, MOVED), second_redis.hget(key, MOVED)) == (here, there)


def test_take_aside_takes_nothing_if_the_oldest_is_another(redis):
    redis.rpush("aside", b"newer", b"older")
    assert TAKE_ASIDE(redis, ["aside", "list", "queues", "names"], ["n", 1, b"newer", 1]) == 0
    assert redis.lrange("aside", 0, -1) == [b"newer", b"older"]
    assert not redis.exists("list")


def test_move_names_classes_whose_jobs_a_flag_defers(moves, redis, second_redis):
    later = [job(1, deferred=True, deferred_by="feature_flag"), job(2, deferred=True, deferred_by="health")]
    redis.zadd(keys.SCHEDULE, dict.fromkeys(later[1:], 5))
    run(moves, begin(moves))
    assert not second_redis.exists(keys.DEFERRED_CLASSES)
    redis.zadd(keys.SCHEDULE, dict.fromkeys(later[:1], 5))
    run(moves, moves.records[0])
    assert second_redis.smembers(keys.DEFERRED_CLASSES) == {MOVED.encode()}


def test_move_back_returns_every_job(moves, redis, second_redis):
    jobs = fill(redis)
    run(moves, begin(moves))
    back = moves.reversed(moves.records[0])
    moves.publish(back)
    run(moves, back)
    assert Counter(waiting(redis)) == Counter(jobs)
    assert [redis.zcard(key) for key in module.SETS] == [12] * len(module.SETS)
    assert not second_redis.exists(QUEUE, *module.SETS)
    # The ids and their shards are free for another move.
    with pytest.raises(MoveRefusedError, match="wait for its end"):
        moves.new("queue", "old", "main", "second", 100)
    moves.end(back)
    assert moves.new("queue", "old", "main", "second", 100).id != back.id


def test_move_of_a_queue_leaves_what_it_cannot_move(moves, redis, second_redis):
    body = {"feature_category": "not_owned", "wire_name": "Known", "perform": lambda self: None}
    stay = [job(1), b"\xff", job(2, "Known", bid="aw-b"), job(3, "Known", aw_transfer="token")]
    redis.lpush(QUEUE, *stay, job(4, "Known"))
    progress = MoveProgress()
    with registry.isolated():
        type("KnownWorker", (ApplicationWorker,), body)
        moves.run(begin(moves, "queue", "old"), progress, UNPACED)
    reasons = {reason: found.jobs for (reason, *_), found in progress.report.skipped["old"].items()}
    assert reasons == {"unknown class": 1, "unreadable": 1, "awaited": 1, "in transit": 1}
    assert waiting(redis) == stay
    assert waiting(second_redis) == [job(4, "Known")]


def test_move_takes_locks_with_their_jobs(moves, redis, second_redis):
    own, foreign = keys.lock("own"), keys.lock("foreign")
    redis.lpush(QUEUE, job(1, idempotency_key=own), job(2, idempotency_key=foreign))
    for key, jid in ((own, f"{1:024x}"), (foreign, "another")):
        redis.hset(key, mapping={"v": "1", "jid": jid, "class": MOVED, "since": "1.5", "duplicates": "3"})
        redis.pexpire(key, 500_000)
    run(moves, begin(moves))
    assert second_redis.hgetall(own)[b"duplicates"] == b"3"
    assert 400_000 < second_redis.pttl(own) <= 500_000
    assert not second_redis.exists(foreign)
    # Pushes by the old rules are told so.
    assert redis.hgetall(own) == {b"moved": b""}
    assert 50_000 < redis.pttl(own) <= 60_000
    assert redis.hget(foreign, "jid") == b"another"


@pytest.mark.parametrize("why", ["memory", "type"])
def test_move_to_a_refusing_target_gives_jobs_back(moves, redis, second_redis, why):
    jobs = fill(redis)
    record = begin(moves)
    if why == "type":
        second_redis.set(QUEUE, "no list")
        with pytest.raises(TargetRefusedError, match="another type"):
            moves.run(record, MoveProgress(), UNPACED)
        second_redis.delete(QUEUE)
    else:
        with full_memory(second_redis), pytest.raises(TargetRefusedError, match="maxmemory"):
            moves.run(record, MoveProgress(), UNPACED)
    check_unmoved(redis, second_redis, jobs)
    run(moves, record)
    check_moved(redis, second_redis, jobs)


def test_move_from_a_full_source_frees_it(moves, redis, second_redis):
    jobs = fill(redis)
    with full_memory(redis):
        run(moves, begin(moves))
    check_moved(redis, second_redis, jobs)


def test_suspended_mover_writes_no_page_twice(moves, redis, second_redis, monkeypatch):
    """The guard has expired when the first mover goes on: it is too late, and reads its page again."""
    redis.lpush(QUEUE, *[job(serial) for serial in range(20)])
    record, write = begin(moves), module.Deliverer._write
    pauses = []

    def suspended(self, place, token, jobs, had, until):
        if not pauses:
            pauses.append(token)
            run(moves, record)
            second_redis.delete(own_keys.moved_page(token))
            until -= module.WRITE_WITHIN_S + 1
        return write(self, place, token, jobs, had, until)

    monkeypatch.setattr(module.Deliverer, "_write", suspended)
    run(moves, record)
    assert waiting(second_redis) == [job(serial) for serial in range(20)]


def test_second_mover_at_any_page_doubles_no_job(moves, redis, second_redis, redis_url, second_redis_url):
    other = opened_moves(redis_url, second_redis_url)
    for moment in (1, 2, 5, 8):
        redis.flushall()
        second_redis.flushall()
        jobs = fill(redis)
        record, seen = begin(moves), []

        def second(_count, moment=moment, seen=seen, record=record):
            seen.append(_count)
            if len(seen) == moment:
                other.read()
                run(other, record)

        moves.run(record, MoveProgress(on_moved=second), UNPACED)
        run(moves, record)
        assert len(seen) >= moment
        check_moved(redis, second_redis, jobs)


def test_move_of_one_redis_under_two_names_is_refused(redis_url, second_redis_url):
    one, other = opened(redis_url, "one"), opened(redis_url, "other")
    with pytest.raises(MoveRefusedError, match="one and other are two names of one Redis"):
        check_distinct([one, opened(second_redis_url, "second"), other])


def test_move_that_contradicts_another_is_refused(moves, redis):
    record = begin(moves)
    with pytest.raises(MoveRefusedError, match=f"the move {record.id} takes jobs of class MoveWorker away from main"):
        moves.new("shard", "second", "second", "main", 100)
    moves.new("class", "OtherWorker", "second", "main", 100)
    assert moves.new("class", MOVED, "main", "second", 100) == record
    assert moves.new("class", MOVED, "main", "second", 10).epoch == record.epoch + 1


# --- deaths ---------------------------------------------------------------------------------------------------------


def interrupted(urls, fault, folder, *, back=False):
    """Move in a process of its own, with a fault; return the names of the commands that it sent, and its end."""
    sent = folder / "sent"

    def act():
        with sent.open("w", buffering=1) as file:
            install(Line(fault, lambda _number, name: file.write(f"{name}\n"), lambda: False, greetings=False))
            moves = opened_moves(*urls)
            if back:
                moves.publish(moves.reversed(moves.records[0]))
            run(moves, moves.records[0])

    status = forked(act)
    return sent.read_text().split(), status


SCRIPTS = {"migrate", "moves/take", "moves/take_held", "unpack_held", "moves/page", "moves/receive"}
"""The commands that move jobs."""


def check_all_there(home, away, jobs, *, in_order):
    """Check that each movable job is at home, and that no job is lost or in two places."""
    found = [data for data in waiting(home) if moves_away(data)]
    moved = [data for data in [*HELD_WAITING, *HELD_PAUSED, *jobs] if moves_away(data)]
    # What came back is in its queue, and what had not left is still held.
    assert found == moved if in_order else Counter([*found, *filter(moves_away, held(home))]) == Counter(moved)
    assert not any(map(moves_away, [*waiting(away), *held(away)]))
    everywhere = [data for one in (home, away) for data in (*waiting(one), *held(one))]
    assert Counter(everywhere) == Counter([*jobs, *HELD_WAITING, *HELD_PAUSED])
    assert [home.hget(key, "c") for key in CURSORS] == [b'"%b"' % key.encode() for key in CURSORS]
    assert not away.exists(*CURSORS)
    assert (home.hget(keys.ACCEPTED_JOBS, MOVED), away.hget(keys.ACCEPTED_JOBS, MOVED)) == (b"8", None)
    assert Counter([*home.zrange(keys.RETRY, 0, -1), *away.zrange(keys.RETRY, 0, -1)]) == Counter(jobs_of(7))


@pytest.mark.proves("I1", "I2", "F1")
@pytest.mark.parametrize("points", ["scripts", pytest.param("all", marks=pytest.mark.campaign)])
@pytest.mark.parametrize("way", EACH_WAY)
@pytest.mark.parametrize("direction", ["there", pytest.param("back", marks=pytest.mark.campaign), "undone midway"])
def test_fault_of_a_mover_anywhere_loses_and_doubles_no_job(
    redis, second_redis, redis_url, second_redis_url, small_pages, tmp_path, way, direction, points
):
    """A mover dies, or loses its connection, at each of its commands; then another one goes on, or moves back."""
    urls = (redis_url, second_redis_url)

    def case(fault):
        redis.flushall()
        second_redis.flushall()
        jobs = jobs_of(14)
        redis.lpush(QUEUE, *jobs)
        hold(redis)
        redis.zadd(keys.RETRY, dict.fromkeys(jobs_of(7), 5))
        moves = opened_moves(*urls)
        record = begin(moves)
        if direction == "back":
            run(moves, record)
        sent, status = interrupted(urls, fault, tmp_path, back=direction == "back")
        assert (status != 0) == (fault is not None)
        moves.read()
        record = moves.records[0]
        if direction != "there" and not record.is_undo:
            record = moves.reversed(record)
            moves.publish(record)
        run(moves, record)
        home, away = (second_redis, redis) if direction == "there" else (redis, second_redis)
        check_all_there(home, away, jobs, in_order=direction == "there")
        return sent

    case(None)  # the servers know the scripts from now on
    sent = case(None)
    numbers = range(1, len(sent) + 1)
    if points == "scripts":
        numbers = [
            number for number in numbers if sent.index(sent[number - 1]) == number - 1 and sent[number - 1] in SCRIPTS
        ]
        # Jobs that were held are in the queue of the other shard, so none of those that move back is held.
        expected = SCRIPTS - {"moves/take_held", "unpack_held"} if direction == "back" else SCRIPTS
        assert {sent[number - 1] for number in numbers} == expected
    for number in numbers:
        case(Fault(number, way))
