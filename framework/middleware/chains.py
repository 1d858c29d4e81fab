"""The two middleware chains of this process. Applications add theirs before the first push or run; later is an error."""

from framework.middleware.chain import CLIENT, SERVER, Chain

client = Chain(CLIENT)
"""Around every push, and again around every due job that moves to its queue."""

server = Chain(SERVER)
"""Around every run."""
