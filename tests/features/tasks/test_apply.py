"""Changes of events, and the counters of their tasks."""

import itertools

import pytest
from sqlalchemy import insert, select, update

from framework.errors import EventsTakenError
from framework.features.tasks.apply import SeenEvent, claim_events
from framework.features.tasks.change import Message
from framework.features.tasks.database import STATUSES, events, messages, tasks
from framework.features.tasks.progress import list_messages
from tests.features.tasks.task_bench import change

TASK = "a" * 32

AWKWARD = 'NULL, {"a"} \\ \\\\" \'x\' \n {} ü 💶'
"""Characters that have a meaning in JSON, SQL and arrays."""


def make_task(bench, **facts):
    with bench.database.writing() as connection:
        connection.execute(insert(tasks).values(id=TASK, created_at=1.0, **facts))


def counters(bench):
    row = bench.task(TASK)
    return {name: row[name] for name in ("total", *STATUSES) if row[name]}


def test_job_with_a_retry_ends_with_exact_counters(bench):
    make_task(bench, closed_at=1.0)
    bench.apply(*(change(jid, "push", 10.0, task_id=TASK, params="[1]") for jid in (AWKWARD, "j2")))
    assert counters(bench) == {"total": 2, "enqueue": 2}
    failed = change(AWKWARD, "end", 12.0, state="retrying", reason=AWKWARD, error_class="ValueError")
    failed.messages += [Message(AWKWARD, 12.0, '{"a":1}', key="once"), Message("", 12.0)]
    bench.apply(change(AWKWARD, "start", 11.0, "working", "working"), failed)
    assert bench.event(AWKWARD).reason == AWKWARD
    bench.apply(failed)
    assert counters(bench) == {"total": 2, "enqueue": 2}
    bench.apply(change(AWKWARD, "start", 13.0, "working", "working"), change("j2", "end", 13.0, "failed", "expired"))
    assert counters(bench) == {"total": 2, "working": 1, "failed": 1}
    assert bench.task(TASK)["completed_at"] is None
    bench.apply(change(AWKWARD, "end", 14.0, "finish", "completed"))
    assert counters(bench) == {"total": 2, "finish": 1, "failed": 1}
    assert bench.task(TASK)["completed_at"] == 14.0
    event = bench.event(AWKWARD)
    assert (event.state, event.reason, event.runs, event.params, event.error_class) == ("completed", None, 2, [1], None)
    assert [(one.text, one.fields) for one in event.messages] == [(AWKWARD, {"a": 1}), ("", {})]
    bench.apply(change("j2", "start", 15.0, "working", "working"))
    assert bench.task(TASK)["completed_at"] is None


def test_event_that_was_never_pushed_here_is_made_by_its_run(bench):
    make_task(bench)
    bench.apply(change("j1", "note", 1.0, task_id=TASK))
    assert counters(bench) == {"total": 1, "enqueue": 1}
    bench.apply(change("j1", "end", 2.0, "finish", "completed", task_id=TASK))
    bench.apply(change("j1", "push", 3.0, task_id=TASK))
    assert counters(bench) == {"total": 1, "finish": 1}
    # An unknown task: the event is kept without it.
    bench.apply(change("j2", "push", 1.0, task_id="b" * 32))
    assert bench.event("j2").task_id is None


def test_job_pushed_twice_and_clock_set_back_count_once(bench):
    make_task(bench)
    push = change("j", "push", 100.0, task_id=TASK)
    bench.apply(push)
    bench.apply(push, change("j", "push", 101.0, task_id=TASK))  # the reply of the push was lost: it was repeated
    bench.apply(change("j", "start", 50.0, "working", "working"))  # by the clock of another host, or after a jump
    assert counters(bench) == {"total": 1, "working": 1}
    bench.apply(change("j", "end", 51.0, "finish", "completed"))
    bench.apply(change("j", "start", 40.0, "working", "working"), change("j", "end", 41.0, "finish", "completed"))
    assert counters(bench) == {"total": 1, "finish": 1}


