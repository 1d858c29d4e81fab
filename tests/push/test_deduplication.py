"""Check that a push of a deduplicated class takes its lock in the script that writes the job; a refused job leaves none."""

import hashlib
import inspect
import json
import logging
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.declare import registry
from framework.declare.policy_options import Deduplicate
from framework.declare.request import PushRequest
from framework.errors import BulkPushError, ExceedLimitError, ShardUnavailableError
from framework.features.deduplication.push import Deduplicator
from framework.push.argument_checks import SizeLimits
from framework.wire import keys
from framework.wire.json import dumps, loads
from framework.wire.resources import IDEMPOTENCY_KEY, lock_key
from tests.harness import examples, full_memory, opened
from tests.push.conftest import Pusher, worker
from tests.servers.proxy import Proxy
from tests.tables import each_row

pytestmark = pytest.mark.usefixtures("room")

COUNTS = "aw:counters"


class Double:
    """A middleware that changes the arguments; equality uses the changed arguments."""

    def call(self, cls, job, queue, pool):
        job["args"] = [job["args"][0] * 2]
        yield


def idempotent(policy=None, **attributes):
    chosen = {} if policy is None else {"deduplicate": policy}
    return worker(**{"queue": "default", "idempotent": True, **chosen, **attributes})


def locks(redis):
    """Return the key of each lock by the jid of its owner."""
    return {redis.hget(key, "jid").decode(): key.decode() for key in redis.keys("aw:lock:*")}


def deduplicated(redis, strategy="until_executing", name="Job"):
    return int(redis.hget(COUNTS, f'sidekiq_jobs_deduplicated_total{{strategy="{strategy}",worker="{name}"}}') or 0)


def test_duplicate_is_dropped_logged_and_counted(push_mode, redis, jobs, caplog):
    job = idempotent()
    with caplog.at_level(logging.INFO, logger="framework"):
        first = job.perform_async(1, {"a": 1, "b": 2})
        assert job.perform_async(1, {"b": 2, "a": 1}) is None
        other = job.set(queue="elsewhere").perform_async(2, {})
    assert job.set(queue="third").perform_async(2, {}) is None  # also in another queue
    assert [one["jid"] for one in jobs()] == [first]
    assert jobs()[0][IDEMPOTENCY_KEY] == locks(redis)[first]
    assert locks(redis).keys() == {first, other}
    assert 500_000 < redis.pttl(locks(redis)[first]) <= 600_000
    assert redis.hget(locks(redis)[first], "v") == b"1"
    assert redis.hget(locks(redis)[first], "duplicates") == b"1"
    assert deduplicated(redis) == 2
    (line,) = [record.getMessage() for record in caplog.records]
    assert "deduplicated: until executing" in line
    assert f"duplicate-of='{first}'" in line
    assert "job_status='deduplicated'" in line


def test_log_line_of_a_duplicate_has_the_changed_options(push_mode, redis, caplog):
    policy = Deduplicate("until_executed", ttl=timedelta(hours=1), if_deduplicated="reschedule_once")
    job = idempotent(policy)
    first = job.perform_async(1)
    with caplog.at_level(logging.INFO, logger="framework"):
        assert job.perform_async(1) is None
    assert 3_590_000 < redis.pttl(locks(redis)[first]) <= 3_600_000
    line = caplog.records[0].getMessage()
    assert "deduplication.type='until executed'" in line
    assert "deduplication.options.ttl=3600.0" in line
    assert "deduplication.options.if_deduplicated='reschedule_once'" in line
    assert "including_scheduled" not in line
    assert deduplicated(redis, "until_executed") == 1


def test_duplicate_of_a_class_not_idempotent_is_written(push_mode, redis, jobs):
    job = worker(queue="default", deduplicate=Deduplicate())
    first, second = job.perform_async(1), job.perform_async(1)
    assert [one["jid"] for one in jobs()] == [first, second]
    assert [one.get("duplicate-of") for one in jobs()] == [None, first]
    assert locks(redis).keys() == {first}
    assert deduplicated(redis) == 0


