import hashlib
import json
import time

import pytest
from redis.exceptions import ResponseError

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.errors import BusinessError, NewerVersionError, PayloadError, UnknownWorkerError
from framework.finish.outcome import (
    Deferred,
    Discarded,
    Failed,
    ForeignClass,
    Malformed,
    Retired,
    Snoozed,
    Succeeded,
    UnknownClass,
)
from framework.finish.report import Handlers
from framework.finish.retry import RetryPolicy
from framework.finish.settle import Settler
from framework.recover.suspects import quarantine_counter
from framework.wire import keys
from framework.wire.job import decode
from framework.wire.json import dumps
from framework.wire.keys import SetLimits
from framework.wire.resources import JobResources, Lock, Slot
from framework.wire.status_key import TrackedJob
from framework.wire.status_key import tracked_job as found
from tests.harness import IDENTITY, compressed, encoded, full_memory, hold

WORKING = keys.working(IDENTITY)
SETS = (keys.RETRY, keys.SCHEDULE, keys.DEAD, keys.INTERRUPTED)
ERROR = Failed(ValueError("no"))
REFUSED = Failed(BusinessError("closed"))
LIMITS = SetLimits()


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch):
    monkeypatch.setattr("random.random", lambda: 0.0)


class SettlerBench:
    """A settler on a real server; the units of its results go to a list, instead of ending in the fetcher."""

    def __init__(self, redis, granted, dead_set=LIMITS, *, keeps_business=False):
        self.redis = redis
        self.finished, self.died, self.reported, self.trims = [], [], [], []
        self.handlers = Handlers(self)
        self.handlers.death.append(lambda job, error: self.died.append((job.jid, str(error))))
        policy = RetryPolicy(keeps_business_failures=keeps_business)
        self.soon = []
        soon = lambda: self.soon.append(1)  # noqa: E731 - as a callback
        self.settler = Settler(granted, IDENTITY, self, policy, dead_set, soon, status_writer=self)
        self.states = []

    def write_last(self, tracked, state):
        """Replace ``StatusWriter``: note the length of the working list at each write."""
        self.states.append((tracked, state, self.redis.llen(WORKING)))

    def trimmed(self, count, source):
        self.trims.append((count, source))

    def hook_failed(self, what, error):
        self.reported.append((what, str(error)))

    def settle(self, unit, *args, **options):
        settled = self.settler.settle(unit, *args, **options)
        self.finished.append((unit, not settled.acknowledge))
        return settled

    def go(self, outcome, worker=None, data=None, held=True, **fields):
        unit = hold(self.redis, data or encoded(**fields))
        if not held:
            self.redis.delete(WORKING)
        self.unit = unit
        tracked = found(decode(unit.data)) if "status_expiration" in fields else None
        return self.settle(unit, outcome, self.settler.decide_retry(unit, worker, outcome), tracked)

    def places(self):
        """Return the keys that have jobs, with their payloads."""
        found = {WORKING: self.redis.lrange(WORKING, 0, -1)}
        found |= {key: self.redis.zrange(key, 0, -1) for key in SETS}
        return {key: jobs for key, jobs in found.items() if jobs}


@pytest.fixture
def bench(redis, granted):
    with registry.isolated():
        yield SettlerBench(redis, granted)


def worker(**body):
    return type(
        "Job",
        (ApplicationWorker,),
        {"feature_category": "not_owned", "wire_name": "Job", "perform": lambda self: None, **body},
    )


def hook(name, answer, calls):
    def called(cls, *args):
        calls.append((name, *args))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return {name: classmethod(called)}


@pytest.mark.parametrize("outcome", [Succeeded(), Discarded("enough")])
def test_settled_success_is_left_to_the_acknowledgement(bench, outcome):
    assert bench.go(outcome).moved_to == "acknowledged"
    assert bench.finished == [(bench.unit, False)]
    assert bench.places() == {WORKING: [bench.unit.data]}


