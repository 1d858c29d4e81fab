"""The attributes of the policies that hold, defer, limit or drop jobs (see ``attributes.py``)."""

from collections.abc import Mapping
from typing import get_args

from framework.declare import validators
from framework.declare.attribute import Attribute
from framework.declare.job_option import PRIORITIES
from framework.declare.limiter import Limiter
from framework.declare.policy_options import ConcurrencyScope, Deduplicate, DeferOnHealth
from framework.types import DataConsistency

FLOW_CONTROL_ATTRIBUTES: Mapping[str, Attribute] = {
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
        "duplicate. With `debounce` it replaces the waiting job, and with `accumulate` it adds to its arguments.",
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
    "fair_by": Attribute(
        validator=validators.optional(validators.identifier_or_callable),
        group="flow_control",
        meaning='The key of a job, for example its tenant: the name of a fact in its context (`"user"` is `meta.user`), or a '
        "function of its arguments.",
        effect="The jobs of each key wait in a sub-queue `NAME~KEY`. The sub-queues have turns, whatever the number of their jobs.",
        trap="Every process that serves the queue must have the class, and no Ruby process may serve it: it sees no sub-queues.",
    ),
    "priority": Attribute(
        validator=validators.optional(PRIORITIES.validator),
        group="flow_control",
        meaning=PRIORITIES.doc,
        effect="Jobs of a higher level start before those of lower ones in the same queue: `critical`, `high`, `normal`, `low`. "
        "Each tenth start is of another level in turn, so that no level waits for ever.",
        trap="Every process that serves the queue must have the class, and no Ruby process may serve it: it sees no sub-queues. "
        "`set(priority=...)` needs the attribute.",
    ),
    "limiter": Attribute(
        validator=validators.instance_of(Limiter, "limiter.bucket(...) of framework.limiter"),
        group="flow_control",
        meaning="The rate limiter of the class: each run takes one call, or one lock, of it. `.by(...)` gives each key of the "
        "jobs a limit of its own.",
        effect="A run that the limiter does not admit ends at once, without `perform`, and is scheduled again: no failure, no retry. "
        "The policy of the limiter may drop the job, or let it fail.",
        trap="Each attempt passes through a queue. To limit the jobs that run at a time, use `concurrency_limit`.",
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
    "spread": Attribute(
        validator=validators.optional(validators.spread),
        group="flow_control",
        meaning="The seconds over which the jobs of the ticks of `cron` are spread, so that not all entries push theirs in the "
        "same second.",
        effect="Each tick pushes its job by an offset later, which is always the same for an entry of an installation: from "
        "0 to `spread` - 1 seconds. The tick in the payload stays exact.",
        trap="`None` takes the setting `cron.spread`. Without `cron` it has no effect: an entry of `config/schedule.yml` has "
        "a `spread` of its own.",
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
    "lease_timeout": Attribute(
        validator=validators.optional(validators.duration),
        group="flow_control",
        meaning="The most time that one run of a `ReenqueuerWorker` may take: its lease ends by itself after it.",
        effect="One job of the class runs at a time, over all processes. A job that finds the lease held ends at once.",
        trap="It belongs to a `ReenqueuerWorker`, which needs it: from 0.1 s to 30 days. A longer run renews `self.lease`.",
    ),
    "minimum_duration": Attribute(
        validator=validators.duration,
        group="flow_control",
        meaning="For how long a run of a `ReenqueuerWorker` lasts at least.",
        effect="A run that has ended sooner waits with its lease before the next job is pushed.",
        trap="It belongs to a `ReenqueuerWorker`. The wait occupies a slot of its process.",
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
        trap="To pause a whole queue, use `application-worker jobs pause-queue`; no attribute is needed.",
    ),
    "data_consistency": Attribute(
        validator=validators.one_of(*get_args(DataConsistency)),
        group="flow_control",
        meaning="The database server that the job reads from: `always` the primary, `sticky` an up-to-date replica "
        "or else the primary, `delayed` the same, after one retry if no replica is up to date.",
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
