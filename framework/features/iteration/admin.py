"""Look at the state of an iterable job: its cursor and its progress, Ruby's jobs too; and let it begin again."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from framework.admin.access import ask, check_jid, check_writable, raise_first
from framework.admin.audit import audited
from framework.async_twin import async_twin
from framework.shard.shard import Shard
from framework.types import Jid
from framework.wire import keys
from framework.wire.iteration_state import CursorError, SavedIteration, decode_cursor, read_iteration


@dataclass(frozen=True, slots=True)
class JobIteration:
    """The saved state of an iterable job; a running one is up to its ``flush_interval`` further."""

    shard: str
    jid: Jid
    runs: int
    """How often the job has begun."""
    cursor: Any
    """The position of the item that runs next; None at the beginning, text for a cursor that is no JSON."""
    runtime: timedelta
    """The time of all runs together."""
    done: int
    """The finished items; 0 for a job of Ruby, which does not count them."""
    total: int | None
    rate: float | None
    """Items per second of run time."""
    eta: timedelta | None
    """The run time until the last item."""
    cancelled: bool


def iteration(jid: Jid, shard: str | None = None) -> JobIteration | None:
    """Return the state of an iterable job; None if it has not begun, or has ended. Two shards may have one after a move: the later.

    Raises:
        TypeError, ValueError: ``jid`` cannot be a job's id.
        ShardUnavailableError: a shard does not answer, and no other has the state.
    """
    check_jid(jid)
    answers = ask(shard, lambda one: _read(one, jid))
    found = [state for state in answers.by_shard.values() if state is not None]
    if not found:
        raise_first(answers.unanswered)
    return max(found, key=lambda state: state.runs, default=None)


aiteration = async_twin(iteration)


def reset_iteration(jid: Jid, shard: str | None = None) -> bool:
    """Forget the cursor of an iterable job, which then begins with its first item; return whether it had a state.

    A run of the job that goes on meanwhile stops at its next save, and the job begins again.

    Raises:
        TypeError, ValueError: ``jid`` cannot be a job's id.
        ReadOnlyError: inside of a ``read_only`` block.
        ShardUnavailableError: a shard does not answer. Call it again.
    """
    check_writable("reset_iteration()")
    check_jid(jid)
    reset: Callable[[Shard], int] = lambda one: one.client.delete(keys.iteration(jid))  # noqa: E731 - typed for audited()
    answers = ask(shard, audited("reset_iteration", reset, {"jid": jid}))
    raise_first(answers.unanswered)
    return any(answers.by_shard.values())


areset_iteration = async_twin(reset_iteration)


def shown_cursor(state: SavedIteration) -> Any:
    """Return the cursor of a state; of one that is no JSON its text."""
    try:
        return decode_cursor(state.cursor)
    except CursorError:
        return state.cursor.decode(errors="backslashreplace")


def _read(shard: Shard, jid: Jid) -> JobIteration | None:
    state = read_iteration(cast("dict[bytes, bytes]", shard.client.hgetall(keys.iteration(jid))))
    if state is None:
        return None
    return JobIteration(
        shard.name,
        jid,
        state.runs,
        shown_cursor(state),
        timedelta(seconds=state.runtime_s),
        state.done,
        state.total,
        state.rate,
        None if state.eta_s is None else timedelta(seconds=min(state.eta_s, 1e9)),
        state.cancelled_at is not None,
    )
