"""Check the scripts that use locks, on each server: the owner, the time to live, duplicates, and a full memory."""

from contextlib import nullcontext

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.exceptions import OutOfMemoryError, ResponseError

from framework.features.deduplication.store import START_LOCKED
from framework.features.pause.store import HOLD_PAUSED, RELEASE_PAUSED
from framework.store.script import (
    ENQUEUE_DUE,
    FINISH,
    FINISH_UNLESS_DUPLICATED,
    INTERRUPT,
    PUSH_UNIQUE,
    RECEIVE_TRANSFER,
    RECLAIM,
    RELEASE_WAITING,
    REQUEUE,
    TAKE_SLOT,
)
from framework.wire import keys
from framework.wire.json import dumps
from framework.wire.resources import (
    MAX_TTL_MS,
    JobResources,
    Lock,
    LockDetails,
    LockRequest,
    LockTerms,
    Slot,
    UniqueJobs,
)
from tests.harness import examples, full_memory

WORKING, QUEUE, QUEUES, SET, DEAD, COUNTERS = "working", "queue:q", "queues", "schedule", "dead", "aw:counters"
KEY = "aw:lock:x"
DATA = b'{"odd":"\xc3\xa4\\u0000"}'


@pytest.fixture
def redis(each_redis):
    return each_redis


@pytest.fixture(params=["room", "full"])
def memory(redis, request):
    return (lambda: full_memory(redis)) if request.param == "full" else nullcontext


def claim(jid, key=KEY, *, drops=True, positions=None, **facts):
    return LockRequest(
        Lock(key, jid, 60.0, "C"), drop_duplicate=drops, counter="n", wal_positions=positions or {}, **facts
    ).encode()


def job(jid, key=KEY, positions=None, **facts):
    """Return the lock key, the jid and the details of a job to push."""
    return key, jid, LockDetails(positions or {}, **facts)


def push(redis, *jobs, drops=True, data=DATA, place=QUEUE, queue="q"):
    """Push jobs by one call of the script, and return the owners that it names."""
    count = len(jobs)
    unique = UniqueJobs.of(LockTerms("C", 60.0, drops, "n").encode, [data] * count, *zip(*jobs, strict=True))
    reply = PUSH_UNIQUE(redis, [QUEUES, place], [count, queue, "", 0, *unique.arguments(0, count)])
    return [found.decode() for found in reply]


def owned(redis, owner, key=KEY, **fields):
    redis.delete(key)
    redis.hset(key, mapping={"jid": owner, **fields})
    redis.pexpire(key, 5_000)


def owner(redis, key=KEY):
    found = redis.hget(key, "jid")
    return found and found.decode()


def now(redis):
    seconds, microseconds = redis.time()
    return seconds + microseconds / 1e6


def test_push_unique_free_lock_writes_one_job(redis):
    assert push(redis, job("a"), job("b"), job("c", "aw:lock:y")) == ["", "a", ""]
    assert push(redis, job("d")) == ["a"]
    assert push(redis, job("a")) == [""]  # the same push once more: it is in
    assert redis.lrange(QUEUE, 0, -1) == [DATA, DATA]
    assert redis.smembers(QUEUES) == {b"q"}
    fields = redis.hgetall(KEY)
    since = float(fields.pop(b"since"))
    assert fields == {b"v": b"1", b"jid": b"a", b"class": b"C", b"duplicates": b"2"}
    assert abs(since - now(redis)) < 60
    assert 50_000 < redis.pttl(KEY) <= 60_000
    assert redis.hgetall(COUNTERS) == {b"n": b"2"}


