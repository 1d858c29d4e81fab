"""The offers in SQL: load the file of a seller, enrol one offer.

What a crash does: an offer and its listing are one row, changed in one transaction. A job that runs again finds the listing.
"""

import csv
import uuid
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, func, select, update
from sqlalchemy.dialects import sqlite

from framework import BusinessError, Discard
from workers.database import process_engine, reading, writing
from workers.enrolment.checks import faults_of
from workers.enrolment.tables import metadata, offers

_LISTINGS: Final = uuid.UUID("6d0f7b0e-6a57-4c5e-9d4c-0f6c1f0c9a11")
"""The namespace of listing ids: the id follows from seller and SKU, so a second run makes the same one."""


def load(seller: str, path: Path) -> list[str]:
    """Record the offers of a CSV file with the column ``sku``; return their SKUs. An offer that exists is replaced."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = {row["sku"]: {"seller": seller, "sku": row["sku"], "cells": row} for row in csv.DictReader(file)}
    statement = sqlite.insert(offers)
    replaced = statement.on_conflict_do_update(
        index_elements=["seller", "sku"], set_={"cells": statement.excluded.cells, "listing": None}
    )
    if rows:
        with writing(_engine()) as connection:
            connection.execute(replaced, list(rows.values()))
    return list(rows)


def enrol(seller: str, sku: str) -> str:
    """Enrol the offer and return the id of its listing.

    Raises:
        BusinessError: the offer has faults, which the text names.
        Discard: the seller has removed the offer.
    """
    mine = (offers.c.seller == seller) & (offers.c.sku == sku)
    with reading(_engine()) as connection:
        found = connection.execute(select(offers.c.cells, offers.c.listing).where(mine)).one_or_none()
    if found is None:
        raise Discard(f"{seller} no longer offers {sku}")
    if found.listing is not None:
        return str(found.listing)
    if faults := faults_of(found.cells):
        raise BusinessError(f"{sku}: {'; '.join(faults)}")
    listing = str(uuid.uuid5(_LISTINGS, f"{seller}/{sku}"))
    with writing(_engine()) as connection:
        connection.execute(update(offers).where(mine).values(listing=listing))
    return listing


def count_listings(seller: str) -> int:
    """Return how many offers of the seller are enrolled."""
    wanted = select(func.count()).where(offers.c.seller == seller, offers.c.listing.isnot(None))
    with reading(_engine()) as connection:
        return connection.execute(wanted).scalar_one()


def _engine() -> Engine:
    return process_engine("enrolment", metadata)
