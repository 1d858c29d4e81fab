"""Declare the attributes that belong to no feature: owner, queue, names, retries, run and arguments of a job."""

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar, Literal, get_args

from framework.declare import validators
from framework.declare.attribute import Constraint, attribute, attribute_group
from framework.declare.options import context_facts
from framework.declare.spread import Spread, shard_or_spread
from framework.types import Ack, Json, Payload, ResourceBoundary, StrictArguments, Urgency

_CONSTRAINTS = (
    Constraint(
        attribute="urgency",
        value="high",
        other_attribute="has_external_dependencies",
        forbidden_values=(True,),
        reason="a job that waits for other services cannot keep the target of 10 s",
        remedy="Take urgency 'low', or split the job.",
    ),
    Constraint(
        attribute="urgency",
        value="high",
        other_attribute="resource_boundary",
        forbidden_values=("memory",),
        reason="processes for memory-bound jobs are few and start slowly",
        remedy="Take urgency 'low', or split the job.",
    ),
)


@attribute_group(constraints=_CONSTRAINTS)
class CoreAttributes:
    """The attributes of every job."""

    feature_category: ClassVar[str | None] = attribute(
        None,
        validator=validators.optional(validators.identifier),
        group="ownership",
        effect="Routing rules match it; log lines and error reports carry it. Where `config/feature_categories.yml` has categories, "
        "a class without one, or with one that is not in the file, ends the boot. For `not_owned` the logs carry the caller's "
        "category.",
        trap="Declare it once, in the abstract base class of the team.",
    )
    """The feature team that owns the job. ``not_owned`` is for shared infrastructure code. ``None`` is ``not_owned`` in an
    application without categories."""
    urgency: ClassVar[Urgency] = attribute(
        "low",
        validator=validators.one_of(*get_args(Urgency)),
        group="ownership",
        effect="Routing rules match it. Log lines carry the two targets. It sets the `weight` of a class that "
        "declares none.",
        trap="The attribute alone makes no job faster: add a routing rule, and processes for its queue. `high` means "
        "a median run time below 1 s.",
    )
    """The targets for start and run time: ``high`` 10 s and 10 s, ``low`` 60 s and 300 s, ``throttled`` no target and 300 s."""
    resource_boundary: ClassVar[ResourceBoundary] = attribute(
        "unknown",
        validator=validators.one_of(*get_args(ResourceBoundary)),
        group="ownership",
        effect="Routing rules match it, so that such jobs get processes of a suitable size.",
        trap="A job that needs much of both is `memory`. Compare `cpu_s` and `duration_s` in its log lines before "
        "you decide.",
    )
    """The resource that the job uses most: ``cpu`` if more than a third of its run time is processor time, ``memory``, or
    ``unknown``."""
    has_external_dependencies: ClassVar[bool] = attribute(
        False,
        validator=validators.boolean,
        group="ownership",
        effect="Routing rules match it, so that a slow external service blocks no other jobs.",
        trap="Your own database, Redis and object storage are no external dependencies.",
    )
    """The job calls services outside of your own platform: another company's API, a mail server, a webhook."""
    tags: ClassVar[tuple[str, ...]] = attribute(
        (),
        validator=validators.tags,
        group="ownership",
        effect="Routing rules match the labels. The payload carries them in Sidekiq's field. Log lines show them.",
        trap="A child's tags replace its parent's. Tags given with `set()` are only in the payload; rules match "
        "those of the class.",
    )
    """Labels for routing rules, log lines and dashboards."""
    worker_context: ClassVar[Mapping[str, Json] | None] = attribute(
        None,
        validator=validators.optional(context_facts),
        group="ownership",
        effect="A push writes the facts to the `meta.*` fields of the job, instead of those of the pushing code. The "
        "log lines of the job and the jobs that it pushes have them.",
        trap="A child's facts replace its parent's. `set(context=...)` overrides single facts. Jobs that another "
        "program pushes do not have them.",
    )
    """Facts of all jobs of the class, such as ``{"tenant": "system"}`` (GitLab's ``worker_context``)."""
    queue_namespace: ClassVar[str | None] = attribute(
        None,
        validator=validators.optional(validators.identifier),
        group="queues",
        effect="A process with `-q ns` serves `ns` and every generated queue `ns:*`. Routing rules match the "
        "namespace.",
        trap="A routing rule that names a queue overrides the generated name. The namespace then has no effect on "
        "the queue.",
    )
    """The prefix of the generated queue name: ``ns:name``."""
    queue: ClassVar[str | None] = attribute(
        None,
        validator=validators.optional(validators.queue),
        group="queues",
        effect="It overrides the queue of the matching rule. The rule still sets the shard.",
        trap="Rules can no longer move the class to another queue. Prefer a tag and a rule.",
    )
    """The queue of the class, whatever the routing rules say."""
    shard: ClassVar[str | Spread | None] = attribute(
        None,
        validator=validators.optional(shard_or_spread),
        group="queues",
        effect='Pushes write the jobs to this Redis. A name that is not in `config/redis.yml` ends the boot. `spread("a", "b")` '
        "writes each job to one of several.",
        trap="Only processes that are started with `--shard` and this name run the jobs.",
    )
    """The shard of the class, whatever the routing rules say. ``framework.spread`` names several."""
    weight: ClassVar[int | None] = attribute(
        None,
        validator=validators.optional(validators.integer(1)),
        group="queues",
        effect="It counts in a process without `-q`, which serves the queues of its classes or those of "
        "`config/queues.yml`, where the weight is copied.",
        trap="Run `application-worker generate-queues` after a change. A process with `-q` takes the weights from `-q`.",
    )
    """How often a process checks this queue, relative to its other queues: 1 low, 2 medium, 3 high, 5 very high (GitLab's values).
    ``None``: the setting ``namespace_weights``, else 3 for high urgency and 1 for the others."""
    version: ClassVar[int] = attribute(
        0,
        validator=validators.integer(0),
        group="versions",
        effect="The payload carries the version as long as the job exists (0 is left out), and a run reads it as "
        "`self.job_version`. Jobs of an older version N run `perform_vN` if the class has that method; all others "
        "run `perform`.",
        trap="Old jobs arrive for weeks. Raise the version when the arguments change their meaning, and keep the "
        "code that reads the old ones. Deploy processes before producers.",
    )
    """The version of the arguments that this code pushes."""
    wire_name: ClassVar[str | None] = attribute(
        None,
        validator=validators.optional(validators.wire_name),
        group="versions",
        inherited=False,
        effect="Payloads, logs, rules and generated queue names use it. Ruby processes find their class by it.",
        trap="It is not inherited. After a change, list the old name in `aliases`; processes of the previous release "
        "do not know the new one.",
    )
    """The name of the class in payloads. Without it, the name is made from module and class."""
    aliases: ClassVar[tuple[str, ...]] = attribute(
        (),
        validator=validators.wire_names,
        group="versions",
        inherited=False,
        effect="A process runs a job under one of these names with this class. A due job goes to the queue of this "
        "class. The queues of these names stay in `config/queues.yml`.",
        trap="They are not inherited. Keep them until no queue, schedule set or retry set holds the old name. List a "
        "removed class in the setting `retired_workers` instead.",
    )
    """Former wire names whose jobs this class runs."""
    retry: ClassVar[bool | int] = attribute(
        True,
        validator=validators.boolean_or_count(0),
        group="retries",
        effect="A number is the number of retries; after the last one the job goes to the dead set. `0`: the first "
        "failure goes to the dead set. `False`: a failed job is deleted; only the log and the error handlers get the "
        "failure.",
        trap="`0` and `False` differ: after `False` an operator cannot retry the job.",
    )
    """How often a failed job is retried. ``True`` is the setting ``max_retries``: 25 retries, over about three weeks."""
    retry_for: ClassVar[timedelta | float | None] = attribute(
        None,
        validator=validators.optional(validators.duration),
        group="retries",
        effect="The number in `retry` has no effect; only `retry = False` still means no retry (as in Sidekiq 8.1).",
        trap="The delays grow as usual: an hour has room for about seven retries, and one more may come after it.",
    )
    """Retry until this time after the first failure, instead of a number of retries."""
    retry_delay: ClassVar[timedelta | float | tuple[timedelta | float, ...] | None] = attribute(
        None,
        validator=validators.optional(validators.delays),
        group="retries",
        effect="The job is due after exactly this time. A delay that the hook `retry_in` returns comes first. The class decides at "
        "the failure: the payload has no such field.",
        trap="Jobs that failed together come back together, and a short delay uses up `retry` in seconds: raise `retry`, or write "
        "delays that grow.",
    )
    """The delay of each retry, without jitter: one for all, or a tuple with one for each failure, whose last one repeats. ``None`` is
    Sidekiq's formula, which grows from 15 s."""
    retry_queue: ClassVar[str | None] = attribute(
        None,
        validator=validators.optional(validators.queue),
        group="retries",
        effect="The payload gets it at a failure, and it overrides the routing rules.",
        trap="A process must serve this queue. `application-worker generate-queues` adds it to `config/queues.yml`.",
    )
    """The queue for retries of the class, which keeps them apart from first runs."""
    dead: ClassVar[bool] = attribute(
        True,
        validator=validators.boolean,
        group="retries",
        effect="The dead set gets no entry. `retries_exhausted` and the death handlers still run.",
        trap="It does not limit the retries: use `retry`.",
    )
    """``False``: a job whose retries are used up is deleted instead of moved to the dead set."""
    backtrace: ClassVar[bool | int | None] = attribute(
        None,
        validator=validators.optional(validators.boolean_or_count(1)),
        group="retries",
        effect="The calls of the application come first, with their lines of source; calls of libraries are counted; causes are "
        "below. `application-worker jobs show` and Sidekiq's Web UI show it. It has at most 8,192 bytes after compression.",
        trap="Thousands of failures with tracebacks fill Redis. The log line has the traceback in any case.",
    )
    """Keep the traceback in the payload of a failed job: ``None`` only in the dead set, ``True`` at each failure, a number only
    that many lines, ``False`` never."""
    max_retries_after_interruption: ClassVar[int | None] = attribute(
        None,
        validator=validators.optional(validators.integer(-1)),
        group="retries",
        effect="The job goes to the interrupted set, and `interruptions_exhausted` runs. Stops and deaths count "
        "separately: `interrupted_count` and `aw_death_count`.",
        trap="Failures do not count, and a retry resets nothing. `0` ends a job at its first stop or death, as `1` "
        "does. A job that is longer than the deadline `-t` ends after three deploys.",
    )
    """After so many forced stops (the job still ran at the deadline of its process), or so many deaths of its process, a job ends.
    ``-1`` is no limit; ``None`` is the setting of the same name (3)."""
    ack: ClassVar[Ack] = attribute(
        "batch",
        validator=validators.one_of(*get_args(Ack)),
        group="running",
        effect="After a `kill -9`, a `batch` job that had ended may run again. A `sync` job runs again only if it "
        "was still running.",
        trap="`sync` costs a round trip per job and does not give exactly-once: a job that is killed while it runs, "
        "runs again.",
    )
    """When an ended job leaves Redis: ``batch`` together with others, ``sync`` before its slot takes another job."""
    timeout: ClassVar[timedelta | float | None] = attribute(
        None,
        validator=validators.optional(validators.duration),
        group="running",
        effect="`JobTimeoutError` is raised in the thread of the job, only inside of `perform`; the task of an async "
        "job is cancelled. The job has failed, and is retried as after any error.",
        trap="No timeout can interrupt a thread that waits in C code: it gets the error when that call returns, so give "
        "network calls their own timeouts. The error may come between any two instructions of the job.",
    )
    """The maximum time of one run."""
    expires_in: ClassVar[timedelta | float | None] = attribute(
        None,
        validator=validators.optional(validators.duration),
        group="running",
        effect="A job that is older when it would start ends without running: log status and state `expired`, "
        "counter `sidekiq_jobs_expired_total`.",
        trap="Retries, deferrals and `RetryLater` do not extend it. It is not about the run time: that is `timeout`.",
    )
    """The most time between the push of a job, or the due time of a scheduled one, and its start."""
    strict_arguments: ClassVar[StrictArguments | None] = attribute(
        None,
        validator=validators.optional(validators.one_of(*get_args(StrictArguments))),
        group="payload",
        effect="`raise` refuses them at the push, and again before the run. `warn` and `off` accept them in their "
        "JSON form, `warn` with a log line.",
        trap="`perform` receives the JSON form: a str for a datetime, a list for a tuple. Values without a JSON "
        "form, and a wrong number of arguments, are refused in every mode.",
    )
    """The treatment of arguments that do not fit the annotations of ``perform``, or that JSON changes: ``raise``, ``warn`` or
    ``off``. ``None`` is the setting ``strict_arguments``."""
    loggable_arguments: ClassVar[tuple[str, ...]] = attribute(
        (),
        validator=validators.identifiers,
        group="payload",
        effect="Log lines show numbers always, and all other arguments as `[FILTERED]` unless named here.",
        trap="These are names, not positions, and they are inherited: a child whose `perform` has other parameters "
        "must declare its own.",
    )
    """The parameters of ``perform`` whose values may appear in logs."""
    big_payload: ClassVar[bool] = attribute(
        False,
        validator=validators.boolean,
        group="payload",
        effect="The push raises no `ExceedLimitError`. The arguments are still compressed.",
        trap="Every move of such a job copies all of it. Store the data elsewhere and pass its id.",
    )
    """The class may push arguments above ``size_limit.limit`` (5,000,000 bytes after compression)."""
    compress: ClassVar[bool] = attribute(
        True,
        validator=validators.boolean,
        group="payload",
        effect="`False` leaves them as they are, for a Ruby process without GitLab's middleware. For whole queues "
        "use the setting `size_limit.uncompressed_queues`. Every process of this framework reads both forms.",
        trap="Uncompressed arguments count with their full size: above `size_limit.limit` the push raises "
        "`ExceedLimitError`. Waiting jobs keep their form.",
    )
    """Whether arguments of ``size_limit.compression_threshold`` (100,000) or more bytes are compressed."""

    @classmethod
    def retry_in(
        cls, count: int, error: Exception, job: Payload
    ) -> timedelta | float | Literal["discard", "kill"] | None:
        """Hook: return the delay of the next run, after failure number ``count`` (from 0). None keeps Sidekiq's formula.

        A number is seconds. ``"kill"`` moves the job to the dead set, ``"discard"`` deletes it (Sidekiq 7).
        """
        del count, error, job
        return None

    @classmethod
    def retries_exhausted(cls, job: Payload, error: Exception) -> Literal["discard"] | None:
        """Hook: handle a job after its last retry, before it moves to the dead set. ``"discard"`` deletes it instead."""
        del job, error
        return None

    @classmethod
    def on_success(cls, job: Payload) -> None:
        """Hook: handle a job that has succeeded and has left Redis. An error is logged, and changes nothing."""

    @classmethod
    def interruptions_exhausted(cls, job: Payload) -> None:
        """Hook: handle a job that was interrupted too often and moves to the interrupted set (GitLab)."""
