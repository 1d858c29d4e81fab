"""Test declarations of workers: resolved values, refused classes, and the request of each call."""

import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from framework.application_worker import ATTRIBUTES, ApplicationWorker
from framework.declare import port, registry
from framework.declare.declaration import Declaration
from framework.declare.options import bulk_schedule, due_at, times_schedule
from framework.declare.policy_options import Deduplicate
from framework.declare.request import BulkPacing, DueTime, JobTimes
from framework.errors import ArgumentsError, DeclarationError, PushError
from framework.features.backlog.attributes import MaxWaiting
from framework.features.breaker.attributes import BreakAfter
from framework.features.concurrency.attributes import ConcurrencyScope
from framework.features.health.attributes import DeferOnHealth
from framework.limiter import unlimited
from tests.harness import forked
from tests.tables import each_row


def perform(self: Any, project_id: int, mode: str = "full") -> None: ...


def make(name: str = "SampleWorker", *bases: type[Any], **body: Any) -> Any:
    body = {"feature_category": "x", "perform": perform, "__module__": "workers.sample", **body}
    return type(name, bases or (ApplicationWorker,), {key: value for key, value in body.items() if value is not ...})


def declare(**body: Any) -> Declaration:
    return make(**body).declaration()


def test_defaults_are_those_of_design_section_4():
    declaration = declare()
    assert (declaration.urgency, declaration.resource_boundary, declaration.facts["data_consistency"]) == (
        "low",
        "unknown",
        "always",
    )
    assert (declaration.version, declaration.retry, declaration.max_retries_after_interruption) == (0, True, None)
    assert (declaration.idempotent, declaration.deduplicate, declaration.ack, declaration.dead) == (
        False,
        None,
        "batch",
        True,
    )
    assert (declaration.queue, declaration.shard, declaration.weight, declaration.tags) == (None, None, None, ())
    assert (declaration.wire_name, declaration.generated_queue) == ("SampleWorker", "sample")
    assert declaration.is_async is False


def test_attribute_has_validator_default_and_field():
    fields = set(Declaration.__dataclass_fields__)
    assert all(getattr(ApplicationWorker, name) == one.default for name, one in ATTRIBUTES.items())
    derived = {"class_name", "module", "generated_queue", "signature", "is_async"}
    derived |= {
        "loggable_positions",
        "version_handlers",
        "is_cron",
        "is_iterable",
        "bounded",
        "in_thread",
        "options",
        "facts",
    }
    derived |= {"has_category", "chosen_queues", "several_shards"}
    assert fields - set(ATTRIBUTES) == derived


