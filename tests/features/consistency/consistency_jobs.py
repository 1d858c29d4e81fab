"""Job classes that record the server of each read; `True` is the replica."""

import json
import os

import redis
from sqlalchemy import text

from framework import ApplicationWorker, Deduplicate, databases

IS_REPLICA = text("SELECT pg_is_in_recovery()")
SEEN = text("SELECT count(*) FROM orders WHERE id = :id")
COUNT = text("SELECT count(*) FROM orders")
INSERT = text("INSERT INTO orders (id) VALUES (:id)")


def prove(name, **facts):
    with redis.Redis.from_url(os.environ["PROOF_URL"]) as client:
        client.rpush(f"proof:{name}", json.dumps(facts))


def order(number, *workers):
    """Write a row, then push, as a web request does."""
    with databases.connection() as connection:
        connection.execute(INSERT, {"id": number})
    for worker in workers:
        worker.perform_async(number)


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "shop"
    urgency = "high"

    def perform(self, number: int) -> None:
        with databases.session() as session, session.begin():
            seen = session.scalar(SEEN, {"id": number})
            before = session.scalar(IS_REPLICA)
            session.execute(text("UPDATE orders SET state = 'seen' WHERE id = :id"), {"id": number})
            prove(type(self).__name__, id=number, seen=seen, before=before, after=session.scalar(IS_REPLICA))


class AlwaysWorker(Base):
    data_consistency = "always"


class StickyWorker(Base):
    data_consistency = "sticky"


class DelayedWorker(Base):
    data_consistency = "delayed"


class AsyncWorker(Base):
    data_consistency = "sticky"

    async def perform(self, number: int) -> None:
        with databases.connection() as connection:
            prove(
                "AsyncWorker",
                id=number,
                seen=connection.scalar(SEEN, {"id": number}),
                before=connection.scalar(IS_REPLICA),
            )


class ParentWorker(Base):
    """Push before and after the first write."""

    data_consistency = "sticky"

    def perform(self, number: int) -> None:
        with databases.connection() as connection:
            assert connection.scalar(SEEN, {"id": number})
        ChildWorker.perform_async(number)
        order(-number, ChildWorker)


class ChildWorker(Base):
    data_consistency = "sticky"
    queue = "unserved"


class MirrorWorker(Base):
    """One run for all waiting pushes: it must see the rows of the last push."""

    data_consistency = "sticky"
    idempotent = True
    deduplicate = Deduplicate("until_executing", including_scheduled=False)

    @classmethod
    def idempotency_arguments(cls, args):
        return []

    def perform(self, number: int) -> None:
        with databases.connection() as connection:
            prove("MirrorWorker", id=number, seen=connection.scalar(COUNT), before=connection.scalar(IS_REPLICA))