@each_row("off", [None, Deduplicate("none")])
def test_strategy_none_deduplicates_nothing(push_mode, redis, jobs, off):
    job = worker(queue="default", idempotent=True, deduplicate=off)
    assert all([*job.perform_bulk([(1,), (1,)]), job.perform_async(1)])
    assert not locks(redis)
    assert not any(IDEMPOTENCY_KEY in one for one in jobs())


def test_bulk_drops_its_own_and_other_duplicates(push_mode, redis, jobs):
    job = idempotent()
    job.perform_async(7)
    numbers = [number % 600 for number in range(1_300)]
    jids = job.perform_bulk((number,) for number in numbers)
    assert [jid is not None for jid in jids] == [number < 600 and number != 7 for number in range(1_300)]
    assert [one["args"][0] for one in jobs()] == [7, *[number for number in range(600) if number != 7]]
    assert [one["jid"] for one in jobs()][1:] == [jid for jid in jids if jid]
    assert locks(redis).keys() == {one["jid"] for one in jobs()}
    assert deduplicated(redis) == 701


def test_scheduled_job_has_a_lock_only_if_included(push_mode, redis):
    plain = idempotent()
    assert plain.perform_in(100, 1)
    assert plain.perform_in(100, 1)
    assert not locks(redis)
    assert all(IDEMPOTENCY_KEY not in json.loads(data) for data in redis.zrange(keys.SCHEDULE, 0, -1))
    job = idempotent(Deduplicate(including_scheduled=True), name="Included")
    first = job.perform_in(1_000, 1)
    assert job.perform_in(5, 1) is None
    assert job.perform_async(1) is None
    assert locks(redis).keys() == {first}
    assert 1_590_000 < redis.pttl(locks(redis)[first]) <= 1_600_000
    jids = job.perform_bulk_in(100, [(2,), (2,), (3,)], batch_size=1, batch_delay=50)
    assert [jid is None for jid in jids] == [False, True, False]
    assert redis.zcard(keys.SCHEDULE) == 5
    far_job = job.perform_at(253_402_300_799, 9)  # the year 9999
    assert redis.pttl(locks(redis)[far_job]) > 1e14


def test_idempotency_arguments_choose_and_may_fail(push_mode, redis, jobs, caplog):
    class_one = idempotent(idempotency_arguments=classmethod(lambda cls, args: args[:1]))
    assert class_one.perform_async(1, "a")
    assert class_one.perform_async(1, "b") is None
    for number, answer in enumerate([None, "text", 7, [object()], ZeroDivisionError()]):

        def hook(cls, args, answer=answer):
            args.append("harm")
            if isinstance(answer, Exception):
                raise answer
            return answer

        job = idempotent(name=f"Hook{number}", idempotency_arguments=classmethod(hook))
        assert job.perform_async(1, [2])
        assert job.perform_async(1, [2]) is None
        assert job.perform_async(1, [3])
    assert all(one["args"] in ([1, "a"], [1, [2]], [1, [3]]) for one in jobs())
    assert len([one for one in caplog.records if "deduplication.hook_failed" in one.getMessage()]) == 5


def test_lock_key_is_computed_after_the_middlewares(pusher, redis, jobs):
    pusher.open(Double)
    job = idempotent()
    assert job.perform_async(2)
    assert job.perform_bulk([(2,), (4,), (1,)])[0] is None
    pusher.open()
    assert job.perform_async(4) is None
    assert [one["args"] for one in jobs()] == [[4], [8], [2]]
    assert set(locks(redis).values()) == {lock_key("Job", b"[%d]" % number) for number in (4, 8, 2)}


def test_flag_off_or_unreadable_deduplicates_nothing(pusher, redis, jobs, caplog):
    asked = []

    def enabled(shard, flag):
        asked.append((shard, flag))
        if states[-1] is None:
            raise OSError("the flags are away")
        return states[-1]

    states = [False]
    pusher.open(locks=Deduplicator(enabled))
    job = idempotent(Deduplicate(feature_flag="dedup_job"))
    assert all([job.perform_async(1), job.perform_async(1)])
    states.append(None)
    assert all([job.perform_async(1), job.perform_async(1)])
    assert not locks(redis)
    assert len([one for one in caplog.records if "deduplication.flag_unknown" in one.getMessage()]) == 1
    states.append(True)
    assert job.perform_async(1)
    assert job.perform_bulk([(1,), (2,)])[0] is None
    assert set(asked) == {("main", "dedup_job")}