_GOOD: list[tuple[str, Any, Any]] = [
    ("urgency", "throttled", "throttled"),
    ("resource_boundary", "memory", "memory"),
    ("has_external_dependencies", True, True),
    ("data_consistency", "sticky", "sticky"),
    ("data_consistency_overrides", {"ci": "sticky"}, {"ci": "sticky"}),
    ("queue_namespace", "search", "search"),
    ("queue", "urgent:now", "urgent:now"),
    ("shard", "queues_shard_a", "queues_shard_a"),
    ("weight", 5, 5),
    ("tags", ("a", "b:c"), ("a", "b:c")),
    ("worker_context", {"tenant": "a"}, {"tenant": "a"}),
    ("version", 2, 2),
    ("wire_name", "Old::Name", "Old::Name"),
    ("aliases", ("Older",), ("Older",)),
    ("retry", False, False),
    ("retry", 0, 0),
    ("retry_for", timedelta(hours=1), timedelta(hours=1)),
    ("retry_for", 90, timedelta(seconds=90)),
    ("retry_delay", 5, (timedelta(seconds=5),)),
    ("retry_delay", (5, timedelta(minutes=1)), (timedelta(seconds=5), timedelta(minutes=1))),
    ("retry_queue", "slow", "slow"),
    ("dead", False, False),
    ("backtrace", 5, 5),
    ("max_retries_after_interruption", 0, 0),
    ("max_retries_after_interruption", -1, -1),
    ("ack", "sync", "sync"),
    ("timeout", 1.5, timedelta(seconds=1.5)),
    ("isolation", "process", "process"),
    ("memory_limit", None, None),
    ("expires_in", timedelta(minutes=1), timedelta(minutes=1)),
    ("status_expiration", 60, timedelta(minutes=1)),
    ("keep_result", 60, timedelta(minutes=1)),
    ("track", True, True),
    ("idempotent", True, True),
    ("deduplicate", Deduplicate("until_executed"), Deduplicate("until_executed")),
    ("concurrency_limit", 20, 20),
    ("concurrency_limit", -1, -1),
    ("max_concurrency_limit_percentage", 1, 1.0),
    ("max_running_jobs", None, None),
    ("cron", None, None),
    ("time_zone", "Europe/Berlin", "Europe/Berlin"),
    ("spread", 60, timedelta(minutes=1)),
    ("spread", 0, timedelta(0)),
    ("flush_interval", timedelta(seconds=5), timedelta(seconds=5)),
    ("max_iteration_runtime", None, None),
    ("lease_timeout", None, None),
    ("minimum_duration", timedelta(seconds=5), timedelta(seconds=5)),
    ("concurrency_scope", ConcurrencyScope("user", limit=2), ConcurrencyScope("user", limit=2)),
    ("fair_by", "user", "user"),
    ("priority", "low", "low"),
    ("limiter", unlimited("a"), unlimited("a")),
    ("break_after", 3, BreakAfter(deaths=3)),
    ("max_waiting", 3, MaxWaiting(jobs=3)),
    ("max_waiting", MaxWaiting(bytes=1_000), MaxWaiting(bytes=1_000)),
    ("without_meta_shard", "hold", "hold"),
    ("on_full", "drop", "drop"),
    ("break_after", BreakAfter(failures=0.5), BreakAfter(failures=0.5)),
    ("defer_on_health", DeferOnHealth(tables=("a",)), DeferOnHealth(tables=("a",))),
    ("pause_control", "zoekt", "zoekt"),
    ("strict_arguments", "warn", "warn"),
    ("strict_arguments", "off", "off"),
    ("big_payload", True, True),
    ("compress", False, False),
    ("encrypt", True, True),
    ("loggable_arguments", ("mode",), ("mode",)),
]


@each_row(("name", "value", "resolved"), _GOOD, around=registry.isolated)
def test_attribute_accepts_allowed_values(name: str, value: Any, resolved: Any):
    declaration = declare(**{name: value})
    found = declaration.facts[name] if name in declaration.facts else getattr(declaration, name)
    assert found == resolved
    assert type(found) is type(resolved)


def test_allowed_values_table_has_every_attribute():
    assert {name for name, _, _ in _GOOD} | {"feature_category"} == set(ATTRIBUTES)


