"""Enumerate the items of an ``IterableWorker``, with a cursor for each: lists, SQL rows, CSV and .xlsx files, Redis sets and hashes.

    def build_enumerator(self, *, cursor):
        return enumerators.sql_rows(Session, select(User), key=User.id, cursor=cursor)

Each function takes the cursor that the framework gives to ``build_enumerator``, and begins with that item. A cursor of another
enumerator is refused. Names are loaded at their first use.
"""

from typing import TYPE_CHECKING, Any

from framework.lazy_names import load_name, public_names

if TYPE_CHECKING:
    from framework.enumerators.keyset import sql_batches, sql_rows
    from framework.enumerators.plain import Enumerator, batches, csv_rows, items, redis_hash, redis_set, xlsx_rows

__all__ = [
    "Enumerator",
    "batches",
    "csv_rows",
    "items",
    "redis_hash",
    "redis_set",
    "sql_batches",
    "sql_rows",
    "xlsx_rows",
]

_MODULES = {
    "Enumerator": "plain",
    "batches": "plain",
    "csv_rows": "plain",
    "items": "plain",
    "redis_hash": "plain",
    "redis_set": "plain",
    "sql_batches": "keyset",
    "sql_rows": "keyset",
    "xlsx_rows": "plain",
}


def __getattr__(name: str) -> Any:
    return load_name(globals(), name, f"{__name__}.{_MODULES.get(name, '')}")


def __dir__() -> list[str]:
    return public_names(globals())
