"""A database of tasks with its writer and recorder, on SQLite or PostgreSQL, and a spool that keeps changes in a list."""

import threading
from contextlib import contextmanager

from framework.features.tasks.apply import apply_changes
from framework.features.tasks.change import EventChange
from framework.features.tasks.database import TaskDatabase
from framework.features.tasks.progress import find_event, find_task
from framework.features.tasks.recorder import EventRecorder
from framework.features.tasks.writer import EventWriter


class ListSpool:
    def __init__(self):
        self.kept = []
        self.error = None

    def keep(self, changes):
        if self.error is not None:
            raise self.error
        self.kept += changes


class HeldDatabase(TaskDatabase):
    """A database whose writer waits while ``held``: not for a lock of SQLite, which is an error after some seconds."""

    def __init__(self, url):
        super().__init__(url)
        self._open = threading.Event()
        self._open.set()

    @contextmanager
    def held(self):
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def write(self, change):
        self._open.wait()
        return super().write(change)


class TaskBench:
    def __init__(self, url, when_down="wait"):
        self.database = HeldDatabase(url)
        self.spool = ListSpool()
        self.writer = EventWriter(self.database, self.spool, when_down)
        self.recorder = EventRecorder(self.writer, "whole")

    def apply(self, *changes, late=False):
        with self.database.writing() as connection:
            apply_changes(connection, changes, late=late)

    def event(self, jid):
        assert self.writer.flush(30)
        with self.database.reading() as connection:
            return find_event(connection, jid)

    def task(self, task_id):
        with self.database.reading() as connection:
            return find_task(connection, task_id)

    def close(self):
        self.writer.close()
        self.database.dispose()


def change(jid, kind, at, status="enqueue", state="queued", **facts):
    place = {"worker": "Job", "queue": "default", "shard": "main", **facts}
    return EventChange(jid, kind, at, status, state, **place)
