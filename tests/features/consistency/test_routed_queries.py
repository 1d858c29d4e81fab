"""Check the queries of an application: reads use the replica, and from the first write on the primary."""

import asyncio
import json
import threading
from contextvars import copy_context

import pytest
from sqlalchemy import Column, MetaData, String, Table, delete, insert, select, text, update
from sqlalchemy.exc import IntegrityError, ProgrammingError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import framework.databases
from framework.all_settings import load
from framework.declare import port, registry
from framework.errors import ConfigurationError
from framework.features.consistency import replica_context
from framework.features.consistency.databases import DATABASES, DatabaseServer
from framework.features.consistency.routed_queries import RoutedConnection, RoutedSession, is_read
from framework.wiring.client import ProcessClient, bind, bind_default
from tests.tables import each_row


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str]


orders = Table("orders", MetaData(), Column("id"), Column("state", String))
IS_REPLICA = text("SELECT pg_is_in_recovery()")
COUNT = text("SELECT count(*) FROM orders")

READS = [
    "SELECT 1", "  select 1", "(SELECT 1) UNION (SELECT 2)", "VALUES (1)", "TABLE orders", "SHOW work_mem",
    "WITH a AS (SELECT 1) SELECT * FROM a", "-- all\nSELECT 1", "/* a\nb */ SELECT 1",
    "SELECT updated_at, deleted FROM orders",
]  # fmt: skip
MAY_WRITE = [
    "INSERT INTO orders (id) VALUES (1)", "update orders set id = 1", "DELETE FROM orders", "MERGE INTO a USING b ON true",
    "WITH gone AS (DELETE FROM orders RETURNING id) SELECT * FROM gone", "SELECT * FROM orders FOR UPDATE",
    "SELECT * FROM orders FOR NO KEY UPDATE", "SELECT * FROM orders FOR KEY SHARE", "SELECT id INTO x FROM orders",
    "SELECT nextval('s')", "SELECT pg_advisory_lock(1)", "SELECT pg_try_advisory_xact_lock(1)", "SELECT pg_notify('a', 'b')",
    "CREATE TABLE x ()", "TRUNCATE orders", "LOCK TABLE orders", "BEGIN", "SET work_mem = '1MB'", "CALL p()", "COPY orders TO STDOUT",
    "EXPLAIN ANALYZE DELETE FROM orders", "REFRESH MATERIALIZED VIEW v", "", "selector",
]  # fmt: skip
removing = delete(orders).returning(orders.c.id).cte("gone")


@each_row("statement", READS)
def test_is_read_reading_text_is_true(statement):
    assert is_read(text(statement))


@each_row("statement", MAY_WRITE)
def test_is_read_writing_text_is_false(statement):
    assert not is_read(text(statement))


def test_is_read_reading_statement_is_true():
    for statement in (
        select(Order),
        select(orders.c.id).where(orders.c.state == "update"),
        select(Order).order_by(Order.id).limit(3),
        select(Order).union(select(Order)),
        select(select(Order).subquery()),
        select(Order).from_statement(text("SELECT * FROM orders")),
        text("SELECT id FROM orders").columns(orders.c.id),
    ):
        assert is_read(statement), statement


def test_is_read_writing_statement_is_false():
    for statement in (
        insert(Order),
        update(Order),
        delete(Order),
        select(Order).with_for_update(),
        select(Order).with_for_update(read=True),
        select(removing),
        select(orders.c.id).add_cte(removing),
        select(text("nextval('s')")),
        select(Order).from_statement(text("DELETE FROM orders RETURNING *")),
        select(Order).from_statement(update(Order).returning(Order)),
        None,
        "SELECT 1",
    ):
        assert not is_read(statement), statement


# --- on real servers --------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(databases, postgres, standby, shop):
    """Run something as a job that reads from the replica, with one order that both servers show."""
    postgres.execute("INSERT INTO orders (id) VALUES (1)", shop)
    standby.catch_up(postgres)

    def run(act, replica=None):
        def inside():
            replica_context.use({"main": replica or databases["main"].replicas[0]})
            return act()

        return copy_context().run(inside)

    return run


def test_routed_connection_reads_replica_until_first_write(job, databases, postgres, standby, shop):
    standby.pause_replay()

    def act():
        with RoutedConnection(databases["main"]) as connection:
            assert connection.scalar(IS_REPLICA)
            connection.execute(insert(orders), [{"id": 2, "state": "new"}, {"id": 3, "state": "new"}])
            assert connection.scalar(COUNT) == 3  # its own writes, which are not committed yet
            assert not connection.scalar(IS_REPLICA)
        with RoutedConnection(databases["main"]) as connection:
            assert (connection.scalar(COUNT), connection.scalar(IS_REPLICA)) == (3, False)

    job(act)
    assert postgres.execute("SELECT count(*) FROM orders", shop) == 3


def test_routed_connection_error_rolls_back(job, databases, postgres, shop):
    def act():
        with pytest.raises(IntegrityError), RoutedConnection(databases["main"]) as connection:
            connection.execute(text("INSERT INTO orders (id) VALUES (2)"))
            connection.execute(text("INSERT INTO orders (id) VALUES (1)"))
        with pytest.raises(KeyError), RoutedConnection(databases["main"]) as connection:
            connection.execute(text("INSERT INTO orders (id) VALUES (3)"))
            raise KeyError
        with pytest.raises(ProgrammingError), RoutedConnection(databases["main"]) as connection:
            connection.execute(text("SELECT nothing FROM nowhere"))

    job(act)
    assert postgres.execute("SELECT count(*) FROM orders", shop) == 1


