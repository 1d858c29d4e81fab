"""Push in a process of its own: ``fill JSON``, ``live RATE FIRST LOCKED`` until a line comes, ``short COUNT FIRST LOCKED``.

Each notes every push with what became of it. A process that lives for less than 5 s knows no move.
"""

import json
import random
import select
import sys
import time
from typing import Any

import jobs

from framework import FrameworkError
from framework.batches import Batch
from framework.errors import BulkPushError, ShardUnavailableError

SLICE = 1_000
WORDS = [f"{number:x}" for number in range(7_000, 9_000)]
HOT = 200
"""How many hot jobs are not equal."""


def text() -> str:
    return " ".join(random.choices(WORDS, k=12))


def noted(name: str, serial: int, at: float, jid: str | None, outcome: int) -> None:
    kind = name.removesuffix("Worker").lower()
    jobs.note(f"pushed-{kind}", jobs.PUSHED.pack(serial, at, bytes.fromhex(jid) if jid else jobs.NO_ID, outcome))


def push(name: str, serial: int) -> None:
    """Push one job. A refused push is not repeated."""
    worker, at = getattr(jobs, name), time.time()
    try:
        jid = worker.perform_async(serial, at)
    except ShardUnavailableError as error:
        noted(name, serial, at, None, jobs.DOUBTFUL if error.maybe_written else jobs.REFUSED)
    except FrameworkError:
        noted(name, serial, at, None, jobs.REFUSED)
    else:
        noted(name, serial, at, jid, jobs.ACCEPTED if jid else jobs.DROPPED)


def fill(counts: dict[str, Any]) -> None:
    for name, count in counts["jobs"].items():
        for start in range(0, count, SLICE):
            serials = range(start, min(count, start + SLICE))
            bulk(name, serials, counts["later"])
    for number in range(counts["batches"]):
        batch = Batch()
        batch.on_success(jobs.BatchEndWorker)
        with batch.jobs():
            bulk("MemberWorker", range(number * counts["members"], (number + 1) * counts["members"]), 0)
    jobs.ItemsWorker.perform_bulk([(number,) for number in range(counts["iterations"])])


def bulk(name: str, serials: range, later: float) -> None:
    worker: Any = getattr(jobs, name)
    at, some = time.time(), text()
    rows = [(serial, at, some) for serial in serials]
    if name == "LaterWorker":

        def step() -> Any:
            return worker.perform_bulk_in(random.uniform(later / 3, later), rows)
    else:

        def step() -> Any:
            return worker.perform_bulk(rows)

    while True:
        try:
            jids = step()
            break
        except BulkPushError as error:
            # Its chunk is repeated under its token, so that no job is written twice.
            step = error.resume
        time.sleep(0.2)
    for serial, jid in zip(serials, jids, strict=True):
        noted(name, serial, at, jid, jobs.ACCEPTED if jid else jobs.DROPPED)


def live(rate: float, first: int, locked: int) -> None:
    began, serial = time.monotonic(), 0
    while not select.select([sys.stdin], [], [], 0.003)[0]:
        if serial < (time.monotonic() - began) * rate:
            push(("LiveWorker", "OtherWorker")[serial % 2], first + serial)
            if serial % 2:
                push("HotWorker", random.randrange(HOT))
            if serial % 4 == 1:
                push("LockedWorker", random.randrange(locked))
            serial += 1


def short(count: int, first: int, locked: int) -> None:
    for serial in range(count):
        push("LiveWorker", first + serial)
        push("HotWorker", random.randrange(HOT))
        push("LockedWorker", random.randrange(locked))


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "fill":
        fill(json.loads(words[0]))
    elif what == "live":
        live(float(words[0]), int(words[1]), int(words[2]))
    else:
        short(int(words[0]), int(words[1]), int(words[2]))