def test_push_unique_scheduled_job_keeps_lock_until_due_and_ttl(redis):
    due = now(redis) + 1_000
    assert push(redis, job("a", due=due), place=SET, queue="") == [""]
    assert redis.zscore(SET, DATA) == pytest.approx(due, abs=0.001)
    assert 1_040_000 < redis.pttl(KEY) <= 1_060_000
    assert push(redis, job("b", "past", due=1.0), place=SET, queue="") == [""]
    assert 50_000 < redis.pttl("past") <= 60_000
    assert push(redis, job("c", "far", due=1e15), place=SET, queue="") == [""]
    assert redis.pttl("far") > MAX_TTL_MS / 2
    assert redis.exists(QUEUES) == 0


def test_push_unique_kept_duplicate_names_the_lock_owner(redis):
    owned(redis, 'odd "jid"\\')
    assert push(redis, job("b"), drops=False) == ['odd "jid"\\']
    assert redis.lrange(QUEUE, 0, -1) == [DATA[:-1] + b',"duplicate-of":"odd \\"jid\\"\\\\"}']
    assert owner(redis) == 'odd "jid"\\'
    assert redis.hget(KEY, "duplicates") is None
    assert not redis.exists(COUNTERS)


def test_push_unique_writes_status_of_written_jobs_only(redis):
    status = ("queued", "EX", 60)
    owned(redis, "a")
    push(redis, job("b", status=status))
    assert not redis.exists(keys.status("b"))
    push(redis, job("a2", "other", status=status))
    assert redis.get(keys.status("a2")) == b"queued"


@pytest.mark.parametrize("place", [QUEUE, SET])
def test_push_unique_refused_leaves_no_job_and_no_lock(redis, place):
    queue, due = ("q", None) if place == QUEUE else ("", 5.0)
    jobs = [job("a", due=due), job("b", "aw:lock:y", due=due)]
    with full_memory(redis), pytest.raises(OutOfMemoryError):
        push(redis, *jobs, place=place, queue=queue)
    assert redis.keys("*") == []
    redis.set(place, "of another type")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        push(redis, *jobs, place=place, queue=queue)
    assert redis.keys("aw:*") == []
    owned(redis, "z")
    with full_memory(redis), pytest.raises(OutOfMemoryError):  # the owner of the lock cannot record the duplicate
        push(redis, *jobs, place=place, queue=queue)
    assert redis.hgetall(KEY) == {b"jid": b"z"}


@pytest.mark.parametrize("set_wrong_type", [lambda redis: redis.set(KEY, 1), lambda redis: redis.hset(KEY, "a", 1)])
def test_lock_key_of_wrong_type_is_overwritten(redis, set_wrong_type):
    set_wrong_type(redis)
    assert push(redis, job("a")) == [""]
    assert redis.hgetall(KEY).keys() == {b"v", b"jid", b"class", b"since"}


# --- positions ------------------------------------------------------------------------------------------------------

