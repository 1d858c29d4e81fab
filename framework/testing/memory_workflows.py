"""Keep the workflows of one faked shard: the counterpart of ``workflow_change.lua`` and ``workflow_advance.lua``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from framework.wire import keys
from framework.wire.batch_fields import CANCELLED, UNKNOWN, WRITTEN_BEFORE
from framework.wire.json import loads
from framework.wire.workflow_fields import StepPart, WorkflowAction, WorkflowEvent, step_bid, step_of


class BatchCounts(Protocol):
    """The known facts of the batches of the shard."""

    def fields(self, bid: str) -> tuple[dict[str, Any], int, int] | None:
        """Return the fields of a batch, and how many of its jobs failed and died; ``None`` for no batch."""
        ...


class MemoryWorkflows:
    """The workflows of one shard. The caller holds ``JobMemory.step``."""

    def __init__(self, batches: BatchCounts, clock: Callable[[], float]) -> None:
        self._batches = batches
        self._clock = clock
        self._workflows: dict[str, dict[str, str]] = {}
        self._parts: dict[str, list[bytes]] = {}

    def clear(self) -> None:
        """Forget all workflows."""
        self._workflows.clear()
        self._parts.clear()

    def fields(self, workflow_id: str) -> dict[str, str] | None:
        """Return the fields of a workflow, ``None`` for no workflow."""
        found = self._workflows.get(workflow_id)
        return None if found is None else dict(found)

    def ids(self) -> list[str]:
        """Return the ids of all workflows."""
        return list(self._workflows)

    def add_parts(self, place: str, parts: Sequence[bytes]) -> int:
        """Append parts to a list."""
        self._parts.setdefault(place, []).extend(parts)
        return len(parts)

    def part(self, place: str, number: int) -> bytes | None:
        """Return a part of a list."""
        found = self._parts.get(place, [])
        return found[number - 1] if number <= len(found) else None

    def change(
        self, workflow_id: str, action: WorkflowAction, facts: bytes, lists: Sequence[str], numbers: Sequence[int]
    ) -> bool:
        """See ``workflow_change.lua``."""
        found, now = self._workflows.get(workflow_id), repr(self._clock())
        if action == "create":
            head = loads(facts)
            fields = {**head["fields"], "ttl_s": str(head["ttl_s"]), "created_at": now}
            self._workflows.setdefault(workflow_id, fields)
            return True
        if found is None:
            return False
        match action:
            case "plan":
                parts, step = self._parts.pop(lists[0]), facts.decode()
                if f"{step}:planned" not in found:
                    self._parts[lists[1]] = parts
                    found |= {f"{step}:planned": now, f"{step}:parts": str(numbers[0]), f"{step}:jobs": str(numbers[1])}
            case "delete":
                del self._workflows[workflow_id]
            case _:
                found.setdefault("invalidated_at", now)
                if action == "cancel":
                    self._cancel(found)
        return True

    def advance(
        self, workflow_id: str, step: str, event: WorkflowEvent, after_success: str, after_failure: str
    ) -> tuple[str, str]:
        """See ``workflow_advance.lua``."""
        found = self._workflows.get(workflow_id)
        if found is None:
            return "unknown", ""
        following = after_failure if event == "finished" else after_success
        if event != "start" and not self._note_end(found, workflow_id, step, event, branched=bool(after_failure)):
            return "nothing", ""
        if "cancelled_at" in found:
            return "cancelled", ""
        if not following:
            if "ended_at" in found:
                return "nothing", ""
            found["ended_at"] = repr(self._clock())
            return "ended", "failed" if int(found.get("failed_steps", 0)) > 0 else "succeeded"
        if found.setdefault(f"{following}:state", "starting") != "starting":
            return "nothing", ""
        found.setdefault(f"{following}:started_at", repr(self._clock()))
        return "start", following

    def _note_end(
        self, found: dict[str, str], workflow_id: str, step: str, event: WorkflowEvent, *, branched: bool
    ) -> bool:
        """Note the event of a step; return whether it has happened, and the next step may start."""
        batch = self._batches.fields(step_bid(workflow_id, step))
        if batch is not None and f"{event}_at" not in batch[0]:
            return False
        if event == "finished":
            return self._note_failure(found, workflow_id, step)
        return self._note_success(found, workflow_id, step, branched=branched)

    def _note_failure(self, found: dict[str, str], workflow_id: str, step: str) -> bool:
        """Note that all jobs of a step have ended; return whether some have not succeeded."""
        state, batch = found.get(f"{step}:state"), self._batches.fields(step_bid(workflow_id, step))
        if state == "succeeded" or (batch is not None and "success_at" in batch[0]):
            return False
        if "cancelled_at" in found:
            self._end_step(found, workflow_id, step, "cancelled")
        elif state != "failed":
            self._end_step(found, workflow_id, step, "failed")
            self._add_failures(found, 1)
        return True

    def _note_success(self, found: dict[str, str], workflow_id: str, step: str, *, branched: bool) -> bool:
        """Note that all jobs of a step have succeeded; return whether the next step may start."""
        state = found.get(f"{step}:state")
        if state == "failed":
            if branched:
                return False
            self._add_failures(found, -1)
            found.pop("ended_at", None)
        if state != "succeeded":
            self._end_step(found, workflow_id, step, "succeeded")
        return True

    def refusal(self, part: StepPart | None) -> int | None:
        """Return why ``batch_push.lua`` does not write a part, ``None`` if it does."""
        found = self._of_part(part)
        if part is None:
            return None
        if found is None:
            return UNKNOWN
        if "cancelled_at" in found:
            return CANCELLED
        return WRITTEN_BEFORE if int(found.get(f"{part.step}:written", 0)) >= part.number else None

    def invalidated_at(self, part: StepPart | None) -> str | None:
        """Return when the workflow of a part was invalidated."""
        return (self._of_part(part) or {}).get("invalidated_at")

    def written(self, part: StepPart | None) -> None:
        """Note a part that is written."""
        found = self._of_part(part)
        if part is not None and found is not None:
            found[f"{part.step}:written"] = str(part.number)
            if part.last:
                found[f"{part.step}:state"] = "running"

    def batch_cancelled(self, bid: str) -> list[str]:
        """Cancel the workflow of a step whose batch was cancelled; return the ids of the batches of its steps."""
        workflow_id = (step_of(bid) or ("", ""))[0]
        found = self._workflows.get(workflow_id)
        if found is None:
            return []
        self._cancel(found)
        return [step_bid(workflow_id, name) for name in found["steps"].split()]

    def _of_part(self, part: StepPart | None) -> dict[str, str] | None:
        return None if part is None else self._workflows.get(part.workflow.removeprefix(keys.workflow("")))

    def _cancel(self, found: dict[str, str]) -> None:
        if "ended_at" not in found:
            found |= {"cancelled_at": repr(self._clock()), "ended_at": repr(self._clock())}

    def _end_step(self, found: dict[str, str], workflow_id: str, step: str, state: str) -> None:
        found |= {f"{step}:state": state, f"{step}:ended_at": repr(self._clock())}
        batch = self._batches.fields(step_bid(workflow_id, step))
        if batch is not None:
            counts: Mapping[str, Any] = batch[0]
            found |= {
                f"{step}:jobs": str(counts.get("total", 0)),
                f"{step}:removed": str(counts.get("removed", 0)),
                f"{step}:dead": str(batch[2]),
            }
        self._parts.pop(keys.step_jobs(workflow_id, step), None)

    @staticmethod
    def _add_failures(found: dict[str, str], number: int) -> None:
        found["failed_steps"] = str(int(found.get("failed_steps", 0)) + number)
