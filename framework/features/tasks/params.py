"""Choose the arguments that an event shows: as log lines do (``loggable_arguments``), or all. Pure."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from framework.declare.declaration import Declaration
from framework.types import Payload
from framework.wire.job import version_of
from framework.wire.json import dumps_parsed

FILTERED = "[FILTERED]"
COMPRESSED = "[COMPRESSED]"
MAX_PARAMS = 10_240
"""Characters of shown arguments that are kept, unless the setting ``tasks.params`` is ``whole``."""

_UNCHANGEABLE = frozenset((int, float, bool, str, type(None)))


def params_of(payload: Payload, declaration: Declaration | None, *, whole: bool) -> tuple[str, bool]:
    """Return the arguments as JSON, and whether they are complete: then the job can be pushed again from its event."""
    args: Any = payload.get("args", [])
    if payload.get("compressed"):
        return f'["{COMPRESSED}"]', False
    if whole:
        return _encode(args), True
    allowed = frozenset[int]() if declaration is None else declaration.loggable_positions_for(version_of(payload))
    shown = [value if _is_number(value) or place in allowed else FILTERED for place, value in enumerate(args)]
    text = _encode(shown)
    if len(text) > MAX_PARAMS:
        return f'["{FILTERED}"]', False
    return text, all(value is not FILTERED for value in shown)


def params_later(payload: Payload, declaration: Declaration | None, *, whole: bool) -> Callable[[], tuple[str, bool]]:
    """Return a function that returns ``params_of`` for the payload as it is now."""
    args: Any = payload.get("args")
    # The job may change a list or an object of its arguments, and middlewares the payload.
    if type(args) is list and not payload.get("compressed"):
        values = cast("list[Any]", args)
        if _UNCHANGEABLE.issuperset(map(type, values)):
            copied: Payload = {"args": list(values), "version": payload.get("version")}
            return partial(params_of, copied, declaration, whole=whole)
    found = params_of(payload, declaration, whole=whole)
    return lambda: found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _encode(values: list[Any]) -> str:
    # JSON has a NUL as an escape, which PostgreSQL's TEXT takes, and no lone surrogate.
    return dumps_parsed(values).decode()
