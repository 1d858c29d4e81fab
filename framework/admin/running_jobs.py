"""Give processes orders about their running jobs: show their stacks, or stop one.

``framework/process/orders.py`` carries them out.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import redis

from framework.admin.access import Listing, ask, check_jid, check_writable
from framework.admin.audit import acting_name, audited
from framework.admin.port import current
from framework.admin.process_list import (
    RunningJob,
    WorkerProcess,
    is_named,
    read_running,
    read_work,
    unknown_process_message,
)
from framework.async_twin import async_twin
from framework.command_line import command
from framework.errors import UnknownNameError
from framework.finish.outcome import StopFate
from framework.settings.model import SizeLimitSettings
from framework.shard.shard import Shard
from framework.store.script import write_when_full
from framework.telemetry.stacks import StackCall
from framework.text import Sentence
from framework.types import Jid, Payload
from framework.wire import keys
from framework.wire.json import loads_object
from framework.wire.orders import ORDER_TTL_S, STACKS, STOP, new_token

ORDER_LIMIT_S = 8.0
"""How long a command waits for the answers. A process with running jobs looks for orders every second, an idle one every five."""
_LOOK_PERIOD_S = 0.05


@dataclass(frozen=True, slots=True)
class JobStack:
    """One stack of a running job. An isolated job has one for each thread and task of its process."""

    shard: str
    process: str
    """The identity of the process."""
    jid: Jid
    worker: str
    """The wire name of its class."""
    queue: str
    age_s: float
    """For how long the job has had its place in the process."""
    begun: bool
    """Whether ``perform`` has begun: before it the job waits for a policy or its turn."""
    runs_in: str
    """``thread``, ``task`` (an async job) or ``process`` (an isolated job)."""
    process_pid: int | None
    """The process of an isolated job."""
    stack: tuple[StackCall, ...]
    """The calls, innermost first; empty if the process of an isolated job did not answer."""


@dataclass(frozen=True, slots=True)
class StoppedJob:
    """What a process has done to stop a job."""

    shard: str
    process: str
    jid: Jid
    worker: str
    how: str
    """``task_cancelled``, ``process_killed``, ``interrupted`` (an error in its thread), ``asked`` (``self.cancelled``) or
    ``not_running``; empty if the process has not answered."""
    ended: bool
    """Whether the run has ended within a second."""
    fate: StopFate


class Stacks(Listing[JobStack]):
    """The stacks of the processes that answered. ``silent`` has the identities of the others, ``left_out`` counts further stacks."""

    def __init__(self, found: Iterable[JobStack] = (), unanswered: Mapping[str, Any] | None = None) -> None:
        super().__init__(found, unanswered)
        self.silent: list[str] = []
        self.left_out = 0


@dataclass(slots=True)
class FoundStacks:
    """The stacks of one shard's processes."""

    stacks: list[JobStack] = field(default_factory=list[JobStack])
    silent: list[str] = field(default_factory=list[str])
    left_out: int = 0
    named: bool = False
    """Whether the name is that of a process or a running job of this shard."""


class _Order(NamedTuple):
    token: str
    text: str


def read_stacks(shard: Shard, sizes: SizeLimitSettings, name: str, limit_s: float = ORDER_LIMIT_S) -> FoundStacks:
    """Return the stacks of the running jobs of a process, or of one job by its id. Raises redis errors."""
    running = read_running(shard)
    chosen = [one for one in running if is_named(one.identity, name)]
    jid = "" if chosen else name
    if jid:
        owners = {job.process for job in read_work(shard, sizes) if job.jid == jid}
        chosen = [one for one in running if one.identity in owners]
    found = FoundStacks(named=bool(chosen))
    silent = [one.identity for one in chosen if _is_ruby(one)]
    answers = give_orders(
        shard.client, {one.identity: {"order": STACKS, "jid": jid} for one in chosen if not _is_ruby(one)}, limit_s
    )
    for identity, answer in answers.items():
        if answer is None:
            silent.append(identity)
            continue
        found.left_out += int(answer.get("left_out") or 0)
        found.stacks += [_job_stack(shard.name, identity, one) for one in answer.get("stacks") or ()]
    found.silent = sorted(silent)
    return found


def stop_running(
    shard: Shard, sizes: SizeLimitSettings, jid: Jid, fate: StopFate = "cancel", limit_s: float = ORDER_LIMIT_S
) -> list[StoppedJob]:
    """Stop a running job of the shard; return what each process that runs it has done. Raises redis errors.

    A job that is to end as cancelled is marked first: it ends also if its process dies before it reads the order.
    """
    running = {one.identity: one for one in read_running(shard)}
    jobs = {job.process: job for job in read_work(shard, sizes) if job.jid == jid}
    if jobs and fate == "cancel":
        shard.cancel([jid])
    orders = {
        identity: {"order": STOP, "jid": jid, "fate": fate, "by": acting_name()}
        for identity in jobs
        if not _is_ruby(running[identity])
    }
    answers = {**dict.fromkeys(jobs), **give_orders(shard.client, orders, limit_s)}
    return [_stopped(shard.name, jobs[identity], answer or {}, fate) for identity, answer in answers.items()]