def test_routed_session_reads_replica_until_first_flush(job, databases, postgres, standby, shop):
    standby.pause_replay()

    def act():
        with RoutedSession(databases["main"]) as session, session.begin():
            one = session.get(Order, 1)
            assert session.scalar(IS_REPLICA)
            assert list(session.scalars(select(Order.id).execution_options(yield_per=1))) == [1]  # a server-side cursor
            one.state = "sent"
            session.add(Order(id=2, state="new"))
            assert session.scalar(select(Order.state).where(Order.id == 1)) == "sent"  # it was flushed for this
            assert not session.scalar(IS_REPLICA)
            assert len(session.scalars(select(Order)).all()) == 2

    job(act)
    assert postgres.execute("SELECT state FROM orders WHERE id = 1", shop) == "sent"


def test_routed_session_row_locks_are_taken_on_primary(job, databases):
    def act():
        with RoutedSession(databases["main"]) as session, session.begin():
            session.scalars(select(Order).with_for_update()).all()
            assert not session.scalar(IS_REPLICA)
        with RoutedSession(databases["main"]) as session:
            session.connection()
            assert replica_context.replica_of("main") is None

    job(act)


def test_routed_query_refused_by_replica_runs_on_primary(job, databases, postgres, standby, shop):
    postgres.execute(
        "CREATE OR REPLACE FUNCTION hidden() RETURNS bigint LANGUAGE sql AS 'INSERT INTO orders (id) SELECT max(id) + 1 FROM "
        "orders RETURNING id'",
        shop,
    )
    standby.catch_up(postgres)

    def by_connection():
        with RoutedConnection(databases["main"]) as connection:
            assert connection.scalar(IS_REPLICA)
            assert connection.scalar(text("SELECT hidden()")) == 2
            assert not connection.scalar(IS_REPLICA)

    def by_session():
        with RoutedSession(databases["main"]) as session, session.begin():
            assert session.scalar(IS_REPLICA)
            assert session.scalars(text("SELECT hidden()")).one() == 3
            assert not session.scalar(IS_REPLICA)

    job(by_connection)
    job(by_session)
    assert postgres.execute("SELECT count(*) FROM orders", shop) == 3


def test_routed_query_without_replica_uses_primary(job, databases, postgres, standby, shop):
    gone = DatabaseServer("main replica 9", f"{standby.url(shop)}&port=1", is_replica=True)

    def read_without_replica():
        with RoutedConnection(databases["main"]) as connection:
            assert connection.scalar(COUNT) == 1
        with RoutedSession(databases["main"]) as session:
            assert session.scalar(COUNT) == 1
            assert not session.scalar(IS_REPLICA)

    job(read_without_replica, gone)
    assert gone.position() is None  # and other callers do not try

    def read_over_ended_connection():
        with RoutedConnection(databases["main"]) as connection:
            mine = connection.scalar(text("SELECT pg_backend_pid()"))
            standby.execute(f"SELECT pg_terminate_backend({mine}, 5000)")
            assert connection.scalar(COUNT) == 1
            assert not connection.scalar(IS_REPLICA)

    job(read_over_ended_connection)


def test_routed_query_write_counts_in_threads_of_the_job(job, databases):
    def write():
        with RoutedConnection(databases["main"]) as connection:
            connection.execute(text("UPDATE orders SET state = 'sent'"))

    async def in_a_task():
        assert replica_context.replica_of("main") is not None
        await asyncio.create_task(asyncio.to_thread(write))
        assert replica_context.replica_of("main") is None

    job(lambda: asyncio.run(in_a_task()))
    first, second = threading.Event(), threading.Event()

    def writes():
        write()
        first.set()
        assert second.wait(20)
        assert replica_context.replica_of("main") is None

    def reads_only():
        assert first.wait(20)
        assert replica_context.replica_of("main") is not None
        second.set()

    threads = [threading.Thread(target=job, args=(act,)) for act in (writes, reads_only)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert second.is_set()


# --- the public module -------------------------------------------------------------------------------------------------------


@pytest.fixture
def bound(settings, databases, tmp_path):
    configured = {"main": {"url": settings["main"].url, "replicas": list(settings["main"].replicas)}}
    enqueuer = ProcessClient(load({"FRAMEWORK_DATABASES": json.dumps(configured)}, tmp_path))
    with registry.isolated():
        bind(enqueuer)
        yield
    port.unbind()
    bind_default()
    enqueuer.service(DATABASES).dispose()
    enqueuer.shards.close()


def test_routed_query_outside_of_jobs_needs_replicas_block(bound, postgres, standby, shop):
    places = framework.databases
    assert not places.reads_replica()
    with places.connection() as connection:
        assert not connection.scalar(IS_REPLICA)
    with places.replicas():
        assert places.reads_replica()
        with places.session() as session:
            assert session.scalar(IS_REPLICA)
        with places.primary():
            assert not places.reads_replica()
            with places.connection() as connection:
                assert not connection.scalar(IS_REPLICA)
        assert places.reads_replica()
        with places.primary():
            places.mark_written()
        assert not places.reads_replica()  # a write in the inner block counts in the outer one
    with places.replicas():
        places.mark_written("other")
        assert places.reads_replica()
        places.mark_written()
        assert not places.reads_replica()
    assert not places.reads_replica()


def test_routed_query_unknown_database_names_the_nearest(bound):
    with pytest.raises(ConfigurationError, match=r"databases: there is no database 'mian' \(did you mean 'main'\?\)"):
        framework.databases.connection("mian")
