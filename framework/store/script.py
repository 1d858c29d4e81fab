"""Load Lua scripts from files, and run them by digest, or by source when the server does not know them."""

import hashlib
import re
from collections.abc import Sequence
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, cast

import redis
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

from framework.feature import features
from framework.wire.keys import pushed


class Script:
    """A Lua file; its header names keys, arguments, return value, cost and the effect of a crash.

    ``"fetch"`` is in ``framework/store/scripts``, ``"leases/obtain"`` in the folder ``scripts`` of that feature. ``parts`` are files
    with functions that several scripts share, in the folder ``parts`` beside the scripts. Redis makes these functions anew at each
    call, which takes it longer than a move. Those of the parts ``late`` are made where a call first needs one: ``late().NAME(...)``.
    A ``counted`` script is a push that counts its jobs (``parts/count_accepted.lua``), and may refuse them: ``NAME_counted``.
    One with the part ``reserve`` is ``NAME_in_reserve``.
    """

    def __init__(self, name: str, *parts: str, late: Sequence[str] = (), counted: bool = False) -> None:
        self._file = name
        self._counted = counted
        self.name = f"{name}_counted" if counted else f"{name}_in_reserve" if "reserve" in parts else name
        self.parts = parts
        self.late = tuple(late)

    # Read at the first use, so that the import of this module needs no feature. A worker process reads all of its scripts as it
    # starts (it compares its rights): files that a deployment replaces under it change nothing.
    @cached_property
    def source(self) -> bytes:
        """The text that Redis runs: the parts, then the script."""
        text = _text(self._file, "")
        if self._counted:
            counting = part_text("backlog_limit") + part_text("count_accepted")
            text = b"local function push(KEYS, ARGV)\n%bend\n\n%b" % (text, counting)
        parts = [part_text(name) for name in self.parts]
        if self.late:
            # A part that calls a late function comes behind it.
            text = b"".join((*(part for part in parts if _calls_late(part)), text))
            parts = [*(part for part in parts if not _calls_late(part)), _late(self.late, text)]
        return b"".join((*parts, text))

    @cached_property
    def digest(self) -> str:
        """The name by which a server knows the source."""
        # Redis defines SHA-1; a Python in FIPS mode allows it only with this flag.
        found = hashlib.sha1(self.source, usedforsecurity=False).hexdigest()
        _sources[found] = self.source
        return found

    @cached_property
    def code(self) -> bytes:
        """The source without comments, for callers that always send the source."""
        return b"\n".join(line for line in self.source.splitlines() if not line.startswith(b"--"))

    def by_digest(self, key_count: int, *parameters: Any) -> tuple[Any, ...]:
        """Return the command that runs the script if the server knows it; ``parameters`` are its keys and its arguments.

        On NOSCRIPT (restart, failover, SCRIPT FLUSH) the script has not run: the caller sends ``by_source``.
        """
        return ("EVALSHA", self.digest, key_count, *parameters)

    def by_source(self, key_count: int, *parameters: Any) -> tuple[Any, ...]:
        """Return the command that runs the script on every server, and makes the server know it."""
        return ("EVAL", self.source, key_count, *parameters)

    def __call__(self, client: "redis.Redis", keys: Sequence[str | bytes], arguments: list[Any]) -> Any:
        """Run the script and return its reply. NOSCRIPT costs one more round trip."""
        execute = cast("Any", client.execute_command)
        try:
            try:
                return execute(*self.by_digest(len(keys), *keys, *arguments))
            except NoScriptError:
                return execute(*self.by_source(len(keys), *keys, *arguments))
        except ResponseError as error:
            if is_right_refused(error) and not isinstance(error, NoPermissionError):
                raise NoPermissionError(str(error)) from error
            raise

    def each(self, client: "redis.Redis", calls: Sequence[tuple[list[str], list[Any]]]) -> list[Any]:
        """Run the script once for each (keys, arguments), each run as a separate step, in one round trip.

        Returns the replies, with errors in the list. Raises the errors of the connection: some runs may have happened.
        """
        pipeline: Any = client.pipeline(transaction=False)
        for keys, arguments in calls:
            pipeline.execute_command(*self.by_digest(len(keys), *keys, *arguments))
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        return [
            self._reply(client, *call) if isinstance(reply, NoScriptError) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    def _reply(self, client: "redis.Redis", keys: list[str], arguments: list[Any]) -> Any:
        try:
            return self(client, keys, arguments)
        except ResponseError as error:
            return error


_sources: dict[str, bytes] = {}


def source_of(digest: str) -> bytes | None:
    """Return the text of a script of this process by its digest; ``None`` for a script of the application."""
    return _sources.get(digest)


_LATE_NAME = re.compile(rb"\blate\(\)\.(\w+)")


def _calls_late(part: bytes) -> bool:
    return b"late()." in part


@cache
def part_text(name: str) -> bytes:
    assembled = {_TURNS: _turns, _WAITERS: _waiters, FIGURES: _figures}.get(name)
    return _text(name, "parts") if assembled is None else assembled()


def _late(parts: tuple[str, ...], script: bytes) -> bytes:
    """Return the function ``late``, which makes the functions of the parts at its first call and returns those that the script calls.

    Each is at the beginning of a line, as in its file: there the list of rights finds it.
    """
    text = b"".join(map(part_text, parts))
    made = b", ".join(b"%b = %b" % (name, name) for name in sorted(set(_LATE_NAME.findall(script))))
    return (
        b"local made_late\nlocal make_late = function()\n%breturn { %b } end\n"
        b"local function late()\n  made_late = made_late or make_late()\n  return made_late\nend\n\n" % (text, made)
    )


def _turns() -> bytes:
    """Return the part of sub-queues, whose functions are made for the first job of one: most queues have none."""
    return (
        b"local made_turns\nlocal make_turns = function()\n%breturn { enter_turns = enter_turns, arrive_all = arrive_all, "
        b"ring = ring, take_jobs = take_jobs }\nend\n"
        b"local function turns()\n  made_turns = made_turns or make_turns()\n  return made_turns\nend\n"
        b"local function arrive(name)\n  if string.find(name, '~', 1, true) then turns().enter_turns(name) end\nend\n\n"
        % _text(_TURNS, "parts")
    )


def _waiters() -> bytes:
    """Return the parts of all features that wait for the end of jobs, and the function that tells those of one job.

    The text is what a person would write, so a call costs no more, and the digest is the same as long as the files and the order are.
    The list of rights reads the source: it finds ``release_NAME(``, and would not find a table of functions.
    """
    holds = [hold for one in features() for hold in one.holds if hold.part]
    parts = b"".join(part_text(name) for name in dict.fromkeys(hold.part for hold in holds))
    told = "".join(
        f"""  if held.{hold.name} then
    local told, why = pcall(function() release_{hold.name}(unpack(held.{hold.name})) end)
    if not told then failed = type(why) == 'table' and why.err or tostring(why) end
  end
"""
        for hold in holds
    )
    any_hold = " or ".join(f"held.{hold.name}" for hold in holds) or "false"
    # Most jobs have no waiter: their functions are made for the first that has one.
    return b"".join(
        (
            b"local told_by\nlocal waiters = function()\n",
            parts,
            f"return function(held)\n  local failed\n{told}  return failed\nend\nend\n".encode(),
            f"local tell_waiters = function(held)\n  if not ({any_hold}) then return nil end\n".encode(),
            b"  told_by = told_by or waiters()\n  return told_by(held)\nend\n\n",
        )
    )


def _figures() -> bytes:
    """Return the parts of all features with figures, and the function that calls them: one argument of the script for each.

    As in ``_waiters``, the list of rights finds the calls. An error of one feature leaves out its figures.
    """
    records = [one for one in features() if one.figures is not None and one.figures.part]
    parts = b"".join(part_text(one.figures.part) for one in records if one.figures is not None)
    calls = "".join(
        f"""  read, reply = pcall(function() return figures_{one.name}(now, ARGV[first + {at}]) end)
  found[{at + 1}] = read and reply or false
"""
        for at, one in enumerate(records)
    )
    return (
        parts
        + f"local function feature_figures(now, first)\n  local found, read, reply = {{}}\n{calls}  return found\nend\n\n".encode()
    )


def _text(name: str, subfolder: str) -> bytes:
    feature, _, file = name.rpartition("/")
    folder = ("features", feature, "scripts", subfolder) if feature else ("store", "scripts", subfolder)
    return files("framework").joinpath(*filter(None, folder), f"{file}.lua").read_bytes()


_REFUSED_INSIDE = ("ACL failure in script", "The user executing the script can't")


def is_right_refused(error: ResponseError) -> bool:
    """Return whether an ACL refuses the command or a key. Inside a script Redis reports it as text, without NOPERM."""
    return isinstance(error, NoPermissionError) or any(words in str(error) for words in _REFUSED_INSIDE)


def is_lasting(error: ResponseError) -> bool:
    """Return whether a retry cannot help: a key has another type, or the user may not use it."""
    return is_right_refused(error) or is_wrong_type(error)


def is_wrong_type(error: ResponseError) -> bool:
    """Return whether a key has the wrong type: a limit, pause or lock there is unknown, and the jobs run."""
    return "WRONGTYPE" in str(error)


_TURNS = "turns"
# Jobs that go back to their queues, or are handed slots, may go to sub-queues.
SLOT_PARTS = ("time", _TURNS, "lock", "lock_ticket", "slots")
_WAITERS, _RECORDED = "waiters", "recorded"
FIGURES = "figures"
"""The part that reads the figures of all features."""
RELEASE_PARTS = (*SLOT_PARTS, _RECORDED, _WAITERS, "release")
LATE_RELEASE_PARTS = RELEASE_PARTS[1:]
"""The same for scripts whose jobs mostly hold nothing: all but ``time``, which comes first."""
LOCK_PARTS = ("time", "lock", "positions", "lock_request", "duplicate")

ADMIT = Script("admit", "time", late=(*LATE_RELEASE_PARTS, "request_slot", "positions", "start_lock"))
TAKE_SLOT = Script("take_slot", *RELEASE_PARTS, "request_slot")
PUSH_UNIQUE = Script("push_unique", "time", "lock", late=("positions", "duplicate", _TURNS))
PUSH_UNIQUE_COUNTED = Script("push_unique", "time", "lock", late=("positions", "duplicate", _TURNS), counted=True)
FIND_OWNERS = Script("find_owners", "time", "lock", late=("positions", "duplicate"))
PUSH_FAIR = Script("push_fair", _TURNS)
PUSH_FAIR_COUNTED = Script("push_fair", _TURNS, counted=True)
PUSH_FAIR_IN_RESERVE = Script("push_fair", "reserve", _TURNS)
PUSH_UNIQUE_IN_RESERVE = Script("push_unique", "time", "reserve", "lock", late=("positions", "duplicate", _TURNS))
RING = Script("ring", _TURNS)
PUSH_WINDOW = Script("push_window", "time", "lock")
PUSH_WINDOW_COUNTED = Script("push_window", "time", "lock", counted=True)
REGISTER_ORPHAN = Script("register_orphan", "time")
END_PAUSES = Script("end_pauses", "time")
NOTE_START = Script("note_start")
HEARTBEAT = Script("heartbeat", "time")
KILL = Script("kill", "time", "move_to_set", "trim", late=LATE_RELEASE_PARTS)
FINISH = Script("finish", *RELEASE_PARTS, "count")
FINISH_UNLESS_DUPLICATED = Script("finish_unless_duplicated", "time", "count", late=LATE_RELEASE_PARTS)
PUSH_DELAYED = Script("push_delayed", "time")
PUSH_DELAYED_COUNTED = Script("push_delayed", "time", counted=True)
PUSH_SCHEDULED_COUNTED = Script("push_scheduled", counted=True)
DROP_HELD = Script("drop_held", "time", late=LATE_RELEASE_PARTS)
DROP_QUEUED = Script("drop_queued", *RELEASE_PARTS)
ACT_ON_ENTRIES = Script("act_on_entries", *RELEASE_PARTS, "trim")
UNDO_DELETE = Script("undo_delete", *RELEASE_PARTS)
DROP_RETIRED = Script("drop_retired", *RELEASE_PARTS)
READ_DUE = Script("read_due", "time")
READ_HASHES = Script("read_hashes", "reply_or")
READ_PROCESSES = Script("read_processes", "reply_or")
READ_QUEUES = Script("read_queues", "time", "reply_or", "entered_at")
INSPECT_DEAD = Script("inspect_dead", "time")
RENEW_CHILDREN = Script("renew_children", "time")
FETCH = Script("fetch", "time", "count", late=(*LATE_RELEASE_PARTS, "blocks"))
PUSH_UP_TO = Script("push_up_to", "time", "slots", _RECORDED)
UNPACK = Script("unpack", "time", _TURNS)
SPLIT_BLOCK = Script("split_block")
RETURN_BLOCK = Script("return_block", _TURNS)
UNPACK_HELD = Script("unpack_held", "time")
UNPACK_DEFERRED = Script("unpack_deferred", "time")
UNREGISTER = Script("unregister", "time")
INTERRUPT = Script("interrupt", *RELEASE_PARTS, "trim")
RECEIVE_TRANSFER = Script("receive_transfer", *LOCK_PARTS, _TURNS)
MIGRATE = Script("migrate", _TURNS)
SCHEDULE = Script("schedule", "time", "move_to_set", late=LATE_RELEASE_PARTS)
ENQUEUE_DUE = Script("enqueue_due", *LOCK_PARTS, _TURNS, "lock_ticket", "slots", _RECORDED, _WAITERS, "release", "trim")
NOTE_PUSHED = Script("note_pushed")
RECLAIM = Script("reclaim", *RELEASE_PARTS, "trim")
RENEW_SLOTS = Script("renew_slots", *SLOT_PARTS)
REPLACE = Script("replace")
REQUEUE = Script("requeue", *RELEASE_PARTS)
YIELD_JOB = Script("yield_job", *RELEASE_PARTS)
RESTORE = Script("restore", "time", _TURNS)
RELEASE_WAITING = Script("release_waiting", *SLOT_PARTS, "room")
MARK_DEAD = Script("mark_dead", "time")
SEARCH = Script("search", "blocks")
SET_STATUS = Script("set_status")
MARK_CANCELLED = Script("mark_cancelled", "time")
WRITE = Script("write")
RECORD_ACTION = Script("record_action")


def write_when_full(client: "redis.Redis", *commands: Sequence[Any]) -> list[int]:
    """Carry out commands (SADD, HSET, HDEL or LPUSH: name, key, arguments) in one step, also where Redis has no memory left.

    For the few writes without which a full Redis cannot be emptied, or its processes not be seen. Raises redis errors.
    """
    arguments = [word for name, _, *words in commands for word in (name, len(words), *words)]
    replies: Any = WRITE(client, [NO_KEY, *(key for _, key, *_ in commands)], arguments)
    return cast("list[int]", replies)


NO_KEY = pushed("")
"""A key that every role may remove, and that nothing writes: a token is not empty."""