def give_orders(
    client: "redis.Redis", orders: Mapping[str, Mapping[str, Any]], limit_s: float
) -> dict[str, Payload | None]:
    """Give each process its order, and wait for the answers; ``None`` for a process that has not answered. Raises redis errors.

    An order that was not read by then is taken back, so that it does not act later.
    """
    given: dict[str, _Order] = {}
    pipeline: Any = client.pipeline(transaction=False)
    for identity, order in orders.items():
        token = new_token()
        given[identity] = _Order(token, json.dumps({**order, "token": token}))
        pipeline.expire(keys.orders(identity), ORDER_TTL_S)
    if given:
        write_when_full(client, *(("LPUSH", keys.orders(identity), one.text) for identity, one in given.items()))
    pipeline.execute()
    answers: dict[str, Payload | None] = {}
    deadline = time.monotonic() + limit_s
    while len(answers) < len(given) and time.monotonic() < deadline:
        waiting = [identity for identity in given if identity not in answers]
        replies = cast(
            "list[bytes | None]", client.mget([keys.order_answer(given[identity].token) for identity in waiting])
        )
        for identity, reply in zip(waiting, replies, strict=True):
            if reply is not None:
                answers[identity] = loads_object(reply)
        if len(answers) < len(given):
            time.sleep(_LOOK_PERIOD_S)
    for identity, (token, text) in given.items():
        client.delete(keys.order_answer(token))
        if identity not in answers:
            client.lrem(keys.orders(identity), 1, text)
            answers[identity] = None
    return answers


def silent_message(identity: str) -> str:
    """Return the message about a process that does not answer."""
    host, pid, *_ = [*identity.rsplit(":", 2), "", ""]
    return Sentence(
        "{identity} does not answer: it is a process of Sidekiq, it is stopped, or a function in C keeps its interpreter. On "
        "{host}: py-spy dump --pid {pid}",
        identity=identity,
        host=host,
        pid=pid,
    )


def stacks(name: str, shard: str | None = None) -> Stacks:
    """Return the stacks of running jobs: of the process (its identity, HOST or HOST:PID), or of the job with this id.

    A stack has functions, files and lines, and no values. Processes answer within two seconds while they run jobs.

    Raises:
        UnknownNameError: no process of the shards that answered has this name or runs this job.
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
    """
    sizes = current().settings.size_limit
    answers = ask(shard, lambda one: read_stacks(one, sizes, name))
    found = Stacks((one for each in answers.by_shard.values() for one in each.stacks), answers.unanswered)
    found.silent = [identity for each in answers.by_shard.values() for identity in each.silent]
    found.left_out = sum(each.left_out for each in answers.by_shard.values())
    if not any(each.named for each in answers.by_shard.values()):
        raise UnknownNameError(unknown_job_message(name, ()))
    return found


def stop_job(jid: Jid, fate: StopFate = "cancel", shard: str | None = None) -> list[StoppedJob]:
    """Stop a running job; return what each process that runs it has done, one almost always.

    ``fate``: the job ends as cancelled (``"cancel"``), goes back to its queue (``"requeue"``), or goes to the dead set (``"kill"``).

    Raises:
        TypeError, ValueError: ``jid`` cannot be a job's id, or there is no such fate.
        UnknownNameError: no process of the shards that answered runs the job.
        ReadOnlyError: the call is inside of a ``read_only`` block.
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
    """
    check_jid(jid)
    check_writable("stop_job()")
    if fate not in ("cancel", "requeue", "kill"):
        raise ValueError(f"{fate!r} is no fate of a stopped job: give 'cancel', 'requeue' or 'kill'")
    sizes = current().settings.size_limit
    stop = audited("stop_job", lambda one: stop_running(one, sizes, jid, fate), {"jid": jid, "fate": fate}, len)
    answers = ask(shard, stop)
    stopped = [one for found in answers.by_shard.values() for one in found]
    if not stopped:
        raise UnknownNameError(unknown_job_message(jid, ()))
    return stopped


astacks = async_twin(stacks)
astop_job = async_twin(stop_job)


def unknown_job_message(name: str, running: Sequence[str]) -> str:
    """Return the message for a name that is neither a process nor a running job."""
    return (
        f"{unknown_process_message(name, running)}, and no process says that it runs a job of this id. Processes write their "
        f"running jobs every few seconds: {command('jobs processes --work')} shows them"
    )


def _is_ruby(process: WorkerProcess) -> bool:
    return "python" not in process.labels


def _job_stack(shard: str, identity: str, one: Mapping[str, Any]) -> JobStack:
    calls = (StackCall(str(function), str(file), int(line)) for function, file, line in one.get("stack") or ())
    pid = one.get("process_pid")
    return JobStack(
        shard,
        identity,
        str(one.get("jid")),
        str(one.get("class")),
        str(one.get("queue")),
        float(one.get("age_s") or 0.0),
        bool(one.get("begun")),
        str(one.get("runs_in")),
        pid if isinstance(pid, int) else None,
        tuple(calls),
    )


def _stopped(shard: str, job: RunningJob, answer: Payload, fate: StopFate) -> StoppedJob:
    return StoppedJob(
        shard, job.process, job.jid, job.worker, str(answer.get("how") or ""), answer.get("ended") is True, fate
    )
