import base64
import json
import zlib
from datetime import timedelta
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.errors import BusinessError
from framework.finish.retry import MAX_DELAY_S, MAX_MESSAGE, Delete, Kill, Retry, RetryPolicy, jitter_s, retry_delay_s
from framework.process_clock import process_clock
from framework.text import error_class, error_message
from framework.wire.json import dumps
from tests.harness import STARTED, payload
from tests.tables import each_row

NOW = 1_800_000_000.25


@pytest.fixture(autouse=True)
def alone():
    with registry.isolated(), process_clock.override(lambda: NOW):
        yield


def worker(answer=None, **attributes):
    """Return a class whose ``retry_in`` returns ``answer``, or raises it if it is an exception."""

    def retry_in(cls, count, error, job):
        assert job.worker == "Job"
        if isinstance(answer, Exception):
            raise answer
        return answer(count, error) if callable(answer) else answer

    body = {"feature_category": "not_owned", "wire_name": "Job", "retry_in": classmethod(retry_in), **attributes}
    body["perform"] = lambda self: None
    return type("Job", (ApplicationWorker,), body)


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


def judge(job, error=None, cls=None, draw=0.0, **options):
    with patch("random.random", lambda: draw):
        return RetryPolicy(**options).decide(job, cls, raised(error or ValueError("no")))


def test_first_failure_writes_sidekiqs_fields():
    decision = judge(payload(bid="x"))
    assert decision == Retry(
        payload(bid="x", retry_count=0, failed_at=NOW, error_class="ValueError", error_message="no"), 15.0
    )


def test_later_failures_write_retried_at_and_keep_failed_at():
    decision = judge(payload(retry_count=2, failed_at=5.5, error_backtrace="old"), draw=0.5)
    assert decision.payload["retry_count"] == 3
    assert decision.payload["failed_at"] == 5.5
    assert decision.payload["retried_at"] == NOW
    assert "error_backtrace" not in decision.payload
    assert decision.delay_s == 81 + 15 + 20


@pytest.mark.proves("I6")
@each_row(
    ("retry", "count", "kind"),
    [
        (True, 23, Retry),
        (True, 24, Kill),
        (None, 24, Kill),
        ("odd", 24, Kill),
        (3, 1, Retry),
        (3, 2, Kill),
        (0, None, Kill),
        (False, None, Delete),
        (False, 3, Delete),
    ],
)
def test_retry_limit_decides_the_number_of_retries(retry, count, kind):
    """``count`` is the retry count before this failure."""
    fields = {} if count is None else {"retry_count": count}
    assert type(judge(payload(retry=retry, **fields))) is kind


def test_payload_without_retry_uses_its_class():
    job = payload()
    del job["retry"]
    assert type(judge(dict(job), cls=worker(retry=0))) is Kill
    assert type(judge(dict(job), cls=worker(retry=False))) is Delete
    assert type(judge(payload(retry_count=1), max_retries=2)) is Kill
    assert type(judge(payload(retry_count=1), max_retries=3)) is Retry


@pytest.mark.parametrize(
    ("failed_at", "kind"),
    [
        (NOW - 59, Retry),
        (int((NOW - 59) * 1000), Retry),
        (NOW - 61, Kill),
        (int((NOW - 61) * 1000), Kill),
        ("nan", Retry),
    ],
)
def test_retry_for_counts_from_the_first_failure(failed_at, kind):
    assert type(judge(payload(retry_for=60, retry_count=3, retry=25, failed_at=failed_at))) is kind


def test_retry_for_continues_beyond_the_count():
    assert type(judge(payload(retry_for=60, retry=0))) is Retry


def test_retries_go_to_the_retry_queue():
    assert judge(payload(retry_queue="slow")).payload["queue"] == "slow"
    assert judge(payload(retry_queue=7)).payload["queue"] == "default"
    assert judge(payload(retry_queue="")).payload["queue"] == "default"


def test_dead_false_deletes_instead_of_killing():
    assert type(judge(payload(retry=0, dead=False))) is Delete
    assert type(judge(payload(retry=0, dead=True))) is Kill