@each_row(
    ("name", "value", "words"),
    [
        ("feature_category", "global search", "letters, digits and underscores"),
        ("urgency", "hihg", "one of 'high', 'low', 'throttled' (did you mean 'high'?)"),
        ("urgency", None, "one of 'high'"),
        ("resource_boundary", "ram", "'cpu', 'memory', 'unknown'"),
        ("has_external_dependencies", 1, "True or False"),
        ("data_consistency", "delay", "did you mean 'delayed'?"),
        ("queue_namespace", "a:b", "letters"),
        ("queue", "a b", "queue name"),
        ("queue", "", "queue name"),
        ("shard", "a b", "shard name"),
        ("weight", 0, "whole number >= 1"),
        ("weight", True, "whole number >= 1"),
        ("tags", "gitaly", "with the comma"),
        ("tags", ["gitaly"], "a tuple"),
        ("tags", ("a-b",), "'a-b' is not"),
        ("version", -1, "whole number >= 0"),
        ("version", "2", "whole number >= 0"),
        ("wire_name", "a.B", "joined by '::'"),
        ("aliases", "Old", "with the comma"),
        ("retry", -1, "True, False or a whole number"),
        ("retry", 2.5, "True, False or a whole number"),
        ("retry", None, "True, False or a whole number"),
        ("retry_for", 0, "positive"),
        ("retry_for", float("inf"), "timedelta"),
        ("retry_for", 1e300, "thousand million days"),
        ("retry_for", True, "timedelta"),
        ("retry_queue", 3, "queue name"),
        ("dead", None, "True or False"),
        ("backtrace", 0, "whole number >= 1"),
        ("max_retries_after_interruption", -2, "whole number"),
        ("ack", "async", "did you mean"),
        ("timeout", -1, "positive"),
        ("isolation", "proces", "did you mean"),
        ("memory_limit", "1G", "whole number >= 1"),
        ("expires_in", "1h", "timedelta"),
        ("status_expiration", timedelta(0), "positive"),
        ("track", "yes", "True or False"),
        ("idempotent", None, "True or False"),
        ("deduplicate", "until_executed", "Deduplicate(...)"),
        ("concurrency_limit", "20", "whole number"),
        ("concurrency_limit", True, "whole number"),
        ("concurrency_limit", lambda worker: 20, "needs arguments"),
        ("concurrency_limit", int, "callable without parameters"),
        ("max_concurrency_limit_percentage", 20, "from 0 to 1"),
        ("max_concurrency_limit_percentage", float("nan"), "from 0 to 1"),
        ("defer_on_health", "main", "DeferOnHealth(...)"),
        ("pause_control", 1, "letters"),
        ("big_payload", 1, "True or False"),
        ("compress", 0, "True or False"),
        ("encrypt", "yes", "True or False"),
        ("loggable_arguments", ("moed",), "did you mean 'mode'?"),
        ("loggable_arguments", (1,), "each member"),
    ],
    around=registry.isolated,
)
def test_refused_value_names_class_attribute_and_allowed_values(name: str, value: Any, words: str):
    with pytest.raises(DeclarationError) as caught:
        declare(**{name: value})
    error = caught.value
    assert (error.worker, error.attribute) == ("workers.sample.SampleWorker", name)
    assert words in str(error)
    assert name in str(error)


@each_row(
    ("build", "words"),
    [
        (lambda: Deduplicate("until_execute"), "did you mean"),
        (lambda: ConcurrencyScope("user"), "limit or max_percentage"),
        (lambda: ConcurrencyScope("user", limit=1, max_percentage=0.5), "limit or max_percentage"),
        (lambda: ConcurrencyScope("meta.user", limit=1), "a function that takes a job"),
        (lambda: ConcurrencyScope("user", limits=1), "did you mean 'limit'"),
        (lambda: Deduplicate(ttl=timedelta(0)), "positive"),
        (lambda: Deduplicate(if_deduplicated="reschedule_once"), "needs strategy 'until_executed'"),
        (lambda: Deduplicate("until_executed", if_deduplicated="again"), "reschedule_once"),
        (lambda: DeferOnHealth(tables="projects"), "with the comma"),
        (lambda: DeferOnHealth(delay=timedelta(-1)), "positive"),
        (lambda: DeferOnHealth(delay=timedelta(hours=1)), "shorter than delay"),
        (lambda: DeferOnHealth(max_deferrals=0), "whole number >= 1"),
    ],
    around=registry.isolated,
)
def test_policy_options_check_their_fields(build: Any, words: str):
    with pytest.raises(DeclarationError, match=words):
        build()