def test_failure_moves_to_retry_set_by_redis_clock(bench, redis):
    settled = bench.go(ERROR, bid="x")
    assert (settled.moved_to, settled.delay_s) == ("retry", 15.0)
    assert bench.finished == [(bench.unit, True)]
    ((member, due),) = redis.zrange(keys.RETRY, 0, -1, withscores=True)
    seconds, microseconds = redis.time()
    assert 10 < due - (seconds + microseconds / 1e6) <= 15
    stored = json.loads(member)
    added = {"retry_count": 0, "error_class": "ValueError", "error_message": "no", "failed_at": stored["failed_at"]}
    assert stored == {**json.loads(encoded(bid="x")), **added}
    assert bench.places() == {keys.RETRY: [member]}
    assert bench.died == []


@pytest.mark.proves("R16")
def test_retry_names_the_queue_it_was_fetched_from(bench, redis):
    """Sidekiq writes the field; another producer may omit it or name another queue."""
    data = dumps({"class": "Job", "args": [], "jid": "j"})
    bench.go(ERROR, data=data)
    assert json.loads(redis.zrange(keys.RETRY, 0, -1)[0])["queue"] == "default"


def test_last_failure_kills_and_calls_hook_then_handlers(bench, redis):
    calls = []
    assert bench.go(ERROR, worker(**hook("retries_exhausted", None, calls)), retry=0).moved_to == "dead"
    ((_, job, error),) = calls
    assert (job.jid, error) == ("ab" * 12, ERROR.error)
    assert bench.died == [("ab" * 12, "no")]
    ((member, at),) = redis.zrange(keys.DEAD, 0, -1, withscores=True)
    assert bench.places() == {keys.DEAD: [member]}
    assert abs(at - redis.time()[0]) < 5
    assert json.loads(member)["error_class"] == "ValueError"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({"retry": 0}, True), ({"retry": 0, "dead": False}, True), ({"retry": False}, False), ({}, False)],
    ids=["exhausted", "exhausted, not kept", "retry false", "retried"],
)
def test_retries_exhausted_is_called_only_when_used_up(bench, fields, expected):
    calls = []
    bench.go(ERROR, worker(**hook("retries_exhausted", None, calls)), **fields)
    assert bool(calls) == expected


@pytest.mark.parametrize("fields", [{"retry": False}, {"retry": 0, "dead": False}])
def test_deleted_job_is_acknowledged_and_handlers_called(bench, fields):
    assert bench.go(ERROR, **fields).moved_to == "deleted"
    assert bench.finished == [(bench.unit, False)]
    assert bench.died == [("ab" * 12, "no")]
    assert list(bench.places()) == [WORKING]


def test_retries_exhausted_may_discard(bench):
    assert bench.go(ERROR, worker(**hook("retries_exhausted", "discard", [])), retry=0).moved_to == "deleted"
    assert list(bench.places()) == [WORKING]
    assert len(bench.died) == 1


@pytest.mark.parametrize("error", [LookupError("hook"), SystemExit("hook")])
def test_hook_that_raises_is_reported_and_changes_nothing(bench, error):
    assert bench.go(ERROR, worker(**hook("retries_exhausted", error, [])), retry=0).moved_to == "dead"
    assert bench.reported == [("retries_exhausted", "hook")]


@pytest.mark.parametrize("error", [LookupError("hook"), SystemExit("hook")])
def test_retry_in_that_raises_loses_only_its_advice(bench, error):
    settled = bench.go(ERROR, worker(**hook("retry_in", error, [])), retry_count=1)
    assert (settled.moved_to, settled.delay_s) == ("retry", 31.0)
    assert settled.payload["retry_count"] == 2
    assert bench.reported == [("retry_in", "hook")]


def test_retry_in_may_discard_or_kill(bench):
    calls = []
    discarding = worker(**hook("retry_in", "discard", calls), **hook("retries_exhausted", None, calls))
    assert bench.go(ERROR, discarding).moved_to == "deleted"
    assert [call[0] for call in calls] == ["retry_in"]  # Sidekiq: death handlers alone learn of a discarded job
    assert len(bench.died) == 1
    assert bench.go(ERROR, worker(**hook("retry_in", "kill", calls))).moved_to == "dead"


def test_business_error_calls_handlers_and_is_deleted(bench):
    calls = []
    assert bench.go(REFUSED, worker(**hook("retries_exhausted", None, calls))).moved_to == "deleted"
    assert ([call[0] for call in calls], bench.died) == (["retries_exhausted"], [("ab" * 12, "closed")])
    assert bench.places() == {WORKING: [bench.unit.data]}  # its acknowledgement waits
    assert bench.finished == [(bench.unit, False)]


