"""Carry out an action of the view through ``framework.admin``, and return its result as text."""

from collections.abc import Callable
from contextvars import copy_context

from redis.exceptions import RedisError

from framework.admin import JobEntry, Queue, WorkerProcess
from framework.cli.top.state import Intent
from framework.errors import FrameworkError
from framework.supervised_threads import SupervisedThread


def carry_out(intent: Intent) -> str:
    """Carry out the action; return its result, or the error, as one line."""
    try:
        return _act(intent)
    except (FrameworkError, RedisError, OSError, ValueError) as error:
        return f"{intent.verb} failed: {error}"


def carry_out_later(intent: Intent, on_result: Callable[[str], None]) -> None:
    """Carry out the action in a thread: a shard that does not answer blocks no key."""
    # ``read_only`` holds in the thread too.
    context = copy_context()
    SupervisedThread(intent.verb, lambda: on_result(context.run(carry_out, intent))).start()


def _act(intent: Intent) -> str:
    match intent.row.subject:
        case Queue() as queue:
            if intent.verb == "pause":
                queue.pause()
                return f"{queue.shard}: {queue.name} is paused"
            queue.unpause()
            return f"{queue.shard}: {queue.name} is no longer paused"
        case WorkerProcess() as process:
            process.quiet()
            return f"{process.shard}: {process.identity} is asked to become quiet, and reads that within ten seconds"
        case JobEntry() as entry:
            done = entry.retry() if intent.verb == "retry" else entry.delete()
            past = "moved to its queue" if intent.verb == "retry" else "deleted"
            return f"{entry.shard}: {entry.jid} is {past if done else 'not there any more: nothing was changed'}"
        case _:
            return f"{intent.verb} is no action here"
