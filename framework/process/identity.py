"""Name a process by host, pid and a random part, since host and pid repeat in containers; name an operator by user and host."""

import getpass
import os
import secrets
import socket

NONCE_VARIABLE = "FRAMEWORK_PROCESS_NONCE"
"""Set by a supervisor, which so knows the identity of a child that died."""


def draw_nonce() -> str:
    """Return 48 random bits as hexadecimal."""
    return secrets.token_hex(6)


def identity_of(pid: int, nonce: str) -> str:
    """Return the identity of a process of this host, in Sidekiq's form ``host:pid:nonce``."""
    return f"{os.environ.get('DYNO') or socket.gethostname()}:{pid}:{nonce}"


def own_identity() -> str:
    """Return the identity of this process; the supervisor's nonce is removed, so that no child process inherits it."""
    return identity_of(os.getpid(), os.environ.pop(NONCE_VARIABLE, "") or draw_nonce())


def operator_name() -> str:
    """Return the operator as ``user@host``; the user's number where it has no name, as in containers."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