def test_business_error_is_killed_if_the_setting_says_so(bench, redis, granted):
    bench = SettlerBench(redis, granted, keeps_business=True)
    calls = []
    assert bench.go(REFUSED, worker(**hook("retries_exhausted", None, calls))).moved_to == "dead"
    (entry,) = bench.places()[keys.DEAD]
    assert (json.loads(entry)["error_message"], len(calls), bench.died) == ("closed", 1, [("ab" * 12, "closed")])
    assert redis.zscore(keys.DEAD_BUSINESS, hashlib.sha1(entry).hexdigest()) == redis.zscore(keys.DEAD, entry)


def jids(redis, key=keys.DEAD):
    return [json.loads(entry)["jid"] for entry in redis.zrange(key, 0, -1)]


def test_business_errors_trim_no_other_dead_job(redis, granted):
    bench = SettlerBench(redis, granted, SetLimits(max_jobs=20, max_business_jobs=7), keeps_business=True)
    bench.go(ERROR, jid="real", retry=0)
    for number in range(60):
        bench.go(REFUSED, jid=f"refused {number}")
    assert jids(redis) == ["real", *(f"refused {number}" for number in range(53, 60))]
    for number in range(18):
        bench.go(ERROR, jid=f"real {number}", retry=0)
    assert jids(redis) == [
        "real",
        *(f"real {number}" for number in range(18)),
    ]  # 19 failures displaced all business errors
    bench.go(REFUSED, jid="one more")
    assert jids(redis)[-1] == "real 17"  # the set has no place for a business error
    assert redis.exists(keys.DEAD_BUSINESS) == 0
    bench.go(ERROR, jid="last", retry=0)
    assert jids(redis) == [*(f"real {number}" for number in range(18)), "last"]


def test_snoozed_job_keeps_its_bytes(bench, redis):
    settled = bench.go(Snoozed(60.0, "busy"), retry_count=3)
    assert (settled.moved_to, settled.delay_s) == ("scheduled", 60.0)
    ((member, due),) = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    expected = json.loads(bench.unit.data)
    del expected["enqueued_at"]  # it is in no queue now
    assert json.loads(member) == expected
    assert 55 < due - redis.time()[0] <= 61
    assert bench.places() == {keys.SCHEDULE: [member]}


def test_snoozed_job_without_queue_field_gets_its_queue(bench, redis):
    unit = hold(redis, b'{"class":"A","args":[],"jid":"j"}', queue="mails")
    bench.settle(unit, Snoozed(1.0, ""), None)
    (member,) = redis.zrange(keys.SCHEDULE, 0, -1)
    assert json.loads(member) == {"class": "A", "args": [], "jid": "j", "queue": "mails"}


@pytest.mark.proves("R51", "I5")
@pytest.mark.parametrize(
    ("outcome", "retry", "place"),
    [(ERROR, 3, keys.RETRY), (ERROR, 0, keys.DEAD), (Snoozed(60.0, "busy"), 3, keys.SCHEDULE)],
    ids=("retry", "dead", "later"),
)
def test_compressed_arguments_keep_their_bytes(bench, redis, outcome, retry, place):
    job = compressed(["x" * 1_000], retry=retry)
    bench.go(outcome, data=dumps(job))
    ((member,),) = bench.places().values()
    stored = json.loads(member)
    assert bench.places() == {place: [member]}
    names = ("args", "compressed", "original_job_size_bytes", "size_limiter")
    assert {name: stored[name] for name in names} == {name: job[name] for name in names}


@pytest.mark.proves("F38")
def test_malformed_payload_is_stored_as_its_outcome_says(bench):
    unit = hold(bench.redis, b"{not json \xff\x00")
    assert bench.settle(unit, Malformed(PayloadError("x"), b"wrapped"), None).moved_to == "dead"
    assert bench.places() == {keys.DEAD: [b"wrapped"]}
    series = quarantine_counter(None, "malformed").encode()
    assert bench.redis.hgetall(keys.COUNTERS) == {series: b"1"}


