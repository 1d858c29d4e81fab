"""The form of an operator's orders to one process about its running jobs, and of their answers."""

import re
import secrets
from typing import TypeGuard

STACKS, STOP = "stacks", "stop"
"""The orders: show the stacks of the running jobs, or stop one."""

ORDER_TTL_S = 60
"""How long an order waits for its process."""
ANSWER_TTL_S = 60
"""How long an answer waits for the command that asked."""
MAX_STACKS = 200
MAX_ANSWER_BYTES = 512 << 10
"""The size of an answer: further stacks are left out, and counted."""

_TOKEN = re.compile(r"[0-9a-f]{32}").fullmatch


def new_token() -> str:
    """Return a name for the answer of an order."""
    return secrets.token_hex(16)


def is_token(value: object) -> TypeGuard[str]:
    """Return whether this is a token: an order of another program must not choose which key is written."""
    return isinstance(value, str) and _TOKEN(value) is not None
