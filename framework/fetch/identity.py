"""Who owns a working list: host, pid and a random part, since host and pid repeat in containers."""

import os
import secrets
import socket

NONCE_VARIABLE = "FRAMEWORK_PROCESS_NONCE"
"""Set by a supervisor, so that it can name a child that died."""


def draw_nonce() -> str:
    """Return 48 random bits as hexadecimal."""
    return secrets.token_hex(6)


def identity_of(pid: int, nonce: str) -> str:
    """Return the identity of a process of this host, in Sidekiq's form ``host:pid:nonce``."""
    return f"{os.environ.get('DYNO') or socket.gethostname()}:{pid}:{nonce}"


def own_identity() -> str:
    """Return this process's identity; the supervisor's nonce is used once and not handed on to children of ours."""
    return identity_of(os.getpid(), os.environ.pop(NONCE_VARIABLE, "") or draw_nonce())
