"""The tree of everything the framework raises. Every error carries its facts as fields and says what to do next.

FrameworkError
├── DeclarationError          a worker class is declared wrongly (raised when the class is created)
├── MisuseError               a worker class is used as another library's task is: called, awaited, decorating
│   └── NoSuchMethodError     by a method of theirs: ``delay``, ``apply_async``, ``send``
├── MiddlewareError           a middleware has not the shape of one, or comes too late
├── ConfigurationError        configuration is wrong (raised at boot, with every problem found)
├── PushError                 a job was not, or not surely, accepted
│   ├── ArgumentsError        the arguments do not fit ``perform`` or are not JSON
│   ├── ExceedLimitError      the arguments are too large, even compressed
│   ├── ShardUnavailableError the shard's Redis does not answer or refuses writes
│   └── BulkPushError         a chunk of a bulk push failed; says which jobs are in
├── UnroutedCallError         application code called a job Redis outside of a route to it
├── UnknownShardError         config/redis.yml has no shard of that name
├── QueryError                a worker query (routing rule, queue selector) does not parse
├── SelectorError             an argument of ``cluster`` names no group of queues
├── QueueReplacedError        a queue's key changed its type while its jobs were migrated
├── ExecutionError            a fetched job cannot be run as it stands
│   ├── UnknownWorkerError    no class of that wire name is registered in this process
│   ├── NewerVersionError     its class is older in this process than the job's version
│   ├── ArgumentsMismatchError its arguments do not fit ``perform``, or the handler of its version
│   └── PayloadError          its payload cannot be read
│       └── PayloadLimitError reading it would take more than a setting allows
├── RetryError                raised by a job: retry, but do not report (GitLab's ``RetryError``)
│   └── JobReplicaNotUpToDate the job would read old data: it comes back once, then it reads from the primary
└── BusinessError             raised by a job: the business refuses, a retry cannot help
FlowControl (Exception)       raised by a job, and no failure; ``except FrameworkError`` does not catch it
├── RetryLater                run the job again after a delay
└── Discard                   end the job here
Shutdown (BaseException)      the process stops; user code that catches ``Exception`` never swallows it
NoEffectWarning (UserWarning) an attribute or an option is declared and has no effect in this release

Not here: TypeError and ValueError for arguments of the wrong kind, and two of ``framework.store`` that extend redis-py's errors.
"""

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

from framework.command_line import command
from framework.typeguards import qualified_name

_REDIS_FILE = "config/redis.yml"


class FrameworkError(Exception):
    """Root of the framework's errors."""


class DeclarationError(FrameworkError):
    """A worker class says something that is not allowed; the message names class, attribute, value and the allowed ones.

    ``problems`` lists every fault of the class as an error of its own; ``attribute`` is that of the first.
    """

    def __init__(self, worker: str, message: str, *, attribute: str | None = None) -> None:
        self.worker, self.attribute, self.message = worker, attribute, message
        self.problems: tuple[DeclarationError, ...] = (self,)
        super().__init__(f"{worker}: {message}")


class MisuseError(FrameworkError, TypeError):
    """A worker class is used as another library's task is; the message names the call that is meant. Nothing was pushed."""

    def __init__(self, worker: str, reason: str) -> None:
        self.worker, self.reason = worker, reason
        super().__init__(f"{worker}: {reason}.")


class NoSuchMethodError(MisuseError, AttributeError):
    """A push by the name that another library has for it; as an AttributeError it leaves ``hasattr`` false."""


class MiddlewareError(FrameworkError, TypeError):
    """A middleware has not the shape of one, or is added, moved or removed when its chain is in use already."""

    def __init__(self, middleware: object, reason: str) -> None:
        self.middleware, self.reason = middleware, reason
        name = qualified_name(middleware) if isinstance(middleware, type) else repr(middleware)
        super().__init__(f"the middleware {name}: {reason}.")


class ConfigurationProblem(NamedTuple):
    """One thing wrong with the configuration and where it stands."""

    file: str
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}: {self.key}" if self.key else self.file
        return f"{place}: {self.message}"