@pytest.mark.proves("R51", "R54", "I5")
@pytest.mark.parametrize("argument", [b"1e999", b"[" * 90 + b"1.50" + b"]" * 90], ids=["infinite", "deep"])
@pytest.mark.parametrize(
    ("outcome", "retry", "place"),
    [(ERROR, b"true", keys.RETRY), (ERROR, b"0", keys.DEAD), (Snoozed(5.0, ""), b"true", keys.SCHEDULE)],
    ids=["retry", "dead", "scheduled"],
)
def test_payload_not_writable_here_moves_with_its_bytes(bench, argument, outcome, retry, place):
    data = b'{"class":"Job","args":[' + argument + b'],"queue":"default","jid":"j","retry":' + retry + b"}"
    bench.go(outcome, data=data)
    ((where, (stored,)),) = bench.places().items()
    assert where == place
    assert b'"args":[' + argument + b"]," in stored
    assert (b'"error_class":"ValueError"' in stored) == (outcome is ERROR)


@pytest.mark.proves("R22")
@pytest.mark.parametrize("outcome", [ERROR, Snoozed(5, "")])
@pytest.mark.parametrize("fields", [{}, {"retry": 0}])
def test_job_of_another_process_is_not_written(bench, outcome, fields):
    assert bench.go(outcome, held=False, **fields).moved_to == "lost"
    assert bench.places() == {}
    assert bench.died == []
    assert bench.finished == [(bench.unit, True)]


@pytest.mark.proves("R37", "I16")
def test_dead_set_keeps_9999_and_trims_the_oldest(redis, granted):
    with registry.isolated():
        bench = SettlerBench(redis, granted)
        pipeline = redis.pipeline()
        for number in range(9_999):
            pipeline.zadd(keys.DEAD, {f"old-{number}": time.time() - 1000 + number / 1000})
        pipeline.execute()
        bench.go(ERROR, retry=0)
        assert redis.zcard(keys.DEAD) == 9_999
        assert redis.zscore(keys.DEAD, "old-0") is None
        assert redis.zscore(keys.DEAD, "old-1")
        assert bench.trims == [(1, keys.DEAD)]


def test_dead_set_trims_jobs_that_are_too_old(redis, granted):
    with registry.isolated():
        bench = SettlerBench(redis, granted, SetLimits(max_age_s=100))
        redis.zadd(keys.DEAD, {"older": time.time() - 200, "younger": time.time() - 20})
        bench.go(ERROR, retry=0)
        assert redis.zscore(keys.DEAD, "older") is None
        assert redis.zscore(keys.DEAD, "younger")
        assert bench.trims == [(1, keys.DEAD)]


@pytest.mark.proves("F14", "R14")
@pytest.mark.parametrize(("fields", "moved_to"), [({}, "retry"), ({"retry": 0}, "dead")])
def test_failures_are_kept_at_maxmemory(bench, redis, fields, moved_to):
    unit = hold(redis, encoded(**fields))
    with full_memory(redis):
        decision = bench.settler.decide_retry(unit, None, ERROR)
        assert bench.settle(unit, ERROR, decision).moved_to == moved_to
    assert WORKING not in bench.places()


class Cut(ConnectionError):
    """The connection broke after the server had run the script."""


class LosesReply:
    """A client whose first reply to a script is lost on the way back."""

    def __init__(self, redis, count=1):
        self.redis, self.left = redis, count

    def execute_command(self, *command):
        reply = self.redis.execute_command(*command)
        if self.left and command[0].startswith("EVAL"):
            self.left -= 1
            raise Cut
        return reply

    def zscore(self, *arguments):
        return self.redis.zscore(*arguments)


@pytest.mark.proves("R17", "I19")
@pytest.mark.parametrize(
    ("outcome", "fields", "moved_to", "place", "deaths"),
    [
        (ERROR, {}, "retry", keys.RETRY, 0),
        (ERROR, {"retry": 0}, "dead", keys.DEAD, 1),
        (Snoozed(5.0, ""), {}, "scheduled", keys.SCHEDULE, 0),
    ],
    ids=["retry", "dead", "scheduled"],
)
def test_lost_reply_loses_neither_job_nor_handlers(bench, redis, outcome, fields, moved_to, place, deaths):
    bench.settler._client = LosesReply(redis)
    unit = hold(redis, encoded(**fields))
    decision = bench.settler.decide_retry(unit, None, outcome)
    with pytest.raises(Cut):
        bench.settle(unit, outcome, decision)
    assert (bench.died, bench.finished) == ([], [])
    assert bench.settle(unit, outcome, decision).moved_to == moved_to
    assert len(bench.died) == deaths
    assert bench.finished == [(unit, True)]
    assert [(key, len(jobs)) for key, jobs in bench.places().items()] == [(place, 1)]


