"""Check that pushes wait for the commits of real sessions, and that a job returns its connections."""

import asyncio
import contextlib
import contextvars
import gc
import logging
import threading
from types import SimpleNamespace

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, event, func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, registry, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from framework.integrations import sqlalchemy
from framework.integrations.scope import scope
from framework.integrations.sqlalchemy import CloseSessions, open_transactions
from framework.middleware.chain import SERVER, Chain, ChainInvocation
from framework.push.transactions import add_source
from tests.push.conftest import worker

METADATA = MetaData()
ORDERS = Table("orders", METADATA, Column("id", Integer, primary_key=True))


class Order:
    def __init__(self, number):
        self.id = number


registry().map_imperatively(Order, ORDERS)


@pytest.fixture(autouse=True)
def watched(sources):
    """Watch the sessions of this test only, in a context of its own."""
    for name, listener in sqlalchemy._LISTENERS.items():
        event.listen(Session, name, listener)
    add_source(open_transactions)
    token = sqlalchemy._open.set(())
    yield
    sqlalchemy._open.reset(token)
    for name, listener in sqlalchemy._LISTENERS.items():
        event.remove(Session, name, listener)


@pytest.fixture(params=["sqlite", "postgresql"])
def each_engine(request, tmp_path):
    url = f"sqlite:///{tmp_path}/one.sqlite3"
    if request.param == "postgresql":
        url = request.getfixturevalue("database").replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url)
    if request.param == "sqlite":
        # The driver's own begin would leave savepoints out.
        event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    METADATA.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def engine():
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    METADATA.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def job(pusher):
    return worker(queue="default")


# --- commit and rollback --------------------------------------------------------------------------------------------


def test_push_waits_for_the_commit_of_the_session(each_engine, job, jobs):
    with Session(each_engine) as session:
        session.add(Order(1))
        jid = job.perform_async(1)
        session.flush()
        assert jobs() == []
        session.commit()
        assert [one["jid"] for one in jobs()] == [jid]


def test_rollback_discards_the_push(each_engine, job, jobs):
    with pytest.raises(ValueError, match="no tea"), Session(each_engine) as session, session.begin():
        session.add(Order(1))
        job.perform_async(1)
        raise ValueError("no tea")
    assert jobs() == []


def test_rollback_of_a_savepoint_discards_its_pushes_only(each_engine, job, jobs):
    with Session(each_engine) as session, session.begin():
        job.perform_async(1)
        with pytest.raises(ValueError, match="no tea"), session.begin_nested():
            session.add(Order(1))
            job.perform_async(2)
            raise ValueError("no tea")
        with session.begin_nested():
            session.add(Order(2))
            job.perform_async(3)
        assert jobs() == []
    assert [one["args"] for one in jobs()] == [[1], [3]]


def test_savepoint_in_a_rolled_back_transaction_is_discarded(each_engine, job, jobs):
    with Session(each_engine) as session:
        session.begin()
        with session.begin_nested():
            job.perform_async(1)
        session.rollback()
    assert jobs() == []


def test_failed_flush_discards_the_push(each_engine, job, jobs):
    with Session(each_engine) as session:
        session.add(Order(1))
        session.commit()
    with Session(each_engine) as session:
        session.execute(insert(ORDERS).values(id=2))
        job.perform_async(1)
        session.add(Order(1))
        with pytest.raises(Exception, match=r"(?i)unique"):
            session.commit()
    assert jobs() == []


def test_commit_that_the_database_refuses_discards_the_push(engine, job, jobs):
    with Session(engine) as session:
        session.execute(insert(ORDERS).values(id=2))
        job.perform_async(1)
        event.listen(engine, "commit", lambda connection: 1 / 0, once=True)
        with pytest.raises(ZeroDivisionError):
            session.commit()
    assert jobs() == []


def test_push_between_two_transactions_is_written_at_once(engine, job, jobs):
    with Session(engine) as session:
        session.add(Order(1))
        session.commit()
        job.perform_async(1)
        assert len(jobs()) == 1
        job.set(queue="default").perform_bulk([(2,)])
        session.add(Order(2))
        job.perform_async(3)
        assert len(jobs()) == 2
        session.commit()
    assert len(jobs()) == 3


def test_push_in_an_after_commit_listener_is_written(engine, job, jobs):
    with Session(engine) as session:
        event.listen(session, "after_commit", lambda _: job.perform_async(1))
        session.add(Order(1))
        session.commit()
        assert len(jobs()) == 1


# --- sessions that are closed without a commit ----------------------------------------------------------------------


def test_close_of_a_session_that_only_read_pushes(engine, job, jobs):
    with Session(engine) as session:
        session.execute(select(ORDERS)).all()
        session.execute(text("SELECT 1"))
        job.perform_async(1)
        assert jobs() == []
    assert len(jobs()) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda session: session.add(Order(1)),
        lambda session: session.execute(insert(ORDERS).values(id=1)),
        lambda session: session.execute(text(" insert into orders values (1)")),
    ],
    ids=("object", "statement", "text"),
)
def test_close_of_a_session_with_changes_discards(engine, job, jobs, caplog, change):
    with caplog.at_level(logging.INFO, logger="framework"), Session(engine) as session:
        change(session)
        job.perform_async(1)
    assert jobs() == []
    assert "push.discarded" in caplog.text


