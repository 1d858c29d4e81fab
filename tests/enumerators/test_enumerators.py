"""Check that each enumerator begins with the item of any of its cursors, and refuses the cursors of others."""

import json
from datetime import datetime
from decimal import Decimal
from uuid import UUID

import pytest
from sqlalchemy import (
    Column,
    DateTime,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    Uuid,
    create_engine,
    delete,
    insert,
    select,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from framework import enumerators
from framework.wire.iteration_state import CursorError, encode_cursor

COUNT = 25
metadata = MetaData()
shops = Table(
    "shops",
    metadata,
    Column("city", String, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("opened", DateTime, unique=True),
    Column("code", Uuid, unique=True),
    Column("price", Numeric(10, 2), unique=True),
    Column("note", Integer),
)


class Base(DeclarativeBase):
    pass


class Shop(Base):
    __table__ = shops


class Named(Base):
    __tablename__ = "named"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def engine(tmp_path):
    made = create_engine(f"sqlite:///{tmp_path}/shops.db")
    metadata.create_all(made)
    rows = [
        {
            "city": "abc"[number % 3],
            "number": number // 3,
            "opened": datetime(2026, 1, 1 + number),  # noqa: DTZ001 - of the database
            "code": UUID(int=number),
            "price": Decimal(number) / 4,
        }
        for number in range(COUNT)
    ]
    with made.begin() as connection:
        connection.execute(insert(shops), rows)
    yield made
    made.dispose()


def resumes_everywhere(enumerate_from):
    """Return all items; check that from each cursor, as JSON gives it back, the rest comes."""
    pairs = list(enumerate_from(None))
    for at, (_, cursor) in enumerate(pairs):
        stored = json.loads(encode_cursor(cursor))
        assert [item for item, _ in enumerate_from(stored)] == [item for item, _ in pairs[at:]], cursor
    return [item for item, _ in pairs]


def test_items_and_batches_of_a_list():
    assert resumes_everywhere(lambda cursor: enumerators.items("abc", cursor=cursor)) == ["a", "b", "c"]
    assert enumerators.items("abc", cursor=None).total == 3
    found = resumes_everywhere(lambda cursor: enumerators.batches([1, 2, 3, 4, 5], 2, cursor=cursor))
    assert found == [[1, 2], [3, 4], [5]]
    assert list(enumerators.items([], cursor=None)) == []
    with pytest.raises(CursorError, match="has 2 items now"):
        enumerators.items("ab", cursor=2)
    with pytest.raises(ValueError, match="from 1"):
        enumerators.batches("ab", 0, cursor=None)


@pytest.mark.parametrize("name", ["opened", "code", "price"])
def test_rows_of_a_key_of_any_type(engine, name):
    key = shops.c[name]
    found = resumes_everywhere(
        lambda cursor: enumerators.sql_rows(engine.connect, select(key), key=key, cursor=cursor, page_size=4)
    )
    assert len(set(found)) == COUNT
    assert found == sorted(found)


@pytest.mark.parametrize("size", [1, 7, COUNT, 100])
def test_rows_of_a_key_of_two_columns(engine, size):
    key = (shops.c.city, shops.c.number)
    statement = select(*key).order_by(shops.c.price)
    found = resumes_everywhere(
        lambda cursor: enumerators.sql_rows(engine.connect, statement, key=key, cursor=cursor, page_size=size)
    )
    assert found == sorted(found)
    assert len(set(found)) == COUNT
    assert found[0].city == "a"


def test_batches_of_entities(engine):
    session = sessionmaker(engine)
    key = (Shop.city, Shop.number)
    found = [
        batch for batch, _ in enumerators.sql_batches(session, select(Shop), key=key, cursor=None, size=10, total=COUNT)
    ]
    assert [len(batch) for batch in found] == [10, 10, 5]
    assert type(found[0][0]) is Shop
    (batch, cursor), *_ = enumerators.sql_batches(session, select(Shop), key=key, cursor=["c", 3], size=2)
    assert ([(one.city, one.number) for one in batch], cursor) == ([("c", 3), ("c", 4)], ["c", 3])


def test_rows_that_are_deleted_move_no_other(engine):
    key, seen = shops.c.price, []
    for value, _ in enumerators.sql_rows(engine.connect, select(key), key=key, cursor=None, page_size=3):
        seen.append(value)
        with engine.begin() as connection:
            connection.execute(delete(shops).where(key == value))
    assert len(seen) == len(set(seen)) == COUNT


@pytest.mark.parametrize("cursor", [7, "a", [], [1, 2], ["x"], [True], [None]])
def test_wrong_cursor_of_rows_is_refused(engine, cursor):
    with pytest.raises(CursorError):
        enumerators.sql_rows(engine.connect, select(shops.c.number), key=shops.c.number, cursor=cursor)


def test_wrong_statement_of_rows_is_refused(engine):
    with pytest.raises(ValueError, match="has a limit or an offset"):
        enumerators.sql_rows(engine.connect, select(shops).limit(3), key=shops.c.number, cursor=None)
    with pytest.raises(ValueError, match="select that column too"):
        list(enumerators.sql_rows(engine.connect, select(shops.c.city), key=shops.c.number, cursor=None))
    with pytest.raises(ValueError, match="never NULL"):
        list(enumerators.sql_rows(engine.connect, select(shops), key=shops.c.note, cursor=None))


def test_rows_of_a_csv_file(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('﻿name;city\nAda;London\n"Gr\nace";"New;York"\n', encoding="utf-8")
    found = resumes_everywhere(lambda cursor: enumerators.csv_rows(path, cursor=cursor, delimiter=";"))
    assert found == [{"name": "Ada", "city": "London"}, {"name": "Gr\nace", "city": "New;York"}]
    with pytest.raises(CursorError, match="the file has changed meanwhile"):
        list(enumerators.csv_rows(path, cursor=2, delimiter=";"))
    with pytest.raises(FileNotFoundError):
        list(enumerators.csv_rows(tmp_path / "none.csv", cursor=None))


def test_columns_of_one_name_are_refused(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    path, book = tmp_path / "rows.csv", openpyxl.Workbook()
    path.write_text("sku,price,price,,\nA1,5,7,,\n")
    for row in (["sku", "price", "price", None, None], ["A1", 5, 7, None, None]):
        book.active.append(row)
    book.save(tmp_path / "rows.xlsx")
    for rows in (enumerators.csv_rows(path, cursor=None), enumerators.xlsx_rows(tmp_path / "rows.xlsx", cursor=None)):
        with pytest.raises(ValueError, match="has several columns 'price', and a row is a dict"):
            list(rows)


def test_rows_of_a_sheet(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["name", "born"], ["Ada", 1815], ["Grace", 1906]):
        book.active.append(row)
    book.create_sheet("empty")
    path = tmp_path / "rows.xlsx"
    book.save(path)
    found = resumes_everywhere(lambda cursor: enumerators.xlsx_rows(path, cursor=cursor))
    assert found == [{"name": "Ada", "born": 1815}, {"name": "Grace", "born": 1906}]
    assert list(enumerators.xlsx_rows(path, cursor=None, sheet="empty")) == []
    with pytest.raises(KeyError, match="has no sheet 'none'; its sheets: Sheet, empty"):
        list(enumerators.xlsx_rows(path, cursor=None, sheet="none"))


def test_members_of_a_set_and_pairs_of_a_hash(redis):
    names = {b"m%d" % number for number in range(3_000)}
    redis.sadd("set", *names)
    redis.hset("hash", mapping=dict.fromkeys(names, 7))
    for read in (enumerators.redis_set, enumerators.redis_hash):
        key = "set" if read is enumerators.redis_set else "hash"
        made = read(redis, key, cursor=None)
        assert made.total == 3_000
        pairs = list(made)
        found = {item if key == "set" else item[0] for item, _ in pairs}
        assert found == names
        middle = len(pairs) // 2
        rest = list(read(redis, key, cursor=json.loads(encode_cursor(pairs[middle][1]))))
        # The page of the cursor, and all behind it.
        assert {repr(item) for item, _ in pairs[middle:]} <= {repr(item) for item, _ in rest}
        assert len(rest) < len(pairs)


def test_scan_of_another_server_begins_again(redis):
    redis.sadd("set", *range(2_000))
    *_, (_, cursor) = enumerators.redis_set(redis, "set", cursor=None)
    assert len(list(enumerators.redis_set(redis, "set", cursor=["other", cursor[1]]))) >= 2_000


@pytest.mark.parametrize("cursor", ["x", 5, [5, "x"], ["x"], ["x", 1, 2]])
def test_wrong_cursor_of_members_is_refused(redis, cursor):
    with pytest.raises(CursorError, match=r"is none of redis_set\(\)"):
        enumerators.redis_set(redis, "set", cursor=cursor)


@pytest.mark.parametrize("cursor", ["x", -1, 1.5, True, [1]])
def test_wrong_cursor_of_positions_is_refused(cursor, tmp_path):
    with pytest.raises(CursorError, match=r"is none of items\(\)"):
        enumerators.items("abc", cursor=cursor)
    with pytest.raises(CursorError, match=r"is none of csv_rows\(\)"):
        enumerators.csv_rows(tmp_path / "none.csv", cursor=cursor)
