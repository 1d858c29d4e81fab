"""Define the errors of the framework. Each error has its facts as fields, and a message with the remedy.

FrameworkError
├── DeclarationError          a worker class is declared wrongly (raised when the class is created)
├── MisuseError               a worker class is used like a task of another library: called, awaited, or as a decorator
│   └── NoSuchMethodError     a push by a method of another library: ``delay``, ``apply_async``, ``send``
├── MiddlewareError           a middleware has a wrong ``call``, or a chain changes too late
├── ConfigurationError        the configuration is invalid (raised at boot, with all problems)
├── PushError                 a job was not written, or perhaps not written
│   ├── ArgumentsError        the arguments do not fit ``perform`` or are not JSON
│   ├── ExceedLimitError      the arguments are too large, even compressed
│   ├── BacklogFullError      the backlog of the class is full; nothing was written
│   ├── ShardUnavailableError the shard's Redis does not answer or refuses writes
│   ├── BulkPushError         a chunk of a bulk push failed; its fields name the written jobs
│   ├── EncryptionKeyError    the class declares ``encrypt``, and no key is configured
│   ├── PayloadStoreError     the payload store did not take the large arguments of the job
│   └── PushInTransactionError a database transaction is open, and the setting ``push_in_transaction`` is ``raise``
├── UnroutedCallError         application code called a shard outside of a route to it
├── UnknownShardError         config/redis.yml has no shard of that name
├── UnknownNameError          framework.admin finds no queue, process or job of that name
├── ReadOnlyError             framework.admin was asked to change something inside of a ``read_only`` block
├── JobRefusedError           framework.admin cannot move a job, which stays as it is
├── MoveRefusedError          a move between shards contradicts another one, or the shards
│   └── TargetRefusedError    the target answered, and took no job; the jobs are back in their places
├── BatchError                a batch does not take jobs or callbacks
│   ├── BatchCancelledError   the batch was cancelled, so it takes no jobs: a job that adds to it ends as cancelled
│   └── UnknownBatchError     no shard has a batch of this id
├── WorkflowError             a workflow is declared wrongly, or cannot start
│   └── UnknownWorkflowError  no shard has a workflow of this id
├── UnsafeFileError           another user may have written a file on which the process would act (also an OSError)
├── StoredBlocksError         packed jobs are in a payload store that this process cannot use now (also an OSError)
├── QueryError                a worker query (routing rule, queue selector) does not parse
├── SelectorError             an argument of ``cluster`` names no group of queues
├── QueueReplacedError        the key of a queue changed its type during a migration of its jobs
├── ExecutionError            a fetched job cannot run
│   ├── UnknownWorkerError    no class of that wire name is registered in this process
│   ├── UnknownTaskError      no task of Django of that name is loaded in this process
│   ├── NewerVersionError     the class in this process is older than the job's version
│   ├── ArgumentsMismatchError its arguments do not fit ``perform``, or the handler of its version
│   ├── IterationError        an iterable job has an unusable cursor, or its ``build_enumerator`` a wrong result
│   ├── JobProcessError       the process of an isolated job ended before the job, or could not be started
│   ├── JobMemoryError        an isolated job needed more than its ``memory_limit``
│   ├── MissingKeyError       it is encrypted or signed with a key that this process lacks
│   ├── OffloadedArgumentsError its arguments are in a payload store that this process cannot read now
│   └── PayloadError          its payload cannot be read
│       ├── StateRefusedError stored state that it needs is not signed as it must be
│       └── PayloadLimitError reading it would take more memory than a setting allows
├── NestedLimiterError        a block takes a concurrent limiter that the block or job around it holds
├── OverLimit                 a rate limiter does not admit a call: in a job it runs the job again later
├── LeaseTakenError           another holder has the lease
├── LeaseLostError            the lease has ended before the work under it
├── ResultError               the result of a called job cannot be returned
│   ├── ResultTimeoutError    the job has not ended in time (also a TimeoutError)
│   ├── UnknownResultError    no job that keeps its result has this id (also a LookupError)
│   │   └── ResultExpiredError it has ended, and its result is not kept any more
│   └── JobEndedError         the job has ended without a result
│       ├── JobFailedError    it failed, and no retry is left
│       ├── JobDiscardedError it was discarded or dropped
│       ├── JobExpiredError   it would have started too late
│       ├── JobRemovedError   it was cancelled, or an operator removed it
│       └── ResultRefusedError its result is not JSON, or too large
├── TaskError                 an error of ``framework.tasks``
│   ├── TaskDatabaseError     the database of tasks does not answer (also a PushError)
│   ├── TaskTablesError       the database has no tables of tasks, or older ones (also a PushError)
│   ├── TaskNotFoundError     no task, or no event of a job, has this id
│   └── TaskRetryError        failed jobs cannot be pushed again, because their arguments are not stored
│       └── EventsTakenError  another call has pushed some of them meanwhile
├── ModeError                 framework.testing has no active mode, or the active mode does not support a call
├── EmptyQueueError           a test runs a job of a class of which no job can run now
├── EndlessJobsError          the jobs of a test never end
├── RetryError                raised by a job: retry without a report (GitLab's ``RetryError``)
│   └── JobReplicaNotUpToDate no replica is recent enough: retry once, then read from the primary
└── BusinessError             raised by a job: the business rules refuse it, and a retry cannot help
FlowControl (Exception)       raised by a job, and no failure; ``except FrameworkError`` does not catch it
├── RetryLater                run the job again after a delay
└── Discard                   end the job
JobStoppedError (BaseException) an operator stopped the run (``jobs stop``); ``except Exception`` does not catch it
JobTimeoutError (BaseException) a run lasts longer than its ``timeout``; ``except Exception`` does not catch it
Shutdown (BaseException)      the process stops; ``except Exception`` does not catch it

The framework also raises TypeError for arguments of a wrong type, ValueError for arguments with a wrong value, and two errors of
``framework.store`` that extend redis-py's errors.
"""

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import ClassVar, Literal, NamedTuple