@each_row(
    ("body", "attribute", "words"),
    [
        ({"urgancy": "low"}, "urgancy", "did you mean 'urgency'?"),
        ({"limit": 3}, "limit", "Constants of your own: LIMIT or _limit"),
        ({"perform": ...}, "perform", "perform is missing"),
        ({"perform": staticmethod(lambda: None)}, "perform", "ordinary method"),
        ({"perform": ..., "preform": perform}, "preform", "did you mean 'perform'?"),
        ({"retry_im": classmethod(lambda cls, count, error, job: None)}, "retry_im", "did you mean 'retry_in'?"),
        ({"concurency_limit": lambda: 20}, "concurency_limit", "did you mean 'concurrency_limit'?"),
        ({"retry_in": lambda self, count, error, job: None}, "retry_in", "@classmethod"),
        ({"retry_in": classmethod(lambda cls, count: None)}, "retry_in", "must take (count"),
        ({"urgency": "high", "has_external_dependencies": True}, "urgency", "has_external_dependencies"),
        ({"urgency": "high", "resource_boundary": "memory"}, "urgency", "memory"),
        ({"data_consistency": "delayed", "retry": False}, "data_consistency", "retry"),
        ({"data_consistency": "delayed", "retry": 0}, "data_consistency", "retry"),
        ({"data_consistency_overrides": {"ci": "delayed"}, "retry": 0}, "data_consistency_overrides", "retry"),
        ({"__init__": lambda self, client: None}, "__init__", "without any"),
        ({"perform": lambda self, *, a: None}, "perform", "is not possible"),
        ({"perform": lambda self, **rest: None}, "perform", "is not possible"),
    ],
    around=registry.isolated,
)
def test_class_body_with_fault_is_refused(body: dict[str, Any], attribute: str, words: str):
    with pytest.raises(DeclarationError) as caught:
        make(**body)
    assert (caught.value.worker, caught.value.attribute) == ("workers.sample.SampleWorker", attribute)
    assert words in str(caught.value)


def test_perform_as_generator_is_refused():
    def generates(self: Any) -> Iterator[None]:
        yield

    with pytest.raises(DeclarationError, match="yield"):
        make(perform=generates)


def test_hook_that_is_async_is_refused():
    async def hook(cls: Any, job: Any) -> None: ...

    with pytest.raises(DeclarationError, match="without await"):
        make(interruptions_exhausted=classmethod(hook))


def test_class_body_may_hold_other_names():
    worker = make(LIMIT=3, _cache={}, helper=lambda self: 1, url=property(lambda self: "x"), perform_one=lambda self: 2)
    assert worker().perform_one() == 2


def test_class_keyword_misspelt_is_refused():
    with pytest.raises(DeclarationError, match="did you mean 'abstract'"):

        class _Misspelt(ApplicationWorker, abstrct=True):
            pass


def test_class_name_not_ascii_needs_a_wire_name():
    with pytest.raises(DeclarationError, match="wire_name"):
        make("ÜberWorker")
    assert make("ÜberWorker", wire_name="UeberWorker").declaration().generated_queue == "ueber"


def test_inheritance_along_the_mro_and_falsy_overrides():
    class Searching:
        queue_namespace = "search"

    base = type(
        "Base",
        (ApplicationWorker,),
        {"feature_category": "x", "idempotent": True, "retry": 3, "has_external_dependencies": True, "tags": ("a",)},
        abstract=True,
    )
    child = make("ChildWorker", Searching, base, feature_category=..., idempotent=False, retry=False, tags=())
    declaration = child.declaration()
    assert declaration.feature_category == "x"
    assert declaration.queue_namespace == "search"
    assert (declaration.idempotent, declaration.retry, declaration.tags) == (False, False, ())
    assert declaration.has_external_dependencies is True
    assert declaration.generated_queue == "search:child"


def test_mixin_values_and_spelling_are_checked():
    class Bad:
        urgency = "hihg"

    class Misspelt:
        urgancy = "low"
        client = object()  # a mixin may have other names

    with pytest.raises(DeclarationError, match="did you mean 'high'"):
        make("AWorker", Bad, ApplicationWorker)
    with pytest.raises(DeclarationError, match="did you mean 'urgency'"):
        make("BWorker", Misspelt, ApplicationWorker)


def test_identity_is_not_inherited():
    parent = make("ParentWorker", wire_name="Old::Name", aliases=("Older",))
    child = make("ChildWorker", parent)
    assert (child.declaration().wire_name, child.declaration().aliases) == ("ChildWorker", ())
    with pytest.raises(DeclarationError, match="abstract"):
        type("Base", (ApplicationWorker,), {"wire_name": "X"}, abstract=True)