def test_debounced_events_end_with_the_last_job_of_their_chain(bench):
    """Each push of a window replaces the one before: all of them end with the job that runs, with its result."""
    make_task(bench, closed_at=1.0)
    jids = [f"j{number}" for number in range(5)]
    bench.apply(*(change(jid, "push", 1.0, task_id=TASK) for jid in jids))
    for jid, owner in itertools.pairwise(jids):
        bench.apply(change(jid, "end", 2.0, state="duplicate", stands_for=owner))
    bench.apply(change("j4", "end", 3.0, "error", "dead", reason="boom"))
    assert counters(bench) == {"total": 5, "error": 5}
    assert {bench.event(jid).reason for jid in jids[:4]} == {"the job j4 stands for it: dead: boom"}
    assert bench.task(TASK)["completed_at"] == 3.0


def test_duplicate_noted_after_the_end_of_its_job_ends_at_once(bench):
    make_task(bench, closed_at=1.0)
    bench.apply(*(change(jid, "push", 1.0, task_id=TASK) for jid in ("a", "b", "c")))
    bench.apply(change("a", "end", 2.0, state="duplicate", stands_for="b"))
    bench.apply(change("c", "end", 2.0, "error", "dead", reason="boom"))
    # In one batch with a note about its job, which is no change of it.
    bench.apply(change("c", "note", 2.5), change("b", "end", 3.0, state="duplicate", stands_for="c"))
    assert counters(bench) == {"total": 3, "error": 3}
    assert bench.event("a").reason == "the job c stands for it: dead: boom"


@pytest.mark.campaign
def test_100_000_messages_of_one_job_are_read_in_pages(bench):
    said = [Message(f"row {number}", 1.0, None, f"key-{number}") for number in range(100_000)]
    bench.apply(change("j", "push", 1.0), change("j", "note", 1.0, messages=said))
    event = bench.event("j")
    assert [one.text for one in event.messages] == [f"row {number}" for number in range(99_950, 100_000)]
    with bench.database.reading() as connection:
        page = list_messages(connection, "j", event.messages[0].id - 1, 1_000)
    assert [one.text for one in page] == [one.text for one in event.messages]


def test_duplicate_ends_with_the_job_that_stands_for_it(bench):
    make_task(bench, closed_at=1.0)
    bench.apply(change("owner", "push", 2.0, task_id=TASK), change("copy", "push", 2.0, task_id=TASK))
    bench.apply(change("copy", "end", 3.0, state="duplicate", stands_for="owner"))
    bench.apply(change("owner", "end", 4.0, "failed", "failed", reason="no price"))
    copy = bench.event("copy")
    assert (copy.status, copy.state, copy.runs) == ("failed", "duplicate", 0)
    assert copy.reason == "the job owner stands for it: failed: no price"
    assert bench.task(TASK)["completed_at"] == 4.0
    assert counters(bench) == {"total": 2, "failed": 2}
    # In one batch with its job: it counts once, and does not wait.
    for jid in ("a", "b"):
        bench.apply(change(jid, "push", 5.0, task_id=TASK), change(f"{jid}2", "push", 5.0, task_id=TASK))
    bench.apply(change("a2", "end", 6.0, state="duplicate", stands_for="a"))
    lost = {"stands_for": "a", "seen_at": 6.0}
    mended = change("a", "mend", 7.0, "error", "deleted", seen_at=5.0)
    bench.apply(mended, change("a2", "mend", 7.0, "finish", "duplicate", **lost))
    assert (bench.event("a2").status, bench.task(TASK)["completed_at"]) == ("finish", None)
    end = change("b", "end", 8.0, "finish", "completed")
    bench.apply(change("b2", "end", 8.0, state="duplicate", stands_for="b"), end)
    bench.apply(change("c", "push", 9.0, task_id=TASK), change("d", "push", 9.0, task_id=TASK))
    bench.apply(change("d", "end", 9.0, state="duplicate", stands_for="c"))
    bench.apply(change("d", "note", 9.5), change("c", "end", 9.5, "finish", "completed"))
    assert counters(bench) == {"total": 8, "failed": 2, "error": 1, "finish": 5}
    assert bench.task(TASK)["completed_at"] == 9.5