from framework.command_line import command
from framework.text import Sentence, format_bytes, format_count, format_duration
from framework.typeguards import qualified_name

_REDIS_FILE = "config/redis.yml"
_START_REDIS = Sentence("Start the development store with `{command}`, or set {address} to a Redis that runs.")


class ConfigurationProblem(NamedTuple):
    """Represent one error in the configuration: file, key and message."""

    file: str
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}: {self.key}" if self.key else self.file
        return f"{place}: {self.message}"


class FrameworkError(Exception):
    """Serve as the base class of the framework's errors."""


class DeclarationError(FrameworkError):
    """Report an invalid worker class. The message names the class, the attribute, its value and the allowed values.

    ``problems`` lists one error per fault of the class; ``attribute`` is that of the first fault.
    """

    def __init__(self, worker: str, message: str, *, attribute: str | None = None) -> None:
        self.worker, self.attribute, self.message = worker, attribute, message
        self.problems: tuple[DeclarationError, ...] = (self,)
        super().__init__(f"{worker}: {message}")


class MisuseError(FrameworkError, TypeError):
    """Report a worker class that is used like a task of another library. The message names the right call.

    Nothing was pushed, unless a push was awaited that is no coroutine: the message then names its jobs.
    """

    def __init__(self, worker: str, reason: str) -> None:
        self.worker, self.reason = worker, reason
        super().__init__(f"{worker}: {reason}.")


class NoSuchMethodError(MisuseError, AttributeError):
    """Report a push by a method name of another library. It is an AttributeError, so that ``hasattr`` is false."""


class MiddlewareError(FrameworkError, TypeError):
    """Report a middleware with a wrong ``call``, or a change of a chain that is already in use."""

    def __init__(self, middleware: object, reason: str) -> None:
        self.middleware, self.reason = middleware, reason
        name = qualified_name(middleware) if isinstance(middleware, type) else repr(middleware)
        super().__init__(f"{'the chain' if middleware is None else f'the middleware {name}'}: {reason}.")


class ConfigurationError(FrameworkError):
    """Report an invalid configuration. ``problems`` lists all errors."""

    def __init__(self, problems: Sequence[ConfigurationProblem]) -> None:
        self.problems = tuple(problems)
        heading = f"{format_count(len(problems), 'problem')} in the configuration:"
        super().__init__("\n".join([heading, *(f"  - {problem}" for problem in self.problems)]))


class PushError(FrameworkError):
    """Report a job that was not written, or perhaps not written."""


class ArgumentsError(PushError):
    """Report arguments that do not fit ``perform``, or that JSON cannot carry. Nothing was written."""

    def __init__(self, worker: str, reason: str, *, argument: str | None = None) -> None:
        self.worker, self.argument, self.reason = worker, argument, reason
        place = f"argument '{argument}' " if argument else ""
        super().__init__(f"{worker}: {place}{reason}")


_SIZE_ADVICE = {
    "size_limit.limit": "Store the data and pass its id, or declare `big_payload = True` if the shard's memory allows it",
    "size_limit.decompressed_limit": "No process decompresses more, not even for `big_payload`. Store the data and pass its id",
    "size_limit.decoded_limit": "No process would decode them, not even for `big_payload`. Store the data and pass its id",
}


