"""Push requests: find the plan of the class, let it build the payloads, and write them to the shard."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextvars import copy_context
from copy import deepcopy
from functools import partial
from time import monotonic
from typing import Any, TypeVar, cast

from framework.declare.declaration import Declaration
from framework.declare.request import NO_OPTIONS, BulkRequest, DueTime, PushRequest, Route
from framework.errors import ArgumentsError, BacklogFullError, ShardUnavailableError
from framework.feature import Late, all_features, single_part
from framework.middleware.chain import Call
from framework.process_clock import process_clock
from framework.push.argument_checks import OversizeReporter, SizeLimiter, SizeLimits, StrictArgumentsCheck
from framework.push.bulk import BulkPush, ChunkSource, PreparedChunk, ScheduleWriter, WriteBatch
from framework.push.deduplication import Deduplication, PushLocks
from framework.push.job_batch import (
    NO_FALLBACK,
    JobBatch,
    PayloadBuilder,
    PushFallback,
    PushLimit,
    PushRecorder,
    counted_batch,
    is_recorded,
)
from framework.push.middleware_payloads import MiddlewarePayloads
from framework.push.normalize import NO_CONTEXT, queued_lifetime_s
from framework.push.protection import NO_PROTECTION, EditedPayloads, PayloadProtection, check_accumulation
from framework.push.push_plan import (
    JobTemplate,
    PreparedJob,
    PushPlan,
    PushStep,
    TemplatePayloads,
    prepared_job,
    recorded_plan,
    tell_enqueued,
)
from framework.push.spread_payloads import SpreadPayloads
from framework.push.transactions import TransactionCheck, after_commits, skipping_transaction_check, sources
from framework.route.route_moves import KnownMoves, MoveEpoch
from framework.route.router import Router
from framework.settings.model import CoreSettings
from framework.shard.shard import MOVES_AGE_S, Shard
from framework.shard.shards import Shards
from framework.telemetry.job_events import job_events
from framework.types import Jid, Json, Payload
from framework.wire import keys
from framework.wire.accepted import AcceptedLimit, CountedJobs
from framework.wire.context_fields import TRACE_FIELDS
from framework.wire.json import dumps, loads
from framework.wire.resources import MOVED_JOBS, FormerOwner, UniqueJobs, WindowJobs

S = TypeVar("S")


# One way of pushing; whether payloads are built as bytes or as dicts is a detail of the plan.
class Client:
    """Push jobs. Safe to share between threads; connects at the first write."""

    def __init__(
        self,
        shards: Shards,
        router: Router,
        *,
        locks: PushLocks | None = None,
        steps: Sequence[PushStep] = (),
        middleware: tuple[Call, ...] = (),
        limiter: SizeLimiter | None = None,
        strict_arguments: StrictArgumentsCheck | None = None,
        transaction_check: TransactionCheck | None = None,
        fallback: PushFallback = NO_FALLBACK,
        recorder: PushRecorder | None = None,
        protection: PayloadProtection = NO_PROTECTION,
    ) -> None:
        self.shards = shards
        self._router = router
        self.locks = locks
        """Decides which push takes which lock; ``None``: no push takes one."""
        self._steps = steps
        self._middleware = middleware
        self._limiter = limiter or SizeLimiter(SizeLimits(), OversizeReporter())
        self._strict_arguments = strict_arguments or StrictArgumentsCheck()
        self._transaction_check = transaction_check or TransactionCheck()
        self.fallback = fallback
        self.recorder = recorder
        """Records the jobs of tracked classes; ``None``: nothing does."""
        self.protection = protection
        self._schedule_writer = ScheduleWriter()
        # By wire name, without a lock: two threads may make the same plan (decision 150).
        self._plans: dict[str, PushPlan] = {}
        self._known_moves = KnownMoves()
        self._moves_reader: Callable[[Shard], Iterable[MoveEpoch]] | None = None
        """Reads the moves between shards; ``None``: there are none."""
        self.state_signatures = protection.state
        self._services: dict[Late[Any], Any] = {}

    def join_features(self) -> None:
        """Let all features take part in the pushes of this client."""
        job_events.open(self.settings)
        self._steps = [one.push.load() for one in all_features() if one.push is not None]
        deciding = single_part("locks")
        self.locks = None if deciding is None else deciding.load()(self)
        moves = single_part("moves")
        self._moves_reader = None if moves is None else moves.load()
        recorder = single_part("recorder")
        self.recorder = None if recorder is None else self.service(recorder)

    @property
    def settings(self) -> CoreSettings:
        """The settings, for features. Only the client of a process has them."""
        raise NotImplementedError

    @property
    def has_middleware(self) -> bool:
        """Whether client middlewares may change each job."""
        return bool(self._middleware)

    @property
    def decompressed_limit(self) -> int:
        """The most bytes of decompressed arguments."""
        return self._limiter.limits.decompressed_limit

    def route(self, declaration: Declaration) -> Route:
        """Return the queue, the shard and the deciding rule of a class."""
        return self._router.route(declaration)

    def shards_of(self, declaration: Declaration) -> tuple[str, ...]:
        """See ``ClientPort``."""
        return self._router.shards_of(declaration)

    def home(self, declaration: Declaration) -> str:
        """See ``ClientPort``."""
        return self._router.home(declaration)

    def service(self, kind: Late[Callable[[Any], S]]) -> S:
        """Return the object of this kind that belongs to the client, made at its first use.

        A process that uses no leases neither imports nor makes them.
        """
        found: S | None = self._services.get(kind)
        if found is None:
            # Two threads may make one each; the first is kept.
            found = self._services.setdefault(kind, kind.load()(self))
        return cast("S", found)

    def shard(self, request: PushRequest) -> Shard:
        return self._plan_for(request.declaration, request.options).shard

    def push(self, request: PushRequest) -> Jid | None:
        """Write one job; return its id, or ``None`` if a client middleware dropped it or it is a duplicate.

        Raises:
            ArgumentsError, ExceedLimitError, BacklogFullError: the job is refused; nothing was written.
            ShardUnavailableError: the shard did not confirm the write; see ``maybe_written``.
        """
        declaration, args, due, options = request
        plan = self._plans.get(declaration.wire_name)
        # A reloaded class has a new declaration under its old name. Mostly the moves were read a moment ago: a push then pays for one
        # look at the clock.
        if (
            plan is None
            or options
            or plan.declaration is not declaration
            or plan.shard.moves_valid_until <= monotonic()
        ):
            plan = self._plan_for(declaration, options)
        if plan.spans:
            return plan.in_spans(partial(self._push_planned, plan, args, due), linked=due is not None)
        locks = None if plan.deduplication is None else plan.locks(scheduled=due is not None)
        if locks is not None and locks.window_s is not None:
            due = DueTime(process_clock.now() + locks.window_s, locks.window_s)
        extra = NO_CONTEXT if plan.extra_fields is None else plan.extra_fields()
        batch = plan.payloads.one(args, due, locks, extra)
        return None if batch is None else self._write(plan, batch)[0]

    def _push_planned(self, plan: PushPlan, args: list[Any], due: DueTime | None) -> Jid | None:
        """Do what ``push`` does with a plan without spans."""
        locks = plan.locks(scheduled=due is not None)
        if locks is not None and locks.window_s is not None:
            due = DueTime(process_clock.now() + locks.window_s, locks.window_s)
        batch = plan.payloads.one(args, due, locks, plan.fields_of_push())
        return None if batch is None else self._write(plan, batch)[0]

    def push_bulk(self, request: BulkRequest) -> list[Jid | None]:
        """Write jobs in chunks of 1,000, one round trip each; return ids in input order, ``None`` for dropped jobs.

        The arguments of all jobs are checked before the first write. Their sizes are too, unless a client middleware may still
        change the arguments.

        Raises:
            ArgumentsError, ExceedLimitError: a job is refused; nothing was written.
            BulkPushError: a shard failed, the backlog of the class is full, or in a later chunk a client middleware raised or made
                a job too large. The error names the jobs that are written and those that may be. ``resume()`` continues it.
        """
        plan = self._plan_for(request.declaration, request.options)
        locks = plan.locks(scheduled=request.due is not None)
        if locks is not None and locks.window_s is not None:
            request = request._replace(due=DueTime(process_clock.now() + locks.window_s, locks.window_s))
        push = partial(self._push_bulk, plan, request, locks, self._write)
        return plan.in_spans(push, jobs=_length(request.args), linked=True) if plan.spans else push()

    def collect(self, request: PushRequest, fields: Mapping[str, Json], write: WriteBatch) -> Jid | None:
        """Build a job with these payload fields, and hand it to ``write`` instead of writing it. Raises as ``push``."""
        plan, batch = self.build_one(request.declaration, request.args, request.options, fields, request.due)
        return None if batch is None else write(plan, batch, "")[0]

    def collect_bulk(self, request: BulkRequest, fields: Mapping[str, Json], write: WriteBatch) -> list[Jid | None]:
        """Build jobs with these payload fields, and hand them to ``write`` in chunks. Raises as ``push_bulk``."""
        plan = self._plan_of_one_shard(request.declaration, request.options)
        extra = plan.fields_of_push
        locks = plan.step_locks(scheduled=request.due is not None)
        plan = plan._replace(extra_fields=lambda: {**extra(), **fields})
        push = partial(self._push_bulk, plan, request, locks, write)
        return plan.in_spans(push, jobs=_length(request.args), linked=True, written=False)

    def build_one(
        self,
        declaration: Declaration,
        args: list[Any],
        options: Mapping[str, Any],
        fields: Mapping[str, Json],
        due: DueTime | None = None,
    ) -> tuple[PushPlan, JobBatch | None]:
        """Return the plan of a class and one job with these payload fields, ``None`` if a client middleware dropped it.

        Writes nothing. Raises as ``push``.
        """
        plan = self._plan_of_one_shard(declaration, options)
        locks = plan.step_locks(scheduled=due is not None)

        def build() -> JobBatch | None:
            return plan.payloads.one(args, due, locks, {**plan.fields_of_push(), **fields})

        return plan, plan.in_spans(build, linked=due is not None, written=False)

    def signed_again(self, payload: bytes) -> bytes:
        """Return a payload that was built and changed here with another signature; without keys the payload itself."""
        if not self.protection.signs:
            return payload
        fields: Payload = loads(payload, None)
        self.protection.sign(fields)
        return dumps(fields)

    def collected_jobs_written(self, jids: Sequence[Jid]) -> None:
        """Note jobs that ``collect`` has handed over, and that are written now. A test may run them."""

    def _push_bulk(
        self, plan: PushPlan, request: BulkRequest, locks: Deduplication | None, write: WriteBatch
    ) -> list[Jid | None]:
        source = ChunkSource(plan, request, locks, write, self._schedule_writer, keeps=self.fallback.keeps)
        return BulkPush(source).run()

    def push_up_to(self, request: PushRequest, limit: int, max_new: int | None = None) -> list[Jid]:
        """Write copies of a job until ``limit`` jobs of its class run or wait, at most ``max_new``; return the new ids.

        Inside of an open transaction the ids are not known before the commit: it returns none. Raises as ``push``.
        """
        if limit <= 0:
            return []
        declaration = request.declaration
        plan = self._plan_for(declaration, request.options)
        # Before the first call: arguments are refused even if no copy is missing.
        args = self._strict_arguments.checked(declaration, request.args)
        transactions = self._transaction_check.transactions(declaration.wire_name) if sources else ()
        if not transactions:
            return plan.in_spans(partial(self._push_missing, plan, args, limit, max_new))
        # The context and the arguments are those of the push.
        context, args = copy_context(), deepcopy(args)

        def push() -> None:
            context.run(self._push_missing, plan, args, limit, max_new)

        after_commits(transactions, partial(self._reporting, declaration, push))
        return []

    def _push_missing(self, plan: PushPlan, args: list[Any], limit: int, max_new: int | None) -> list[Jid]:
        """See ``push_up_to``.

        The first call only asks how many are missing, so that no unused copy is prepared. The script that writes counts again.
        """
        base = keys.limit(plan.declaration.wire_name)
        _, missing = plan.shard.enqueue_up_to(base, limit, ())
        count = missing if max_new is None else min(max_new, missing)
        if count <= 0:
            return []
        extra = plan.fields_of_push()
        copies = [plan.payloads.one(list(args), None, None, extra) for _ in range(count)]
        made = [copy for copy in copies if copy is not None]
        if not made:
            return []
        jobs = [(copy.queue, copy.payloads[0], copy.jids[0]) for copy in made]
        written, _ = plan.shard.enqueue_up_to(base, limit, jobs)
        for copy in made[:written]:
            if plan.recorder is not None:
                plan.recorder.written(plan.destination, copy)
            if job_events.observers:
                tell_enqueued(plan, copy, copy.jids)
        return [jid for _, _, jid in jobs[:written]]

    def payload_bytes(self, request: PushRequest) -> bytes | None:
        """Return the bytes that ``push`` would write now, or ``None`` if a client middleware drops the job. Writes nothing."""
        plan = self._plan_for(request.declaration, request.options)
        batch = plan.payloads.one(request.args, None, None, NO_CONTEXT)
        return None if batch is None else batch.payloads[0]

    def prepare(self, request: PushRequest, extra: Mapping[str, Json]) -> PreparedJob | None:
        """Return the job that ``push`` would write now, with ``extra`` fields, for a script that writes it with other things.

        ``None`` if a client middleware dropped it. Writes nothing.

        Raises:
            ArgumentsError, ExceedLimitError: the job is refused.
        """
        plan = self._plan_of_one_shard(request.declaration, request.options)
        locks = plan.step_locks(scheduled=False)

        def build() -> JobBatch | None:
            return plan.payloads.one(request.args, None, locks, {**plan.fields_of_push(), **extra})

        batch = plan.in_spans(build, written=False)
        return None if batch is None else prepared_job(plan, _limited(plan, batch))

    def _write(  # noqa: C901, PLR0912 - one branch for each way of writing: a call for each costs every push
        self, plan: PushPlan, batch: JobBatch, token: str | None = None
    ) -> Sequence[Jid | None]:
        """Write a batch, or let it wait for the commits of the open transactions.

        Return the ids of its jobs, ``None`` for dropped duplicates. With a ``token`` it is written once.

        Raises:
            PushInTransactionError: the setting refuses pushes inside of transactions.
            ShardUnavailableError: the shard did not confirm the write.
            BacklogFullError: the limit of the class is reached; nothing was written.
        """
        if plan.places is not None:
            plan = self._placed(plan, batch) if token is None else plan.of(batch)
        # Without an integration of a database library this costs one test.
        if sources and self._waits_for_commit(plan, batch, token):
            return batch.jids
        limit = plan.limit
        # Mostly the time is not over: a push then pays for a sum and one look at the clock.
        if limit is not None:
            limit.unseen_bytes += len(batch.payloads) * len(batch.payloads[0])
            time = limit.time
            if time.next_at <= monotonic() or limit.unseen_bytes >= time.most_unseen:
                return self._write_limited(plan, limit, batch, token)
        if plan.recorder is not None:
            return self._write_recorded(plan, plan.recorder, batch, token)
        shard, queue, dues, counted = plan.shard, batch.queue, batch.dues, batch.counted
        jids: Sequence[Jid | None] = batch.jids
        try:
            unique = batch.unique
            if unique is not None and plan.deduplication is not None:
                if dues is not None and token is None:
                    self._schedule_writer.check_clock(shard)
                if plan.former is not None:
                    unique = _with_former_owners(unique, plan.former)
                    batch = batch._replace(unique=unique)
                owners = shard.enqueue_unique(queue if dues is None else None, unique, token or "", counted)
                # A call costs every push.
                if MOVED_JOBS in owners:
                    jids = self._write_moved(plan, plan.deduplication, batch, token, owners)
                else:
                    jids = plan.deduplication.written(unique, owners)
            elif counted is not None:
                self._write_counted(shard, batch, counted, token)
            elif token is None:
                if dues is None:
                    shard.enqueue_one(queue, batch.payloads[0], batch.statuses)
                else:
                    self._schedule_writer.write(shard, batch.payloads[0], dues[0], batch.statuses)
            elif dues is None:
                shard.enqueue(queue, batch.payloads, token, batch.statuses, batch.lists)
            else:
                shard.schedule(batch.entries, token, batch.statuses)
        except ShardUnavailableError as error:
            jids = self._write_refused(plan, batch, token, error)
        if job_events.observers:
            tell_enqueued(plan, batch, jids)
        return jids

    def _write_refused(
        self, plan: PushPlan, batch: JobBatch, token: str | None, error: ShardUnavailableError
    ) -> Sequence[Jid | None]:
        """Write the jobs of a small class to a Redis that has no memory left; keep all others. Returns and raises as ``_write``."""
        shard, unique = plan.shard, batch.unique
        try:
            if error.is_full and batch.dues is None and batch.counted is None:
                size = len(batch.payloads) * len(batch.payloads[0])
                if shard.held_back.has_reserve(plan.declaration.wire_name, size):
                    if unique is not None and plan.deduplication is not None:
                        owners = shard.enqueue_unique(batch.queue, unique, token or "", in_reserve=True)
                        if MOVED_JOBS in owners:
                            return self._write_moved(plan, plan.deduplication, batch, token, owners)
                        return plan.deduplication.written(unique, owners)
                    shard.enqueue_in_reserve(batch.queue, batch.payloads, token or "", batch.statuses, batch.lists)
                    return batch.jids
        except ShardUnavailableError as again:
            error = again
        self.fallback.keep(error, batch, token, locks_when_due=_locks_when_due(plan, batch))
        return batch.jids

    def _write_moved(
        self, plan: PushPlan, deduplication: Deduplication, batch: JobBatch, token: str | None, owners: Sequence[Jid]
    ) -> Sequence[Jid | None]:
        """Write those jobs of a batch to their new shard of which the shard says that they have moved (``MOVED_JOBS``).

        Returns the ids of all jobs of the batch, and raises, as ``_write``.
        """
        unique: Any = batch.unique
        jids = list(deduplication.written(unique, ["" if owner == MOVED_JOBS else owner for owner in owners]))
        self._read_moves(plan.shard)
        again = self._known_plan(plan.declaration, plan.options)
        places = [place for place, owner in enumerate(owners) if owner == MOVED_JOBS]
        moved = batch.of_shard(plan.shard.name, places)._replace(indexes=None)
        for part in (moved,) if again.places is None else moved.by_shard(again.places):
            target = again.of(part)
            # The jobs are recorded and within the limit already. After an undone move the shard is the same: it is told to write.
            target = target._replace(former=target.former or (), limit=None, recorder=None)
            written = self._write(target, part, f"{token}:moved" if token else None)
            for place, jid in zip(part.indexes or range(len(places)), written, strict=True):
                jids[places[place]] = jid
        return jids

    def _write_counted(self, shard: Shard, batch: JobBatch, counted: CountedJobs, token: str | None) -> None:
        """Write the jobs of a class with a limit of accepted jobs, which takes no lock."""
        dues = batch.dues
        if dues is None:
            shard.enqueue(batch.queue, batch.payloads, token or "", batch.statuses, batch.lists, counted)
        elif token is None:
            self._schedule_writer.write(shard, batch.payloads[0], dues[0], batch.statuses, counted)
        else:
            shard.schedule(batch.entries, token, batch.statuses, counted)

    def _write_limited(
        self, plan: PushPlan, limit: PushLimit, batch: JobBatch, token: str | None
    ) -> Sequence[Jid | None]:
        """Write the jobs of a class with a limit of accepted jobs."""
        try:
            accepted = limit.accepted()
            if accepted is not None:
                batch = counted_batch(batch, accepted)
            with skipping_transaction_check():
                return self._write(plan._replace(limit=None), batch, token)
        except BacklogFullError as error:
            # The caller comes again with the jobs that fit.
            if 0 < error.free < len(batch.jids):
                raise
            return limit.full(error, batch, locks_when_due=_locks_when_due(plan, batch))

    # Decision 235: the event is durable before its job is.
    def _write_recorded(
        self, plan: PushPlan, recorder: PushRecorder, batch: JobBatch, token: str | None
    ) -> Sequence[Jid | None]:
        """Record the jobs of a tracked class, and write them."""
        recorder.enqueued(plan.destination, batch)
        try:
            with skipping_transaction_check():
                return self._write(plan._replace(recorder=None), batch, token)
        except (ShardUnavailableError, BacklogFullError) as error:
            if isinstance(error, BacklogFullError) or not error.maybe_written:
                recorder.not_written(plan.destination, batch, error)
            raise

    # A push in a transaction waits with its payload, and takes its lock after the commit: a rollback may discard it.
    def _waits_for_commit(self, plan: PushPlan, batch: JobBatch, token: str | None) -> bool:
        """Keep a batch for the commits of the open transactions, if there are any; return whether it waits."""
        declaration = plan.declaration
        transactions = self._transaction_check.transactions(declaration.wire_name)

        def write() -> None:
            fields = plan.fields_of_push()
            # The trace is that of the push.
            kept = {name: value for name, value in fields.items() if name not in TRACE_FIELDS} if plan.spans else fields
            late = batch.at_commit(process_clock.now(), kept)
            if token is None:
                self._write(plan, late, token)
            else:
                # In parts, where the limit of the class lets some of the jobs pass.
                PreparedChunk(plan, [late], len(late.jids), self._write, [token]).write()

        if transactions:
            after_commits(transactions, partial(self._reporting, declaration, write, batch.jids))
        return bool(transactions)

    def _reporting(self, declaration: Declaration, write: Callable[[], Any], jids: Sequence[Jid] = ()) -> None:
        """Call ``write`` after a commit, and report its error: the transaction is committed, and other callbacks must run."""
        try:
            with skipping_transaction_check():
                write()
        except Exception as error:  # noqa: BLE001 - see above
            self._transaction_check.report_failure(declaration.wire_name, error, jids)

    def _plan_for(self, declaration: Declaration, options: Mapping[str, Any]) -> PushPlan:
        """Return the plan of a class with these options. Plans without options are kept."""
        plan = self._known_plan(declaration, options)
        # Jobs that have moved on may have done so more than once, each time to a shard whose moves are read once in a period.
        while plan.shard.moves_valid_until <= monotonic():
            self._read_moves(plan.shard)
            plan = self._known_plan(declaration, options)
        return plan

    def _plan_of_one_shard(self, declaration: Declaration, options: Mapping[str, Any]) -> PushPlan:
        """Return the plan of jobs that a script writes with other things: all on the shard of the route.

        Raises:
            ArgumentsError: the class has several shards, and its locks may be on another one.
        """
        plan = self._plan_for(declaration, options)
        if plan.places is None:
            return plan
        if plan.deduplication is not None and declaration.several_shards is not None:
            reason = (
                f"has its locks on several shards ({declaration.several_shards}), so its jobs can neither be members of a batch or a "
                "workflow, nor ticks of cron: leave `idempotent` and `deduplicate` out, name one shard, or push with set(shard=...)"
            )
            raise ArgumentsError(declaration.qualified_name, reason)
        return plan.parts.get(plan.shard.name, plan)

    def _placed(self, plan: PushPlan, batch: JobBatch) -> PushPlan:
        """Return the plan of the shard of one job, by the moves that its shard knows now."""
        part = plan.of(batch)
        while part.shard.moves_valid_until <= monotonic():
            self._read_moves(part.shard)
            plan = self._known_plan(plan.declaration, plan.options)
            # Its shard may be another one by them.
            part = plan if plan.places is None else plan.of(*batch.by_shard(plan.places))
        return part

    def _known_plan(self, declaration: Declaration, options: Mapping[str, Any]) -> PushPlan:
        """Return the plan by the moves that are known."""
        if options:
            return self._make_plan(declaration, options)
        plan = self._plans.get(declaration.wire_name)
        if plan is None or plan.declaration is not declaration:
            plan = self._plans[declaration.wire_name] = self._make_plan(declaration, NO_OPTIONS)
        return plan

    # Decision 265: the moves are read where the push goes in any case, so that no other shard can delay it. A process that does not
    # know a move yet pushes to the old shard, whose processes forward the job.
    def _read_moves(self, shard: Shard) -> None:
        """Read which jobs have moved away from a shard. If it does not answer, the push itself says so."""
        shard.moves_valid_until = monotonic() + MOVES_AGE_S
        if self._moves_reader is None:
            return
        try:
            found = self._moves_reader(shard)
        except ShardUnavailableError:
            return
        if self._known_moves.note(found):
            self._router.use_moves(self._known_moves.moves)
            self._plans = {}

    def _make_plan(self, declaration: Declaration, options: Mapping[str, Any]) -> PushPlan:
        route = self._router.route_push(declaration, options)
        plan = self._plan_by(route, declaration, options)
        # A shard that the push names is the shard of its job.
        if "shard" in options:
            return plan
        places = self._router.places_of(declaration, route)
        if len(places.shards) == 1:
            return plan
        parts = {name: self._plan_by(route._replace(shard=name), declaration, options) for name in places.shards}
        return plan._replace(payloads=SpreadPayloads(plan.payloads, places), places=places, parts=parts)

    def _plan_by(self, route: Route, declaration: Declaration, options: Mapping[str, Any]) -> PushPlan:
        shard = self.shards[route.shard]
        deduplication, former = None, None
        if self.locks is not None and declaration.deduplicate is not None and declaration.deduplicates:
            deduplication = Deduplication(declaration, declaration.deduplicate, self.locks, shard.name)
            names = self._router.former_shards(declaration, route, options)
            former = [self.shards[name] for name in names if name in self.shards] or None
        payloads = self._payloads_of(declaration, options, shard, route.queue)
        plan = PushPlan(
            declaration, shard, payloads, None, deduplication, queue=route.queue, options=options, former=former
        )
        for step in self._steps:
            plan = step(plan, self)
        plan = self._with_edits(plan)
        if self.recorder is not None and is_recorded(declaration, options):
            return recorded_plan(plan, self.recorder)
        return plan

    def _with_edits(self, plan: PushPlan) -> PushPlan:
        """Return the plan with payloads that are protected last, as they are written."""
        edits = self.protection.edits(plan.declaration)
        if not edits.steps:
            return plan
        # Edits of large payloads do not apply: Redis extends no payload with compressed arguments.
        if not edits.min_bytes:
            check_accumulation(plan.declaration)
        if plan.deduplication is not None:
            plan.deduplication.on_dropped = edits.undo
        return plan._replace(payloads=EditedPayloads(plan.payloads, edits))

    def _payloads_of(
        self, declaration: Declaration, options: Mapping[str, Any], shard: Shard, queue: str
    ) -> PayloadBuilder:
        limiter, strict = self._limiter, self._strict_arguments
        if self._middleware:
            return MiddlewarePayloads(declaration, self._middleware, shard, queue, options, limiter, strict)
        status_ttl_s = queued_lifetime_s(declaration, options)
        template = JobTemplate(declaration, queue, options, limiter)
        return TemplatePayloads(declaration, template, options, status_ttl_s, strict)


# Decision 285: it fences the locks that are free there, so that of two equal pushes one sees the other.
def _with_former_owners(unique: UniqueJobs, shards: Sequence[Shard]) -> UniqueJobs:
    """Return jobs with the owners of their locks on the shards from which such jobs move."""
    if isinstance(unique, WindowJobs):
        return unique
    found: list[FormerOwner] = [()] * len(unique.jids)
    for shard in shards:
        # The order is that of the jobs: what has left one shard meanwhile is found on the next.
        found = [later or one for one, later in zip(found, _find_owners(shard, unique), strict=True)]
    return unique._replace(former=found)


def _find_owners(shard: Shard, unique: UniqueJobs) -> Sequence[FormerOwner]:
    try:
        return shard.find_owners(unique)
    except ShardUnavailableError as error:
        lost = error.maybe_written
    try:
        # A reply was lost: most likely the server has closed an idle connection, and it answers the next one.
        if lost:
            return shard.find_owners(unique)
    except ShardUnavailableError:
        pass
    # No other shard stops a push (decision 265): an equal job there is merged when it arrives.
    return [()] * len(unique.jids)


def _locks_when_due(plan: PushPlan, batch: JobBatch) -> bool:
    """Return whether a delayed job takes its lock when it is due."""
    return plan.deduplication is not None and batch.unique is None


def _limited(plan: PushPlan, batch: JobBatch) -> JobBatch:
    """Return a job that a script writes with other things, as the script counts it."""
    if plan.limit is None:
        return batch
    try:
        accepted = plan.limit.of_batch(batch)
    except BacklogFullError as error:
        # The script has the one answer for a class without room: it is held back, so it has none.
        accepted = AcceptedLimit(error.worker, 0, drop_counter=plan.limit.drop_counter)
    return batch if accepted is None else counted_batch(batch, accepted)


def _length(jobs: Any) -> int:
    """Return the number of jobs; 0 if they are not known before they are read."""
    return len(jobs) if isinstance(jobs, Sized) else 0
