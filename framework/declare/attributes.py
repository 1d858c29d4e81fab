"""The attributes of a worker class: for each its group, its validator and its documentation (design section 4)."""

from collections.abc import Mapping
from typing import get_args

from framework.declare import validators
from framework.declare.attribute import Attribute
from framework.declare.policy_options import ConcurrencyScope, Deduplicate, DeferOnHealth
from framework.types import Ack, DataConsistency, ResourceBoundary, StrictArguments, Urgency

ATTRIBUTES: Mapping[str, Attribute] = {
    "feature_category": Attribute(
        validator=validators.optional(validators.identifier),
        group="ownership",
        meaning="The feature team that owns the job. `not_owned` is for shared infrastructure code.",
        effect="Routing rules match it; log lines and error reports carry it. A name that is not in "
        "`config/feature_categories.yml` ends the boot. For `not_owned` the logs carry the caller's category.",
        trap="A class that runs must have one. Declare it once, in the abstract base class of the team.",
        required=True,
    ),
    "urgency": Attribute(
        validator=validators.one_of(*get_args(Urgency)),
        group="ownership",
        meaning="The targets for start and run time: `high` 10 s and 10 s, `low` 60 s and 300 s, `throttled` no "
        "target and 300 s.",
        effect="Routing rules match it. Log lines carry the two targets. It sets the `weight` of a class that "
        "declares none.",
        trap="The attribute alone makes no job faster: add a routing rule, and processes for its queue. `high` means "
        "a median run time below 1 s.",
    ),
    "resource_boundary": Attribute(
        validator=validators.one_of(*get_args(ResourceBoundary)),
        group="ownership",
        meaning="The resource that the job uses most: `cpu` if more than a third of its run time is processor time, "
        "`memory`, or `unknown`.",
        effect="Routing rules match it, so that such jobs get processes of a suitable size.",
        trap="A job that needs much of both is `memory`. Compare `cpu_s` and `duration_s` in its log lines before "
        "you decide.",
    ),
    "has_external_dependencies": Attribute(
        validator=validators.boolean,
        group="ownership",
        meaning="The job calls services outside of your own platform: another company's API, a mail server, a webhook.",
        effect="Routing rules match it, so that a slow external service blocks no other jobs.",
        trap="Your own database, Redis and object storage are no external dependencies.",
    ),
    "tags": Attribute(
        validator=validators.tags,
        group="ownership",
        meaning="Labels for routing rules, log lines and dashboards.",
        effect="Routing rules match the labels. The payload carries them in Sidekiq's field. Log lines show them.",
        trap="A child's tags replace its parent's. Tags given with `set()` are only in the payload; rules match "
        "those of the class.",
    ),
    "queue_namespace": Attribute(
        validator=validators.optional(validators.identifier),
        group="queues",
        meaning="The prefix of the generated queue name: `ns:name`.",
        effect="A process with `-q ns` serves `ns` and every generated queue `ns:*`. Routing rules match the "
        "namespace.",
        trap="A routing rule that names a queue overrides the generated name. The namespace then has no effect on "
        "the queue.",
    ),
    "queue": Attribute(
        validator=validators.optional(validators.queue),
        group="queues",
        meaning="The queue of the class, whatever the routing rules say.",
        effect="It overrides the queue of the matching rule. The rule still sets the shard.",
        trap="Rules can no longer move the class to another queue. Prefer a tag and a rule.",
    ),
    "shard": Attribute(
        validator=validators.optional(validators.shard),
        group="queues",
        meaning="The shard of the class, whatever the routing rules say.",
        effect="Pushes write the jobs to this Redis. A name that is not in `config/redis.yml` ends the boot.",
        trap="Only processes that are started with `--shard` and this name run the jobs.",
    ),
    "weight": Attribute(
        validator=validators.optional(validators.integer(1)),
        group="queues",
        meaning="How often a process checks this queue, relative to its other queues: 1 low, 2 medium, 3 high, 5 "
        "very high (GitLab's values). `None`: the setting `namespace_weights`, else 3 for high urgency and 1 for the "
        "others.",
        effect="It counts in a process without `-q`, which serves the queues of its classes or those of "
        "`config/queues.yml`, where the weight is copied.",
        trap="Run `application-worker generate-queues` after a change. A process with `-q` takes the weights from `-q`.",
    ),
    "version": Attribute(
        validator=validators.integer(0),
        group="versions",
        meaning="The version of the arguments that this code pushes.",
        effect="The payload carries the version as long as the job exists (0 is left out), and a run reads it as "
        "`self.job_version`. Jobs of an older version N run `perform_vN` if the class has that method; all others "
        "run `perform`.",
        trap="Old jobs arrive for weeks. Raise the version when the arguments change their meaning, and keep the "
        "code that reads the old ones. Deploy processes before producers.",
    ),
    "wire_name": Attribute(
        validator=validators.optional(validators.wire_name),
        group="versions",
        meaning="The name of the class in payloads. Without it, the name is made from module and class.",
        effect="Payloads, logs, rules and generated queue names use it. Ruby processes find their class by it.",
        trap="It is not inherited. After a change, list the old name in `aliases`; processes of the previous release "
        "do not know the new one.",
    ),
    "aliases": Attribute(
        validator=validators.wire_names,
        group="versions",
        meaning="Former wire names whose jobs this class runs.",
        effect="A process runs a job under one of these names with this class. A due job goes to the queue of this "
        "class. The queues of these names stay in `config/queues.yml`.",
        trap="They are not inherited. Keep them until no queue, schedule set or retry set holds the old name. List a "
        "removed class in the setting `retired_workers` instead.",
    ),
    "retry": Attribute(
        validator=validators.boolean_or_count(0),
        group="retries",
        meaning="How often a failed job is retried. `True` is the setting `max_retries`: 25 retries, over about "
        "three weeks.",
        effect="A number is the number of retries; after the last one the job goes to the dead set. `0`: the first "
        "failure goes to the dead set. `False`: a failed job is deleted; only the log and the error handlers get the "
        "failure.",
        trap="`0` and `False` differ: after `False` an operator cannot retry the job.",
    ),
    "retry_for": Attribute(
        validator=validators.optional(validators.duration),
        group="retries",
        meaning="Retry until this time after the first failure, instead of a number of retries.",
        effect="The number in `retry` has no effect; only `retry = False` still means no retry (as in Sidekiq 8.1).",
        trap="The delays grow as usual: an hour has room for about seven retries, and one more may come after it.",
    ),
    "retry_queue": Attribute(
        validator=validators.optional(validators.queue),
        group="retries",
        meaning="The queue for retries of the class, which keeps them apart from first runs.",
        effect="The payload gets it at a failure, and it overrides the routing rules.",
        trap="A process must serve this queue. `application-worker generate-queues` adds it to `config/queues.yml`.",
    ),
    "dead": Attribute(
        validator=validators.boolean,
        group="retries",
        meaning="`False`: a job whose retries are used up is deleted instead of moved to the dead set.",
        effect="The dead set gets no entry. `retries_exhausted` and the death handlers still run.",
        trap="It does not limit the retries: use `retry`.",
    ),
    "backtrace": Attribute(
        validator=validators.boolean_or_count(1),
        group="retries",
        meaning="Keep the traceback in the payload of a failed job: `True` all lines, a number only that many "
        "innermost lines.",
        effect="Sidekiq's Web UI shows it. It has at most 8,192 bytes after compression.",
        trap="Thousands of failures with tracebacks fill Redis. The log line has the traceback in any case.",
    ),
    "max_retries_after_interruption": Attribute(
        validator=validators.optional(validators.integer(-1)),
        group="retries",
        meaning="The number of the forced stop (the job still ran at the deadline of its process), or of the death "
        "of its process, that ends a job. `-1` is no limit; `None` is the setting of the same name (3).",
        effect="The job goes to the interrupted set, and `interruptions_exhausted` runs. Stops and deaths count "
        "separately: `interrupted_count` and `aw_death_count`.",
        trap="Failures do not count, and a retry resets nothing. `0` ends a job at its first stop or death, as `1` "
        "does. A job that is longer than the deadline `-t` ends after three deployments.",
    ),
    "ack": Attribute(
        validator=validators.one_of(*get_args(Ack)),
        group="running",
        meaning="When an ended job leaves Redis: `batch` together with others, `sync` before its slot takes another "
        "job.",
        effect="After a `kill -9`, a `batch` job that had ended may run again. A `sync` job runs again only if it "
        "was still running.",
        trap="`sync` costs a round trip per job and does not give exactly-once: a job that is killed while it runs, "
        "runs again.",
    ),
    "timeout": Attribute(
        validator=validators.optional(validators.duration),
        group="running",
        meaning="The maximum time of one run.",
        effect="`JobTimeoutError` is raised in the thread of the job, only inside of `perform`; the task of an async "
        "job is cancelled. The job has failed, and is retried as after any error.",
        trap="No timeout can interrupt a thread that waits in C code: it gets the error when that call returns, so give "
        "network calls their own timeouts. The error may come between any two instructions of the job.",
    ),
    "expires_in": Attribute(
        validator=validators.optional(validators.duration),
        group="running",
        meaning="The most time between the push of a job, or the due time of a scheduled one, and its start.",
        effect="A job that is older when it would start ends without running: log status and state `expired`, "
        "counter `sidekiq_jobs_expired_total`.",
        trap="Retries, deferrals and `RetryLater` do not extend it. It is not about the run time: that is `timeout`.",
    ),
    "strict_arguments": Attribute(
        validator=validators.optional(validators.one_of(*get_args(StrictArguments))),
        group="payload",
        meaning="The treatment of arguments that do not fit the annotations of `perform`, or that JSON changes: "
        "`raise`, `warn` or `off`. `None` is the setting `strict_arguments`.",
        effect="`raise` refuses them at the push, and again before the run. `warn` and `off` accept them in their "
        "JSON form, `warn` with a log line.",
        trap="`perform` receives the JSON form: a str for a datetime, a list for a tuple. Values without a JSON "
        "form, and a wrong number of arguments, are refused in every mode.",
    ),
    "loggable_arguments": Attribute(
        validator=validators.identifiers,
        group="payload",
        meaning="The parameters of `perform` whose values may appear in logs.",
        effect="Log lines show numbers always, and all other arguments as `[FILTERED]` unless named here.",
        trap="These are names, not positions, and they are inherited: a child whose `perform` has other parameters "
        "must declare its own.",
    ),
    "big_payload": Attribute(
        validator=validators.boolean,
        group="payload",
        meaning="The class may push arguments above `size_limit.limit` (5,000,000 bytes after compression).",
        effect="The push raises no `ExceedLimitError`. The arguments are still compressed.",
        trap="Every move of such a job copies all of it. Store the data elsewhere and pass its id.",
    ),
    "compress": Attribute(
        validator=validators.boolean,
        group="payload",
        meaning="Whether arguments of `size_limit.compression_threshold` (100,000) or more bytes are compressed.",
        effect="`False` leaves them as they are, for a Ruby process without GitLab's middleware. For whole queues "
        "use the setting `size_limit.uncompressed_queues`. Every process of this framework reads both forms.",
        trap="Uncompressed arguments count with their full size: above `size_limit.limit` the push raises "
        "`ExceedLimitError`. Waiting jobs keep their form.",
    ),
    "encrypt": Attribute(
        validator=validators.boolean,
        group="payload",
        meaning="The arguments are stored encrypted.",
        effect="The push encrypts all arguments with AES-GCM, under the active key of the setting `encryption`; the run "
        "decrypts them. Log lines, commands and Sidekiq's pages show `[encrypted data]`.",
        trap="The message of an error, and the context, are stored as they are: keep secrets out of them. Processes need a "
        "new key before producers use it.",
    ),
    "status_expiration": Attribute(
        validator=validators.optional(validators.duration),
        group="status",
        meaning="How long the state of a job is kept after its last change. `None`: the state is not tracked.",
        effect="`framework.status` reads the state: queued, running, retrying, completed, failed, discarded.",
        trap="Make it longer than the job waits in its queue, and longer than it runs: afterwards the state is "
        "`unknown`.",
    ),
    "track": Attribute(
        validator=validators.boolean,
        group="status",
        meaning="Record progress and result of each job.",
        effect="None yet: the value is validated, and a `NoEffectWarning` says that nothing is recorded.",
        trap="It will write to Redis for each job: do not use it for classes with thousands of jobs per second.",
        no_effect="nothing is recorded",
    ),
    "idempotent": Attribute(
        validator=validators.boolean,
        group="flow_control",
        meaning="Two runs of the job have the same effect as one. Without `deduplicate` it means "
        "`Deduplicate('until_executing')` for 10 minutes.",
        effect="A push returns `None` and writes no job while an equal job (same class and arguments, in any queue) "
        "waits.",
        trap="Every job may run twice, with or without it. The attribute additionally permits the framework to drop "
        "duplicates.",
    ),
    "deduplicate": Attribute(
        validator=validators.instance_of(Deduplicate, "Deduplicate(...)"),
        group="flow_control",
        meaning="How equal jobs are deduplicated. `None` turns off the default of `idempotent`.",
        effect="The push takes the lock of its class and arguments. If another job has it, the push is dropped as a "
        "duplicate.",
        trap="Without `idempotent = True` no duplicate is dropped: it runs, and `duplicate-of` in its log lines "
        "names the job that has the lock.",
    ),
    "concurrency_limit": Attribute(
        validator=validators.limit,
        group="flow_control",
        meaning="The maximum number of jobs of the class that run at a time, over all processes. `0` and `None` are "
        "no limit; a negative number pauses the class.",
        effect="Jobs above the limit leave their queue and wait in order. A job that ends gives its slot to the next "
        "one at once. Each process calls a callable once a second. Log lines have the waiting time: "
        "`concurrency_limit_buffering_duration_s`.",
        trap="`0` does not stop the class. A callable delays other work of its process while it runs: it must be "
        "fast and must not raise.",
    ),
    "max_concurrency_limit_percentage": Attribute(
        validator=validators.optional(validators.fraction),
        group="flow_control",
        meaning="The concurrency limit as a share of all slots of the shard.",
        effect="It counts when `concurrency_limit` gives no limit. It is rounded up, and computed again when "
        "processes start and stop.",
        trap="The value is a share, not a percentage: `0.25`, not `25`.",
    ),
    "concurrency_scope": Attribute(
        validator=validators.instance_of(ConcurrencyScope, "ConcurrencyScope(...)"),
        group="flow_control",
        meaning="The scope of a job, for example its tenant, and the number of slots of the class's limit that one "
        "scope may use.",
        effect="No scope has more slots than that. Waiting scopes take turns, whatever the number of their jobs.",
        trap="It needs a limit of the class. A job without a scope is not counted.",
    ),
    "max_running_jobs": Attribute(
        validator=validators.limit,
        group="flow_control",
        meaning="The maximum number of jobs of a `LimitedCapacityWorker` that run at a time, over all processes. `0` "
        "stops the class.",
        effect="`perform_with_capacity` pushes the jobs that are missing. A job without a free slot ends. A job that "
        "succeeds pushes the next one while `remaining_work_count` is above 0.",
        trap="It limits no other class: use `concurrency_limit` there. A callable runs often: it must be fast.",
    ),
    "cron": Attribute(
        validator=validators.optional(validators.cron),
        group="flow_control",
        meaning="When a schedule pushes a job of a `CronWorker`: minute, hour, day of month, month, day of week, with an "
        "optional field for seconds in front, or `@hourly`, `@daily` and the like.",
        effect="Each tick pushes one job without arguments, whatever the number of processes. An entry of "
        "`config/schedule.yml` that names the class replaces the attribute.",
        trap="It belongs to a `CronWorker`, whose `perform` can be called without arguments. A class whose first tick "
        "has passed begins with the next one.",
    ),
    "time_zone": Attribute(
        validator=validators.time_zone,
        group="flow_control",
        meaning="The time zone of `cron`.",
        effect="A time that a change of the clock skips runs at the end of the gap, and one that it repeats runs once. "
        "With `*` or `*/N` as minute or hour the ticks follow the clock.",
        trap="It is a name such as `Europe/Berlin`, no offset. Without `cron` it has no effect.",
    ),
    "flush_interval": Attribute(
        validator=validators.duration,
        group="flow_control",
        meaning="How often an `IterableWorker` saves its cursor, while its items are shorter.",
        effect="At most the items of this time run again when the process is killed. Saving is one command to Redis.",
        trap="It belongs to an `IterableWorker`. A cancellation from Ruby is seen when the cursor is saved.",
    ),
    "max_iteration_runtime": Attribute(
        validator=validators.optional(validators.duration),
        group="flow_control",
        meaning="For how long an `IterableWorker` iterates before its job goes back behind the other jobs of its queue.",
        effect="The job continues at its cursor when its turn comes. That uses up no retry.",
        trap="It belongs to an `IterableWorker`. `None` takes the setting of the same name.",
    ),
    "defer_on_health": Attribute(
        validator=validators.instance_of(DeferOnHealth, "DeferOnHealth(...)"),
        group="flow_control",
        meaning="Defer jobs while a database is unhealthy.",
        effect="While an indicator says stop, the job goes back to the schedule set with the same jid, for a longer "
        "time at each deferral. An indicator that cannot answer defers nothing.",
        trap="Use it for background work only: a user may wait for a job of high urgency. It has no effect until "
        "`databases` or `health.indicators` is set, or an indicator of your own is registered.",
    ),
    "pause_control": Attribute(
        validator=validators.optional(validators.identifier),
        group="flow_control",
        meaning="The name of the strategy that pauses and resumes the class.",
        effect="While the strategy, or `application-worker jobs pause`, pauses the class, its jobs are held "
        "unchanged. They return to their queues in order. `manual`, `none` and `deprecated` never pause by "
        "themselves; register others with `framework.pause`.",
        trap="To pause a whole queue, use Sidekiq's `paused` set; no attribute is needed.",
    ),
    "data_consistency": Attribute(
        validator=validators.one_of(*get_args(DataConsistency)),
        group="flow_control",
        meaning="The database server that the job reads from: `always` the primary, `sticky` an up-to-date replica "
        "or else the primary, `delayed` the same after a wait for a replica.",
        effect="For databases with replicas in the setting `databases`: the push records the position of the "
        "primary, and the job reads through `framework.databases` from a replica that has reached it. After its "
        "first write the job reads from the primary.",
        trap="`delayed` needs retries, because a job without an up-to-date replica is retried once. It has no effect "
        "on queries outside of `framework.databases`.",
    ),
    "data_consistency_overrides": Attribute(
        validator=validators.optional(
            validators.mapping_of(
                validators.identifier, validators.one_of(*get_args(DataConsistency)), "{'ci': 'sticky'}"
            )
        ),
        group="flow_control",
        meaning="`data_consistency` of single databases, for a class that uses several.",
        effect="It overrides `data_consistency` for the databases that it names, by their names in the setting "
        "`databases`.",
        trap="A job has one decision for all its databases: the strategy that waits longest decides whether it is "
        "retried for a replica.",
    ),
}
"""All attributes of a worker class, by group. Creating a class with any other attribute fails."""

IDENTITY_ATTRIBUTES = frozenset({"wire_name", "aliases"})
"""Attributes that are not inherited: otherwise each child would claim its parent's name."""