class ExceedLimitError(PushError):
    """Report arguments above the size limit after compression (GitLab's size limiter). Nothing was written.

    ``size`` and ``size_limit`` are bytes of the arguments' JSON; for ``size_limit.decoded_limit`` they are bytes of the decoded
    arguments in memory. ``setting`` names the limit, ``job`` is the index in a bulk push, and ``uncompressed`` is the attribute or
    setting that turned off compression, if any.
    """

    def __init__(
        self,
        worker_class: str,
        size: int,
        size_limit: int,
        *,
        setting: str = "size_limit.limit",
        job: int | None = None,
        uncompressed: str | None = None,
    ) -> None:
        self.worker_class, self.size, self.size_limit = worker_class, size, size_limit
        self.setting, self.job, self.uncompressed = setting, job, uncompressed
        place = "" if job is None else f"(job {job} of the bulk) "
        measured = "bytes of memory when decoded" if setting == "size_limit.decoded_limit" else "bytes"
        raw = f" They are left uncompressed ({uncompressed})." if uncompressed else ""
        super().__init__(
            f"{worker_class}: {place}the job's arguments take {size:,} {measured}, the limit is {size_limit:,}.{raw} "
            f"{_SIZE_ADVICE[setting]} (setting: {setting})."
        )

    def for_bulk_index(self, job: int) -> "ExceedLimitError":
        """Return the same error for the job with this index in a bulk push."""
        facts = (self.worker_class, self.size, self.size_limit)
        return ExceedLimitError(*facts, setting=self.setting, job=job, uncompressed=self.uncompressed)


class ShardUnavailableError(PushError):
    """Report a shard whose Redis does not answer, or refuses the command.

    ``refused``: the server answers, and this command failed. ``maybe_written`` is true when the command was sent: the job may be
    written, and another push may run it twice. ``advice`` is the remedy of a refusal. Without it the message says how to start a
    Redis, and ``source`` is the file with the address.
    """

    def __init__(
        self,
        shard: str,
        reason: str,
        *,
        refused: bool = False,
        maybe_written: bool = False,
        advice: str | None = None,
        source: str = _REDIS_FILE,
    ) -> None:
        self.shard, self.reason, self.maybe_written = shard, reason, maybe_written
        self.is_full = False
        """Whether Redis has no memory left, and certainly nothing was written."""
        state = Sentence("refuses the command") if refused else Sentence("is unavailable")
        doubt = Sentence(" The command had been sent, so it may have been applied.") if maybe_written else ""
        # The variable is the address of the shard main only.
        address = Sentence("REDIS_URL or {source}", source=source) if shard == "main" else source
        way_out = (
            Sentence("Cause: {advice}.", advice=advice)
            if advice
            else Sentence(_START_REDIS, command=command("store start"), address=address)
        )
        texts = {"state": state, "reason": reason, "doubt": doubt, "way_out": way_out}
        super().__init__(Sentence("shard '{shard}' {state}: {reason}.{doubt} {way_out}", shard=shard, **texts))


class BulkPushError(PushError):
    """Report a failed chunk of a bulk push. ``__cause__`` is the cause.

    ``jids`` are the ids of the written jobs in the order of the input, up to the index ``failed_from``; a stream keeps none. With
    ``maybe_written`` the reply to the chunk that begins there was lost: its jobs (``in_doubt``) may be written, all later are not.
    """

    def __init__(
        self,
        jids: Sequence[str | None],
        failed_from: int,
        cause: BaseException,
        *,
        maybe_written: bool = False,
        in_doubt: Sequence[str] = (),
        resume: Callable[[], list[str | None]] | None = None,
    ) -> None:
        self.jids, self.failed_from, self._resume = list(jids), failed_from, resume
        self.maybe_written, self.in_doubt = maybe_written, list(in_doubt)
        verb = "is" if failed_from == 1 else "are"
        ids = " (the ids are in `jids`)" if jids else ""
        before = f"The {format_count(failed_from, 'job')} before it {verb} written{ids}"
        if maybe_written:
            advice = (
                f"{before}, and its chunk (`in_doubt`: {format_count(len(self.in_doubt), 'job')}) may be written, too. A push from "
                f"index {failed_from} may run those jobs twice. Call `resume()` on this error, in this process and within 9 minutes: "
                "it writes the missing jobs of that chunk, then pushes the rest."
            )
        else:
            retry = "call `resume()` on this error, or push" if resume else "push"
            advice = f"{before}, and no later job: {retry} again from index {failed_from}."
        super().__init__(f"bulk push failed at job {failed_from}: {cause} {advice}")

    def resume(self) -> list[str | None]:
        """Push the remaining jobs, none of them twice; return their ids in the order of the input, from ``failed_from`` on.

        A chunk in doubt is repeated with the same ids, payloads and token, so that Redis writes it once.
        ``error.jids + error.resume()`` equals the result of the whole push.

        Raises:
            BulkPushError: the push failed again. Call ``resume()`` of the new error; its ``jids`` and ``failed_from`` count from
                the beginning of the input. After 9 minutes a chunk in doubt is not repeated, and nothing is sent.
        """
        if self._resume is None:
            raise PushError("this BulkPushError was not raised by a push of this process: it cannot be resumed.")
        return self._resume()