@each_row("job", [payload(), payload(retry=25, retry_for=10)])
@each_row(
    ("own_fields", "moves_to_dead_set", "decision", "exhausted"),
    [
        ({}, False, Delete, True),
        ({}, True, Kill, None),
        ({"dead": False}, True, Delete, True),
        ({"retry": False}, True, Delete, False),
    ],
)
def test_business_error_is_not_retried(job, own_fields, moves_to_dead_set, decision, exhausted):
    found = RetryPolicy(keeps_business_failures=moves_to_dead_set).decide(
        {**job, **own_fields}, None, BusinessError("closed")
    )
    assert (type(found), getattr(found, "exhausted", None)) == (decision, exhausted)
    assert getattr(found, "business", decision is Kill) == (decision is Kill)
    assert ("discarded_at" in found.payload) == bool(exhausted)


def test_killed_failure_is_no_business_error():
    assert judge(payload(retry=0), ValueError("x")).business is False


@each_row(
    ("answer", "delay"),
    [
        (7, 7.0),
        (2.5, 2.5),
        (timedelta(minutes=2), 120.0),
        (lambda count, error: 100 + count if str(error) == "no" else 0, 102.0),
        (0, 31.0),
        (-3, 31.0),
        (None, 31.0),
        (True, 31.0),
        ("default", 31.0),
        (float("nan"), 31.0),
        (float("inf"), 31.0),
    ],
)
def test_class_may_choose_the_delay(answer, delay):
    assert judge(payload(retry_count=1, failed_at=STARTED), cls=worker(answer)).delay_s == delay


def test_chosen_delay_has_jitter():
    assert judge(payload(retry_count=1), cls=worker(100), draw=0.5).delay_s == 115.0
    assert judge(payload(retry_count=10**400, retry_for=60)).delay_s == MAX_DELAY_S


def test_class_may_discard_or_kill():
    assert type(judge(payload(), cls=worker("discard"))) is Delete
    assert type(judge(payload(), cls=worker("kill"))) is Kill


def test_error_of_retry_in_reaches_the_caller():
    with pytest.raises(LookupError):
        judge(payload(), cls=worker(LookupError("hook")))


@pytest.mark.parametrize(("wanted", "lines"), [(True, 2), (1, 1), (0, 0), (False, 0), (None, 0), (-1, 0)])
def test_backtrace_is_kept_innermost_first_if_wanted(wanted, lines):
    decision = judge(payload(backtrace=wanted))
    packed = decision.payload.get("error_backtrace")
    assert (packed is not None) == (lines > 0)
    if packed:
        found = json.loads(zlib.decompress(base64.b64decode(packed, validate=True)))
        assert all("test_retry.py" in line for line in found)
        assert found[0].endswith(":in `raised': raise error")


@pytest.mark.parametrize(("retry", "wanted", "kept"), [(0, None, True), (5, None, False), (0, False, False)])
def test_dead_job_keeps_its_backtrace_by_default(retry, wanted, kept):
    decision = judge(payload(retry=retry, backtrace=wanted))
    assert ("error_backtrace" in decision.payload) is kept


class UnreadableMessageError(Exception):
    def __str__(self):
        raise KeyboardInterrupt


class Numeric(Exception):
    def __str__(self):
        return 5  # noqa: PLE0307 - on purpose


@pytest.mark.proves("F29", "R26")
@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (ValueError("x" * 1_000_000), "ValueError", "x" * 10_000),
        (ValueError("a\ud800"), "ValueError", "a?"),
        (
            UnreadableMessageError(),
            f"{__name__}.UnreadableMessageError",
            "<its message cannot be read: __str__ raised KeyboardInterrupt>",
        ),
        (Numeric(), f"{__name__}.Numeric", "<its message cannot be read: __str__ raised TypeError>"),
        (SystemExit(3), "SystemExit", "3"),
        (json.JSONDecodeError("bad", "", 0), "json.decoder.JSONDecodeError", "bad: line 1 column 1 (char 0)"),
    ],
    ids=["long", "surrogate", "mute", "numeric", "exit", "module"],
)
def test_any_error_has_class_and_message(error, name, message):
    assert (error_class(error), error_message(error, MAX_MESSAGE)) == (name, message)
    dumps(judge(payload(), error).payload)


