"""Name the counts of runs by urgency, which Redis (``keys.urgencies``) and the database of tasks have, and those by class."""

PROCESSED, FAILED, SLOW, UNTIMED, WAITED_MS = "p", "f", "s", "u", "ms"
"""All runs; of these the failed ones (no business errors), those that did not fail and lasted as long as the target or longer, and
those of jobs without a time of the push; and the milliseconds that all others have waited."""

WAIT_BOUNDS_S = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 10_800.0)
"""The lower bounds of the buckets of waits, but for the first bucket, which has the rest. The targets of urgencies are among them."""

WAITS = tuple(f"w{bound:g}" for bound in WAIT_BOUNDS_S)
"""The runs that have waited at least as long as each bound, and less than the next one."""

SUCCEEDED_AT, SLOW_AT = len(WAITS) + 1, len(WAITS) + 2
"""The positions of two numbers of ``keys.class_waits``: the runs that did not fail, and of these the slow ones. Before them are the
runs by bucket of ``WAIT_BOUNDS_S``, the first bucket included."""

CLASS_COUNTS, CLASS_COUNT_BITS = len(WAITS) + 3, 32
"""How many numbers there are, and the bits of each, big-endian."""
