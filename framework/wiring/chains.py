"""The two middleware chains of this process. Applications add theirs before the first push or run."""

from framework.middleware.chain import Chain

client = Chain()
"""Around every push, and again around every due job that moves to its queue."""

server = Chain()
"""Around every run."""
