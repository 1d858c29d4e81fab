"""Calls that both type checkers accept in strict mode. They check this file like the package; it never runs."""

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal, assert_type

from framework import (
    ApplicationWorker,
    Deduplicate,
    DeferOnHealth,
    IterableWorker,
    Job,
    LimitedCapacityWorker,
    active_job,
    admin,
    aenqueue,
    background,
    enqueue,
    flags,
    spread,
    status,
)
from framework.batches import Batch
from framework.declare.request import JobRequest, Route
from framework.features.results.calls import JobCall
from framework.job_options import declare_option
from framework.testing import FakeClock, FakeJobs, assert_enqueued, enqueued, fake, json_type, real
from framework.types import Jid, JobState, Json, Payload, Urgency
from framework.workflows import Workflow, result_of, results_of


class RebuildIndexWorker(ApplicationWorker):
    """Every attribute once."""

    feature_category = "global_search"
    urgency = "throttled"
    resource_boundary = "memory"
    has_external_dependencies = False
    data_consistency = "delayed"
    data_consistency_overrides = {"ci": "sticky"}
    queue_namespace = "search"
    queue = "indexing"
    shard = "queues_shard_a"
    weight = 2
    tags = ("needs_own_queue",)
    version = 2
    wire_name = "Search::RebuildIndexWorker"
    aliases = ("Search::OldIndexWorker",)
    retry = 3
    retry_for = timedelta(hours=1)
    retry_delay = (5, timedelta(minutes=1))
    retry_queue = "slow"
    dead = False
    backtrace = 10
    max_retries_after_interruption = 5
    ack = "sync"
    timeout = 30
    expires_in = timedelta(days=1)
    status_expiration = timedelta(minutes=30)
    track = True
    idempotent = True
    deduplicate = Deduplicate("until_executed", ttl=timedelta(hours=1), if_deduplicated="reschedule_once")
    concurrency_limit = 20
    max_concurrency_limit_percentage = 0.25
    defer_on_health = DeferOnHealth(
        database="main",
        tables=("projects", "notes"),
        delay=timedelta(minutes=1),
        resolver=lambda args: ("main", [f"notes_{args[0]}"]),
    )
    pause_control = "reindexing"
    big_payload = True
    compress = False
    loggable_arguments = ("mode",)

    @classmethod
    def retry_in(cls, count: int, error: Exception, job: Payload) -> timedelta | None:
        """A narrower result than the base's."""
        return timedelta(minutes=count) if isinstance(error, TimeoutError) and job else None

    @classmethod
    def retries_exhausted(cls, job: Payload, error: Exception) -> None:
        """As the base has it."""

    @classmethod
    def idempotency_arguments(cls, args: list[Json]) -> list[Json]:
        """Only the first counts."""
        return args[:1]

    def perform(self, project_id: int, mode: str = "full") -> None:
        """Push again from inside."""
        self.log_extra(mode=mode, jid=self.jid)
        self.logger.info("rebuilding", project_id=project_id)
        if not (self.cancelled or self.interrupted):
            self.perform_in(timedelta(minutes=5), project_id, mode="again")


class PlainIndexWorker(RebuildIndexWorker):
    """Inherits ``perform``; a falsy value of the same type overrides."""

    wire_name = "Search::PlainIndexWorker"
    retry = 0
    idempotent = False
    big_payload = False
    compress = True


class QuietWorker(ApplicationWorker, abstract=True):
    """A base whose subclasses may override the attribute: mypy takes the type of a plain override from its value, so it is given."""

    queue: ClassVar[str | None] = "quiet"
    urgency: ClassVar[Urgency] = "throttled"


class ComputedLimitWorker(QuietWorker):
    """None over an inherited value, and a computed limit."""

    feature_category = "not_owned"
    queue = None
    urgency = "low"
    concurrency_limit = lambda: 20  # noqa: E731 - the documented form

    def perform(self, project_id: int, mode: str = "full") -> None:
        """Nothing."""


class WaitingWorker(ApplicationWorker):
    """An async one."""

    feature_category = "not_owned"

    async def perform(self, url: str, attempts: int | None = None) -> int:
        """Wait."""
        return len(url) + (attempts or 0)


class VersionedWorker(ApplicationWorker):
    """Handlers of older versions, each with a signature of its own; pushes go by ``perform``'s."""

    feature_category = "not_owned"
    version = 2

    async def perform(self, project_id: int, options: dict[str, Json] | None = None) -> None:
        """Now."""

    def perform_v0(self, path: str) -> None:
        """At first."""

    async def perform_v1(self, path: str, deep: bool = False) -> None:
        """Then."""


class NewerVersionedWorker(VersionedWorker):
    """Inherits the handlers and adds one."""

    version = 3

    def perform_v2(self, project_id: int) -> None:
        """Before."""


