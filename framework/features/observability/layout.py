"""Say which number of a row is what: one row has all that the runs of one class from one queue add to.

Only the values above the first bucket of a histogram are counted as such: the first bucket is the rest. So a quick job adds to few
numbers.
"""

from typing import Final

RUN: Final = "run"
"""The kind of these rows; the kind of any other row is the name of its metric."""

COUNT, SECONDS, OVER = 0, 1, 2
"""Of the duration: the number of runs, the sum, and the first of the counts above each bound. For runs that are done."""
FAILED: Final = 4
"""The first number of failed runs, as for those that are done."""
UNTIMED, WAITED, WAITED_OVER = 8, 9, 10
"""Of the wait: runs without a time of the push, the sum, the counts above each bound."""
CPU: Final = 12
DB: Final = 22
REDIS: Final = 32
"""The sum, and the counts above each bound; those of failed runs follow those of the others."""
CPU_NUMBERS = DB_NUMBERS = 5
REDIS_NUMBERS = 4
CALLS: Final = 40
"""Calls to Redis, of done and of failed runs."""
RETRIED, INTERRUPTED = 42, 43
SLOW: Final = 44
"""Done runs that lasted longer than the target of the class."""
LATE: Final = 45
"""Runs that waited longer than the target of the class."""
RUN_NUMBERS: Final = 46
