"""Push jobs that wait for further pushes into memory, as ``push_window.lua`` does in Redis."""

from typing import Any, NamedTuple, cast

from framework.testing.memory import JobMemory, LockTerms, StoredJob
from framework.types import Jid
from framework.wire import keys
from framework.wire.json import loads
from framework.wire.windows import WindowJobs, items_place


class WaitingJob(NamedTuple):
    """The note of a lock on the job that waits: its entry, the first push of its window, and where its items end."""

    job: StoredJob
    first: float
    items: int
    end: int


def push_window(memory: JobMemory, jobs: WindowJobs, now: float) -> list[Jid]:
    """Return for each job the answer of the script. The caller holds the step."""
    details = jobs.details or [cast("bytes", jobs.terms[-1])] * len(jobs.jids)
    rows = zip(jobs.payloads, jobs.lock_keys, jobs.jids, details, strict=True)
    return [_push(memory, jobs, now, key, jid, data, loads(more, None)) for data, key, jid, more in rows]


def _push(
    memory: JobMemory, jobs: WindowJobs, now: float, key: str, jid: Jid, data: bytes, more: dict[str, Any]
) -> Jid:
    _, ttl_ms, _, max_window, max_items, max_bytes, *_ = jobs.terms
    lock = memory.lock(key)
    owner = "" if lock is None else lock.owner
    note = cast("WaitingJob | None", None if lock is None else lock.waiting)
    # As the set decides in Redis: a job that has left it is not replaced.
    if note is not None and not memory.remove("schedule", note.job):
        note = None
    place = items_place(data) if jobs.mode == "accumulate" else ""
    start, end, count = map(int, place.split(",")) if place else (0, 0, 0)
    if (
        note is not None
        and place
        and note.end
        and note.items + count <= int(max_items)
        and len(note.job.data) + end - start <= int(max_bytes)
        and memory.holder(key)
    ):
        text = (b"," if note.items and end > start else b"") + data[start:end]
        member, due = note.job.data[: note.end] + text + note.job.data[note.end :], note.job.due
        ends = WaitingJob(memory.add("schedule", member, due=due), note.first, note.items + count, note.end + len(text))
        # A note belongs to a lock.
        same: LockTerms = lock.terms if lock is not None else {}
        memory.take_window(key, owner, float(ttl_ms) + max(0.0, due - now) * 1000, ends, same)
        return owner
    if note is not None and jobs.mode == "accumulate":
        # It is full, or will not run: it waits on, and the next one collects.
        memory.add("schedule", note.job.data, due=note.job.due)
        note = None
    first = now if note is None else note.first
    due = now + float(more["delay"]) if "delay" in more else float(more["due"])
    if float(max_window):
        due = min(due, first + float(max_window))
    waiting = WaitingJob(memory.add("schedule", data, due=due), first, count, end)
    terms = {"expiry": due + more["expires_in"]} if "expires_in" in more else {}
    memory.take_window(key, jid, float(ttl_ms) + max(0.0, due - now) * 1000, waiting, terms)
    if more.get("status"):
        state, mode, seconds = more["status"]
        memory.set_state(keys.status(jid), state, mode, float(seconds))
        if note is not None:
            memory.set_state(keys.status(owner), "discarded", mode, float(seconds))
    return "" if note is None else owner
