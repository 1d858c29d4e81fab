"""What a worker may say about itself: for each attribute its rule, and what people need to know of it (design section 4)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from framework.declare import validators
from framework.declare.policy_options import ConcurrencyScope, Deduplicate, DeferOnHealth
from framework.declare.validators import Validator
from framework.types import Ack, DataConsistency, ResourceBoundary, StrictArguments, Urgency

Group: TypeAlias = Literal["ownership", "queues", "versions", "retries", "running", "payload", "status", "flow_control"]

GROUPS: Mapping[str, str] = {
    "ownership": "whose the job is, and what it asks of the fleet",
    "queues": "where it waits, and how often it is taken from there",
    "versions": "what it is called, and which arguments it understands",
    "retries": "what happens when it fails",
    "running": "how it runs, and when it is out of Redis",
    "payload": "what it takes along, and what of that is shown",
    "status": "what can be asked about it later",
    "flow_control": "when it has to wait, or need not run at all",
}
"""The groups and what their attributes say; each has a page of its name under docs/reference/attributes."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: the rule for its values, and a sentence or two each of documentation.

    ``meaning`` is what it says, ``effect`` what comes of it today, ``trap`` what people get wrong, with the way out. The
    allowed values are the rule's own words, the default is the attribute of ``ApplicationWorker``.
    """

    validator: Validator
    group: Group
    meaning: str
    effect: str
    trap: str
    required: bool = False
    """The default will not do: a class that runs has to say it."""
    no_effect: str = ""
    """Why a value other than the default has no effect in this release; empty for an attribute that acts."""

    @property
    def allowed(self) -> str:
        """The rule's own words; of a required one without the None that only an abstract base may leave it at."""
        return self.validator.allowed.removesuffix(", or None") if self.required else self.validator.allowed


