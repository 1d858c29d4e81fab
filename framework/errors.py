"""The tree of everything the framework raises. Every error carries its facts as fields and says what to do next.

FrameworkError
├── DeclarationError          a worker class is declared wrongly (raised when the class is created)
├── ConfigurationError        configuration is wrong (raised at boot, with every problem found)
├── PushError                 a job was not, or not surely, accepted
│   ├── ArgumentsError        the arguments do not fit ``perform`` or are not JSON
│   ├── ExceedLimitError      the arguments are too large, even compressed
│   ├── ShardUnavailableError the shard's Redis does not answer or refuses writes
│   └── BulkPushError         a slice of a bulk push failed; says which jobs are in
├── UnroutedCallError         application code called a job Redis without saying whose jobs it is about
├── ExecutionError            a fetched job cannot be run as it stands
│   ├── UnknownWorkerError    no class of that wire name is registered in this process
│   ├── ArgumentsMismatchError its arguments do not fit ``perform``, or the handler of its version
│   └── PayloadError          its payload cannot be read
├── RetryLater                raised by a job: run me again after a delay, this is no failure
├── Discard                   raised by a job: forget me, this is no failure
├── RetryError                raised by a job: retry, but do not report (GitLab's ``RetryError``)
│   └── JobReplicaNotUpToDate the job would read old data: it comes back once, then it reads from the primary
└── BusinessError             raised by a job: the business refuses, a retry cannot help
Shutdown (BaseException)      the process stops; user code that catches ``Exception`` never swallows it
"""

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple, TypeGuard, TypeVar

E = TypeVar("E", bound=BaseException)


class FrameworkError(Exception):
    """Root of the framework's errors."""


class DeclarationError(FrameworkError):
    """A worker class says something that is not allowed; the message names class, attribute, value and the allowed ones."""

    def __init__(self, worker: str, message: str, *, attribute: str | None = None) -> None:
        self.worker = worker
        self.attribute = attribute
        super().__init__(f"{worker}: {message}")


class Problem(NamedTuple):
    """One thing wrong with the configuration and where it stands."""

    file: str
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}: {self.key}" if self.key else self.file
        return f"{place}: {self.message}"


EXIT_CONFIGURATION = 78
"""The exit status of a command that the configuration does not allow to run (EX_CONFIG)."""