def test_abstract_class_is_checked_and_not_registered():
    base = type("Base", (ApplicationWorker,), {}, abstract=True)
    with pytest.raises(DeclarationError, match="abstract"):
        base.declaration()
    with pytest.raises(DeclarationError, match="abstract"):
        base.perform_async()
    with pytest.raises(DeclarationError, match="one of 'high'"):
        type("Base", (ApplicationWorker,), {"urgency": "x"}, abstract=True)


def test_idempotent_alone_deduplicates_until_executing():
    assert declare(idempotent=True).deduplicate == Deduplicate("until_executing", ttl=timedelta(minutes=10))
    assert declare(idempotent=True, deduplicate=None).deduplicate is None
    parent = make("ParentWorker", idempotent=True, deduplicate=None)
    assert make("ChildWorker", parent).declaration().deduplicate is None


@each_row(("retry", "limit"), [(True, 25), (False, None), (0, 0), (3, 3)], around=registry.isolated)
def test_retry_limit_of_retry_attribute(retry: Any, limit: int | None):
    assert declare(retry=retry).retry_limit() == limit
    assert declare(retry=retry).retry_limit(default=7) == (7 if retry is True else limit)


def test_concurrency_limit_may_be_computed():
    assert declare(concurrency_limit=lambda: 20).facts["concurrency_limit"]() == 20
    assert declare(concurrency_limit=staticmethod(lambda: None)).facts["concurrency_limit"]() is None


def test_loggable_arguments_become_positions():
    assert declare(loggable_arguments=("mode", "project_id")).loggable_positions == {0, 1}


def test_async_perform_is_recognised():
    async def waits(self: Any) -> None: ...

    assert declare(perform=waits).is_async is True


# --- calls ----------------------------------------------------------------------------------------------------------


def test_perform_async_binds_and_pushes(recorder: Any):
    worker = make()
    assert worker.perform_async(42, mode="fast") == "jid1"
    request = recorder.pushed[0]
    assert (request.declaration, request.args, request.due, dict(request.options)) == (
        worker.declaration(),
        [42, "fast"],
        None,
        {},
    )


def test_perform_async_with_wrong_call_pushes_nothing(recorder: Any):
    with pytest.raises(ArgumentsError, match="moed"):
        make().perform_async(42, moed="fast")
    assert recorder.pushed == []


def test_set_checks_and_merges_options(recorder: Any):
    make().set(queue="urgent", retry=0).set(retry_for=60, queue="later").perform_async(1)
    assert recorder.pushed[0].options == {"queue": "later", "retry": 0, "retry_for": timedelta(seconds=60)}


@each_row(
    ("options", "words"),
    [
        ({"queu": "x"}, "did you mean 'queue'"),
        ({"wait": 3}, r"SampleWorker\.perform_in\(delay, \.\.\.\)"),
        ({"wait_until": 3}, r"SampleWorker\.perform_in\(delay, \.\.\.\)"),
        ({"at": 3}, r"SampleWorker\.perform_in\(delay, \.\.\.\)"),
        ({"delay": 3}, r"SampleWorker\.perform_in\(delay, \.\.\.\)"),
        ({"pool": 3}, r"set\(shard="),
        ({"store": "main"}, r"set\(shard="),
        ({"log_level": "debug"}, "setting `logging.level`"),
        ({"urgency": "high"}, "belongs to the class"),
        ({"feature_category": "x"}, "belongs to the class"),
        ({"version": 3}, "belongs to the class"),
        ({"big_payload": True}, "belongs to the class.*Options: queue, shard"),
        ({"shard": "a b"}, "a shard name"),
        ({"shard": None}, "a shard name"),
        ({"status_expiration": 0}, "positive"),
        ({"status_expiration": "1h"}, "timedelta"),
        ({"expires_in": -1}, "positive"),
        ({"timeout": float("inf")}, "number of seconds"),
        ({"track": 1}, "True or False"),
        ({"sync": "yes"}, "True or False"),
        ({"context": ["user"]}, "a mapping of names to JSON values; this is a list"),
        ({"context": {1: 2}}, "a key of type int"),
        ({"context": {"": 2}}, "an empty name"),
        ({"context": {"user": {"at": datetime(2030, 1, 1, tzinfo=UTC)}}}, r"context\['user'\]\['at'\] is a datetime"),
        ({"context": {"user": float("nan")}}, r"context\['user'\] is nan"),
        ({"context": {"user": "\ud800"}}, "surrogate"),
        ({"context": {"user": (1,)}}, "pass a list"),
        ({"retry": -1}, "True, False or a whole number"),
        ({"tags": "x"}, "comma"),
        ({"queue": "a b"}, "queue name"),
        ({"queue": 10**5_000}, r"queue=<a very long number>\) is not allowed"),
        ({"retry": 10**15}, "at most 15 digits"),
        ({"context": {"a": {10**5_000: 1}}}, "keys are str"),
    ],
    around=registry.isolated,
)
def test_set_refuses_wrong_options(options: dict[str, Any], words: str):
    with pytest.raises(ArgumentsError, match=words):
        make().set(**options)