def test_session_dropped_without_close_holds_up_no_push(engine, job, jobs):
    session = Session(engine)
    session.add(Order(1))
    del session
    gc.collect()
    job.perform_async(1)
    assert len(jobs()) == 1


# --- threads, tasks, requests ---------------------------------------------------------------------------------------


def in_thread(act, context=None):
    thread = threading.Thread(target=(context or contextvars.Context()).run, args=(act,))
    thread.start()
    thread.join()


def test_sessions_of_other_threads_hold_up_no_push(engine, job, jobs):
    with Session(engine) as session:
        session.add(Order(1))
        in_thread(lambda: job.perform_async(1))
        assert len(jobs()) == 1
        session.commit()


def test_session_begun_in_another_thread_counts_where_used(engine, job, jobs):
    session = Session(engine)
    in_thread(lambda: session.execute(select(ORDERS)))
    session.add(Order(1))
    job.perform_async(1)
    assert jobs() == []
    session.commit()
    assert len(jobs()) == 1
    session.close()


def test_threads_of_one_request_share_their_transactions(engine, job, jobs):
    session = Session(engine)
    with scope():
        in_thread(lambda: session.execute(select(ORDERS)), contextvars.copy_context())
        job.perform_async(1)
        assert jobs() == []
        session.rollback()
    assert jobs() == []
    session.close()


def test_tasks_do_not_wait_for_the_sessions_of_each_other(engine, job, jobs):
    async def in_transaction(ready, done):
        with Session(engine) as session:
            session.add(Order(1))
            ready.set()
            await done.wait()

    async def both():
        ready, done = asyncio.Event(), asyncio.Event()
        other = asyncio.create_task(in_transaction(ready, done))
        await ready.wait()
        job.perform_async(1)
        done.set()
        await other

    asyncio.run(both())
    assert len(jobs()) == 1


@pytest.fixture
def async_engine(tmp_path):
    return create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/async.sqlite3")


def test_awaited_push_waits_for_the_commit_of_its_task(async_engine, job, jobs):
    async def act():
        async with async_engine.begin() as connection:
            await connection.run_sync(METADATA.create_all)
        async with AsyncSession(async_engine) as session:
            session.add(Order(1))
            await session.flush()
            jid = await job.aperform_async(1)
            assert jobs() == []
            await session.commit()
        await async_engine.dispose()
        return jid

    jid = asyncio.run(act())
    assert [one["jid"] for one in jobs()] == [jid]


def test_push_waits_for_the_commit_of_an_async_session(async_engine, pusher, job, jobs, monkeypatch):
    threads = []
    write = pusher.client._reporting
    monkeypatch.setattr(
        pusher.client, "_reporting", lambda *given: (threads.append(threading.current_thread()), write(*given))
    )

    async def both():
        async with async_engine.begin() as connection:
            await connection.run_sync(METADATA.create_all)
        async with AsyncSession(async_engine) as session:
            session.add(Order(1))
            await session.flush()
            job.perform_async(1)
            assert jobs() == []
            await session.commit()
            assert len(jobs()) == 1
            await session.execute(insert(ORDERS).values(id=2))
            job.perform_async(2)
            await session.rollback()
        await async_engine.dispose()

    asyncio.run(both())
    assert len(jobs()) == 1
    assert threads[0] is not threading.current_thread()  # the event loop goes on


# --- after a job ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running_job(*registries, inline=False):
    chain = Chain(SERVER)
    chain.add(CloseSessions, registries)
    with ChainInvocation(chain.compile(), SimpleNamespace(_aw_run=None if inline else object()), {}, "default"):
        yield


def test_job_returns_the_connections_of_its_sessions(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/one.sqlite3")
    sessions = [Session(engine), Session(engine)]
    with running_job():
        for session in sessions:
            session.execute(text("SELECT 1"))
        assert engine.pool.checkedout() == 2
    assert engine.pool.checkedout() == 0
    engine.dispose()


def test_job_that_fails_returns_its_connections_too(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/one.sqlite3")
    session = Session(engine)
    with pytest.raises(ValueError, match="no tea"), running_job():
        session.execute(text("SELECT 1"))
        raise ValueError("no tea")
    assert engine.pool.checkedout() == 0
    engine.dispose()


def test_job_removes_the_session_of_a_registry(engine):
    sessions = scoped_session(sessionmaker(engine))
    with running_job(sessions):
        first = sessions()
    assert sessions() is not first
    sessions.remove()


def test_inline_job_keeps_the_session_of_its_caller(engine, job, jobs):
    sessions = scoped_session(sessionmaker(engine))
    sessions.add(Order(1))
    with running_job(sessions, inline=True):
        job.perform_async(1)
    assert jobs() == []
    sessions.commit()
    assert len(jobs()) == 1
    assert sessions.scalar(select(func.count()).select_from(ORDERS)) == 1
    sessions.remove()


def test_async_job_returns_the_connections_of_its_sessions(async_engine):
    sessions = async_scoped_session(async_sessionmaker(async_engine), scopefunc=asyncio.current_task)

    async def both():
        with running_job(sessions):
            left_open = AsyncSession(async_engine)
            for session in (left_open, sessions):
                await session.execute(text("SELECT 1"))
            assert async_engine.pool.checkedout() == 2
        while sqlalchemy._closing:
            await asyncio.wait(sqlalchemy._closing)
        assert async_engine.pool.checkedout() == 0
        await async_engine.dispose()

    asyncio.run(both())
