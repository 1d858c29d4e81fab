"""The changes of entries that operators may order, for commands and pages: run now, disable, enable, another rhythm."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from framework.admin.audit import acting_name
from framework.declare import port
from framework.errors import ConfigurationError
from framework.features.cron.entries import CronEntry, Order, arguments_problems
from framework.features.cron.push import TICK_JOBS
from framework.features.cron.store import FIRST_ELSEWHERE, CronStates, Settlement, Snapshot
from framework.text import Sentence


def with_order(entry: CronEntry, snapshot: Snapshot) -> CronEntry:
    """Return the entry as operators have ordered it."""
    order = snapshot.orders.get(entry.name)
    return entry if order is None else entry.ordered(order)


def push_now(states: CronStates, configured: CronEntry) -> tuple[str | None, Settlement]:
    """Push a job of an entry now; return its id and what has become of it. Its ticks stay as they are. Raises redis errors."""
    while True:
        snapshot = states.read()
        entry = with_order(configured, snapshot)
        job = port.current().service(TICK_JOBS).make(entry, None)
        if job is None:
            return None, Settlement("dropped")
        raw = snapshot.raw.get(entry.name, b"")
        settlement = states.push(entry.name, raw, None, entry.fingerprint, job, "run")
        # A tick of the entry was settled in between.
        if settlement is not FIRST_ELSEWHERE:
            if settlement.outcome == "manual":
                job.note_written()
            return job.jid, settlement


def change_order(states: CronStates, configured: CronEntry, change: Callable[[CronEntry, Order], Order]) -> None:
    """Write another order for an entry, with the operator and the time. Raises redis errors."""

    def changed_by(before: Order, now: float) -> Order:
        return replace(change(configured, before), set_by=acting_name(), set_at=now)

    states.change_order(configured.name, changed_by)


def disabled(order: Order, reason: str) -> Order:
    """Return the order that lets the ticks push no jobs."""
    return replace(order, enabled=False, reason=reason)


def enabled(entry: CronEntry, order: Order, reason: str) -> Order:
    """Return the order that lets the ticks push jobs again."""
    # An entry that the file enables needs no order.
    found = replace(order, enabled=None if entry.enabled else True)
    return replace(found, reason=reason.strip() or ("" if found.changes_nothing else order.reason))


def changed(entry: CronEntry, order: Order, cron: str | None, args: list[Any] | None, reason: str) -> Order:
    """Return the order with another expression, which was checked, or with other arguments; ``None`` leaves one as it is.

    Raises:
        ValueError: the class declares ``encrypt``.
        ConfigurationError: the arguments do not fit ``perform``.
    """
    if args is not None:
        if entry.declaration.encrypt:
            raise ValueError(
                Sentence(
                    "{wire_name} declares encrypt, and an order is stored in plain text: change the file, or remove the added "
                    "entry, and add it again.",
                    wire_name=entry.declaration.wire_name,
                )
            )
        problems = list(arguments_problems("--args", entry.name, entry.declaration, args))
        if problems:
            raise ConfigurationError(problems)
    return replace(
        order, cron=order.cron if cron is None else cron, args=order.args if args is None else args, reason=reason
    )