def test_late_and_old_changes_do_not_undo_newer_ones(bench):
    bench.apply(change("j1", "push", 1.0), change("j1", "end", 9.0, "finish", "completed"))
    note = change("j1", "end", 5.0, state="retrying")
    note.messages.append(Message("kept", 5.0))
    bench.apply(note, late=True)
    bench.apply(change("j1", "start", 4.0, "working", "working"))
    # Another process took the job back and notes that later than a third one the end of its next run.
    bench.apply(change("j1", "end", 9.5, state="interrupted"))
    bench.apply(change("j1", "mend", 6.0, "error", "deleted", seen_at=1.0))
    event = bench.event("j1")
    assert (event.state, [one.text for one in event.messages]) == ("completed", ["kept"])
    bench.apply(change("j1", "mend", 6.0, "error", "deleted", seen_at=9.0))
    assert bench.event("j1").state == "deleted"
    bench.apply(change("j2", "push", 1.0), change("j2", "end", 5.0, state="interrupted"))
    bench.apply(change("j2", "end", 4.0, "finish", "completed"), late=True)
    assert bench.event("j2").state == "completed"
    # The job had ended, and its end was in the spool, when it was found in no key.
    bench.apply(change("j3", "push", 1.0), change("j3", "mend", 6.0, "error", "deleted", seen_at=1.0))
    bench.apply(change("j3", "end", 4.0, "finish", "completed"), late=True)
    assert bench.event("j3").state == "completed"


def test_record_of_a_held_job_yields_to_its_later_run(memory):
    """The limit has held the job in Redis, and another process has run it, before the first process wrote its record."""
    held = change("j1", "end", 2.0, state="held", reason="concurrency_limit")
    memory.apply(change("j1", "push", 1.0), change("j1", "start", 1.9, "working", "working"))
    memory.apply(held)
    assert memory.event("j1").state == "working"
    memory.apply(change("j1", "end", 1.95, "failed", "failed"), held)
    assert memory.event("j1").state == "failed"
    memory.apply(change("j2", "push", 1.0), change("j2", "end", 2.0, state="held"))
    assert memory.event("j2").state == "held"


def test_claimed_event_begins_again_for_one_call(bench):
    make_task(bench, closed_at=1.0)
    failed = change("old", "end", 2.0, "failed", "failed", task_id=TASK)
    failed.messages.append(Message("no", 2.0))
    bench.apply(failed, change("dead", "end", 2.0, "error", "dead", task_id=TASK))
    seen = [SeenEvent(bench.event(jid).id, jid, 2.0) for jid in ("old", "dead")]

    def claim(*jids):
        claim_events(bench.database, seen, [change(jid, "push", 3.0, shard="other") for jid in jids])

    claim("new", "dead")
    assert (bench.event("old"), bench.event("new").status, bench.event("new").shard) == (None, "enqueue", "other")
    assert [one.text for one in bench.event("new").messages] == ["no"]
    assert counters(bench) == {"total": 2, "enqueue": 2}
    # The same push may be repeated; the job from the dead set has no id of its own, so any second call is another one.
    with pytest.raises(EventsTakenError) as caught:
        claim("new", "dead")
    assert caught.value.taken == {seen[1].id}
    bench.apply(change("new", "start", 4.0, "working", "working"), change("new", "end", 5.0, "finish", "completed"))
    with pytest.raises(EventsTakenError) as caught:
        claim("third", "dead")
    assert caught.value.taken == {one.id for one in seen}
    assert (bench.event("third"), bench.event("new").status) == (None, "finish")


def test_counters_equal_the_events_after_many_batches(memory):
    make_task(memory)
    for turn in range(20):
        found = [change(f"j{n}", "push", float(turn), task_id=TASK) for n in range(turn)]
        found += [change(f"j{n}", "start", turn + 0.1, "working", "working", task_id=TASK) for n in range(0, turn, 2)]
        found += [change(f"j{n}", "end", turn + 0.2, STATUSES[n % 5], "x", task_id=TASK) for n in range(0, turn, 3)]
        memory.apply(*found)
    with memory.database.reading() as connection:
        stored = list(connection.execute(select(events.c.status)).scalars())
    assert counters(memory) == {"total": 19, **{name: stored.count(name) for name in STATUSES if name in stored}}


def test_events_and_messages_go_with_their_task(bench):
    make_task(bench)
    bench.apply(change("j1", "push", 1.0, task_id=TASK))
    with bench.database.writing() as connection:
        connection.execute(update(tasks).values(title="x"))
        connection.execute(tasks.delete())
    assert bench.event("j1") is None
    with bench.database.reading() as connection:
        assert connection.execute(select(messages.c.id)).all() == []