NOW = 1_800_000_000.0


@each_row(
    ("when", "due"),
    [
        (timedelta(minutes=5), DueTime(NOW + 300, 300.0)),
        (60, DueTime(NOW + 60, 60.0)),
        (0.5, DueTime(NOW + 0.5, 0.5)),
        (999_999_999, DueTime(NOW + 999_999_999, 999_999_999.0)),
        (1_000_000_000, None),
        (NOW + 1, DueTime(NOW + 1)),
        (NOW, None),
        (0, None),
        (-5, None),
        (timedelta(0), None),
        (datetime.fromtimestamp(NOW + 10, UTC), DueTime(NOW + 10)),
        (datetime.fromtimestamp(NOW - 10, UTC), None),
    ],
    around=registry.isolated,
)
def test_due_time_of_delays_and_moments(when: Any, due: DueTime | None):
    assert due_at("W", when, NOW) == due


@each_row(
    ("when", "words"),
    [
        (datetime(2030, 1, 1), "without a time zone"),  # noqa: DTZ001 - the case
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (10**400, "finite"),
        ("soon", "is due at a str"),
        (True, "is due at a bool"),
        (None, "NoneType"),
    ],
    around=registry.isolated,
)
def test_due_time_refuses_other_values(when: Any, words: str):
    with pytest.raises(ArgumentsError, match=words):
        due_at("W", when, NOW)


def test_perform_at_refuses_a_naive_datetime(recorder: Any):
    with pytest.raises(ArgumentsError, match="without a time zone"):
        make().perform_at(datetime(2030, 1, 1), 1)  # noqa: DTZ001 - the case
    assert recorder.pushed == []


def test_bulk_binds_each_tuple(recorder: Any):
    assert make().perform_bulk([(1,), [2, "fast"]]) == ["jid0", "jid1"]
    assert recorder.bulks[0].args == [[1], [2, "fast"]]
    assert make("OtherWorker").perform_bulk([]) == []


@pytest.mark.parametrize(
    ("jobs", "words"),
    [([(1,), 2], "job 1 of the bulk is an int"), (["ab"], "job 0"), ([(1,), ()], r"job 1 .*is missing")],
)
def test_bulk_error_names_the_wrong_job(recorder: Any, jobs: Any, words: str):
    with pytest.raises(ArgumentsError, match=words):
        make().perform_bulk(jobs)
    assert recorder.bulks == []


def test_times_of_delays_count_by_redis_and_others_by_this_host():
    delays = times_schedule("W", [60, timedelta(hours=1)], NOW)
    assert delays == (DueTime(NOW, 0.0), JobTimes([60.0, 3_600.0]))
    mixed = times_schedule("W", [60, NOW + 90], NOW)
    assert mixed == (DueTime(NOW, None), JobTimes([60.0, 90.0]))


