"""Middlewares around every push (``client``) and every run (``server``).

These are the two chains of the process. Applications add middlewares before the first push and before ``framework.boot()``;
a later change raises ``MiddlewareError``.
"""

from framework.middleware.chain import CLIENT, SERVER, Chain, ClientMiddleware, ServerMiddleware

client = Chain(CLIENT)
"""Runs around every push, and again when a due job moves to its queue."""

server = Chain(SERVER)
"""Runs around every execution of a job."""

__all__ = ["ClientMiddleware", "ServerMiddleware", "client", "server"]
