"""Check promises in the source. A test run cannot show them: one line in a rare branch breaks them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lua import part_files, script_files
from tests.syntax import nodes_of, tree_of

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = sorted((ROOT / "framework").rglob("*.py"))

TAKING = {
    *("BLMPOP", "BLPOP", "BRPOP", "BZMPOP", "BZPOPMAX", "BZPOPMIN", "GETDEL", "LMPOP", "LPOP", "LREM", "LTRIM", "RPOP"),
    *("SPOP", "ZMPOP", "ZPOPMAX", "ZPOPMIN", "ZRANGESTORE", "ZREM", "ZREMRANGEBYRANK"),
}
"""Commands that take members out of a key and write them nowhere."""

WRITING = {"LPUSH", "RPUSH", "ZADD"}

MAY_TAKE = {
    "act_on_entries": {"ZPOPMIN", "ZREM", "ZREMRANGEBYRANK"},  # of jobs that an operator deleted, and of an empty range
    "results/answer": {"LTRIM"},  # it removes ids of called jobs
    "backlog/return_aside": {"RPOP"},
    "backlog/set_aside": {"LREM", "RPOP"},
    "batches/batch": {"LTRIM", "ZREM"},  # they remove ids of ended jobs, and the mark of a cancelled batch
    "batches/change": {"ZREM"},  # as `batch`, and the name of a batch
    "batches/push": {"ZREM"},  # the command removes the name of an expired batch
    "breaker/judge": {"ZREM"},  # the command removes the name of a process, not a job
    "breaker/tend": {"ZREM"},
    "cron/push": {"LTRIM"},  # the command removes old ticks from a list, not a job
    "blocks": {"RPOP"},
    "drop_held": {"ZREM"},
    "drop_queued": {"LREM"},
    "fairness/change_priority": {"LREM", "ZREM"},
    "drop_retired": {"LREM"},
    "enqueue_due": {"ZREM", "ZREMRANGEBYRANK"},  # as `act_on_entries`
    "admit": {"LREM", "LTRIM", "ZREM"},
    "fetch": {"LREM", "RPOP", "ZREM", "ZREMRANGEBYRANK"},
    "finish": {"LREM"},
    "finish_unless_duplicated": {"LREM"},
    "packing/pack": {"LREM", "LTRIM"},
    "packing/pack_held": {"ZREMRANGEBYRANK"},
    "pause/hold": {"LREM"},
    "interrupt": {"LREM"},
    "leases/renew": {"ZREM"},  # the command removes the name of a lease, not a job
    "limiters/unlock": {"ZREM"},  # the command removes a holder of a rate limiter, not a job
    "mark_cancelled": {"ZREM"},  # the command removes an old mark, not a job
    "migrate": {"LTRIM"},
    "moves/page": {"RPOP"},  # the other shard has written these jobs
    "moves/restore": {"LPOP"},
    "moves/take": {"ZREM"},
    "moves/take_aside": {"LTRIM"},
    "moves/take_held": {"ZREM"},
    "move_to_set": {"LREM"},  # for `kill` and `schedule`
    "push_window": {"ZREM"},
    "reclaim": {"LREM"},
    "release": {"ZREM"},  # the command removes the mark of a cancelled job
    "packing/pack_deferred": {"ZREM"},
    "pause/release": {"ZREMRANGEBYRANK"},
    "release_waiting": {"ZREM"},  # the command removes a scope, not a job
    "replace": {"ZREM", "ZREMRANGEBYRANK"},  # as `act_on_entries`
    "request_slot": {"LREM", "ZREM"},
    "requeue": {"LREM"},
    "return_block": {"LREM"},
    "restore": {"RPOP"},
    "slots": {"ZPOPMIN", "ZREM"},
    "turns": {"RPOP", "ZPOPMIN", "ZREM"},
    "trim": {"ZPOPMIN", "ZREM", "ZREMRANGEBYRANK"},  # the dead set holds jobs that have ended
    "undo_delete": {"ZREM"},
    "workflows/change": {"ZREM"},  # the command removes the name of a workflow
    "yield_job": {"LREM"},
    "unpack": {"RPOP"},
    "unpack_deferred": {"ZREM"},
    "unpack_held": {"ZREM"},
    "unregister": {"ZREM"},  # the command removes an identity, not a job
}


def called_name(call: ast.Call) -> str:
    """Return the last part of the called name."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