def test_perform_inline_takes_no_lock(pusher, redis):
    job = idempotent()
    job.perform_async(1)
    data = pusher.client.payload_bytes(PushRequest(job.declaration(), [1]))
    assert IDEMPOTENCY_KEY not in json.loads(data)
    assert len(locks(redis)) == 1


# --- tracked jobs ---------------------------------------------------------------------------------------------------


def test_tracked_duplicate_leaves_no_status(push_mode, redis):
    job = idempotent(Deduplicate(including_scheduled=True), status_expiration=60)
    jids = [job.perform_async(1), job.perform_async(1), job.perform_in(100, 2), *job.perform_bulk([(2,), (3,)])]
    assert [jid is None for jid in jids] == [False, True, False, True, False]
    assert {key.decode() for key in redis.keys("aw:status:*")} == {keys.status(jid) for jid in jids if jid}
    assert redis.ttl(keys.status(jids[2])) > 150


# --- refused pushes -------------------------------------------------------------------------------------------------


def test_push_too_large_takes_no_lock(pusher, redis):
    pusher.open(limits=SizeLimits(limit=50, compression_threshold=40))
    job = idempotent()
    noise = "".join(map(str, range(300)))
    with pytest.raises(ExceedLimitError):
        job.perform_async(noise)
    with pytest.raises(ExceedLimitError):
        job.perform_bulk([(1,), (noise,)])
    assert not locks(redis)


def test_large_arguments_are_compared_uncompressed(pusher, redis, jobs):
    pusher.open(limits=SizeLimits(compression_threshold=40))
    job = idempotent()
    assert job.perform_async("x" * 1_000)
    assert job.perform_bulk([("x" * 1_000,)]) == [None]
    assert lock_key("Job", dumps(["x" * 1_000])).encode() in redis.keys("aw:lock:*")
    assert jobs()[0]["compressed"] is True


@each_row("push", ["one", "later", "bulk"])
def test_refused_push_leaves_no_lock(push_mode, redis, push):
    job = idempotent(Deduplicate(including_scheduled=True))
    pushes = {
        "one": lambda: job.perform_async(1),
        "later": lambda: job.perform_in(100, 1),
        "bulk": lambda: job.perform_bulk([(1,), (2,)]),
    }
    with full_memory(redis), pytest.raises((ShardUnavailableError, BulkPushError)) as refused:
        pushes[push]()
    assert not redis.keys("aw:*")
    error = refused.value.__cause__ if isinstance(refused.value, BulkPushError) else refused.value
    assert not error.maybe_written
    assert "OOM" in str(error)
    for key in ("queue:default", keys.SCHEDULE):
        redis.set(key, "of another type")
    with pytest.raises((ShardUnavailableError, BulkPushError), match="WRONGTYPE"):
        pushes[push]()
    assert not redis.keys("aw:*")
    redis.delete("queue:default", keys.SCHEDULE)
    found = pushes[push]()
    assert all(found if isinstance(found, list) else [found])


def test_duplicate_on_a_full_server_is_logged(push_mode, redis):
    """The script cannot store the positions of the duplicate in the lock."""
    job = idempotent()
    first = job.perform_async(1)
    with full_memory(redis), pytest.raises(ShardUnavailableError):
        job.perform_async(1)
    assert redis.hget(locks(redis)[first], "duplicates") is None


def test_lock_key_of_another_type_is_no_lock(push_mode, redis, jobs):
    job = idempotent()
    key = lock_key("Job", b"[1]")
    redis.set(key, "garbage")
    first = job.perform_async(1)
    assert locks(redis) == {first: key}
    assert 0 < redis.pttl(key) <= 600_000
    assert job.perform_async(1) is None


def test_push_with_broken_counter_and_queues_set_is_written(push_mode, redis, jobs):
    redis.set(COUNTS, "garbage")
    job = idempotent()
    assert job.perform_async(1)
    assert job.perform_async(1) is None
    redis.delete(keys.QUEUES)
    redis.set(keys.QUEUES, "garbage")
    assert job.perform_async(2)
    assert len(jobs()) == len(locks(redis)) == 2


