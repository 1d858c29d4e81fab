"""Old tasks and events are removed in steps, into an archive, and never those that are not finished."""

import json

import pytest

from framework.features.tasks.change import Message
from framework.features.tasks.retention import DAY_S, Pruned, Retention
from framework.process_clock import process_clock
from tests.features.tasks.task_bench import change

NOW = 100 * DAY_S


@pytest.fixture(autouse=True)
def _now():
    with process_clock.override(lambda: NOW):
        yield


def ended(jid, at, **facts):
    said = [Message(f"said by {jid}", at, None, f"key-{jid}")]
    return (
        change(jid, "push", at, payload='{"args":["secret"]}', **facts),
        change(jid, "end", at, "finish", "completed", messages=said),
    )


def fill(bench):
    """Make an old task of three events, a fresh one, one that is not finished, one that begins again, and single events."""
    with bench.database.writing() as connection:
        for name, closed, completed in (
            ("old", 1, 10 * DAY_S),
            ("fresh", 1, 99 * DAY_S),
            ("open", 1, None),
            ("again", 1, 1.0),
        ):
            values = f"('{name}', 1, {closed}, {completed or 'NULL'})"
            connection.exec_driver_sql(
                f"INSERT INTO aw_tasks (id, created_at, closed_at, completed_at) VALUES {values}"
            )
    changes = [one for jid in ("o1", "o2", "o3") for one in ended(jid, 10 * DAY_S, task_id="old")]
    changes += [*ended("f1", 99 * DAY_S, task_id="fresh"), *ended("u1", 1.0, task_id="open")]
    changes += [*ended("single", 1.0), *ended("recent", 99 * DAY_S)]
    bench.apply(*changes, change("u2", "push", 1.0, task_id="open"), change("waits", "push", 1.0))
    with bench.database.writing() as connection:
        connection.exec_driver_sql("UPDATE aw_events SET task_id = 'again' WHERE jid = 'waits'")


def left(bench):
    with bench.database.reading() as connection:
        return {
            "tasks": set(connection.exec_driver_sql("SELECT id FROM aw_tasks").scalars()),
            "events": set(connection.exec_driver_sql("SELECT jid FROM aw_events").scalars()),
            "messages": set(connection.exec_driver_sql("SELECT jid FROM aw_messages").scalars()),
        }


STAYS = {
    "tasks": {"fresh", "open", "again"},
    "events": {"f1", "u1", "u2", "recent", "waits"},
    "messages": {"f1", "u1", "recent"},
}


def test_what_ended_long_ago_goes_to_the_archive(bench, tmp_path, monkeypatch):
    monkeypatch.setattr("framework.features.tasks.retention._STEP", 2)
    fill(bench)
    with (tmp_path / "old.jsonl").open("a") as archive:
        retention = Retention(bench.database, 30, archive)
        assert retention.count_tasks() == 2
        assert retention.run(most=1) == Pruned(0, 2, 2)  # one step, then the bound
        assert retention.run() == Pruned(1, 4, 4)
    assert left(bench) == STAYS
    lines = [json.loads(line) for line in (tmp_path / "old.jsonl").read_text().splitlines()]
    assert [one["event"]["jid"] if "event" in one else one["task"]["id"] for one in lines] == [
        "o1",
        "o2",
        "o3",
        "old",
        "single",
    ]
    assert lines[0]["event"]["messages"] == [{"at": 10 * DAY_S, "text": "said by o1", "fields": None}]
    assert "secret" not in str(lines)


def test_task_that_begins_again_keeps_all_its_events(bench, monkeypatch):
    fill(bench)
    retention = Retention(bench.database, 30)
    original = retention._next_task

    def retried(place):
        found = original(place)
        if found is not None and found[1] == "old":
            bench.apply(change("o2", "end", 11 * DAY_S))
        return found

    monkeypatch.setattr(retention, "_next_task", retried)
    assert retention.run() == Pruned(0, 1, 1)
    assert left(bench)["events"] == STAYS["events"] | {"o1", "o2", "o3"}


def test_rows_stay_without_their_archive(memory, tmp_path):
    fill(memory)
    before = left(memory)
    with (tmp_path / "old.jsonl").open("w") as archive:
        archive.close()
        with pytest.raises(ValueError, match="closed file"):
            Retention(memory.database, 30, archive).run()
    assert left(memory) == before