class BacklogFullError(PushError):
    """Report a push of a class whose backlog is full: as many jobs as allowed were accepted, and have not ended. Nothing was written.

    ``jobs`` and ``bytes`` are those of ``worker`` on ``shard``, ``limit`` says what is allowed. ``free`` is how many of several
    jobs of this push would fit.
    """

    def __init__(self, worker: str, shard: str, jobs: int, size: int, limit: str, *, free: int = 0) -> None:
        self.worker, self.shard, self.jobs, self.bytes, self.limit, self.free = worker, shard, jobs, size, limit, free
        super().__init__(
            f"{worker}: its backlog on shard {shard!r} is full: {format_count(jobs, 'job')} ({format_bytes(size)}) were accepted "
            f"and have not ended, and {limit}. Push later, or let more processes run the class. "
            f"`{command('jobs memory')}` shows where its jobs are, `{command(f'jobs explain {worker}')}` why they wait; "
            f"`{command(f'jobs drop {worker}')}` ends them."
        )


class PushInTransactionError(PushError):
    """Report a push inside of an open transaction that the setting ``push_in_transaction`` forbids. Nothing was written."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        super().__init__(
            f"{worker}: a database transaction is open, so the job could run before the commit. Push it after the commit, set "
            "push_in_transaction: wait, or push inside of `with skipping_transaction_check():` (framework.transactions)."
        )


class EncryptionKeyError(PushError):
    """Report a push of a class that encrypts its arguments, in a process without a key. Nothing was written."""

    def __init__(self, worker: str) -> None:
        self.worker_class = worker
        super().__init__(
            f"{worker} declares `encrypt = True`, and no key is configured. Set encryption.keys in config/application.yml, or "
            "FRAMEWORK_ENCRYPTION__KEYS__1"
        )


class PayloadStoreError(PushError):
    """Report a payload store that did not take the ``size`` bytes of a job's arguments. Nothing was written to Redis."""

    def __init__(self, worker_class: str, size: int, url: str, reason: str) -> None:
        self.worker_class, self.size, self.url, self.reason = worker_class, size, url, reason
        super().__init__(
            f"{worker_class}: the job's arguments ({size:,} bytes) go to the payload store {url}, which did not take them: {reason}. "
            "Nothing was pushed: push again when the store answers (setting: payload_offload.url)."
        )


class UnroutedCallError(FrameworkError):
    """Report a call of a shard by application code outside of a route to it (GitLab's ``UnroutedSidekiqApiError``).

    Development and test raise it before anything is sent. Production sends the command, and reports the error.
    """

    def __init__(self, shard: str, command: str, inside: Sequence[str] = ()) -> None:
        self.shard, self.command = shard, command
        here = f"inside a route to {', '.join(map(repr, inside))} only" if inside else "outside of any route"
        super().__init__(
            f"{command} on shard '{shard}' {here}: the jobs may be on another Redis than this one. Write `with "
            "router.via(TheWorker) as pool:` around the call and use that pool; `router.via_shard(name)` where the shard itself "
            "is meant, `router.via_all()` for every shard; or `allow_unrouted(reason=...)` (all in framework.sharding)."
        )


class UnknownShardError(FrameworkError, KeyError):
    """Report a shard name that the configuration does not have."""

    # `KeyError.__str__` shows the repr of the message.
    __str__ = Exception.__str__


class UnknownNameError(FrameworkError, LookupError):
    """Report the name of a queue, process or job that no shard has. Nothing was changed."""


class ReadOnlyError(FrameworkError):
    """Report an action of ``framework.admin`` inside of a block that only reads. Nothing was changed."""


class JobRefusedError(FrameworkError):
    """Report a job of a set that an action of ``framework.admin`` cannot move. It stays as it is."""


class MoveRefusedError(FrameworkError):
    """Report a move between shards that contradicts another one, or the shards."""


class TargetRefusedError(MoveRefusedError):
    """Report a target that answered, and took no job. Jobs that were about to leave are back in their places."""

    def __init__(self, shard: str, reason: str) -> None:
        self.shard = shard
        super().__init__(f"{shard} does not take the jobs, and they are back in their places: {reason}")