def test_bulk_schedule_of_times_and_batches():
    due, pace = bulk_schedule("W", 60, 2, 10, NOW)
    assert due == DueTime(NOW + 60, 60.0)
    assert pace is not None
    assert pace.delays_s(0, 5) == [0, 0, 10, 10, 20]
    assert bulk_schedule("W", 60, None, None, NOW) == (DueTime(NOW + 60, 60.0), None)
    for not_in_the_future in (0, -5, NOW - 1, timedelta(0)):  # a paced bulk starts at once
        assert bulk_schedule("W", not_in_the_future, 1, timedelta(seconds=1), NOW) == (
            DueTime(NOW, 0.0),
            BulkPacing(1, 1.0),
        )
    for size, delay, words in (
        (2, None, "both or neither"),
        (None, 2, "both or neither"),
        (0, 2, "batch_size"),
        (-(10**5_000), 2, "batch_size = <a very long number>"),
        (2, -(10**5_000), "batch_delay = <a very long number>"),
        (2, 0, "batch_delay"),
    ):
        with pytest.raises(ArgumentsError, match=words):
            bulk_schedule("W", 60, size, delay, NOW)


def test_bulk_for_makes_arguments_and_contexts(recorder: Any):
    worker, other = make(), make("OtherWorker")
    worker.perform_bulk_for([1, 2], arguments=lambda n: worker.arguments(n, mode="m"), context=lambda n: {"user": n})
    assert recorder.bulks[0].args == [[1, "m"], [2, "m"]]
    assert recorder.bulks[0].contexts == [{"user": 1}, {"user": 2}]
    with pytest.raises(ArgumentsError, match=r"made a job of workers\.sample\.OtherWorker"):
        worker.perform_bulk_for([1], arguments=other.arguments)
    with pytest.raises(ArgumentsError, match="gave a tuple"):
        worker.perform_bulk_for([1], arguments=lambda n: (n,))


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (
            lambda n: None,
            "context.* of job 0 is not allowed. Allowed: a mapping of names to JSON values; this is a NoneType",
        ),
        (lambda n: {"n": {n}}, r"context\['n'\] is a set"),
        (lambda n: {"n": n} if n < 2 else [n], "of job 1 .*this is a list"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"sync": True}])
def test_bulk_for_with_wrong_context_pushes_nothing(recorder: Any, context: Any, words: str, options: Any):
    worker = make()
    with pytest.raises(ArgumentsError, match=words):
        worker.set(**options).perform_bulk_for([1, 2], arguments=worker.arguments, context=context)
    assert (recorder.bulks, recorder.inline) == ([], [])


@pytest.mark.parametrize("failing", ["arguments", "context"])
def test_bulk_for_notes_the_job_on_callers_errors(recorder: Any, failing: str):
    worker = make()

    def fail(number: int) -> Any:
        if number == 2:
            raise LookupError("mine")
        return {} if failing == "context" else worker.arguments(number)

    functions = {"arguments": worker.arguments, "context": lambda n: {}} | {failing: fail}
    with pytest.raises(LookupError, match="mine") as caught:
        worker.perform_bulk_for([1, 2, 3], **functions)
    assert caught.value.__notes__ == ["(for job 1 of the bulk; nothing was written)"]
    assert recorder.bulks == []


def test_bulk_for_spreads_as_bulk_in(recorder: Any):
    worker = make()
    worker.perform_bulk_for([1], arguments=worker.arguments)
    worker.perform_bulk_for([1], arguments=worker.arguments, delay=0)
    worker.perform_bulk_for([1], arguments=worker.arguments, delay=4_000_000_000)
    worker.perform_bulk_for([1], arguments=worker.arguments, delay=4_000_000_000, batch_size=2, batch_delay=3)
    worker.perform_bulk_for([1], arguments=worker.arguments, batch_size=2, batch_delay=3)
    whens = [(bulk.due, bulk.pacing) for bulk in recorder.bulks]
    far, pace = DueTime(4_000_000_000.0), BulkPacing(2, 3.0)
    assert whens[:4] == [(None, None), (None, None), (far, None), (far, pace)]
    assert (whens[4][0].delay_s, whens[4][1]) == (0.0, pace)
    for wrong in ({"batch_size": 2}, {"delay": 5, "batch_delay": 2}):
        with pytest.raises(ArgumentsError, match="both or neither"):
            worker.perform_bulk_for([1], arguments=worker.arguments, **wrong)