@pytest.mark.proves("R17", "I4", "I19")
def test_confirmed_end_frees_its_place_after_the_reply(bench, redis):
    bench.settler._client = LosesReply(redis)
    unit, outcome = hold(redis, encoded()), Succeeded()
    with pytest.raises(Cut):
        bench.settle(unit, outcome, None, confirmed=True)
    assert (bench.finished, redis.llen(WORKING)) == ([], 0)
    assert bench.settle(unit, outcome, None, confirmed=True).moved_to == "acknowledged"
    assert bench.finished == [(unit, True)]
    other = hold(redis, encoded(jid="other"))
    assert bench.settle(other, outcome, None, confirmed=True).moved_to == "acknowledged"
    assert redis.llen(WORKING) == 0
    assert bench.settle(other, outcome, None, confirmed=True).moved_to == "lost"  # another process owns it


@pytest.mark.proves("R22")
@pytest.mark.parametrize("fields", [{}, {"retry": 0}], ids=["retry", "dead"])
def test_second_try_for_a_lost_job_is_fenced(bench, redis, fields):
    class Silent(LosesReply):
        def execute_command(self, *command):
            if self.left:
                self.left -= 1
                raise Cut
            return self.redis.execute_command(*command)

    bench.settler._client = Silent(redis)
    unit = hold(redis, encoded(**fields))
    decision = bench.settler.decide_retry(unit, None, ERROR)
    with pytest.raises(Cut):
        bench.settle(unit, ERROR, decision)
    redis.delete(WORKING)
    assert bench.settle(unit, ERROR, decision).moved_to == "lost"
    assert bench.died == []
    assert bench.settler._in_doubt == set()


def test_retry_that_is_due_soon_calls_the_poller(bench):
    bench.go(ERROR)
    assert bench.soon == []
    bench.go(ERROR, worker(**hook("retry_in", 0.5, [])))
    assert bench.soon == [1]


def test_death_handlers_see_decompressed_arguments(bench, redis):
    seen = []
    bench.settler._handlers.death.append(lambda job, error: seen.append(job.args))
    for fields in ({"retry": 0}, {"retry": False}):
        unit = hold(redis, encoded(args=["eJw="], compressed=True, **fields))
        bench.settle(unit, ERROR, bench.settler.decide_retry(unit, None, ERROR, ["plain"]))
    assert seen == [["plain"], ["plain"]]


def test_hook_cannot_change_the_stored_payload(bench):
    def change_arguments(cls, count, error, job):
        job["args"].append("change_arguments")
        job["queue"] = "elsewhere"

    data = encoded(args=[1])
    unit = hold(bench.redis, data)
    decision = bench.settler.decide_retry(
        unit, worker(retry_in=classmethod(change_arguments), perform=lambda self, n: None), ERROR, [1]
    )
    bench.settle(unit, ERROR, decision)
    (stored,) = bench.places()[keys.RETRY]
    assert (json.loads(stored)["args"], json.loads(stored)["queue"]) == ([1], "default")


def test_kill_with_dead_false_is_deleted_and_calls_hook(bench):
    calls = []
    killing = worker(**hook("retry_in", "kill", calls), **hook("retries_exhausted", None, calls))
    assert bench.go(ERROR, killing, dead=False).moved_to == "deleted"
    assert [call[0] for call in calls] == ["retry_in", "retries_exhausted"]


# --- classes that this process lacks ----------------------------------------------------------------------------------

UNKNOWN = UnknownClass(UnknownWorkerError("Jab", "Job"), 2.0, 3, 1_800_000_000.5)
GIVEN_UP = UnknownClass(NewerVersionError("Job", 4, 1), 60.0, 9, 1_800_000_000.5, gives_up=True)
FOREIGN = ForeignClass(0.9, 4)
HANDED_BACK = ForeignClass(0.0, 3)
MET = {
    "aw_unknown_class_count": 3,
    "aw_unknown_class_since": 1_800_000_000.5,
    "error_class": "framework.errors.UnknownWorkerError",
    "error_message": str(UNKNOWN.error),
}