class BatchError(FrameworkError):
    """Report jobs or callbacks that a batch does not take. The message says why; ``bid`` is the id of the batch."""

    def __init__(self, bid: str, reason: str) -> None:
        self.bid, self.reason = bid, reason
        super().__init__(f"batch {bid}: {reason}.")


class BatchCancelledError(BatchError):
    """Report that a batch takes no jobs, because it was cancelled, or the batch around it.

    In a job this is no failure: a job that lets the error through ends as cancelled, without a retry. A program that writes a long
    batch stops at it.
    """

    def __init__(self, bid: str, what: str = "it") -> None:
        super().__init__(bid, f"{what} was cancelled, so no jobs can be added")


class UnknownBatchError(BatchError, LookupError):
    """Report a batch that no shard has: it was not written yet, was deleted, or has expired."""

    def __init__(self, bid: str) -> None:
        super().__init__(
            bid, "no shard has it: it has no jobs yet (`with batch.jobs():` writes it), was deleted, or has expired"
        )


class WorkflowError(FrameworkError):
    """Report a workflow that is declared wrongly or cannot start. ``workflow`` is its name or id, empty if neither is known."""

    def __init__(self, workflow: str, reason: str) -> None:
        self.workflow, self.reason = workflow, reason
        super().__init__(f"workflow {workflow}: {reason}." if workflow else f"{reason}.")


class UnknownWorkflowError(WorkflowError, LookupError):
    """Report a workflow that no shard has: it was deleted, or has expired."""

    def __init__(self, workflow: str) -> None:
        super().__init__(workflow, "no shard has it: it was deleted, or has expired")


class UnsafeFileError(FrameworkError, OSError):
    """Report a file or folder that another user may have written, or that is no regular file. It was not read, and stays as it is."""

    def __init__(self, path: object, reason: str, remedy: str) -> None:
        self.path = str(path)
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{path} is not used, because {reason}. Remedy: {remedy}")


class QueryError(FrameworkError):
    """Report an invalid worker query. ``faults`` are ordered pairs (position, reason), ``messages`` the text of each."""

    def __init__(self, query: str, faults: Sequence[tuple[int, str]], messages: Sequence[str]) -> None:
        self.query, self.faults, self.messages = query, tuple(faults), tuple(messages)
        self.position, self.reason = faults[0]
        super().__init__("\n".join(messages))


class SelectorError(FrameworkError):
    """Report an argument of ``cluster`` that names no group of queues."""

    def __init__(self, selector: str, reason: str) -> None:
        self.selector, self.reason = selector, reason
        super().__init__(f"group {selector!r}: {reason}")


class QueueReplacedError(FrameworkError):
    """Report that the key of a queue changed its type during a migration. ``aside`` is the key of the list with the jobs."""

    def __init__(self, queue: str, key: str, aside: str) -> None:
        self.queue, self.aside = queue, aside
        super().__init__(
            f"the key {key} is not a list any more, so its jobs cannot return to it. They are in {aside}: remove the key, and run "
            "the command again."
        )


class ExecutionError(FrameworkError):
    """Report a fetched job that cannot run."""


class UnknownWorkerError(ExecutionError):
    """Report a job whose wire name is not registered in this process. A payload never causes an import."""

    def __init__(self, wire_name: str, nearest: str | None = None) -> None:
        self.wire_name, self.nearest = wire_name, nearest
        hint = f" (nearest known name: {nearest})" if nearest else ""
        super().__init__(
            f"no worker named {wire_name!r} is registered here{hint}. Load its module with -r, deploy the class, or give the renamed "
            f"class `aliases = ({wire_name!r},)`; name a removed class in retired_workers, another application's in foreign_classes."
        )