class ManyWorker(ApplicationWorker):
    """Takes any number."""

    feature_category = "not_owned"

    def perform(self, *ids: int) -> None:
        """Nothing."""


class SharedWorker(ApplicationWorker, abstract=True):
    """A base that is never run."""

    urgency = "high"


class OptionsWorker(SharedWorker):
    """JSON of known and unknown shape."""

    feature_category = "not_owned"

    def perform(self, options: dict[str, Json], kind: Literal["a", "b"] = "a") -> None:
        """Nothing."""


def pushes() -> None:
    """Every way to push."""
    assert_type(RebuildIndexWorker.perform_async(42), Jid | None)
    RebuildIndexWorker.perform_async(42, "fast")
    RebuildIndexWorker.perform_async(project_id=42, mode="fast")
    RebuildIndexWorker.perform_in(timedelta(minutes=5), 42, mode="fast")
    RebuildIndexWorker.perform_in(300, 42)
    RebuildIndexWorker.perform_at(datetime.now(UTC), 42)
    RebuildIndexWorker.perform_at(1_800_000_000.5, 42)
    RebuildIndexWorker.perform_inline(42, mode="fast")
    assert_type(RebuildIndexWorker.perform_bulk([(1,), (2, "fast")]), list[Jid | None])
    RebuildIndexWorker.perform_bulk_in(timedelta(hours=1), [(1,)], batch_size=100, batch_delay=timedelta(seconds=10))
    RebuildIndexWorker.perform_bulk([(1,)], at=datetime.now(UTC))
    RebuildIndexWorker.perform_bulk([(1,), (2,)], at=[1_800_000_000.5, timedelta(hours=1)])
    assert_type(RebuildIndexWorker.perform_bulk_stream(iter([(1,)]), spread_interval=timedelta(hours=1)), int)
    assert_type(RebuildIndexWorker.route(), Route)
    RebuildIndexWorker.set(queue="urgent", retry=0, tags=("a",)).perform_async(42, mode="fast")
    RebuildIndexWorker.set(retry=False).set(dead=False).perform_in(5, 42)
    RebuildIndexWorker.set(shard="queues_shard_a", status_expiration=60, expires_in=timedelta(hours=1)).perform_async(
        42
    )
    RebuildIndexWorker.set(
        context={"user": "u", "ids": [1, None]}, track=True, timeout=5.5, profile=True
    ).perform_async(42)
    assert_type(RebuildIndexWorker.set(sync=True).perform_async(42), Jid | None)
    ComputedLimitWorker.perform_async(42, mode="x")
    WaitingWorker.perform_async("https://example.org", attempts=2)
    VersionedWorker.perform_async(7, options={"deep": True})
    NewerVersionedWorker.perform_in(5, 7)
    ManyWorker.perform_async()
    ManyWorker.perform_async(1, 2, 3)
    OptionsWorker.perform_async({"depth": 3, "names": ["a", None]}, kind="b")


async def awaited_pushes(projects: Sequence[tuple[int, str]]) -> None:
    """Every way to push from a coroutine, with the types of its twin."""
    assert_type(await RebuildIndexWorker.aperform_async(42, mode="fast"), Jid | None)
    assert_type(await RebuildIndexWorker.aperform_in(timedelta(minutes=5), 42), Jid | None)
    assert_type(await RebuildIndexWorker.aperform_at(datetime.now(UTC), project_id=42), Jid | None)
    assert_type(await RebuildIndexWorker.aperform_bulk([(1,), (2, "fast")], spread_interval=60), list[Jid | None])
    assert_type(await RebuildIndexWorker.aperform_bulk_stream((one,) for one in range(5)), int)
    await RebuildIndexWorker.aperform_bulk_in(5, [(1,)], batch_size=100, batch_delay=timedelta(seconds=10))
    await RebuildIndexWorker.aperform_bulk_for(
        projects,
        arguments=lambda project: RebuildIndexWorker.arguments(project[0], mode=project[1]),
        at=lambda project: project[0],
    )
    await RebuildIndexWorker.set(queue="urgent").set(retry=0).aperform_async(42, mode="fast")
    assert_type(await DrainWorker.aperform_with_capacity(7, mode="fast"), list[Jid])
    assert_type(await aenqueue("Ruby::MailJob", [1], queue="mails", at=60), Jid | None)


def pushes_by_name() -> None:
    """Classes that this program may not have."""
    assert_type(enqueue("Ruby::MailJob", [1, {"a": None}], queue="mails", retry=3), Jid | None)
    enqueue("Search::RebuildIndexWorker", (42,), at=timedelta(hours=1))
    assert_type(active_job.enqueue("ReportJob", [1], {"mode": "fast"}, queue="reports"), Jid | None)