@pytest.mark.proves("R53")
@each_row("field", ["retry_count", "failed_at", "retry_for", "retry", "backtrace", "dead", "retry_queue"])
@each_row("value", [None, "x", [], {}, True, -1, 10**400, 1e308, "nan"], ids=repr)
def test_odd_payload_gets_a_retry_decision(field, value):
    """Any writer may have made the payload; an error on the failure path would lose the job."""
    for more in ({}, {"retry_for": 10**9, "failed_at": NOW, "retry_count": 3}):
        decision = judge(payload(**{**more, field: value}))
        if isinstance(decision, Retry):
            assert 0 < decision.delay_s < 1e12


def test_hooks_see_decompressed_arguments():
    seen = []

    job = payload(args=["eJw="], compressed=True, original_job_size_bytes=9)
    with_hook = worker(retry_in=classmethod(lambda cls, count, error, job: seen.append(dict(job))))
    decision = RetryPolicy().decide(job, with_hook, ValueError("x"), ["plain", 1])
    assert seen[0]["args"] == ["plain", 1]
    assert "compressed" not in seen[0]
    assert decision.payload["args"] == ["eJw="]
    assert decision.payload["compressed"] is True


def test_class_fills_fields_missing_in_the_payload():
    """A Ruby client does not know the attributes of a Python class."""
    declared = {"retry_for": timedelta(minutes=1), "retry_queue": "slow", "dead": False, "backtrace": 1}
    decision = judge(payload(), cls=worker(**declared))
    assert isinstance(decision, Retry)
    assert decision.payload["queue"] == "slow"
    assert decision.payload["error_backtrace"]
    late = judge(payload(failed_at=NOW - 61, retry_count=0), cls=worker(**declared))
    assert late == Delete(late.payload, exhausted=True)
    assert late.payload["discarded_at"] == NOW


def test_payload_fields_override_the_class():
    declared = {"retry_for": timedelta(minutes=1), "retry_queue": "slow", "dead": False, "backtrace": True, "retry": 3}
    own_fields = {"retry_for": 3600, "retry_queue": "other", "dead": True, "backtrace": False, "retry": 9}
    decision = judge(payload(failed_at=NOW - 61, retry_count=5, **own_fields), cls=worker(**declared))
    assert isinstance(decision, Retry)
    assert decision.payload["queue"] == "other"
    assert "error_backtrace" not in decision.payload
    assert type(judge(payload(retry=0, dead=True), cls=worker(dead=False))) is Kill


def test_discarded_job_has_its_time():
    assert judge(payload(), cls=worker("discard")).payload["discarded_at"] == NOW
    assert judge(payload(retry=0, dead=False)).payload["discarded_at"] == NOW
    assert "discarded_at" not in judge(payload(retry=0)).payload


def test_kill_with_dead_false_deletes():
    assert judge(payload(dead=False), cls=worker("kill")) == Delete(
        judge(payload(dead=False), cls=worker("kill")).payload, exhausted=True
    )


@pytest.mark.parametrize(("declared", "delays"), [(5, [5, 5, 5]), ((5, timedelta(minutes=1)), [5, 60, 60])])
def test_declared_delays_have_no_jitter(declared, delays):
    cls = worker(retry_delay=declared)
    found = [judge(payload(**({"retry_count": n - 1} if n else {})), cls=cls, draw=0.9).delay_s for n in range(3)]
    assert found == delays
    # The answer of the hook comes first, with its jitter.
    assert judge(payload(), cls=worker(100)).delay_s == 100


@pytest.mark.parametrize("answer", [10**400, 1e300])
def test_excessive_delay_is_a_hundred_years(answer):
    assert judge(payload(), cls=worker(answer)).delay_s == 3_155_760_000.0