class UnknownTaskError(ExecutionError):
    """Report a job for a function of ``django.tasks`` that this process has not loaded. A payload never causes an import."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"no task {path!r} is loaded here. Write it with @task in the module tasks.py of an installed app, or deploy the "
            "release that has it. `manage.py worker` loads these modules."
        )


class NewerVersionError(ExecutionError):
    """Report a job of a release whose class has a higher ``version`` than the class in this process."""

    def __init__(self, worker: str, version: int, known: int) -> None:
        self.worker, self.version, self.known = worker, version, known
        super().__init__(
            f"{worker}: the job has version {version}, and the class here has version {known}. Deploy the release that pushed "
            f"it. After a rollback: give the class `version = {version}` again, with perform_v{known} for the older jobs."
        )


class ArgumentsMismatchError(ExecutionError):
    """Report arguments of a payload that do not fit ``method``. The job is retried: this process may be of an old release."""

    def __init__(self, worker: str, reason: str, *, method: str = "perform", version: int = 0) -> None:
        self.worker, self.reason, self.method, self.version = worker, reason, method, version
        advice = (
            "Change arguments over several releases: add them with a default first, drop them last."
            if method == "perform"
            else f"Give {method} the parameters that perform had in version {version}."
        )
        fault = f"{worker}: the arguments of the job (version {version}) do not fit {method}: {reason}."
        super().__init__(f"{fault} {advice}")


class IterationError(ExecutionError):
    """Report an iterable job that cannot iterate: its enumerator, an item or its cursor is unusable. The job is retried.

    ``cursor`` is the saved position, ``None`` at the beginning.
    """

    def __init__(self, worker: str, reason: str, *, cursor: object = None) -> None:
        self.worker = worker
        self.reason = reason
        self.cursor = cursor
        super().__init__(f"{worker}: {reason}")


class JobProcessError(ExecutionError):
    """Report an isolated job whose own process ended before it, or could not be started.

    ``status`` is the exit status of the process, negative for a signal; ``None`` if it did not run.
    """

    def __init__(self, worker: str, reason: str, *, status: int | None = None) -> None:
        self.worker, self.reason, self.status = worker, reason, status
        super().__init__(f"{worker}: {reason}")


class JobMemoryError(ExecutionError):
    """Report an isolated job that needed more than ``limit`` bytes, its ``memory_limit``. Only its own process was affected."""

    def __init__(self, worker: str, limit: int) -> None:
        self.worker, self.limit = worker, limit
        super().__init__(
            f"{worker}: perform needed more than {limit:,} bytes of memory, its memory_limit. Load less at a time, or raise this "
            "limit"
        )


class MissingKeyError(ExecutionError):
    """Report a job that is encrypted or signed with a key that this process lacks. The job is deferred, with unchanged bytes."""

    def __init__(self, fact: str, reason: str, setting: str) -> None:
        self.reason, self.setting = reason, setting
        super().__init__(
            f"{fact}, and {reason}. Add the key to {setting} and restart the process: the job waits for the key"
        )


class OffloadedArgumentsError(ExecutionError):
    """Report a job whose arguments are in a payload store that this process cannot read. The job is deferred, and keeps its blob."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the arguments are offloaded, and {reason}. Check the payload store and payload_offload.url: the job waits for them"
        )


class StoredBlocksError(FrameworkError, OSError):
    """Report a packed backlog whose blocks are in a payload store that this process cannot use now. Its jobs wait where they are."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"packed jobs wait in the payload store, and {reason}. Make the store of payload_offload.url reachable for this process: "
            "no job is lost, and they wait until then"
        )


class PayloadError(ExecutionError):
    """Report an unreadable payload: not JSON, not an object, or not decompressible."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the payload cannot be read: {reason}")


class StateRefusedError(PayloadError):
    """Report stored state that is not signed as it must be: it was changed, or its writer has no key. A job that needs it is
    quarantined."""

    def __init__(self, purpose: str, key: str, reason: str) -> None:
        self.purpose, self.key = purpose, key
        super().__init__(reason)
        self.args = (f"the {purpose} in {key} was refused: {reason}",)


class PayloadLimitError(PayloadError):
    """Report a payload that would take more memory than ``limit``, the value of ``setting`` in bytes."""

    def __init__(self, reason: str, limit: int, *, setting: str) -> None:
        self.limit, self.setting = limit, setting
        super().__init__(f"{reason}, which the setting {setting} forbids. Push less in one job, or raise the setting")


class NestedLimiterError(FrameworkError):
    """Report a block that takes a concurrent limiter, for the same key, inside of a block or a job that holds it."""

    def __init__(self, limiter: str, key: str) -> None:
        self.limiter, self.key = limiter, key
        of = f" for {key!r}" if key else ""
        super().__init__(
            f"limiter {limiter!r}{of} is taken inside of a block, or of a job, that holds it: the inner block would wait for the "
            "outer one (for ever, if the limit is 1). Take it once, or give the inner block another limiter or key"
        )