def bulk_for(projects: Sequence[tuple[int, str]]) -> list[Jid | None]:
    """The typed bulk."""
    request: JobRequest[[str, int | None]] = WaitingWorker.arguments("x", 3)
    assert_type(request.args, list[Any])
    return RebuildIndexWorker.perform_bulk_for(
        projects,
        arguments=lambda project: RebuildIndexWorker.arguments(project[0], mode=project[1]),
        context=lambda project: {"project": project[0]},
        delay=timedelta(minutes=1),
        batch_size=100,
        batch_delay=5,
    )


def asked(jids: list[Jid]) -> bool:
    """States by their names."""
    assert_type(status.look_up(jids), dict[Jid, JobState])
    assert_type(status.completed_jids(iter(jids)), list[Jid])
    state = status.of(jids[0])
    if state == "completed" or state == "unknown":
        return True
    return status.num_unfinished(jids) == 0 and status.all_ended(jids)


class SpreadWorker(ApplicationWorker):
    """Has its jobs on two shards."""

    feature_category = "not_owned"
    shard = spread("queues_a", "queues_b")

    def perform(self, project_id: int) -> None:
        """Do the work."""


class DrainWorker(LimitedCapacityWorker):
    """The arguments of its work are those of the job."""

    feature_category = "global_search"
    max_running_jobs = 25

    def perform_work(self, shop: int, mode: str = "full") -> None:
        """One portion."""

    def remaining_work_count(self, shop: int, mode: str = "full") -> int:
        """Return the remaining work."""
        return shop


class AsyncDrainWorker(LimitedCapacityWorker):
    """The same on the event loop, its capacity a setting."""

    feature_category = "global_search"
    max_running_jobs = staticmethod(lambda: 3)

    async def perform_work(self) -> None:
        """One portion."""

    async def remaining_work_count(self) -> int:
        """Return the remaining work."""
        return 0


assert_type(DrainWorker.perform_with_capacity(7), list[Jid])
assert_type(DrainWorker.perform_with_capacity(7, mode="fast"), list[Jid])
assert_type(AsyncDrainWorker.perform_with_capacity(), list[Jid])


assert_type(RebuildIndexWorker.call(7, mode="fast"), JobCall[None])
assert_type(WaitingWorker.call("u").result(), int)
assert_type(WaitingWorker.set(tags=("a",)).call("u"), JobCall[Any])


@background(feature_category="onboarding")
def count_mails() -> int:
    """Take nothing, and return a number."""
    return 0


@background(feature_category="onboarding")
def name_of(user_id: int) -> str:
    """Take one argument."""
    return str(user_id)


@background(feature_category="onboarding")
async def names_of(user_id: int, most: int, prefix: str = "") -> list[str]:
    """Take three arguments, on the event loop."""
    return [prefix][:most]


assert_type(count_mails.call().result(), int)
assert_type(names_of.call(1, 2).result(), list[str])
assert_type(name_of.set(queue="names").call(1), JobCall[str])
assert_type(names_of.set(tags=("a",)).set(queue="names").call(1, most=3), JobCall[list[str]])

WORKFLOW = (
    Workflow("mails")
    .step("count", count_mails)
    .then("name", name_of, [(1,)])
    .then("names", names_of, [(1, 2), (2, 3, "a")])
    .also(RebuildIndexWorker, [(7, "fast")])
    .then("wait", WaitingWorker.set(queue="slow"), [("u",)])
    .on_failure("report", names_of.set(queue="slow"), [(1, 2)])
)
assert_type(WORKFLOW, Workflow)

FLOW = (
    Workflow("flow")
    .step("names", name_of, [(1,), (2,)])
    .then("all", names_of, [(result_of("names"), 2), (1, 2, "a")])
    .then("wait", WaitingWorker, [(results_of("all"),)])
)
assert_type(Batch(keep_results=True).results(), list[Any])


async def call_jobs() -> None:
    """Await calls of both kinds."""
    assert_type(await WaitingWorker.acall("u", 3), JobCall[int])
    assert_type(await (await WaitingWorker.acall("u")), int)
    assert_type(await (await RebuildIndexWorker.acall(7)).aresult(timeout=5), None)
    assert_type(await (await name_of.acall(1)), str)
    assert_type(await names_of.acall(1, 2), JobCall[list[str]])


class PruneWorker(IterableWorker):
    """Its arguments are those of an item, behind the item."""

    feature_category = "global_search"
    flush_interval = timedelta(seconds=1)

    def build_enumerator(self, days: int, mode: str = "full", *, cursor: int | None) -> Iterator[tuple[str, int]]:
        """Return the items."""
        self.progress.total = days
        yield mode, cursor or 0

    def each_iteration(self, item: str, days: int, mode: str = "full") -> None:
        """Process one."""
        assert_type(self.progress.eta, timedelta | None)

    def on_complete(self, days: int, mode: str = "full") -> None:
        """The hook with the arguments."""