POSITION = st.builds(lambda high, low: f"{high:X}/{low:x}", st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
CLOSE = st.builds(lambda high, low: f"{high:X}/{low:X}", st.integers(0, 1), st.sampled_from([0, 9, 10, 2**32 - 1]))
GARBAGE = st.sampled_from(["", "/", "0/", "g/1", "1/1/1", "123456789/1", "-1/1", "0x1/1", " 1/1", "\x00", "ä/1"])


def value(position):
    high, _, low = position.partition("/")
    is_one = all(0 < len(half) <= 8 and set(half) <= set("0123456789abcdefABCDEF") for half in (high, low))
    return (int(high, 16), int(low, 16)) if is_one else None


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(
    start=st.none() | POSITION | GARBAGE,
    duplicates=st.lists(
        st.dictionaries(st.sampled_from(["main", "ci", "wal:x"]), POSITION | CLOSE | GARBAGE), max_size=6
    ),
)
def test_lock_keeps_newest_valid_position_per_database(redis, start, duplicates):
    owned(redis, "a", **({} if start is None else {"wal:main": start}))
    for positions in duplicates:
        assert push(redis, job("b", positions=positions)) == ["a"]
    for database in ("main", "ci", "wal:x"):
        seen = [position for positions in duplicates if value(position := positions.get(database, ""))]
        seen += [start] if database == "main" and start is not None and value(start) else []
        kept = redis.hget(KEY, f"wal:{database}")
        if seen:
            assert value(kept.decode()) == max(map(value, seen))
        else:
            assert kept == (None if database != "main" or start is None else start.encode())
    assert int(redis.hget(KEY, "duplicates") or 0) == len(duplicates)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(there=st.dictionaries(st.sampled_from(["a", "b", "c"]), POSITION | CLOSE | GARBAGE), known=st.data())
def test_start_locked_returns_newer_positions_exactly(redis, there, known):
    known_positions = known.draw(st.dictionaries(st.sampled_from(["a", "b", "c"]), POSITION | CLOSE))
    owned(redis, "j", **{f"wal:{name}": position for name, position in there.items()})
    arguments = [part for pair in known_positions.items() for part in pair]
    newer = {
        name: position
        for name, position in there.items()
        if value(position) and (name not in known_positions or value(position) > value(known_positions[name]))
    }
    found = [part.decode() for part in START_LOCKED(redis, [KEY], ["j", "C", 0, "1", "", *arguments])]
    assert dict(zip(found[::2], found[1::2], strict=True)) == newer
    assert redis.exists(KEY) == bool(newer)
    owned(redis, "j", **{f"wal:{name}": position for name, position in there.items()})
    assert sorted(START_LOCKED(redis, [KEY], ["j", "C", 0, "2", "", *arguments])) == sorted(
        part.encode() for part in found
    )
    assert redis.exists(KEY) == 0


def test_start_locked_changes_its_own_lock_only(redis, memory):
    with memory():
        assert START_LOCKED(redis, [KEY], ["j", "C", 0, "0"]) == []
        assert redis.exists(KEY) == 0
        assert START_LOCKED(redis, [KEY], ["j", "C", 60_000, "0"]) == []
    assert owner(redis) == "j"
    assert redis.hget(KEY, "class") == b"C"
    owned(redis, "j", duplicates=3, **{"wal:main": "0/1"})
    with memory():
        assert START_LOCKED(redis, [KEY], ["j", "C", 60_000, "2", "", "main", "0/1"]) == []
    assert redis.hgetall(KEY) == {b"jid": b"j", b"wal:main": b"0/1", b"begun": b"run"}
    assert 50_000 < redis.pttl(KEY) <= 60_000
    with memory():
        for keep_ms in (0, 90_000):
            assert START_LOCKED(redis, [KEY], ["k", "C", keep_ms, "2"]) == []
    assert owner(redis) == "j"
    assert redis.pttl(KEY) <= 60_000


# --- moves ----------------------------------------------------------------------------------------------------------

HOLDS = JobResources(Lock(KEY, "j", 60.0, "C"), [Slot("limit", "me j")])


def test_requeue_leaves_a_job_whose_lock_another_has(redis, memory):
    """A job that has not started goes back with its lock, or not at all."""
    stays = HOLDS.on_requeue(stays_without_lock=True)
    other = JobResources(Lock("aw:lock:other", "o", 60.0, "C")).on_requeue(stays_without_lock=True)

    def back():
        redis.delete(QUEUE, WORKING)
        redis.lpush(WORKING, DATA, "other")
        with memory():
            return REQUEUE(
                redis,
                [WORKING, QUEUES, *[QUEUE] * 3],
                [3, "other", "gone", DATA, "other", "gone", DATA, *"qqq", other, stays, stays],
            )

    owned(redis, "k")
    assert back() == [1, 3]
    assert (redis.lrange(WORKING, 0, -1), owner(redis)) == ([DATA], "k")
    assert redis.hget("aw:lock:other", "jid") == b"o"
    for mine in ("j", None):
        redis.delete(KEY)
        if mine:
            owned(redis, mine)
        assert back() == [2]
        assert (redis.lrange(QUEUE, 0, -1), owner(redis)) == ([b"other", DATA], "j")


def test_requeue_takes_a_free_lock_again(redis, memory):
    def back(script):
        resources = HOLDS.on_requeue()
        redis.lpush(WORKING, DATA)
        redis.zadd("limit:running", {"me j": 1})
        with memory():
            if script is REQUEUE:
                return script(redis, [WORKING, QUEUES, QUEUE], [1, DATA, DATA, "q", resources])[0]
            if script is INTERRUPT:
                return script(redis, [WORKING, QUEUE, QUEUES], [DATA, DATA, "q", resources])
            places = ["no lease", WORKING, QUEUE, QUEUES]
            return script(redis, places, [DATA, DATA, now(redis) + 9, "q", 10, 100, "", 0, resources])

    for script in (REQUEUE, INTERRUPT, RECLAIM):
        redis.delete(KEY)
        assert back(script) == 1
        assert owner(redis) == "j"
        assert redis.hget(KEY, "class") == b"C"
        owned(redis, "j")
        assert back(script) == 1
        assert 50_000 < redis.pttl(KEY) <= 60_000
        owned(redis, "k")
        assert back(script) == 1
        assert owner(redis) == "k"
        assert 0 < redis.pttl(KEY) <= 5_000
        redis.delete(KEY)
        redis.set(KEY, "of another type")
        assert back(script) == 1
        assert redis.get(KEY) == b"of another type"
        assert not redis.exists("limit:running")


PAUSED, LIMIT = "aw:paused_jobs:C", "aw:limit:C"


def paused(redis, holds):
    places = [WORKING, PAUSED, "aw:paused_classes", "aw:flags", "mark"]
    entry = b"%b\n%b" % (dumps(["q", 1, [KEY, "j", 60_000]]), DATA)
    pause = ["C", "pause_jobs_C", "", "", 0]
    return HOLD_PAUSED(redis, places, [*pause, DATA, 0, "", "", 0, entry, holds])[0] == 1


def resumed(redis):
    places = [PAUSED, "aw:paused_classes", QUEUES, "aw:flags", "mark"]
    return RELEASE_PAUSED(redis, places, ["C", "pause_jobs_C", "", "", 100, 1_000_000, 0]) == [1, 1, 0]


def behind_a_limit(redis, holds):
    return TAKE_SLOT(redis, [WORKING, LIMIT], [DATA, "me j", "j", "q", 1, 180, "", "", 0, "wait", holds])[0] == 0


def handed_over(redis):
    redis.delete(f"{LIMIT}:running")
    return RELEASE_WAITING(redis, [LIMIT], [1, 0, 100, 60])[0] == 1


@pytest.mark.parametrize(("park", "wake"), [(paused, resumed), (behind_a_limit, handed_over)])
def test_lock_of_held_job_lasts_until_release_plus_ttl(redis, memory, park, wake):
    held = JobResources(Lock(KEY, "j", 60.0, "C")).on_hold()
    for rival in (None, "k"):
        redis.delete(QUEUE)
        redis.lpush(WORKING, DATA)
        redis.zadd(f"{LIMIT}:running", {"other k": 1e11})
        owned(redis, "j")
        with memory():
            assert park(redis, held)
        assert redis.pttl(KEY) > 29 * 86_400_000
        assert redis.llen(WORKING) == 0
        if rival:
            owned(redis, rival)
        with memory():
            assert wake(redis)
        assert redis.lrange(QUEUE, 0, -1)[0].startswith(DATA[:-1])
        assert owner(redis) == (rival or "j")
        assert (0 if rival else 50_000) < redis.pttl(KEY) <= (5_000 if rival else 60_000)


def once_more(redis, jid="j", status=""):
    places = [WORKING, QUEUES, QUEUE, KEY]
    return FINISH(redis, places, [DATA, HOLDS.on_end(), jid, b"next", "n", "C", "q", 70_000, status, "queued", 60])


def test_finish_after_duplicate_writes_one_next_run(redis, memory):
    redis.lpush(WORKING, DATA)
    redis.zadd("limit:running", {"me j": 1})
    owned(redis, "j", duplicates=2, **{"wal:main": "0/1"})
    with memory():
        assert once_more(redis, status="status") == 2
        assert once_more(redis, status="status") == 0  # the reply was lost
    assert redis.lrange(QUEUE, 0, -1) == [b"next"]
    assert redis.smembers(QUEUES) == {b"q"}
    assert redis.hgetall(KEY) == {b"jid": b"n", b"class": b"C", b"wal:main": b"0/1"}
    assert 60_000 < redis.pttl(KEY) <= 70_000
    assert redis.get("status") == b"queued"
    assert not redis.exists(WORKING, "limit:running")


@pytest.mark.parametrize("fields", [{"jid": "j"}, {"jid": "k", "duplicates": 1}, {}])
def test_finish_without_duplicate_writes_no_next_run(redis, memory, fields):
    redis.lpush(WORKING, DATA)
    if fields:
        owned(redis, fields["jid"], **{name: value for name, value in fields.items() if name != "jid"})
    with memory():
        assert once_more(redis) == 1
    assert not redis.exists(WORKING, QUEUE)
    assert owner(redis) == ("k" if fields.get("jid") == "k" else None)


def test_finish_unless_duplicated_leaves_jobs_with_duplicates(redis, memory):
    """A job without a duplicate ends, one with a duplicate stays; one whose lock another job has, or no job, ends too."""
    plain, again, rival, free, gone = (b"%d" % number for number in range(5))
    redis.lpush(WORKING, plain, again, rival, free)
    owned(redis, "j", "plain")
    owned(redis, "j", "again", duplicates=1)
    owned(redis, "k", "rival", duplicates=1)
    jobs = [(plain, "plain"), (again, "again"), (rival, "rival"), (free, "free"), (gone, "gone")]

    def finish():
        held = [JobResources(Lock(key, "j", 60.0, "C"), [Slot("limit", "me j")]).on_end() for _, key in jobs]
        words = [word for (data, key), one in zip(jobs, held, strict=True) for word in (data, one, key, "j")]
        return FINISH_UNLESS_DUPLICATED(redis, [WORKING], words)

    redis.zadd("limit:running", {"me j": 1})
    with memory():
        assert finish() == [2, 1, 5, 0]
        assert finish() == [1, 0, 2, 1, 3, 0, 4, 0, 5, 0]  # the reply was lost
    assert redis.lrange(WORKING, 0, -1) == [again]
    assert (owner(redis, "plain"), owner(redis, "again"), owner(redis, "rival")) == (None, "j", "k")
    assert (redis.get("stat:processed"), redis.exists("limit:running")) == (b"3", 0)


def test_finish_next_run_refused_still_ends_the_job(redis):
    redis.lpush(WORKING, DATA)
    redis.set(QUEUE, "of another type")
    owned(redis, "j", duplicates=1)
    assert once_more(redis) == 1
    assert not redis.exists(WORKING, KEY)


def promote(redis, *moves):
    """Moves are (member, word, lock)."""
    members, words, locks = zip(*moves, strict=True)
    n = len(moves)
    queues = [QUEUE] * n
    stored = [member[:-1] + b',"new":1}' for member in members]
    places = [SET, QUEUES, DEAD, *queues]
    done, _ = ENQUEUE_DUE(redis, places, [n, 100, 1e9, 60, *members, *words, *stored, *["q"] * n, *locks])
    return done


def members(count):
    return [b'{"n":%d}' % number for number in range(count)]


def test_enqueue_due_takes_locks_or_drops_duplicates(redis, memory):
    free, mine, rival, marked = members(4)
    redis.zadd(SET, dict.fromkeys((free, mine, rival, marked), 1))
    owned(redis, "m", "mine", **{"wal:main": "0/1"})
    owned(redis, "r", "rivals")
    mark = ("SET", "status", "discarded", "EX", 60)
    moves = [
        (free, "queue", claim("f", "free")),
        (mine, "queue", claim("m", "mine", status_command=mark)),
        (rival, "queue", claim("d", "rivals", positions={"main": "0/9"}, status_command=mark)),
        (marked, "queue", claim("e", "rivals", drops=False)),
    ]
    with memory():
        assert promote(redis, *moves) == [1, 1, b"r", b"r"]
        assert promote(redis, *moves) == [0, 0, 0, 0]
    assert redis.lrange(QUEUE, 0, -1) == [
        b'{"n":3,"new":1,"duplicate-of":"r"}',
        b'{"n":1,"new":1}',
        b'{"n":0,"new":1}',
    ]
    assert redis.zcard(SET) == 0
    assert (owner(redis, "free"), owner(redis, "mine"), owner(redis, "rivals")) == ("f", "m", "r")
    assert all(50_000 < redis.pttl(key) <= 60_000 for key in ("free", "mine"))
    assert redis.hget("mine", "wal:main") == b"0/1"
    assert redis.hmget("rivals", "duplicates", "wal:main") == [b"1", b"0/9"]
    assert redis.hgetall(COUNTERS) == {b"n": b"1"}
    assert redis.get("status") == b"discarded"


def test_enqueue_due_releases_only_removed_jobs(redis, memory):
    words = ("dead", "remove", "mark", "delay")
    for word, member in zip(words, members(4), strict=True):
        redis.zadd(SET, {member: 1})
        owned(redis, "j")
        with memory():
            assert promote(redis, (member, word, HOLDS.on_end())) == [1]
        assert redis.exists(KEY) == (word in ("mark", "delay"))


def test_enqueue_due_wrong_type_takes_no_lock(redis, memory):
    (member,) = members(1)
    redis.zadd(SET, {member: 1})
    redis.set(QUEUE, "of another type")
    with memory():
        assert promote(redis, (member, "queue", claim("j"))) == [-1]
    assert not redis.exists(KEY)


def land(redis, *claims, until=60):
    n = len(claims)
    places = [key for number in range(n) for key in (f"guard:{number}", QUEUE)]
    arguments = [n, 60_000, now(redis) + until, *members(n), *["q"] * n, *claims]
    return RECEIVE_TRANSFER(redis, [QUEUES, *places], arguments)


def test_receive_transfer_takes_locks_or_drops_duplicates_once(redis):
    owned(redis, "r")
    mark = ("SET", "status", "discarded", "EX", 60)
    claims = [claim("d", status_command=mark), claim("f", "free"), claim("e", drops=False), b""]
    assert land(redis, *claims) == [b"r", 1, b"r", 1]
    assert land(redis, *claims) == [0, 0, 0, 0]
    assert redis.lrange(QUEUE, 0, -1) == [b'{"n":3}', b'{"n":2,"duplicate-of":"r"}', b'{"n":1}']
    assert redis.hgetall(COUNTERS) == {b"n": b"1"}
    assert (owner(redis), owner(redis, "free")) == ("r", "f")
    assert redis.get("status") == b"discarded"


def test_receive_transfer_full_server_takes_no_lock(redis):
    for owners in ([], ["r"]):
        for one in owners:
            owned(redis, one)
        with full_memory(redis), pytest.raises(OutOfMemoryError):
            land(redis, claim("d"))
        assert set(redis.keys("*")) == {KEY.encode() for _ in owners}
        assert redis.hget(KEY, "duplicates") is None
    redis.delete(KEY)
    redis.set(QUEUE, "of another type")
    assert land(redis, claim("d")) == [-1]
    assert not redis.exists(KEY)