@pytest.mark.proves("F30", "R36")
def test_backtrace_of_a_recursion_is_small():
    def down(n):
        return down(n + 1)

    try:
        down(0)
    except RecursionError as error:
        decision = RetryPolicy().decide(payload(backtrace=True), None, error)
    packed = decision.payload["error_backtrace"]
    assert 0 < len(packed) <= 8192
    assert len(dumps(decision.payload)) < 16_384


@pytest.mark.proves("R36")
def test_long_backtrace_keeps_its_innermost_lines(monkeypatch):
    def outer():
        raise raised(ValueError("no"))

    error = None
    try:
        outer()
    except ValueError as caught:
        error = caught
    whole = RetryPolicy().decide(payload(backtrace=True), None, error).payload["error_backtrace"]
    monkeypatch.setattr("framework.finish.retry.MAX_BACKTRACE", len(whole) - 1)
    packed = RetryPolicy().decide(payload(backtrace=True), None, error).payload["error_backtrace"]
    lines = [json.loads(zlib.decompress(base64.b64decode(one))) for one in (whole, packed)]
    assert len(lines[1]) < len(lines[0])
    assert lines[1] == lines[0][: len(lines[1])]
    assert lines[1][0].endswith(":in `raised': raise error")


class TextWithFailingMethods(str):
    __slots__ = ()

    def __getitem__(self, key):
        raise LookupError

    def encode(self, *args):
        raise LookupError


class Odd(Exception):
    __module__ = 7

    def __str__(self):
        return TextWithFailingMethods("sly")


class Meta(type):
    def __getattribute__(cls, name):
        if name in ("__qualname__", "__module__", "__name__"):
            raise LookupError
        return super().__getattribute__(name)


class Masked(Exception, metaclass=Meta):
    pass


class Text(str):
    __slots__ = ()

    def odd(self, *_):
        raise LookupError

    __eq__ = __hash__ = __format__ = __getitem__ = encode = odd


HalfNamed = type("HalfNamed", (Exception,), {"__module__": "a\ud800"})
OddlyNamed = type("OddlyNamed", (Exception,), {"__module__": Text("a"), "__qualname__": Text("OddlyNamed")})
LongNamed = type("N" * 1_000_000, (Exception,), {"__module__": "m" * 1_000_000})


@pytest.mark.proves("F29", "R26")
@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (Odd(), "Odd", "sly"), (Masked("m"), "Masked", "m"), (HalfNamed(), "HalfNamed", ""), (OddlyNamed(), "OddlyNamed", ""),
        (LongNamed(), "N" * 500, ""),
    ],
    ids=["odd", "masked", "half named", "oddly named", "long"],
)  # fmt: skip
def test_misbehaving_error_has_class_and_message(error, name, message):
    assert error_class(error).rpartition(".")[2] == name
    assert error_message(error, 100) == message
    dumps(judge(payload(backtrace=True), error).payload)


DRAWS = st.floats(0, 1, exclude_max=True)


@given(st.integers(0, 500), DRAWS)
def test_retry_delay_is_within_sidekiqs_bounds(count, draw):
    delay = retry_delay_s(count, lambda: draw)
    assert count**4 + 15 <= delay < count**4 + 15 + 10 * (count + 1)
    assert delay == count**4 + 15 + jitter_s(count, lambda: draw)
    assert delay.is_integer()


@each_row(("count", "draw", "delay"), [(0, 0.0, 15), (0, 0.99, 24), (1, 0.5, 26), (3, 0.0, 96), (24, 0.999, 332_040)])
def test_retry_delays_have_known_values(count, draw, delay):
    assert retry_delay_s(count, lambda: draw) == delay


def test_jitter_reaches_both_ends():
    assert (jitter_s(4, lambda: 0.0), jitter_s(4, lambda: 0.9999)) == (0, 49)


@pytest.mark.proves("R53")
@given(st.integers(0, 10**400), DRAWS)
def test_any_retry_count_gives_a_delay_redis_can_store(count, draw):
    assert 15 <= retry_delay_s(count, lambda: draw) < 1e12
