"""Push in a process of its own: ``flood CLASS FIRST COUNT`` at full speed, or ``healthy RATE FIRST`` until a line comes.

Both print one line of JSON at the end; the flood also prints what was accepted as it goes on.
"""

import json
import random
import select
import sys
import time
from typing import Any

import flood_jobs

from framework import FrameworkError
from framework.errors import BacklogFullError, BulkPushError

SLICE = 1_000
WORDS = [f"{number:x}" for number in range(7_000, 9_000)]


def say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def flood(name: str, first: int, count: int) -> None:
    worker: Any = getattr(flood_jobs, name)
    refused, accepted, said = 0, 0, time.monotonic()
    for start in range(first, first + count, SLICE):
        text = " ".join(random.choices(WORDS, k=30))
        rows = [
            (serial, time.time(), text[serial % 40 :]) for serial in range(start, min(first + count, start + SLICE))
        ]

        def push(rows: Any = rows) -> Any:
            return worker.perform_bulk(rows)

        step = push
        while True:
            try:
                step()
                break
            except BulkPushError as error:
                # Its chunk is repeated under its token, so that no job is written twice.
                step, refused = error.resume, refused + 1
            except FrameworkError:
                refused += 1
            time.sleep(0.05)
        accepted += len(rows)
        if time.monotonic() - said > 1:
            said = time.monotonic()
            say(accepted=accepted, refused=refused)
    say(accepted=accepted, refused=refused, done=True)


def healthy(rate: float, first: int) -> None:
    began, serial, failed, full, longest = time.monotonic(), 0, 0, 0, 0.0
    while not select.select([sys.stdin], [], [], 0.005)[0]:
        at = time.monotonic()
        if serial >= (at - began) * rate:
            continue
        try:
            flood_jobs.CLASSES[serial % flood_jobs.HEALTHY].perform_async(first + serial, time.time())
        except FrameworkError as error:
            failed += 1
            # Redis says so, or the backlog of the class.
            full += isinstance(error, BacklogFullError) or "maxmemory" in str(error)
        serial += 1
        longest = max(longest, time.monotonic() - at)
    say(pushed=serial, failed=failed, full=full, longest_s=round(longest, 3), done=True)


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "flood":
        flood(words[0], int(words[1]), int(words[2]))
    else:
        healthy(float(words[0]), int(words[1]))