class ConfigurationError(FrameworkError):
    """The configuration does not hold; ``problems`` lists every fault found, not only the first."""

    def __init__(self, problems: Sequence[ConfigurationProblem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        heading = f"{count} problem{'s' * (count != 1)} in the configuration:"
        super().__init__("\n".join([heading, *(f"  - {problem}" for problem in self.problems)]))


class PushError(FrameworkError):
    """A job was not, or not surely, accepted."""


class ArgumentsError(PushError):
    """The arguments do not fit ``perform`` or cannot travel as JSON. Nothing was written."""

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
    """The arguments exceed the size limit after compression (GitLab's size limiter). Nothing was written.

    Sizes are bytes of the arguments' JSON; under ``size_limit.decoded_limit`` of the memory that they take when decoded.
    ``setting`` is the one that holds the limit, ``job`` the index in a bulk push.
    ``uncompressed`` is the attribute or setting that left the arguments uncompressed, if any.
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
        """Return the same error, of the job with this index in a bulk push."""
        facts = (self.worker_class, self.size, self.size_limit)
        return ExceedLimitError(*facts, setting=self.setting, job=job, uncompressed=self.uncompressed)


class ShardUnavailableError(PushError):
    """A shard's Redis does not answer or refuses the command.

    ``maybe_written`` is true when the command had been sent: the job may be in, and pushing it again may run it twice.
    ``advice`` is what to do about a refusal; without it, how to get a Redis that runs, and ``source`` the file that names it.
    """

    def __init__(
        self,
        shard: str,
        reason: str,
        *,
        maybe_written: bool = False,
        advice: str | None = None,
        source: str = _REDIS_FILE,
    ) -> None:
        self.shard, self.reason, self.maybe_written = shard, reason, maybe_written
        doubt = " The command had been sent, so it may have been applied." if maybe_written else ""
        way_out = f"Start the development store with `{command('store start')}`, or set REDIS_URL (shard main) or {source} to "
        way_out = f"What that means: {advice}." if advice else f"{way_out}a Redis that runs."
        super().__init__(f"shard '{shard}' is unavailable: {reason}.{doubt} {way_out}")


class BulkPushError(PushError):
    """A chunk of a bulk push failed; the cause is in ``__cause__``.

    ``jids`` is aligned with the input up to ``failed_from``, the index of the first job that is not surely in. Later jobs are
    not in, unless ``maybe_written``: the reply to the chunk from there on was lost, and ``in_doubt`` has its ids.
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
        before = f"The {failed_from:,} jobs before it are in (their ids are in `jids`)"
        if maybe_written:
            advice = (
                f"{before}, and the {len(self.in_doubt):,} of its chunk (`in_doubt`) may be in as well: pushed again from index "
                f"{failed_from}, they may run twice. Call `resume()` on this error, in this process and within 9 minutes: it writes "
                "of that chunk what is not in, then pushes the rest."
            )
        else:
            advice = f"{before}, and nothing after them is: call `resume()` on this error, or push again from index {failed_from}."
        super().__init__(f"bulk push failed at job {failed_from}: {cause} {advice}")

    def resume(self) -> list[str | None]:
        """Push the rest, and no job twice; return ids aligned with the input from ``failed_from`` on.

        A chunk in doubt is repeated with its ids, its jobs as client middlewares left them, and the token that its first write
        noted. ``error.jids + error.resume()`` is what the push would have returned.

        Raises:
            BulkPushError: the push failed again. It can be resumed in turn; its ``jids`` and ``failed_from`` count from the
                beginning of the input. After 9 minutes a chunk in doubt is not repeated: nothing is sent.
        """
        if self._resume is None:
            raise PushError("this BulkPushError was not raised by a push of this process: it cannot be resumed.")
        return self._resume()


class UnroutedCallError(FrameworkError):
    """Application code called a job Redis outside of a route to it (GitLab's ``UnroutedSidekiqApiError``).

    Raised in development and test before anything is sent; in production the call goes through and this is reported.
    """

    def __init__(self, shard: str, command: str, inside: Sequence[str] = ()) -> None:
        self.shard, self.command = shard, command
        here = f"inside a route to {', '.join(map(repr, inside))} only" if inside else "outside of any route"
        super().__init__(
            f"{command} on shard '{shard}' {here}: jobs may live on another Redis than this one. Write `with "
            "router.via(TheWorker) as pool:` around the call and use that pool; `router.via_shard(name)` where the shard itself "
            "is meant, `router.via_all()` for every shard; or `allow_unrouted(reason=...)` (all in framework.sharding)."
        )


class UnknownShardError(FrameworkError, KeyError):
    """A shard was asked for that the configuration does not have."""

    __str__ = Exception.__str__  # KeyError's shows the repr of its message


class QueryError(FrameworkError):
    """A worker query does not parse. ``faults`` are (position, reason) pairs in their order, ``messages`` the text of each.

    ``position`` and ``reason`` are those of the first fault.
    """

    def __init__(self, query: str, faults: Sequence[tuple[int, str]], messages: Sequence[str]) -> None:
        self.query, self.faults, self.messages = query, tuple(faults), tuple(messages)
        self.position, self.reason = faults[0]
        super().__init__("\n".join(messages))


class SelectorError(FrameworkError):
    """An argument of ``cluster`` names no group of queues."""

    def __init__(self, selector: str, reason: str) -> None:
        self.selector, self.reason = selector, reason
        super().__init__(f"group {selector!r}: {reason}")


class QueueReplacedError(FrameworkError):
    """The key of a queue changed its type while its jobs were migrated. ``aside`` is the key of the list that holds the jobs."""

    def __init__(self, queue: str, key: str, aside: str) -> None:
        self.queue, self.aside = queue, aside
        super().__init__(
            f"the key {key} is no list any more, so its jobs cannot go back to it. They are in {aside}: remove the key, and run "
            "the command again."
        )


class ExecutionError(FrameworkError):
    """A fetched job cannot be run as it stands."""


class UnknownWorkerError(ExecutionError):
    """No worker of this wire name is registered in this process; a payload never imports anything."""

    def __init__(self, wire_name: str, nearest: str | None = None) -> None:
        self.wire_name, self.nearest = wire_name, nearest
        hint = f" (nearest known name: {nearest})" if nearest else ""
        super().__init__(
            f"no worker named {wire_name!r} is registered here{hint}. Load its module with -r, deploy the class, or give the renamed "
            f"class `aliases = ({wire_name!r},)`; name a removed class in retired_workers, another application's in foreign_classes."
        )


class NewerVersionError(ExecutionError):
    """The job was pushed by a release whose class has a higher ``version`` than the class in this process."""

    def __init__(self, worker: str, version: int, known: int) -> None:
        self.worker, self.version, self.known = worker, version, known
        super().__init__(
            f"{worker}: the job has version {version}, and the class here has version {known}. Deploy the release that pushed "
            f"it. After a rollback: give the class `version = {version}` again, with perform_v{known} for the older jobs."
        )


class ArgumentsMismatchError(ExecutionError):
    """The payload's arguments do not fit the method that runs it; it is retried, as an old process may meet a new payload.

    ``method`` is ``perform``, or the handler of the job's ``version`` where the class has one.
    """

    def __init__(self, worker: str, reason: str, *, method: str = "perform", version: int = 0) -> None:
        self.worker, self.reason, self.method, self.version = worker, reason, method, version
        advice = (
            "Change arguments over several releases: add them with a default first, drop them last."
            if method == "perform"
            else f"Give {method} the parameters that perform had in version {version}."
        )
        super().__init__(
            f"{worker}: the arguments of the job (version {version}) do not fit {method}: {reason}. {advice}"
        )


class PayloadError(ExecutionError):
    """A payload cannot be read: not JSON, not an object, or not to be decompressed."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the payload cannot be read: {reason}")


class PayloadLimitError(PayloadError):
    """A payload is not read because that would take more memory than ``limit``, the value of ``setting``, allows."""

    def __init__(self, reason: str, limit: int, *, setting: str) -> None:
        self.limit, self.setting = limit, setting
        super().__init__(f"{reason}, which the setting {setting} forbids: push less in one job, or raise it")


class FlowControl(Exception):
    """Base of the exceptions by which a job says what happens to it next. They are no errors, and never count as failures."""


class RetryLater(FlowControl):
    """Raise in ``perform``: the job goes to the schedule set and runs again after ``delay``; its retries are not used up."""

    def __init__(self, delay: timedelta | float, reason: str = "") -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        if not math.isfinite(seconds):
            raise ValueError(f"RetryLater({delay!r}): give a finite delay in seconds, or a timedelta")
        self.delay_s = max(0.0, seconds)
        self.reason = reason
        super().__init__(f"run again in {self.delay_s:g} s{': ' + reason if reason else ''}")


class Discard(FlowControl):
    """Raise in ``perform``: the job ends here, neither retried nor dead."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "discarded by the job")


class RetryError(FrameworkError):
    """Subclass and raise in ``perform``: retried as usual, never sent to the error tracker (GitLab guideline)."""


class JobReplicaNotUpToDate(RetryError):
    """No replica shows yet what the push of a ``delayed`` job saw; it has not run, and is retried, once (GitLab)."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        super().__init__(
            f"{worker}: no replica of its database has caught up with the push. The retry reads from one that has, or from the "
            "primary; if this happens often, look at the replication lag."
        )


class BusinessError(FrameworkError):
    """Raise in ``perform`` when the business refuses and a retry cannot help: the job fails at once, without retries.

    ``retries_exhausted`` and death handlers run, its line says ``error_kind: business``, and the error tracker hears nothing.
    The dead set keeps it only with the setting ``dead.business``.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class NoEffectWarning(UserWarning):
    """A worker class or a push declares something that has no effect in this release. A warning, and no error: filter it by name."""


class Shutdown(BaseException):
    """Raised into jobs that still run when the process stops. No ``Exception``, so that user code does not swallow it."""