ATTRIBUTES: Mapping[str, Attribute] = {
    "feature_category": Attribute(
        validator=validators.optional(validators.identifier),
        group="ownership",
        meaning="The feature team that owns the job; `not_owned` is for shared plumbing.",
        effect="Routing rules match it, log lines and error reports carry it. A name that `config/feature_categories.yml` does "
        "not have refuses to boot. For `not_owned` the logs carry the caller's category.",
        trap="A class that runs without one is refused: give it once, in the abstract base of the team.",
        required=True,
    ),
    "urgency": Attribute(
        validator=validators.one_of(*get_args(Urgency)),
        group="ownership",
        meaning="How soon a job must start and end: `high` 10 s and 10 s, `low` 60 s and 300 s, `throttled` any time and 300 s.",
        effect="Routing rules match it; the log lines carry the two targets; it decides the `weight` of a class that declares none.",
        trap="It makes nothing faster by itself: a rule and a fleet of its own do. `high` means a median below 1 s.",
    ),
    "resource_boundary": Attribute(
        validator=validators.one_of(*get_args(ResourceBoundary)),
        group="ownership",
        meaning="What the job uses up most: `cpu` when over a third of its time is spent computing, `memory`, or `unknown`.",
        effect="Routing rules match it, so that such jobs get processes of their own size.",
        trap="A job that is heavy on both is `memory`. Compare `cpu_s` and `duration_s` in its log lines before you decide.",
    ),
    "has_external_dependencies": Attribute(
        validator=validators.boolean,
        group="ownership",
        meaning="The job calls services outside of your own fleet: another company's API, a mail server, a webhook.",
        effect="Routing rules match it, so that a slow third party blocks no other jobs.",
        trap="Your own database, Redis and object storage are no external dependencies.",
    ),
    "tags": Attribute(
        validator=validators.tags,
        group="ownership",
        meaning="Labels for routing rules, log lines and dashboards.",
        effect="Routing rules match the labels, the payload carries them (Sidekiq's field), log lines show them.",
        trap="A child's tags replace its parent's. Tags given with `set()` are on the payload only; rules see the class's.",
    ),
    "queue_namespace": Attribute(
        validator=validators.optional(validators.identifier),
        group="queues",
        meaning="The prefix of the generated queue name: `ns:name`.",
        effect="A process given `ns` serves `ns` and every `ns:*` queue of the registry; routing rules match it.",
        trap="A routing rule with a queue of its own stands over the generated name: the namespace then changes nothing.",
    ),
    "queue": Attribute(
        validator=validators.optional(validators.queue),
        group="queues",
        meaning="This queue, whatever the routing rules say.",
        effect="Stands over the queue of the rule that matches; the rule's shard stays.",
        trap="Rules can no longer move the class. Prefer a tag and a rule.",
    ),
    "shard": Attribute(
        validator=validators.optional(validators.shard),
        group="queues",
        meaning="This shard, whatever the routing rules say (a pin).",
        effect="Jobs are written to this Redis; a name that `config/redis.yml` does not have refuses to boot.",
        trap="Only processes started with `--shard` of that name run them.",
    ),
    "weight": Attribute(
        validator=validators.optional(validators.integer(1)),
        group="queues",
        meaning="How often its queue is taken from, beside the other queues of a process: 1 low, 2 medium, 3 high, 5 very high "
        "(GitLab). `None` is worked out: the setting `namespace_weights`, else 3 for high urgency and 1 for the others.",
        effect="Counts in a process without `-q`, which serves the queues of its classes, or `config/queues.yml`, which has it.",
        trap="A process started with `-q` takes the weights from there. Run `application-worker generate-queues` after a change.",
    ),
    "version": Attribute(
        validator=validators.integer(0),
        group="versions",
        meaning="The version of the arguments that this code writes.",
        effect="The payload carries it (0 is left out) for as long as the job lives, and a run reads it as `self.job_version`. "
        "Jobs of an older version N run `perform_vN` where the class has that method, all others `perform`.",
        trap="Old jobs keep arriving for weeks: raise it when the arguments change their meaning, and keep what reads the old "
        "ones. Deploy processes before producers.",
    ),
    "wire_name": Attribute(
        validator=validators.optional(validators.wire_name),
        group="versions",
        meaning="The class name on the wire; without it, it is made from module and class.",
        effect="Payloads, logs, rules and generated queue names use it; Ruby processes find their class by it.",
        trap="Belongs to one class and is not inherited. After a change, list the old name in `aliases`; processes of the last "
        "release do not know the new one.",
    ),
    "aliases": Attribute(
        validator=validators.wire_names,
        group="versions",
        meaning="Former wire names whose jobs this class runs.",
        effect="A job found under one of these names is run by this class; when due, it goes where the class is routed. The "
        "queues of these names stay in `config/queues.yml`.",
        trap="Not inherited. Keep them until no queue, schedule or retry set holds the old name. A class that went for good is "
        "named in the setting `retired_workers` instead.",
    ),
    "retry": Attribute(
        validator=validators.boolean_or_count(0),
        group="retries",
        meaning="How often a failed job is tried again: `True` is the setting `max_retries`, 25 times in about three weeks.",
        effect="A number is that many retries, then the dead set. `0`: the first failure goes to the dead set. `False`: kept "
        "nowhere, only the log and the handlers know.",
        trap="`0` and `False` differ: after `False` the job is deleted and cannot be retried by hand.",
    ),
    "retry_for": Attribute(
        validator=validators.optional(validators.duration),
        group="retries",
        meaning="Retry until this long after the first failure, instead of counting.",
        effect="The number in `retry` no longer counts; only `retry = False` still means none (Sidekiq 8.1).",
        trap="The pauses grow all the same: an hour holds about seven retries, and one more may come after it.",
    ),
    "retry_queue": Attribute(
        validator=validators.optional(validators.queue),
        group="retries",
        meaning="The queue its retries go to, to keep them away from first runs.",
        effect="Set in the payload when it fails; the retry stands over the routing rules.",
        trap="Some process has to serve it: `application-worker generate-queues` adds it to `config/queues.yml`.",
    ),
    "dead": Attribute(
        validator=validators.boolean,
        group="retries",
        meaning="`False`: a job whose retries are used up is dropped instead of buried.",
        effect="No entry in the dead set; `retries_exhausted` and the death handlers are still called.",
        trap="It does not limit the retries: that is `retry`.",
    ),
    "backtrace": Attribute(
        validator=validators.boolean_or_count(1),
        group="retries",
        meaning="Keep the traceback in the payload of a failed job: `True` all of it, a number so many innermost lines.",
        effect="Sidekiq's Web UI shows it. At most 8,192 bytes, packed.",
        trap="Thousands of failures with tracebacks fill Redis; the log line has the traceback anyway.",
    ),
    "max_retries_after_interruption": Attribute(
        validator=validators.optional(validators.integer(-1)),
        group="retries",
        meaning="At which forced stop (it still ran at the deadline of its process), or at which death of its process, a job ends; "
        "`-1` is no limit, `None` the setting of the same name (3).",
        effect="The job goes to the interrupted set, and `interruptions_exhausted` is called. Stops and deaths are counted apart: "
        "`interrupted_count` and `aw_death_count`.",
        trap="It counts no failures, and a retry takes nothing back. `0` ends a job at its first stop or death, as `1` does. A job "
        "longer than the deadline `-t` ends after three deployments.",
    ),
    "ack": Attribute(
        validator=validators.one_of(*get_args(Ack)),
        group="running",
        meaning="When an ended job leaves Redis: `batch` with others, `sync` before its slot takes another job.",
        effect="After a `kill -9`, a `batch` job that had ended may run again; a `sync` job only if it was still running.",
        trap="`sync` costs a round trip per job and is no exactly once: a job killed while it runs is run again.",
    ),
    "timeout": Attribute(
        validator=validators.optional(validators.duration),
        group="running",
        meaning="The longest run.",
        effect="None yet: a value is validated, and a `NoEffectWarning` says that no run is stopped.",
        trap="Give network calls their own deadlines: no timeout can interrupt a thread that waits in C code.",
        no_effect="no run is stopped",
    ),
    "expires_in": Attribute(
        validator=validators.optional(validators.duration),
        group="running",
        meaning="Worthless when it starts later than this after its push.",
        effect="None yet: a value is validated and travels in the payload, and a `NoEffectWarning` says that no job is dropped.",
        trap="It will be about the start, not about the run: that is `timeout`.",
        no_effect="no job is dropped",
    ),
    "strict_arguments": Attribute(
        validator=validators.optional(validators.one_of(*get_args(StrictArguments))),
        group="payload",
        meaning="What happens to arguments that do not fit `perform`'s annotations or that JSON changes: `raise`, `warn` or `off`; "
        "None is the setting `strict_arguments`.",
        effect="`raise` refuses them, at the push and again before the run. `warn` and `off` take them as JSON gives them, with "
        "and without a log line.",
        trap="`perform` receives the JSON form: a str for a datetime, a list for a tuple. What JSON cannot carry at all, and a "
        "wrong number of arguments, is refused in every mode.",
    ),
    "loggable_arguments": Attribute(
        validator=validators.identifiers,
        group="payload",
        meaning="The parameters of `perform` whose values may stand in logs.",
        effect="Numbers are always shown, all other arguments as `[FILTERED]` unless named here.",
        trap="Names, not positions, and inherited: a child whose `perform` has other parameters must say it again.",
    ),
    "big_payload": Attribute(
        validator=validators.boolean,
        group="payload",
        meaning="The class may write arguments beyond `size_limit.limit` (5,000,000 bytes after compression).",
        effect="No `ExceedLimitError` at the push; the arguments are compressed all the same.",
        trap="Every move of such a job copies all of it. Store the data elsewhere and pass its id.",
    ),
    "compress": Attribute(
        validator=validators.boolean,
        group="payload",
        meaning="Whether arguments of `size_limit.compression_threshold` (100,000 bytes) and more are compressed.",
        effect="`False` writes them as they are, for a Ruby process without GitLab's middleware; whole queues: the setting "
        "`size_limit.uncompressed_queues`. Every process of this framework reads both forms.",
        trap="They count as they are: above `size_limit.limit` the push raises `ExceedLimitError`. Waiting jobs keep their form.",
    ),
    "status_expiration": Attribute(
        validator=validators.optional(validators.duration),
        group="status",
        meaning="How long the state of a job can be asked for, counted from its last change. `None`: it is not tracked.",
        effect="`framework.status` says how far the job is: queued, running, retrying, completed, failed, discarded.",
        trap="Choose it longer than the job waits in its queue, and longer than it runs: afterwards it is `unknown`.",
    ),
    "track": Attribute(
        validator=validators.boolean,
        group="status",
        meaning="Record progress and result of each job.",
        effect="None yet: a value is validated, and a `NoEffectWarning` says that nothing is recorded.",
        trap="It will write to Redis for each job: not for classes with thousands of jobs a second.",
        no_effect="nothing is recorded",
    ),
    "idempotent": Attribute(
        validator=validators.boolean,
        group="flow_control",
        meaning="Twice is as good as once. Alone, it means `Deduplicate('until_executing')` for 10 minutes.",
        effect="A push is dropped, and returns `None`, while an equal job (the same class and arguments, whatever the queue) waits.",
        trap="Every job may run twice, whatever this says. It promises that duplicates may be dropped too.",
    ),
    "deduplicate": Attribute(
        validator=validators.instance_of(Deduplicate, "Deduplicate(...)"),
        group="flow_control",
        meaning="How equal jobs are kept from piling up; `None` turns the default of `idempotent` off.",
        effect="The push takes a lock of its class and arguments, or is dropped as a duplicate of the job that has it.",
        trap="Without `idempotent = True` no duplicate is dropped: it runs, and `duplicate-of` in its lines says whose it is.",
    ),
    "concurrency_limit": Attribute(
        validator=validators.limit,
        group="flow_control",
        meaning="Most jobs of the class at a time, over all processes. `0` and `None` are no limit, a negative number pauses.",
        effect="Surplus jobs leave their queue and wait in order; each job that ends hands its slot to the next at once. A callable "
        "is asked again each second; the log and `concurrency_limit_buffering_duration_s` say who waits.",
        trap="`0` does not stop the class. A callable is called in the middle of things: it must be quick and not raise.",
    ),
    "max_concurrency_limit_percentage": Attribute(
        validator=validators.optional(validators.fraction),
        group="flow_control",
        meaning="The same as a share of all slots of the shard.",
        effect="Counts when `concurrency_limit` says nothing; rounded up, and computed again as processes start and stop.",
        trap="A share, not a percentage: `0.25`, not `25`.",
    ),
    "concurrency_scope": Attribute(
        validator=validators.instance_of(ConcurrencyScope, "ConcurrencyScope(...)"),
        group="flow_control",
        meaning="Whose job it is, a tenant's say, and how much of the class's limit one of them may have.",
        effect="No scope has more slots than that; waiting scopes take turns, however many jobs one of them has.",
        trap="Without a limit of the class there is nothing to share. A job without a scope is not counted.",
    ),
    "max_running_jobs": Attribute(
        validator=validators.limit,
        group="flow_control",
        meaning="Of a `LimitedCapacityWorker`: how many of its jobs run at a time, over all processes; `0` stops it.",
        effect="`perform_with_capacity` enqueues what is missing. A job that finds no slot ends; each that succeeds is followed "
        "by the next as long as `remaining_work_count` says that there is work.",
        trap="It limits no other class: that is `concurrency_limit`. A callable is asked often: it must be quick.",
    ),
    "defer_on_health": Attribute(
        validator=validators.instance_of(DeferOnHealth, "DeferOnHealth(...)"),
        group="flow_control",
        meaning="Wait while a database is unwell.",
        effect="While an indicator says stop, the job goes back to the schedule set with the same jid, for longer each time; an "
        "indicator that cannot answer stops nothing.",
        trap="For background work only: a user may wait for a job of high urgency. Nothing is asked until `databases` or "
        "`health.indicators` is set, or an indicator of your own is registered.",
    ),
    "pause_control": Attribute(
        validator=validators.optional(validators.identifier),
        group="flow_control",
        meaning="The name of the strategy under which jobs of the class are paused and resumed.",
        effect="While the strategy, or `application-worker jobs pause`, says so, jobs are parked with all they have, and go back in "
        "their order when it ends. `manual`, `none` and `deprecated` never pause by themselves; others are registered "
        "(`framework.pause`).",
        trap="To pause a whole queue needs no attribute: Sidekiq's `paused` set is obeyed.",
    ),
    "data_consistency": Attribute(
        validator=validators.one_of(*get_args(DataConsistency)),
        group="flow_control",
        meaning="Whether a replica of the database will do: `always` the primary, `sticky`, or `delayed` until one is ready.",
        effect="For databases with replicas in the setting `databases`: the push notes how far the primary was, and the job reads "
        "through `framework.databases` from a replica that has come so far, from the primary after its first write.",
        trap="`delayed` needs retries, as a job that meets a stale replica is retried once. Queries that do not go through "
        "`framework.databases` know nothing of it.",
    ),
    "data_consistency_overrides": Attribute(
        validator=validators.optional(
            validators.mapping_of(
                validators.identifier, validators.one_of(*get_args(DataConsistency)), "{'ci': 'sticky'}"
            )
        ),
        group="flow_control",
        meaning="`data_consistency` of single databases, for a class that uses several.",
        effect="Stands over `data_consistency` for the databases that it names, by their names in the setting `databases`.",
        trap="One job takes one decision: the most patient word of all its databases says whether it is retried for a replica.",
    ),
}
"""Every attribute a worker may declare, group by group. A name that is not here is refused when the class is created."""

IDENTITY_ATTRIBUTES = frozenset({"wire_name", "aliases"})
"""The identity of one class: never inherited, or each child would claim its parent's name."""