class AsyncPruneWorker(IterableWorker):
    """The same on the event loop."""

    feature_category = "global_search"

    async def build_enumerator(self, cursor: str | None) -> AsyncIterator[tuple[int, str]]:
        """Return the items."""
        yield 1, cursor or ""

    async def each_iteration(self, item: int) -> None:
        """Process one."""

    async def on_stop(self) -> None:
        """The hook without arguments."""


assert_type(PruneWorker.perform_async(7), Jid | None)
assert_type(PruneWorker.perform_in(timedelta(minutes=5), 7, mode="fast"), Jid | None)
assert_type(PruneWorker.set(queue="slow").perform_async(7), Jid | None)
PruneWorker.perform_bulk_for([1], arguments=lambda one: PruneWorker.arguments(one, "fast"))
AsyncPruneWorker.perform_async()


@background(feature_category="onboarding", urgency="high", retry=3, loggable_arguments=("mode",))
def send_welcome(user_id: int, mode: str = "full") -> bool:
    """A function as a job."""
    return mode == "full"


@background(base=QuietWorker, feature_category="onboarding")
async def ping(*names: str) -> None:
    """An async one, with shared attributes."""


class Mailbox:
    """An object with a loader."""

    @classmethod
    def load(cls, mailbox_id: int) -> "Mailbox | None":
        """Return the object of an id."""
        return cls() if mailbox_id else None

    def clean(self, days: int, label: str = "all") -> int:
        """A method as a job."""
        return days


clean_mailbox = background(Mailbox.clean, loader=Mailbox.load, feature_category="onboarding")
assert_type(send_welcome(7), bool)
assert_type(send_welcome.perform_async(7, mode="short"), Jid | None)
assert_type(send_welcome.set(retry=1).perform_in(5, 7), Jid | None)
assert_type(send_welcome.perform_bulk_for([1], arguments=send_welcome.arguments), list[Jid | None])
assert_type(send_welcome.worker, type[ApplicationWorker])
assert_type(ping.perform_async("a", "b"), Jid | None)
assert_type(clean_mailbox.perform_async(3, 30, label="old"), Jid | None)
assert_type(clean_mailbox(3, 30), int)


async def switched(user: int) -> bool:
    """Feature flags, and a call of an async function that is a job too."""
    await ping("a")
    assert_type(flags.set("a", 20, expires_in=timedelta(days=1), reason="try"), flags.Flag)
    assert_type(flags.all(), dict[str, flags.Flag])
    assert_type(await flags.aset("a"), flags.Flag)
    return flags.enabled("a", key=user) or flags.enabled("b", "key") or await flags.aenabled("c") or flags.clear("a")


AUDIT = declare_option("audit", bool, default=False, doc="Whether a run is audited.")
LEVEL = declare_option("audit_level", str, default="low", choices=("low", "high"), doc="How much is audited.")


class AuditedWorker(ApplicationWorker):
    """Declare options of the application as plain attributes."""

    feature_category = "global_search"
    audit = True
    audit_level = "high"

    def perform(self, project_id: int) -> None: ...


assert_type(AUDIT.of(AuditedWorker, {}), bool)
assert_type(LEVEL.of("Sample::AuditedWorker", {}), str)
AuditedWorker.set(queue="urgent").set(**AUDIT.keyword(False), **LEVEL.keyword("low")).perform_async(7)


def check_jobs(application_worker: FakeJobs) -> None:
    """Test workers with ``framework.testing``."""
    with fake(clock=FakeClock(datetime(2030, 1, 1, tzinfo=UTC)), server_middlewares=[]) as jobs:
        assert_type(jobs, FakeJobs)
        jobs.flags.set("run_jobs_x", 50)
        jobs.limits.occupy(RebuildIndexWorker, 2)
        jobs.replicas.set("main", "behind")
    with real() as found:
        assert_type(found.drain(RebuildIndexWorker, raise_errors=False), int)
    assert_type(enqueued(RebuildIndexWorker), list[Job])
    assert_enqueued(RebuildIndexWorker, 1, json_type("string"), at=timedelta(hours=1), count=2)
    assert_type(application_worker.perform_one(RebuildIndexWorker), Job)


async def look_at_jobs() -> None:
    """Asynchronous twins have the parameters and the results of their functions."""
    assert_type((await admin.astats(shard="main")).enqueued, int)
    assert_type(await admin.Queue("mailers").asize(), int)
    assert_type(await admin.Queue("mailers").apeek(count=3), list[admin.QueuedJob])
    assert_type(await admin.dead().where(cls="Mail").aretry(time_limit=5), admin.BulkResult)
    async for job in admin.dead():
        assert_type(await job.areschedule(60), bool)
    for process in await admin.aprocesses():
        assert_type(await process.aquiet(), None)