class OverLimit(FrameworkError):
    """Report a call that a rate limiter does not admit. A job that ends with it runs again later if ``policy`` is ``reschedule``.

    ``retry_after_s`` is the time until the call may be admitted, ``None`` if that is not known. ``policy``, ``reschedules`` and
    ``backoff`` are those of the limiter.
    """

    def __init__(
        self,
        limiter: str,
        key: str,
        limit: float,
        retry_after_s: float | None = None,
        *,
        policy: Literal["reschedule", "raise", "skip"] = "reschedule",
        reschedules: int = 20,
        backoff: Callable[[int], timedelta | float] | None = None,
        amount: float = 1,
        turn_s: float | None = None,
    ) -> None:
        self.turn_s = turn_s
        """When the job is to come back, among the other jobs that the limiter has not admitted."""
        self.limiter, self.key, self.limit, self.retry_after_s = limiter, key, limit, retry_after_s
        self.policy, self.reschedules, self.backoff = policy, reschedules, backoff
        self.backoff_s: float | None = None
        """The result of ``backoff`` in the process of an isolated job, which cannot send a function to its worker process."""
        of = f" for {key!r}" if key else ""
        if amount > max(1, limit):
            super().__init__(
                f"limiter {limiter!r} never admits a call that uses {amount:g}{of}: its limit is {limit:g}. Use less in one call, "
                f"or raise the limit: `{command(f'limiters resize {limiter}')}` does it without a deploy."
            )
            return
        when = "" if retry_after_s is None else f" It may admit a call in {_format_wait(retry_after_s)}."
        super().__init__(
            f"limiter {limiter!r} is at its limit of {limit:g}{of}.{when} "
            f"`{command(f'limiters show {limiter}')}` shows what is used."
        )


def _format_wait(seconds: float) -> str:
    """Return a wait of limits and leases: most last less than a second, and some a day."""
    return f"{seconds:.3g} s" if seconds < 60 else format_duration(seconds)


class LeaseTakenError(FrameworkError):
    """Report a lease that another holder has, for ``left_s`` seconds more unless it renews or ends it."""

    def __init__(self, name: str, holder: str, left_s: float) -> None:
        self.name, self.holder, self.left_s = name, holder, left_s
        super().__init__(
            f"the lease {name!r} is held by {holder}, for {_format_wait(left_s)} more unless it is renewed or ended. Wait longer "
            f"(hold(wait=...)), or leave the work to that holder; `{command('jobs leases')}` shows the leases."
        )


class LeaseLostError(FrameworkError):
    """Report a lease that had ended before the work under it: another holder may have it now, or may have had it."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self.name, self.timeout_s = name, timeout_s
        super().__init__(
            f"the lease {name!r} has ended before its work, so another holder may work at the same time. Its timeout is "
            f"{timeout_s:g} s: renew it more often, or raise the timeout."
        )


class ResultError(FrameworkError):
    """Serve as the base class of errors of a call's ``result()``. ``worker`` and ``jid`` name the job."""

    def __init__(self, worker: str, jid: str | None, message: str) -> None:
        self.worker, self.jid = worker, jid
        name = " ".join(["the job", *([jid] if jid else []), *([f"of {worker}"] if worker else [])])
        super().__init__(f"{name} {message}")


class ResultTimeoutError(ResultError, TimeoutError):
    """Report a called job that has not ended in time: it waits, runs, or waits for its retry. It may still end."""

    def __init__(self, worker: str, jid: str, waited_s: float) -> None:
        self.waited_s = waited_s
        super().__init__(
            worker,
            jid,
            f"has not ended within {waited_s:g} s. Wait longer, or look with `{command(f'jobs explain {jid}')}`; a job that a Ruby "
            "process runs has no result",
        )


class UnknownResultError(ResultError, LookupError):
    """Report an id of which no shard knows a result, nor a job that keeps one."""

    def __init__(self, jid: str, message: str = "") -> None:
        super().__init__(
            "",
            jid,
            message
            or "is not known: it was pushed neither with call nor by a class with keep_result, or its result has expired long ago",
        )


class ResultExpiredError(UnknownResultError):
    """Report a job that has ended, and whose result is not kept any more. ``state`` is its last state."""

    def __init__(self, jid: str, state: str) -> None:
        self.state = state
        super().__init__(
            jid,
            f"has ended ({state}), and its result is not kept any more: raise keep_result, or result_ttl of the call",
        )


class JobEndedError(ResultError):
    """Report a called job that has ended without a result: ``ended`` names the end in one word, ``reason`` explains it."""

    advice: ClassVar[str] = ""

    def __init__(self, worker: str, jid: str | None, ended: str, reason: str = "", error_class: str = "") -> None:
        self.ended, self.reason, self.error_class = ended, reason, error_class
        because = ": ".join(part for part in (error_class, reason) if part)
        super().__init__(
            worker, jid, f"has ended without a result ({ended}){f': {because}' if because else ''}.{self.advice}"
        )


class JobFailedError(JobEndedError):
    """Report a called job that failed, and will not run again. ``error_class`` and ``reason`` are those of its error."""

    advice = " No retry is left; its log line has the traceback."


class JobDiscardedError(JobEndedError):
    """Report a called job that was discarded or dropped: by itself, a middleware, a flag, or as a duplicate."""


class JobExpiredError(JobEndedError):
    """Report a called job that would have started too late (``expires_in``)."""


class JobRemovedError(JobEndedError):
    """Report a called job that was cancelled, or that an operator has deleted or dropped."""


