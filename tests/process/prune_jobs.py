"""Prune the old rows of a table in batches: the jobs of ``test_iteration.py``. ``DATABASE_URL`` names the database."""

import os
import time

from sqlalchemy import Column, Integer, MetaData, Table, create_engine, delete, insert, literal, select

from framework import IterableWorker, enumerators

metadata = MetaData()
events = Table("events", metadata, Column("id", Integer, primary_key=True), Column("age", Integer))
pruned = Table("pruned", metadata, Column("id", Integer), Column("batch", Integer))
notes = Table("notes", metadata, Column("item", Integer))
engine = create_engine(os.environ["DATABASE_URL"])


class PruneWorker(IterableWorker):
    """Delete the rows above an age, and note each in the same transaction."""

    feature_category = "not_owned"
    # On a loaded machine three processes in turn may be killed before one has stopped in between.
    max_retries_after_interruption = -1
    queue = "default"
    flush_interval = 0.5

    def build_enumerator(self, age: int, size: int, pause_s: float, *, cursor: list[int] | None):
        old = select(events.c.id).where(events.c.age > age)
        return enumerators.sql_batches(engine.connect, old, key=events.c.id, cursor=cursor, size=size)

    def each_iteration(self, ids: list[int], age: int, size: int, pause_s: float) -> None:
        with engine.begin() as connection:
            found = select(events.c.id, literal(ids[0])).where(events.c.id.in_(ids))
            connection.execute(insert(pruned).from_select(["id", "batch"], found))
            connection.execute(delete(events).where(events.c.id.in_(ids)))
        self.progress.done += len(ids)
        time.sleep(pause_s)


class NoteWorker(IterableWorker):
    """Note each item."""

    feature_category = "not_owned"
    queue = "default"
    flush_interval = 0.3

    def build_enumerator(self, count: int, *, cursor: int | None):
        return enumerators.items(range(count), cursor=cursor)

    def each_iteration(self, item: int, count: int) -> None:
        with engine.begin() as connection:
            connection.execute(insert(notes), [{"item": item}])
        time.sleep(0.005)