class ConfigurationError(FrameworkError):
    """The configuration does not hold; ``problems`` lists every fault found, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        heading = "1 problem in the configuration" if count == 1 else f"{count} problems in the configuration"
        super().__init__("\n".join([f"{heading}:", *(f"  - {problem}" for problem in self.problems)]))


class PushError(FrameworkError):
    """A job was not, or not surely, accepted."""


class ArgumentsError(PushError):
    """The arguments do not fit ``perform`` or cannot travel as JSON. Nothing was written."""

    def __init__(self, worker: str, reason: str, *, argument: str | None = None) -> None:
        self.worker = worker
        self.argument = argument
        self.reason = reason
        place = f"argument '{argument}' " if argument else ""
        super().__init__(f"{worker}: {place}{reason}")


class ExceedLimitError(PushError):
    """The arguments exceed the size limit after compression (GitLab's size limiter). Nothing was written.

    Sizes are bytes of the arguments' JSON; ``setting`` is the one that holds the limit, ``job`` the index in a bulk push.
    """

    def __init__(
        self,
        worker_class: str,
        size: int,
        size_limit: int,
        *,
        setting: str = "size_limit.limit",
        job: int | None = None,
    ) -> None:
        self.worker_class = worker_class
        self.size = size
        self.size_limit = size_limit
        self.setting = setting
        self.job = job
        place = "" if job is None else f"(job {job} of the bulk) "
        if setting == "size_limit.limit":
            advice = "Store the data and pass its id, or declare `big_payload = True` if the shard's memory allows it"
        else:
            advice = (
                "More than that is never decompressed again, not even for `big_payload`. Store the data and pass its id"
            )
        super().__init__(
            f"{worker_class}: {place}the job's arguments take {size:,} bytes, the limit is {size_limit:,}. {advice} "
            f"(setting: {setting})."
        )

    def of_job(self, job: int) -> "ExceedLimitError":
        """Return the same error, of the job with this index in a bulk push."""
        return ExceedLimitError(self.worker_class, self.size, self.size_limit, setting=self.setting, job=job)


class ShardUnavailableError(PushError):
    """A shard's Redis does not answer or refuses the command.

    ``maybe_written`` is true when the command had been sent: the job may be in, and pushing it again may run it twice.
    ``advice`` is what to do about a refusal; without it, how to get a Redis that runs.
    """

    def __init__(self, shard: str, reason: str, *, maybe_written: bool = False, advice: str | None = None) -> None:
        self.shard = shard
        self.reason = reason
        self.maybe_written = maybe_written
        doubt = " The command had been sent, so it may have been applied." if maybe_written else ""
        way_out = (
            f"What that means: {advice}."
            if advice
            else "Start the development store with `scripts/store start`, or set REDIS_URL (shard main) or config/redis.yml to a "
            "Redis that runs."
        )
        super().__init__(f"shard '{shard}' is unavailable: {reason}.{doubt} {way_out}")


class BulkPushError(PushError):
    """A slice of a bulk push failed.

    ``jids`` is aligned with the input up to ``failed_from``, the index of the first job that is not surely in. Go on
    with the input from there; the cause is in ``__cause__``.
    """

    def __init__(self, jids: Sequence[str | None], failed_from: int, cause: BaseException) -> None:
        self.jids = list(jids)
        self.failed_from = failed_from
        super().__init__(
            f"bulk push failed at job {failed_from}: {cause} The {failed_from} jobs before it are in (their ids are in `jids`); "
            f"push the rest again from index {failed_from}."
        )


class UnroutedCallError(FrameworkError):
    """Application code called a job Redis outside of a route to it (GitLab's ``UnroutedSidekiqApiError``).

    Raised in development and test before anything is sent; in production the call goes through and this is reported.
    """

    def __init__(self, shard: str, command: str, inside: Sequence[str] = ()) -> None:
        self.shard = shard
        self.command = command
        here = f"inside a route to {', '.join(map(repr, inside))} only" if inside else "outside of any route"
        super().__init__(
            f"{command} on shard '{shard}' {here}: jobs may live on another Redis than this one. Write `with "
            "router.via(TheWorker) as pool:` around the call and use that pool; `router.via_shard(name)` where the shard itself "
            "is meant, `router.via_all()` for every shard; or `allow_unrouted(reason=...)` (all in framework.sharding)."
        )


class ExecutionError(FrameworkError):
    """A fetched job cannot be run as it stands."""


class UnknownWorkerError(ExecutionError):
    """No worker of this wire name is registered in this process; a payload never imports anything."""

    def __init__(self, wire_name: str, nearest: str | None = None) -> None:
        self.wire_name = wire_name
        self.nearest = nearest
        hint = f" (nearest known name: {nearest})" if nearest else ""
        super().__init__(
            f"no worker named {wire_name!r} is registered here{hint}. Load its module with -r, deploy the class, or give the "
            f"renamed class `aliases = ({wire_name!r},)`; if the class was removed for good, name it in the setting "
            f"retired_workers."
        )


class ArgumentsMismatchError(ExecutionError):
    """The payload's arguments do not fit the method that runs it; it is retried, as an old process may meet a new payload.

    ``method`` is ``perform``, or the handler of the job's ``version`` where the class has one.
    """

    def __init__(self, worker: str, reason: str, *, method: str = "perform", version: int = 0) -> None:
        self.worker = worker
        self.reason = reason
        self.method = method
        self.version = version
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


class RetryLater(FrameworkError):
    """Raise in ``perform``: the job goes to the schedule set and runs again after ``delay``; its retries are not used up."""

    def __init__(self, delay: timedelta | float, reason: str = "") -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        if not math.isfinite(seconds):
            raise ValueError(f"RetryLater({delay!r}): give a finite delay in seconds, or a timedelta")
        self.delay_s = max(0.0, seconds)
        self.reason = reason
        super().__init__(f"run again in {self.delay_s:g} s{': ' + reason if reason else ''}")


class Discard(FrameworkError):
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

    It goes to the dead set (unless ``dead = False``) with its reason, ``retries_exhausted`` runs, and nothing is
    reported to the error tracker.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


EXPECTED = (RetryError, RetryLater, Discard, BusinessError)
"""What a job raises to say something: neither error handlers nor the error tracker are told."""


class Shutdown(BaseException):
    """The process is stopping; raised into what still runs. Not an ``Exception``, so that user code does not swallow it."""


def is_a(error: BaseException, *kinds: type[E]) -> TypeGuard[E]:
    """Tell whether an error is of one of these kinds by its type alone: ``isinstance`` also asks the error, which may raise."""
    return issubclass(type(error), kinds)


_LONGEST_NAME = 500


def error_class(error: BaseException) -> str:
    """Return any error's class with its module, as Unicode; builtins without."""
    # Read past the metaclass, which may do anything when asked; __module__ itself may be anything too.
    kind = type(error)
    name, module = (vars(type)[part].__get__(kind) for part in ("__qualname__", "__module__"))
    package = _plain(module) if isinstance(module, str) else "builtins"
    return _plain(name) if package == "builtins" else f"{package}.{_plain(name)}"


def _plain(text: str) -> str:
    """Return the text of a str, or of a subclass that may do anything, as Unicode of some length."""
    return str.encode(str.__getitem__(text, slice(_LONGEST_NAME)), "utf-8", "replace").decode()


def error_message(error: BaseException, limit: int) -> str:
    """Return at most ``limit`` characters of any error's message, as Unicode, whatever its ``__str__`` does."""
    try:
        # Sliced as a plain str: what __str__ returns may be of a subclass that does anything when sliced.
        text = str.__getitem__(str(error), slice(limit))
    except BaseException as failure:  # noqa: BLE001 - a job's exception may do anything, and telling of it must not fail
        text = f"<its message cannot be read: __str__ raised {type(failure).__name__}>"
    return text.encode("utf-8", "replace").decode("utf-8")
