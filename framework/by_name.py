"""Push a job by the name of its class on the wire, also for a class that this program does not have."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, Unpack, cast

from framework.application_worker import ATTRIBUTES, ApplicationWorker, PushOptions, Setter
from framework.declare import registry, validators
from framework.declare.declaration import NOT_OWNED, Declaration
from framework.declare.options import Moment, check_options
from framework.declare.pushed import with_twin
from framework.declare.signature import JobSignature, build_signature
from framework.declare.validators import InvalidValue
from framework.errors import ArgumentsError
from framework.text import did_you_mean, with_article
from framework.typeguards import short_repr
from framework.types import Jid

_FOREIGN_SHARD = "main"
"""The shard of a class that this program does not have: routing rules ask for attributes that are not known here."""


def enqueue(
    name: str, args: Sequence[Any] = (), /, *, at: Moment | None = None, **options: Unpack[PushOptions]
) -> Jid | None:
    """Push a job of the class with this name on the wire; return its id, or ``None`` when it was dropped.

    A class of this program is routed, and its arguments are checked, as with ``perform_async``. Any other class needs ``queue``:
    the job goes there on the shard ``main``, or on ``shard``. Its arguments must be JSON, and are never compressed. ``at`` is an
    aware datetime, a delay, or a number as in ``perform_in``. ``options`` are those of ``set``.

    Raises:
        ArgumentsError: no class has the name and no queue is given, or the arguments or options are invalid.
        ExceedLimitError: the arguments are too large.
        ShardUnavailableError: Redis does not answer or refuses the write.
    """
    setter, arguments = _setter_for(name, options), as_list(name, args)
    if at is None:
        jid = setter.perform_async(*arguments)
    else:
        jid = setter.perform_in(at, *arguments) if isinstance(at, timedelta) else setter.perform_at(at, *arguments)
    return with_twin("framework.aenqueue", jid)


async def aenqueue(
    name: str, args: Sequence[Any] = (), /, *, at: Moment | None = None, **options: Unpack[PushOptions]
) -> Jid | None:
    """Push as ``enqueue`` does, in a thread, while the event loop goes on. A push whose task is cancelled may have been made."""
    setter, arguments = _setter_for(name, options), as_list(name, args)
    if at is None:
        return await setter.aperform_async(*arguments)
    if isinstance(at, timedelta):
        return await setter.aperform_in(at, *arguments)
    return await setter.aperform_at(at, *arguments)


def foreign_setter(name: str, options: Mapping[str, Any]) -> Setter[...]:
    """Return an object that pushes jobs of a class that this program does not have. ``options`` are checked, with a queue.

    Each further option is a field of the payload.
    """
    return Setter(_ForeignClass, _foreign_declaration(name), options)


def check_name(name: object) -> str:
    """Return the name of a class on the wire. Raises ArgumentsError."""
    if isinstance(name, type) and issubclass(name, ApplicationWorker):
        reason = f"give the name of the class as a str, or call {name.__qualname__}.perform_async(...)"
        raise ArgumentsError(name.__qualname__, reason)
    try:
        return str(validators.wire_name(name))
    except InvalidValue as error:
        raise ArgumentsError(short_repr(name), f"is no name of a class. Allowed: {error}") from None


def as_list(name: str, args: object) -> list[Any]:
    """Return the arguments of a job as a list. Raises ArgumentsError for anything but a list or a tuple."""
    if not isinstance(args, list | tuple):
        reason = f"its arguments are {with_article(type(args).__name__)}; give them as a list, such as [1]"
        raise ArgumentsError(name, reason)
    return list(cast("Sequence[Any]", args))


class _ForeignClass:
    """Stand for the class of a job that this program does not have."""


def _setter_for(name: str, options: Mapping[str, Any]) -> Setter[...]:
    wire_name = check_name(name)
    worker = registry.find(wire_name)
    if worker is not None:
        return cast("Setter[...]", worker.set(**options))
    checked = check_options(wire_name, options)
    if "queue" not in checked:
        hint = did_you_mean(wire_name, registry.names())
        reason = f"this program has no class of this name{hint}. Import its module, or give the queue of another program: queue=..."
        raise ArgumentsError(wire_name, reason)
    if checked.get("sync"):
        raise ArgumentsError(wire_name, "this program has no class of this name to run; leave out sync")
    return foreign_setter(wire_name, checked)


@lru_cache(maxsize=1_000)
def _foreign_declaration(name: str) -> Declaration:
    """Return the declaration of a class about which only its name is known: any JSON arguments, and Sidekiq's defaults."""
    facts = {attribute: one.default for attribute, one in ATTRIBUTES.items() if one.group != "application"}
    facts |= {"wire_name": name, "feature_category": NOT_OWNED, "shard": _FOREIGN_SHARD}
    # Without GitLab's middleware Sidekiq runs a compressed job with one text as its argument, and reports nothing.
    facts["compress"] = False
    return Declaration.of(
        facts,
        class_name=name,
        module="",
        generated_queue=name,
        signature=_foreign_signature(name),
        is_async=False,
        in_thread=True,
        loggable_positions=frozenset(),
        version_handlers={},
    )


def _foreign_signature(name: str) -> JobSignature:
    def perform(self: object, *args: Any) -> None:
        """Take any arguments."""

    return build_signature(name, perform, strict=True)