@pytest.mark.parametrize("retry", [False, 0, 3])
def test_unknown_class_waits_and_no_retry_is_spent(bench, redis, retry):
    before = {
        "retry": retry,
        "retry_count": 1,
        "failed_at": 5.5,
        "error_class": "E",
        "error_backtrace": "x",
        "bid": "b",
    }
    assert bench.go(UNKNOWN, **before).moved_to == "scheduled"
    ((member, due),) = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    seconds, microseconds = redis.time()
    assert 0 < due - (seconds + microseconds / 1e6) <= 2
    stored, wanted = json.loads(member), {**json.loads(encoded(**before)), **MET}
    del wanted["enqueued_at"], wanted["error_backtrace"]  # fields of a queue entry and of the former error
    assert stored == wanted
    assert bench.places() == {keys.SCHEDULE: [member]}
    assert bench.died == []


def test_given_up_job_moves_with_its_state_in_one_step(bench, redis):
    assert bench.go(GIVEN_UP, retry=3, status_expiration=60).moved_to == "interrupted"
    ((member, since),) = redis.zrange(keys.INTERRUPTED, 0, -1, withscores=True)
    assert abs(since - time.time()) < 60
    stored = json.loads(member)
    assert (stored["aw_unknown_class_count"], stored["error_class"]) == (9, "framework.errors.NewerVersionError")
    assert bench.redis.hget(keys.COUNTERS, quarantine_counter("Job", "unknown_class")) == b"1"
    assert "retry_count" not in stored
    assert redis.get(keys.status(stored["jid"])) == b"failed"
    assert bench.places() == {keys.INTERRUPTED: [member]}
    assert bench.finished == [(bench.unit, True)]


def test_set_of_interrupted_jobs_keeps_its_limits(bench, redis):
    redis.zadd(keys.INTERRUPTED, {"older": time.time() - 91 * 86_400, "younger": time.time() - 89 * 86_400})
    bench.go(GIVEN_UP)
    assert redis.zscore(keys.INTERRUPTED, "older") is None
    assert redis.zscore(keys.INTERRUPTED, "younger")
    assert bench.trims == [(1, keys.INTERRUPTED)]


def test_foreign_job_is_counted_and_keeps_its_own_error(bench, redis):
    own = {"retry_count": 1, "error_class": "ArgumentError", "error_message": "of Ruby", "failed_at": 5.5}
    assert bench.go(FOREIGN, **own).moved_to == "scheduled"
    wanted = {**json.loads(encoded(**own)), "aw_unknown_class_count": 4}
    del wanted["enqueued_at"]
    assert json.loads(redis.zrange(keys.SCHEDULE, 0, -1)[0]) == wanted


def test_foreign_job_returns_as_the_next_to_run(bench, redis):
    redis.lpush("queue:default", "behind")
    bench.go(HANDED_BACK, bid="x")
    *behind, member = redis.lrange("queue:default", 0, -1)
    assert behind == [b"behind"]
    assert json.loads(member) == {**json.loads(encoded(bid="x")), "aw_unknown_class_count": 3}
    assert redis.smembers(keys.QUEUES) == {b"default"}
    assert (bench.places(), bench.finished) == ({}, [(bench.unit, True)])


def test_foreign_job_with_queue_of_wrong_type_waits(bench, redis):
    redis.set("queue:default", "text")
    assert bench.go(HANDED_BACK).moved_to == "scheduled"
    assert list(bench.places()) == [keys.SCHEDULE]


@pytest.mark.parametrize("trouble", ["lost reply", "taken over"])
def test_return_of_foreign_job_is_fenced_and_repeatable(bench, redis, trouble):
    unit = hold(redis, encoded())
    if trouble == "lost reply":
        bench.settler._client = LosesReply(redis)
        with pytest.raises(Cut):
            bench.settle(unit, HANDED_BACK, None)
    else:
        redis.delete(WORKING)
    assert bench.settle(unit, HANDED_BACK, None).moved_to == ("lost" if trouble == "taken over" else "acknowledged")
    assert redis.llen("queue:default") == (trouble == "lost reply")
    assert bench.places() == {}