def test_script_unknown_to_the_server_is_sent_as_source(push_mode, redis, jobs):
    job = idempotent()
    job.perform_async(1)
    redis.script_flush()
    assert job.perform_async(1) is None
    assert job.perform_async(2)


def test_push_after_an_idle_disconnect_is_no_duplicate(push_mode, redis, jobs):
    job = idempotent()
    job.perform_async(1)
    redis.client_kill_filter(_type="normal", skipme=True)
    assert job.perform_async(2)
    assert len(jobs()) == 2


@pytest.mark.parametrize("bulk", [False, True])
def test_push_after_a_lost_reply_writes_no_second_job(pusher, redis, redis_url, bulk):
    with Proxy(redis_url) as proxy:
        shard = opened(proxy.url)
        try:
            Pusher({"main": shard})
            job = idempotent()
            push = (lambda: job.perform_bulk([(1,), (2,)])) if bulk else (lambda: [job.perform_async(1)])
            assert job.perform_async(0)  # the server knows the script
            proxy.lose_replies(b"EVALSHA", {1})
            with pytest.raises((ShardUnavailableError, BulkPushError)) as lost:
                push()
            error = lost.value.__cause__ if bulk else lost.value
            assert error.maybe_written
            assert set(push()) == {None}
            assert redis.llen("queue:default") == len(locks(redis)) == (3 if bulk else 2)
        finally:
            shard.close()


def test_bulk_failing_between_scripts_is_maybe_written(pusher, redis, redis_url):
    with Proxy(redis_url) as proxy:
        shard = opened(proxy.url)
        try:
            Pusher({"main": shard})
            job = idempotent()
            assert job.perform_async(-1)
            proxy.lose_replies(b"EVALSHA", {2})
            with pytest.raises(BulkPushError) as lost:
                job.perform_bulk((number,) for number in range(1_200))
            assert lost.value.__cause__.maybe_written
            jids = job.perform_bulk((number,) for number in range(1_200))
            assert [jid is None for jid in jids] == [number < 1_000 for number in range(1_200)]
            assert redis.llen("queue:default") == len(locks(redis)) == 1_201
        finally:
            shard.close()