@pytest.mark.proves("R8")
def test_python_code_takes_no_job_out_of_a_key() -> None:
    """No client method and no command in a packet removes a job. The exceptions: signals of a dashboard, and the spool of events."""
    taking = [
        f"{path.relative_to(ROOT)}: {word.upper()}"
        for path in SOURCES
        for word in [
            *(name for name in map(called_name, nodes_of(path, ast.Call)) if name.upper() in TAKING and name.islower()),
            *(node.value for node in nodes_of(path, ast.Constant) if node.value in TAKING),
        ]
    ]
    # The spool of events, the events of batches, the list of a caller and the log of pauses hold no jobs.
    results = ["framework/features/results/store.py: BLPOP", "framework/features/results/store.py: LPOP"]
    batches = "framework/features/batches/worker.py: LPOP"
    pauses = "framework/admin/queue_actions.py: LTRIM"
    # The oldest profiles leave the list of profiles.
    profiles = "framework/features/profiling/store.py: ZREMRANGEBYRANK"
    # An operator takes back an order that its process has not read.
    orders = "framework/admin/running_jobs.py: LREM"
    # The made-up processes of `dashboard --sample` take made-up jobs, from stores that end with it.
    sample = "framework/devtools/sample_platform.py: RPOP"
    # A fake frees the slots that a test has taken.
    slots = "framework/testing/stubs.py: ZREM"
    known = [
        pauses,
        orders,
        sample,
        batches,
        profiles,
        *results,
        "framework/features/tasks/store.py: ZREM",
        "framework/process/orders.py: RPOP",
        "framework/process/record.py: RPOP",
        slots,
    ]
    assert taking == known


@pytest.mark.proves("R8")
def test_scripts_that_take_a_job_out_of_a_key_also_write() -> None:
    commands = {
        name: set(re.findall(r"redis\.p?call\(\s*['\"](\w+)", path.read_text()))
        for name, path in (script_files() | part_files()).items()
    }
    assert commands
    dropping = ("drop_held", "drop_queued", "drop_retired")
    assert {name: taken for name, called in commands.items() if (taken := called & TAKING)} == MAY_TAKE
    assert not [
        name
        for name in MAY_TAKE
        # `moves/page` removes jobs that `moves/receive` has written on the other shard.
        if name
        not in (
            "finish",
            "finish_unless_duplicated",
            "release",
            *dropping,
            "limiters/unlock",
            "moves/page",
            "unregister",
        )
        and not commands[name] & WRITING
    ]
    assert all("HINCRBY" in commands[name] for name in dropping)  # the job ends here, counted


@pytest.mark.proves("R7")
def test_signal_handler_calls_nothing() -> None:
    """Python runs a handler between any two lines of the main thread. A call could meet a held lock or half a reply."""
    handlers = []
    for path in SOURCES:
        functions = {node.name: node for node in nodes_of(path, ast.FunctionDef)}
        for call in nodes_of(path, ast.Call):
            name = called_name(call)
            # The loop of an isolated job calls such a handler as it calls any callback.
            asynchronous = name == "add_signal_handler" and path.name == "stacks.py"
            assert asynchronous or name not in ("add_signal_handler", "siginterrupt", "setitimer"), path
            if name == "signal" and ast.unparse(call.func) == "signal.signal":
                handler = call.args[1]
                if not ast.unparse(handler).startswith("signal.SIG_"):
                    assert isinstance(handler, ast.Name), f"{path}:{call.lineno}: a handler is a function by its name"
                    handlers.append(functions[handler.id])
    assert handlers
    made = [(one, call) for one in handlers for call in ast.walk(one) if isinstance(call, ast.Call)]
    assert not [f"{one.name} calls {called_name(call)}" for one, call in made]


def foreign_stores(tree: ast.AST) -> Iterator[str]:
    """Yield each store to a field of another object than ``self``."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else targets
        for target in targets:
            for stored in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(stored, ast.Attribute) and ast.unparse(stored.value) != "self":
                    yield ast.unparse(stored)


def test_fetching_stores_no_field_of_another_class() -> None:
    """The state of fetching changes only by its own methods."""
    found = {
        f"{path.name}: {stored}"
        for path in SOURCES
        if path.parent.name == "fetch"
        for stored in foreign_stores(tree_of(path))
    }
    assert found == {
        *("blocking.py: call.armed_at", "blocking.py: call.queue"),  # a private record of the same file
        *("state.py: unit.run_index", "state.py: unit.started_at", "state.py: unit.thread"),  # the start of a unit
        *("unit_of_work.py: self.resources.lock", "unit_of_work.py: self.resources.on_removed"),
    }
