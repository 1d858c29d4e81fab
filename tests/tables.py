"""Run one test over a table: every row is checked, and the failure names all rows that fail.

    @each_row(("text", "seconds"), [("1s", 1), ("2m", 120)])
    def test_parse_duration(text, seconds):
        assert parse_duration(text) == seconds

The arguments are those of ``pytest.mark.parametrize``, but the table is one case: its rows share the fixtures of the test. Use it
for functions without side effects. Between two rows each server with a client fixture is emptied, and each row has a ``tmp_path``
of its own. Two decorators make the product of their rows, as with ``parametrize``.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from redis import Redis

MOST_SHOWN = 10
"""Failing rows whose whole error is shown; the others are only named."""


def pairwise(**columns: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize with the product of the columns; rows that add no new pair of values are campaigns.

    Most faults need one or two certain values; the campaigns find those that need three.
    """
    lists = {name: list(values) for name, values in columns.items()}
    product = [
        dict(zip(lists, cells, strict=True)) for cells in itertools.product(*map(range, map(len, lists.values())))
    ]
    kept = _cover(product)
    params = [
        pytest.param(
            *(lists[name][index] for name, index in row.items()),
            id="-".join(_short(lists[name][index], name, index) for name, index in row.items()),
            marks=() if number in kept else pytest.mark.campaign,
        )
        for number, row in enumerate(product)
    ]
    return pytest.mark.parametrize(",".join(lists), params)


def _cover(product: list[dict[str, int]]) -> set[int]:
    """Choose rows until every pair of values is in one of them; of the rows with the most new pairs, the first."""
    pairs = [set(itertools.combinations(row.items(), 2)) for row in product]
    missing = set().union(*pairs)
    kept = set()
    while missing:
        best = max(range(len(product)), key=lambda number: len(pairs[number] & missing))
        kept.add(best)
        missing -= pairs[best]
    return kept


def _short(value: Any, name: str, index: int) -> str:
    return str(value) if isinstance(value, (str, int)) else f"{name}{index}"


_Row = tuple[str, dict[str, Any]]


def each_row(
    names: str | Sequence[str],
    values: Iterable[Any],
    *,
    ids: Iterable[str] | Callable[[Any], Any] | None = None,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that calls the test once per row, each time within ``around()``."""
    columns = [one.strip() for one in names.split(",")] if isinstance(names, str) else list(names)
    table = list(_table(columns, values, ids))
    assert table, "a table without rows checks nothing"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        inner = getattr(test, "rows_of", None)
        tables = [*(inner.tables if inner else ()), table]
        within = inner.around if inner and around is nullcontext else around
        return _wrapped(inner.test if inner else test, tables, within)

    return decorate


class _Rows:
    """A test and the tables of its arguments."""

    def __init__(self, test: Callable[..., None], tables: list[list[_Row]], around: Callable[[], Any]) -> None:
        self.test, self.tables, self.around = test, tables, around


def _wrapped(test: Callable[..., None], tables: list[list[_Row]], around: Callable[[], Any]) -> Callable[..., None]:
    given = {name for table in tables for name in table[0][1]}
    signature = inspect.signature(test)
    assert given <= set(signature.parameters), f"not arguments of {test.__name__}: {given - set(signature.parameters)}"

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        failed: list[tuple[str, BaseException]] = []
        for number, combined in enumerate(itertools.product(*reversed(tables))):
            row = {name: value for _, values in combined for name, value in values.items()}
            try:
                with around():
                    test(**_fresh(fixtures, number), **row)
            except (Exception, pytest.fail.Exception) as error:
                failed.append(("-".join(name for name, _ in combined), error))
        _raise_failures(failed)

    kept = [one for name, one in signature.parameters.items() if name not in given]
    run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    run.rows_of = _Rows(test, tables, around)  # type: ignore[attr-defined]
    return run


def _fresh(fixtures: dict[str, Any], number: int) -> dict[str, Any]:
    for client in fixtures.values():
        if number and isinstance(client, Redis):
            client.flushall()
    if "tmp_path" not in fixtures:
        return fixtures
    folder = fixtures["tmp_path"] / f"row{number}"
    folder.mkdir()
    return {**fixtures, "tmp_path": folder}


def _raise_failures(failed: list[tuple[str, BaseException]]) -> None:
    for name, error in failed:
        error.add_note(f"row: {name}")
    if len(failed) == 1:
        raise failed[0][1]
    if failed:
        names = "\n".join(name for name, _ in failed)
        raise BaseExceptionGroup(f"{len(failed)} rows fail:\n{names}", [error for _, error in failed[:MOST_SHOWN]])


def _table(columns: list[str], values: Iterable[Any], ids: Any) -> Iterator[_Row]:
    named = list(ids) if ids is not None and not callable(ids) else None
    for number, value in enumerate(values):
        cells, name = value, None
        if isinstance(value, type(pytest.param())):
            assert not value.marks, "a row has no marks of its own: make it a test"
            cells, name = (value.values[0] if len(columns) == 1 else value.values), value.id
        cells = (cells,) if len(columns) == 1 else tuple(cells)
        assert len(cells) == len(columns), f"row {number} has {len(cells)} cells for {len(columns)} columns"
        yield name or (named[number] if named else _name(number, cells, ids)), dict(zip(columns, cells, strict=True))


def _name(number: int, cells: Iterable[Any], ids: Any) -> str:
    words = [_word(ids(cell) if callable(ids) else cell) for cell in cells]
    return f"{number}:" + "-".join(words)


def _word(value: Any) -> str:
    try:
        return repr(value)[:60]
    except Exception:
        return type(value).__name__