def test_bulk_in_accepts_a_generator(recorder: Any):
    jids = make().perform_bulk_in(4_000_000_000, ((n,) for n in range(5)), batch_size=2, batch_delay=10)
    (bulk,) = recorder.bulks
    assert bulk.due == DueTime(4_000_000_000.0)
    assert bulk.delays_s(0, len(jids)) == [0, 0, 10, 10, 20]


def test_inline_and_route_use_the_port(recorder: Any):
    worker = make()
    worker.set(retry=0).perform_inline(1)
    ran, request = recorder.inline[0]
    assert ran is worker
    assert (request.args, request.options) == ([1], {"retry": 0})
    assert worker.route() == ("sample", "main", None)


def test_port_unbound_raises_push_error():
    with port.client.unbound(), pytest.raises(PushError, match="no client is bound"):
        make().perform_async(1)


def test_port_factory_is_called_again_only_after_a_failure(recorder: Any):
    calls: list[int] = []

    def factory() -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise PushError("not yet")
        return recorder

    with port.client.unbound():
        port.bind_factory(factory)
        with pytest.raises(PushError, match="not yet"):
            port.current()
        assert port.current() is recorder
        assert port.current() is recorder
        assert len(calls) == 2
        port.unbind()
        with pytest.raises(PushError):
            port.current()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_port_factory_lock_is_renewed_in_a_forked_child(recorder: Any):
    making, made = threading.Event(), threading.Event()
    parent = os.getpid()

    def factory() -> Any:
        if os.getpid() == parent:
            making.set()
            made.wait(20)
        return recorder

    with port.client.unbound():
        port.bind_factory(factory)
        thread = threading.Thread(target=port.current)
        thread.start()
        making.wait(20)
        status = forked(port.current)
        made.set()
        thread.join(20)
    assert status == 0


def test_instance_without_process_has_default_values(caplog: pytest.LogCaptureFixture):
    worker = make()()
    assert (worker.jid, worker.job_version, worker.cancelled, worker.interrupted) == ("", 0, False, False)
    worker.log_extra(files=3)
    worker.log_extra(lines=4)
    assert worker._aw_extra == {"files": 3, "lines": 4}
    assert make("FreshWorker")()._aw_extra is None
    with caplog.at_level("INFO", logger="framework"):
        worker.logger.info("indexed", files=3)
    assert caplog.messages == ["indexed files=3"]


@each_row("name", ["route", "set", "arguments", "declaration", "perform_async", "aperform_async", "jid", "job_version"])
@each_row("place", ["body", "mixin"], around=registry.isolated)
def test_helper_named_like_the_frameworks_is_refused(name: str, place: str) -> None:
    helper = {name: lambda self: None}
    bases = (ApplicationWorker,) if place == "body" else (type("Mixin", (), helper), ApplicationWorker)
    body = {"feature_category": "not_owned", "perform": lambda self: None}
    with pytest.raises(DeclarationError, match=rf"{name} = <function .*hides the framework's own {name}\. .*_{name}"):
        type("HidingWorker", bases, body | (helper if place == "body" else {}))


def test_push_method_may_be_overridden() -> None:
    class WrappedWorker(ApplicationWorker):
        feature_category = "not_owned"

        def perform(self, number: int) -> None: ...

        @classmethod
        def arguments(cls, *args, **kwargs):
            return super().arguments(*args, **kwargs)

    assert WrappedWorker.arguments(1).args == [1]


def test_helper_names_in_common_use_are_free() -> None:
    class HelpedWorker(ApplicationWorker):
        feature_category = "not_owned"

        def perform(self) -> None: ...

        def _run(self) -> str:
            return "mine"

        _job = _logger = _extra = _setter = _declaration = _run

    worker = HelpedWorker()
    worker.log_extra(rows=1)
    worker.logger.info("a line")
    assert [getattr(worker, name)() for name in ("_run", "_job", "_logger", "_extra", "_setter")] == ["mine"] * 5
    assert HelpedWorker.declaration().class_name.endswith("HelpedWorker")