class ResultRefusedError(JobEndedError):
    """Report a called job that has succeeded with a result that is not JSON, or is too large. It does not run again."""


class TaskError(FrameworkError):
    """Serve as the base class of errors of ``framework.tasks``."""


class TaskDatabaseError(TaskError, PushError):
    """Report a database of tasks that does not answer. A push that raises it has written nothing to Redis."""

    def __init__(self, database: str, cause: BaseException) -> None:
        self.database = database
        super().__init__(
            Sentence(
                "the database of tasks ({database}) does not take events: {cause}. Check the setting tasks.url and the database; "
                "with tasks.database_down: continue, jobs go on and their events are kept in Redis.",
                database=database,
                cause=cause,
            )
        )


class TaskTablesError(TaskError, PushError):
    """Report a database without the tables of tasks, or with older ones."""

    def __init__(self, database: str, found: str | None, wanted: str, command: str) -> None:
        self.database, self.found, self.wanted = database, found, wanted
        state = (
            "has no tables of tasks"
            if found is None
            else f"has the tables of revision {found}, this release needs {wanted}"
        )
        super().__init__(f"{database} {state}: run `{command}`.")


class TaskNotFoundError(TaskError, LookupError):
    """Report the id of a task, or of a job, that the database of tasks does not have."""


class TaskRetryError(TaskError):
    """Report failed jobs that cannot be pushed again, because their arguments are not known. Nothing was pushed."""


class EventsTakenError(TaskRetryError):
    """Report events that have changed since they were read: nothing of this step was claimed, and its jobs must not be written."""

    def __init__(self, taken: frozenset[int]) -> None:
        self.taken = taken
        super().__init__(
            f"another call has pushed {len(taken):,} of these jobs again meanwhile: call it again for the others"
        )


class ModeError(FrameworkError):
    """Report a call that the active mode of ``framework.testing`` does not support, or a call without an active mode."""


class EmptyQueueError(FrameworkError, LookupError):
    """Report that a test runs a job of a class of which no job can run now."""


class EndlessJobsError(FrameworkError):
    """Report jobs of a test that never end: each run, or each move of a due job, pushes another job."""


class FlowControl(Exception):
    """Serve as the base class of exceptions that choose the end of a job. They are no errors, and never count as failures."""


class RetryLater(FlowControl):
    """Snooze the job: raised in ``perform``, it runs the job again after a finite ``delay`` (in seconds). It uses no retry."""

    def __init__(self, delay: timedelta | float, reason: str = "") -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        if not math.isfinite(seconds):
            raise ValueError(f"RetryLater({delay!r}): give a finite delay in seconds, or a timedelta")
        self.delay_s = max(0.0, seconds)
        self.reason = reason
        super().__init__(f"run again in {self.delay_s:g} s{': ' + reason if reason else ''}")


class Discard(FlowControl):
    """End the job: raised in ``perform``, it deletes the job, without a retry or an entry in the dead set."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "discarded by the job")


class RetryError(FrameworkError):
    """Fail the job without a report: subclass and raise it in ``perform``. The job is retried as usual (GitLab)."""


class JobReplicaNotUpToDate(RetryError):
    """Retry a ``delayed`` job once: it did not run, because no replica has the writes before its push (GitLab)."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        super().__init__(
            f"{worker}: no replica of its database has the writes before the push. The retry reads from an up-to-date replica, or "
            "from the primary. If this happens often, check the replication lag."
        )


class BusinessError(FrameworkError):
    """Fail the job without retries: raised in ``perform`` when the input is invalid by the rules of the business.

    ``retries_exhausted`` and the death handlers run. Its log line has ``error_kind: business``. The error tracker receives nothing.
    The dead set keeps the job only with the setting ``dead.business``.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class JobTimeoutError(BaseException):
    """End a run that lasts longer than its ``timeout`` (``timeout_s`` seconds): the job has failed.

    It is raised inside of ``perform``, between any two instructions. ``except Exception`` does not catch it.
    """

    timeout_s = 0.0

    def explain(self, timeout_s: float) -> "JobTimeoutError":
        """Set the message, and return the error: the interpreter makes the error without arguments when it raises it in a thread."""
        self.timeout_s = timeout_s
        self.args = (
            f"perform ran for more than {timeout_s:g} s, its timeout. Make the job shorter, or raise the timeout",
        )
        return self


class JobStoppedError(BaseException):
    """End the run of a job that an operator stopped (``jobs stop``). ``except Exception`` does not catch it.

    It is raised inside of ``perform`` of a class with a ``timeout``. A job that is stopped with ``--kill`` keeps it as its error.
    """


class Shutdown(BaseException):
    """Interrupt the jobs that still run when the process stops. ``except Exception`` does not catch it."""
