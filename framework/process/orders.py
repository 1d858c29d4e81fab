"""Carry out the orders that operators give this process about its running jobs: show their stacks, or stop one.

An order is in a list of the process (``keys.orders``), and its answer in a key of its own; both expire. The process looks into the
list every second while jobs run. An idle one sends nothing for it: the check for absent keys finds an order within five seconds.

Stop: an async job's task is cancelled; the process of an isolated job is killed; an iterating job stops at its next item; a thread
gets ``JobStoppedError`` if its class has a ``timeout``, because only then the call of ``perform`` has a begin and an end that
the error cannot miss (``execute/timeouts.py``). Any other thread sees ``self.cancelled``. The run then ends by the steps of every run
(cancelled, delayed or dead), which release its lock and its slots.

At a crash: an order to end a job as cancelled is also a mark in ``aw:cancelled``, which ends the job when another process has
recovered it. Without the mark (``--requeue``, ``--kill``) the job runs again: it was in the working list until its end. An order that
no process has read expires; the command that gave it takes it back earlier.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, cast

from framework.execute.stats import RunningJobs
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import JobStop, StopFate
from framework.process.capsules import Capsules, payload_field
from framework.process.worker_parts import ProcessContext
from framework.telemetry import logs
from framework.telemetry.stacks import StackCall, module_path, stack_of_thread
from framework.types import Jid, Payload
from framework.wire import keys
from framework.wire.json import dumps, loads_object
from framework.wire.orders import ANSWER_TTL_S, MAX_ANSWER_BYTES, MAX_STACKS, STACKS, STOP, is_token

_MOST_ORDERS = 100
_PROCESSES_S = 0.5
"""How long the processes of isolated jobs have to send their stacks."""
_ENDS_S = 1.0
"""How long a stopped job has to end before the answer says that it has not."""
_LOOK_PERIOD_S = 0.02
_FATES: tuple[StopFate, ...] = ("cancel", "requeue", "kill")


class OrderReader:
    """Read and carry out the orders for one process. Use it from one thread."""

    def __init__(self, process: ProcessContext, capsules: Capsules) -> None:
        self._process = process
        self._runs: RunningJobs = process.runs
        self._capsules = capsules
        self._key = keys.orders(process.identity)
        self._ended = threading.Event()

    def step(self) -> None:
        """Carry out the orders that have come. Raises redis errors."""
        self._runs.forget_stops(self._capsules.running())
        absent = self._process.absent
        if not (self._runs.running() or absent.may_exist(self._key)):
            return
        client: Any = self._process.upkeep
        taken = cast("list[bytes]", client.rpop(self._key, _MOST_ORDERS) or [])
        absent.note(self._key, found=bool(taken))
        # Any program can write to Redis: what is no order is passed over.
        for order in filter(None, map(loads_object, taken)):
            token = order.get("token")
            if is_token(token):
                client.set(keys.order_answer(token), self._answer(order), ex=ANSWER_TTL_S)

    def _answer(self, order: Payload) -> bytes:
        jid = order.get("jid")
        chosen = jid if isinstance(jid, str) and jid else None
        if order.get("order") == STACKS:
            return self._stacks(chosen)
        if order.get("order") == STOP and chosen is not None and order.get("fate") in _FATES:
            return dumps(self._stop(chosen, JobStop(order["fate"], str(order.get("by"))[:200])))
        return dumps({"error": "this process does not know the order"})

    def _stacks(self, chosen: Jid | None) -> bytes:
        """Return the stacks of the running jobs, or of one, as JSON of a bounded size."""
        shown, left = list[Mapping[str, Any]](), 0
        size = 0
        for one in self._stacks_of(chosen):
            size += len(dumps(one))
            if len(shown) < MAX_STACKS and size <= MAX_ANSWER_BYTES:
                shown.append(one)
            else:
                left += 1
        return dumps({"stacks": shown, "left_out": left})

    def _stacks_of(self, chosen: Jid | None) -> Iterator[dict[str, Any]]:
        units = [(unit, payload_field(unit, "jid") or "") for unit in self._capsules.running()]
        units = [(unit, jid) for unit, jid in units if chosen in (None, jid)]
        detached = self._capsules.first.processor.detached
        processes = {} if detached is None or not units else detached.stacks(_PROCESSES_S)
        tasks = dict(self._process.loop.stacks())
        for unit, jid in units:
            fields = {
                "jid": jid,
                "class": payload_field(unit, "class"),
                "queue": unit.queue,
                "age_s": round(max(0.0, time.time() - unit.started_at), 3),
                "begun": bool(unit.performing_since),
            }
            if jid in processes:
                pid, stacks = processes[jid]
                for stack in stacks or [[]]:
                    yield {**fields, "runs_in": "process", "process_pid": pid, "stack": _plain(stack)}
            elif unit.thread:
                yield {**fields, "runs_in": "thread", "stack": _plain(stack_of_thread(unit.thread))}
            else:
                yield {**fields, "runs_in": "task", "stack": _plain(tasks.get(jid, []))}

    def _stop(self, jid: Jid, stop: JobStop) -> dict[str, Any]:
        """Stop the job; return how, and whether it has ended."""
        unit = next((one for one in self._capsules.running() if payload_field(one, "jid") == jid), None)
        if unit is None:
            return {"how": "not_running", "ended": True}
        worker = payload_field(unit, "class")
        self._runs.stop(unit, jid, stop)
        how = self._end_run(unit, jid)
        deadline = time.monotonic() + _ENDS_S
        while (runs := unit in self._capsules.running()) and time.monotonic() < deadline:
            self._ended.wait(_LOOK_PERIOD_S)
        logs.logger().warning(
            "an operator has stopped a running job",
            event_name="job.stopped",
            jid=jid,
            fate=stop.fate,
            how=how,
            operator=stop.by,
            ended=not runs,
            **{"class": worker},
        )
        return {"how": how, "ended": not runs, "class": worker}

    def _end_run(self, unit: UnitOfWork, jid: Jid) -> str:
        detached = self._capsules.first.processor.detached
        if detached is not None and detached.stop(jid):
            return "process_killed"
        if not unit.thread:
            self._process.loop.cancel_named({jid})
            return "task_cancelled"
        if any(one.processor.interrupt(unit) for one in self._capsules):
            return "interrupted"
        return "asked"


def _plain(stack: list[StackCall]) -> list[list[str | int]]:
    return [[call.function, module_path(call.file), call.line] for call in stack]
