"""Wrap every push (``client``) and every run (``server``) of the process in middlewares.

Applications add middlewares before the first push and before ``framework.boot()``; a later change raises ``MiddlewareError``.
"""

from framework.middleware.chain import CLIENT, SERVER, Chain, ClientMiddleware, ServerMiddleware

client = Chain(CLIENT)
"""Chain around every push. It runs again when a due job moves to its queue."""

server = Chain(SERVER)
"""Chain around every run of a job."""

__all__ = ["ClientMiddleware", "ServerMiddleware", "client", "server"]