# --- the key --------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def same(one, other):
    """Equal as JSON: the order of names does not matter; 1, 1.0 and true differ."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


def with_reversed_names(value):
    if isinstance(value, dict):
        return {name: with_reversed_names(value[name]) for name in reversed(value)}
    return [with_reversed_names(one) for one in value] if isinstance(value, list) else value


@settings(max_examples=examples(100), database=None)
@given(one=st.lists(JSON, max_size=3), other=st.lists(JSON, max_size=3))
def test_lock_key_depends_on_the_arguments(one, other):
    key = lock_key("Job", dumps(one))
    assert key == lock_key("Job", dumps(with_reversed_names(one))) == lock_key("Job", dumps(loads(dumps(one))))
    assert (lock_key("Job", dumps(other)) == key) == same(one, other)
    assert lock_key("Other", dumps(one)) != key
    assert key.startswith("aw:lock:")


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(pushed=st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_push_sequences_leave_one_job_per_key(pusher, redis, jobs, pushed):
    redis.flushall()
    with registry.isolated():
        job = idempotent()
        jids = [job.perform_async(number) for number in pushed]
    assert [jid is None for jid in jids] == [number in pushed[:at] for at, number in enumerate(pushed)]
    assert sorted(one["args"][0] for one in jobs()) == sorted(set(pushed))


# --- the method that runs a job, and the arguments that it is given ---------------------------------------------------


def takes(parameters):
    """A method with these parameters after ``self``."""
    scope = {}
    exec(f"def run(self, {parameters}):\n    'Run.'", scope)
    return scope["run"]


def release(version, handlers=(), parameters="number, mode='full'", **attributes):
    """Return the class as a process of that release declares it."""
    bodies = {f"perform_v{number}": takes(parameters) for number in handlers}
    return idempotent(version=version, perform=takes(parameters), **bodies, **attributes)


def key_of(declaration, args, version=None):
    payload = {"class": "Job", "jid": "a", "version": declaration.version if version is None else version}
    Deduplicator().set_key(payload, declaration, args)
    return payload[IDEMPOTENCY_KEY]


@settings(max_examples=examples(100), database=None)
@given(
    args=st.lists(JSON, max_size=3), parameters=st.sampled_from(["*given", "a=None, b=0, c='x'"]), hook=st.booleans()
)
def test_lock_keys_of_json_equal_those_of_payloads(args, parameters, hook):
    chosen = {"idempotency_arguments": classmethod(lambda cls, args: args[:1])} if hook else {}
    with registry.isolated():
        declaration = release(1, [0], parameters, **chosen).declaration()
        assert Deduplicator().key_maker(declaration)([dumps(args), b"[]"]) == [
            key_of(declaration, args),
            key_of(declaration, []),
        ]


PUSHES = {
    "one": lambda job: job.perform_async(7),
    "later": lambda job: job.perform_in(50, 7),
    "bulk": lambda job: job.perform_bulk([(7,)])[0],
}


@pytest.mark.parametrize("push", PUSHES)
def test_push_of_a_version_with_another_handler_is_no_duplicate(push_mode, redis, jobs, push):
    policy = Deduplicate(including_scheduled=True)
    with registry.isolated():
        old = PUSHES[push](release(0, deduplicate=policy))
    with registry.isolated():
        new = release(1, handlers=[0], deduplicate=policy)
        first = PUSHES[push](new)
        assert first
        assert PUSHES[push](new) is None
    assert locks(redis).keys() == {old, first}


@pytest.mark.parametrize("push", PUSHES)
def test_push_of_a_version_with_the_same_handler_is_a_duplicate(push_mode, redis, push):
    policy = Deduplicate(including_scheduled=True)
    with registry.isolated():
        old = PUSHES[push](release(0, deduplicate=policy))
    with registry.isolated():
        assert PUSHES[push](release(1, deduplicate=policy)) is None
    assert locks(redis) == {old: lock_key("Job", b"[7]")}


@pytest.mark.parametrize(
    ("version", "handlers", "expected"),
    [
        (0, [], {0: 0}),
        (2, [], {0: 0, 1: 0, 2: 0, 3: 0}),
        (1, [0], {0: 0, 1: 1}),
        (2, [0], {0: 0, 1: 1, 2: 1, 3: 1}),
        (2, [0, 1], {0: 0, 1: 1, 2: 2}),
        (2, [1], {1: 0, 2: 2, 0: 2}),
        (3, [2], {2: 0, 3: 3}),
        (9, [2, 5], {2: 0, 5: 3, 4: 6, 9: 6}),
    ],
)
def test_signature_since_is_the_same_in_every_release(version, handlers, expected):
    with registry.isolated():
        declaration = release(version, handlers).declaration()
        found = {number: declaration.signature_since(number) for number in expected}
        assert found == expected
        assert {key_of(declaration, [7], number) for number in expected} == {
            lock_key("Job", b"[7]", since) for since in expected.values()
        }


@settings(max_examples=examples(60), database=None)
@given(handlers=st.sets(st.integers(0, 5)), beyond=st.integers(1, 3), one=st.integers(0, 8), other=st.integers(0, 8))
def test_lock_keys_of_versions_of_one_method_are_equal(handlers, beyond, one, other):
    version = max(handlers, default=0) + beyond
    with registry.isolated():
        declaration = release(version, sorted(handlers)).declaration()
        methods = [declaration.signature_for(number).method for number in (one, other)]
        assert (key_of(declaration, [7], one) == key_of(declaration, [7], other)) == (methods[0] == methods[1])


SAME = [
    ("number, mode=None", [7], [7, None]),
    ("number, mode='full', deep=False", [7], [7, "full", False]),
    ("number=1, mode='full'", [], [1, "full"]),
    ("names=[]", [], [[]]),
    ("options={'b': 1, 'a': [1.5]}", [], [{"a": [1.5], "b": 1}]),
    ("number, *rest", [7], [7]),
]
OTHERS = [
    ("number, mode=None", [7], [7, False]),
    ("number, mode=1", [7], [7, True]),
    ("number, mode=1", [7], [7, 1.0]),
    ("number, mode='full', deep=False", [7], [7, "full", True]),
    ("number, mode=None, deep=None", [7, 1], [7, None, 1]),
    ("number, mode=None, *rest", [7], [7, None, None]),
]


@each_row(("parameters", "one", "other"), SAME)
def test_push_with_a_default_given_is_a_duplicate_of_one_without(push_mode, redis, parameters, one, other):
    for first, second in ((one, other), (other, one)):
        with registry.isolated():
            job = release(0, parameters=parameters, queue=f"queue_{len(first)}")
            assert job.perform_async(*first)
            assert job.perform_async(*second) is None
            assert job.perform_bulk([second, first]) == [None, None]
        redis.flushall()


@pytest.mark.parametrize(("parameters", "one", "other"), OTHERS)
def test_push_with_another_value_is_no_duplicate(push_mode, parameters, one, other):
    job = release(0, parameters=parameters)
    assert job.perform_async(*one)
    assert job.perform_async(*other)


def test_push_without_defaults_keeps_the_key_of_gitlab(push_mode, redis):
    """A parameter that a release adds with a default changes no key."""
    with registry.isolated():
        old = release(0, parameters="number").perform_async(7)
    assert locks(redis)[old] == "aw:lock:" + hashlib.sha256(b"Job:[7]").hexdigest()
    with registry.isolated():
        assert release(0, parameters="number, mode=None").perform_async(7) is None


def test_push_compares_with_the_declared_default(push_mode, redis):
    box = []

    def perform(self, names=box):
        """A list that is shared by all calls."""

    job = idempotent(perform=perform)
    box.append("changed by a run")
    assert job.perform_async()
    assert job.perform_async([]) is None
    assert job.perform_async(["changed by a run"])


def test_push_compares_nothing_with_a_default_that_is_no_json(push_mode, redis):
    when = datetime(2026, 1, 1, tzinfo=UTC)

    def perform(self, number, at=when, mode=None):
        """The perform method of a class without strict arguments."""

    chosen = []

    def choose(cls, args):
        chosen.append(args)
        return args

    job = idempotent(perform=perform, strict_arguments="warn")
    assert job.perform_async(1)
    assert job.perform_async(1) is None
    assert job.perform_async(1, "2026-01-01T00:00:00Z")
    with_hook = idempotent(
        perform=perform, strict_arguments="warn", name="Hooked", idempotency_arguments=classmethod(choose)
    )
    assert with_hook.perform_async(1)
    assert with_hook.perform_async(1, "x")
    assert chosen == [[1], [1, "x", None]]


def test_idempotency_arguments_receives_every_argument(push_mode, redis):
    chosen = []

    def choose(cls, args):
        chosen.append(list(args))
        args.clear()
        return [1]

    job = release(1, handlers=[0], idempotency_arguments=classmethod(choose))
    first = job.perform_async(7)
    assert job.perform_async(8, "part") is None
    assert chosen == [[7, "full"], [8, "part"]]
    assert locks(redis) == {first: lock_key("Job", b"[1]", 1)}


VALUES = st.sampled_from([None, False, True, 0, 1, 1.0, "", "a", [], [1], {}, {"a": 1, "b": 2}, {"b": 2, "a": 1}])


@st.composite
def two_calls(draw):
    """Draw a signature and two calls that fit it."""
    required, optional = draw(st.integers(0, 2)), draw(st.lists(VALUES, max_size=3))
    rest = draw(st.booleans())
    names = [f"r{number}" for number in range(required)]
    names += [f"o{number}={default!r}" for number, default in enumerate(optional)]
    most = required + len(optional) + (2 if rest else 0)
    calls = []
    for _ in range(2):
        given = draw(st.lists(VALUES, min_size=required, max_size=most))
        tail = optional[max(0, len(given) - required) :]
        calls.append(given + tail[: draw(st.integers(0, len(tail)))])
    return ", ".join([*names, *(["*rest"] if rest else [])]), *calls


@settings(max_examples=examples(300), database=None)
@given(call=two_calls())
def test_lock_keys_are_equal_only_for_equal_bindings(call):
    parameters, one, other = call
    with registry.isolated():
        declaration = release(0, parameters=parameters).declaration()
    bound = [inspect.signature(takes(parameters)).bind(None, *args) for args in (one, other)]
    for each in bound:
        each.apply_defaults()
    values = [
        {name: list(value) if name == "rest" else value for name, value in each.arguments.items()} for each in bound
    ]
    assert (key_of(declaration, one) == key_of(declaration, other)) == same(*values)