@pytest.mark.parametrize(
    ("outcome", "place"),
    [(Snoozed(5.0, ""), keys.SCHEDULE), (Deferred(5.0, "health"), keys.SCHEDULE), (ERROR, keys.RETRY)],
    ids=["later", "deferred", "failed"],
)
def test_unknown_class_fields_go_once_the_class_is_known(bench, outcome, place):
    bench.go(outcome, worker(), **MET, error_backtrace="x")
    ((where, (member,)),) = bench.places().items()
    stored = json.loads(member)
    assert where == place
    assert not {"aw_unknown_class_count", "aw_unknown_class_since", "error_backtrace"} & stored.keys()
    assert stored.get("error_class") == ("ValueError" if outcome is ERROR else None)


@pytest.mark.parametrize(
    ("outcome", "place", "moved_to"),
    [
        (UNKNOWN, keys.SCHEDULE, "scheduled"),
        (FOREIGN, keys.SCHEDULE, "scheduled"),
        (GIVEN_UP, keys.INTERRUPTED, "interrupted"),
    ],
    ids=["waits", "goes back", "given up"],
)
@pytest.mark.parametrize("trouble", ["lost reply", "taken over", "wrong type", "full"])
def test_move_of_unknown_job_is_fenced_and_repeatable(bench, redis, outcome, place, moved_to, trouble):
    unit = hold(redis, encoded())
    if trouble == "lost reply":
        bench.settler._client = LosesReply(redis)
        with pytest.raises(Cut):
            bench.settle(unit, outcome, None)
    if trouble == "taken over":
        redis.delete(WORKING)
        assert bench.settle(unit, outcome, None).moved_to == "lost"
        assert bench.places() == {}
        return
    if trouble == "wrong type":
        redis.set(place, "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            bench.settle(unit, outcome, None)
        assert redis.lrange(WORKING, 0, -1) == [unit.data]
        redis.delete(place)
    if trouble == "full":
        with full_memory(redis):
            assert bench.settle(unit, outcome, None).moved_to == moved_to
    else:
        assert bench.settle(unit, outcome, None).moved_to == moved_to
    assert [(key, len(jobs)) for key, jobs in bench.places().items()] == [(place, 1)]


@pytest.mark.parametrize(("outcome", "kept"), [(UNKNOWN, True), (FOREIGN, True), (GIVEN_UP, False)])
def test_delayed_job_keeps_its_lock_and_releases_slots(bench, redis, outcome, kept):
    lock, base = f"{keys.LOCKS}abc", keys.limit("Jab")
    redis.hset(lock, mapping={"v": 1, "jid": "ab" * 12, "class": "Jab"})
    redis.pexpire(lock, 7_200_000)  # the class keeps it for two hours, which this process cannot know
    redis.zadd(f"{base}:running", {" " + "ab" * 12: time.time() + 30})
    unit = hold(redis, encoded("Jab", idempotency_key=lock))
    unit.resources = JobResources(Lock(lock, "ab" * 12, 600.0, "Jab"), [Slot(base, " " + "ab" * 12)])
    bench.settle(unit, outcome, None)
    assert redis.exists(lock) == kept
    assert not kept or redis.pttl(lock) > 7_000_000
    assert redis.zcard(f"{base}:running") == 0


# --- retired classes ------------------------------------------------------------------------------------------------------

RETIRED = Retired("Gone::Worker", "replaced")


def test_retired_job_is_removed_and_counted_in_one_step(bench, redis):
    for number in range(3):
        assert bench.go(RETIRED, jid=f"j{number}", retry=0).moved_to == "deleted"
        assert bench.finished[-1] == (bench.unit, True)
    assert bench.go(Retired("Older", "x")).moved_to == "deleted"
    assert redis.hgetall(keys.RETIRED) == {b"Gone::Worker": b"3", b"Older": b"1"}
    assert bench.places() == {}
    assert bench.died == []


def test_retired_job_of_another_process_is_not_counted(bench, redis):
    assert bench.go(RETIRED, held=False).moved_to == "lost"
    assert bench.finished == [(bench.unit, True)]
    assert not redis.exists(keys.RETIRED)


def test_lost_reply_counts_a_retired_job_once(bench, redis):
    bench.settler._client = LosesReply(redis)
    unit = hold(redis, encoded())
    with pytest.raises(Cut):
        bench.settle(unit, RETIRED, None)
    assert bench.settle(unit, RETIRED, None).moved_to == "deleted"
    assert redis.hgetall(keys.RETIRED) == {b"Gone::Worker": b"1"}
    assert bench.finished == [(unit, True)]
    assert bench.settler._in_doubt == set()


def test_retired_job_that_cannot_be_counted_stays(bench, redis):
    redis.set(keys.RETIRED, "of another application")
    unit = hold(redis, encoded())
    for _ in range(2):
        with pytest.raises(ResponseError):
            bench.settle(unit, RETIRED, None)
    assert bench.places() == {WORKING: [unit.data]}
    redis.delete(keys.RETIRED)
    assert bench.settle(unit, RETIRED, None).moved_to == "deleted"
    assert redis.hgetall(keys.RETIRED) == {b"Gone::Worker": b"1"}


def test_retired_jobs_are_removed_at_maxmemory(bench, redis):
    unit = hold(redis, encoded())
    with full_memory(redis):
        assert bench.settle(unit, RETIRED, None).moved_to == "deleted"
    assert redis.hget(keys.RETIRED, "Gone::Worker") == b"1"


# --- states of tracked jobs -----------------------------------------------------------------------------------------

STATUS = keys.status("ab" * 12)


@pytest.mark.parametrize(
    ("outcome", "fields", "state", "lifetime_s"),
    [
        (ERROR, {}, "retrying", 60 + 15),
        (Snoozed(1_000.5, ""), {}, "queued", 60 + 1_001),
        (ERROR, {"retry": 0}, "failed", 60),
        (Malformed(PayloadError("too large"), b"x"), {}, "failed", 60),
        (RETIRED, {}, "discarded", 60),
    ],
)
def test_state_is_written_with_the_move(bench, redis, outcome, fields, state, lifetime_s):
    bench.go(outcome, status_expiration=60, **fields)
    assert redis.get(STATUS) == state.encode()
    assert lifetime_s - 5 < redis.ttl(STATUS) <= lifetime_s
    assert bench.states == []


@pytest.mark.parametrize(
    ("outcome", "fields", "state"),
    [
        (ERROR, {"retry": False}, "failed"),
        (ERROR, {"retry": 0, "dead": False}, "failed"),
        (REFUSED, {}, "failed"),
    ],
)
def test_last_state_is_written_before_the_acknowledgement(bench, outcome, fields, state):
    bench.go(outcome, status_expiration=60, **fields)
    assert bench.states == [(TrackedJob("ab" * 12, 60), state, 1)]
    assert bench.finished == [(bench.unit, False)]


@pytest.mark.parametrize(("outcome", "state"), [(Succeeded(), "completed"), (Discarded("enough"), "discarded")])
def test_acknowledgement_carries_the_last_state(bench, outcome, state):
    bench.go(outcome, status_expiration=60)
    assert bench.unit.released_on_ack.status == (STATUS, state, "60")
    assert (bench.states, bench.finished) == ([], [(bench.unit, False)])


@pytest.mark.proves("R22")
@pytest.mark.parametrize("outcome", [ERROR, Snoozed(10.0, ""), Malformed(PayloadError("x"), b"x"), RETIRED])
def test_fenced_job_writes_no_state(bench, redis, outcome):
    redis.set(STATUS, "completed")
    assert bench.go(outcome, held=False, status_expiration=60).moved_to == "lost"
    assert redis.get(STATUS) == b"completed"


@pytest.mark.parametrize(("fields", "state"), [({}, b"retrying"), ({"retry": 0}, b"failed")])
def test_state_of_a_move_is_written_at_maxmemory(bench, redis, fields, state):
    unit = hold(redis, encoded(status_expiration=60, **fields))
    with full_memory(redis):
        bench.settle(unit, ERROR, bench.settler.decide_retry(unit, None, ERROR), TrackedJob("ab" * 12, 60))
    assert redis.get(STATUS) == state


@pytest.mark.parametrize("outcome", [ERROR, Succeeded(), Snoozed(1.0, "")])
def test_untracked_job_has_no_state(bench, redis, outcome):
    bench.go(outcome)
    assert (bench.states, redis.keys("aw:status:*")) == ([], [])
