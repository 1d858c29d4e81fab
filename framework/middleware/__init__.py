"""Wrap every push (``client``) and every run (``server``) of the process in middlewares.

Applications add middlewares before the first push and before ``framework.boot()``; a later change raises ``MiddlewareError``.
"""

from framework.middleware.chain import CLIENT, SERVER, CapsuleChain, Chain, ClientMiddleware, ServerMiddleware

client = Chain(CLIENT)
"""Chain around every push. It runs again when a due job moves to its queue."""

server = Chain(SERVER)
"""Chain around every run of a job."""

_capsules: dict[str, CapsuleChain] = {}


def capsule(name: str) -> CapsuleChain:
    """Return the chain around the runs of a capsule: ``server``, with the changes that are made to this chain.

    The order of the changes to ``server`` and to this chain does not matter. A process without the capsule ignores it.
    """
    return _capsules.setdefault(name, CapsuleChain(server))


__all__ = ["ClientMiddleware", "ServerMiddleware", "capsule", "client", "server"]
