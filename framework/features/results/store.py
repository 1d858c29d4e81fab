"""Wait for the answers of called jobs: one thread and one connection per shard, for any number of callers of this process.

The script that ends a job stores the answer, and adds the job's id to the list of its caller. The thread waits for that list with a
blocking command. Every few seconds it also looks for the answers of all waiting calls on all shards: a message may be lost, and the
job of another process has none. Without a waiting call there is no thread.
"""

import os
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, cast

import redis
from redis.exceptions import RedisError

from framework.declare.request import PushRequest
from framework.errors import MissingKeyError, ShardUnavailableError, StateRefusedError
from framework.features.results.keys import result_calls, result_facts
from framework.push.client import Client
from framework.shard.shard import Shard
from framework.shard.shards import answering
from framework.supervised_threads import SupervisedThread
from framework.timings import backoff_s
from framework.types import Jid, JobState
from framework.wire import keys
from framework.wire.answers import end_answer
from framework.wire.protected import StatePlace, StateSignatures, result_place
from framework.wire.status_key import most_advanced

_SCRIPT_END = re.compile(rb'\{"end":"(?:dead|removed|skipped)"\}')
"""The answer of a script: only how the job ended without a result (``parts/answer.lua``)."""

_BLOCK_S = 2
_LOOK_EVERY = 2
"""After so many waits without a message all waiting calls are looked for."""
_OTHERS_WITHIN_S = 0.5
"""How long the answers of one shard wait for a shard that does not answer."""
_PAGE = 500
_IDLE_WAITS = 5
"""After so many waits without any waiting call the thread ends."""


class JobResults:
    """The answers of the jobs that this process has called. Opens no socket before the first wait; safe from any thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._signatures = client.state_signatures
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        # The threads of the parent do not exist in a child, and its list belongs to the parent.
        self._lock = threading.Lock()
        self._threads: dict[str, _ShardThread] = {}
        self.caller = secrets.token_hex(8)
        """The token of this process, which its calls carry; empty if no process waits."""

    def watch(self, jid: Jid, request: PushRequest) -> "Future[bytes]":
        """Return the future of the stored answer of a job. Looks once, then waits for a message of the shard.

        Does not raise: while a shard does not answer, the future waits.
        """
        shard = self._client.shard(request)
        future: Future[bytes] = Future()
        with self._lock:
            thread = self._threads.get(shard.name)
            if thread is None or not thread.add(jid, future):
                others = [one for one in self._client.shards.values() if one is not shard]
                thread = _ShardThread(shard, others, self.caller, self._signatures)
                thread.add(jid, future)
                thread.start()
                self._threads[shard.name] = thread
        # After the registration: an answer that comes from now on is seen by the thread. The caller does not ask the other
        # shards: one that does not answer would cost each call of this shard its timeout.
        thread.look([jid])
        return future

    def find(self, jid: Jid) -> tuple[bytes | None, JobState]:
        """Return the stored answer of a job, ``None`` without one, and its state. One round trip to each shard.

        Both are on one shard, and are written in one step.
        Raises ShardUnavailableError: a shard does not answer, and no other one has the answer.
        """
        states: list[bytes | None] = []
        failure: ShardUnavailableError | None = None
        for shard in self._client.shards.values():
            try:
                answer, state = shard.read("MGET", keys.result(jid), keys.status(jid))
            except ShardUnavailableError as error:
                failure = failure or error
                continue
            if answer is not None:
                return _opened(self._signatures, jid, answer), "completed"
            states.append(state)
        if failure is not None:
            raise failure
        return None, most_advanced(states)

    def note(self, jid: Jid, request: PushRequest, facts: bytes, ttl_s: int) -> None:
        """Keep facts beside the result of a job that was pushed by this request. Raises ShardUnavailableError."""
        sealed = self._signatures.seal(_facts_place(jid), facts)
        self._client.shard(request).read("SET", result_facts(jid), sealed, "EX", ttl_s)

    def noted(self, jid: Jid) -> bytes | None:
        """Return these facts, ``None`` without any, or if they are not signed as they must be.

        Raises ShardUnavailableError, MissingKeyError.
        """
        found: Iterator[bytes | None] = (shard.read("GET", result_facts(jid)) for shard in self._client.shards.values())
        sealed = next((facts for facts in found if facts is not None), None)
        try:
            return None if sealed is None else self._signatures.open(_facts_place(jid), sealed)
        except StateRefusedError:
            return None

    def leave(self, jid: Jid, future: "Future[bytes]") -> None:
        for thread in list(self._threads.values()):
            thread.remove(jid, future)


class _ShardThread:
    """The waiting calls of one shard, and the thread that waits for their answers."""

    def __init__(self, shard: Shard, others: Sequence[Shard], caller: str, signatures: StateSignatures) -> None:
        self._shard = shard
        self._signatures = signatures
        self._others = others
        self._list = result_calls(caller)
        self._lock = threading.Lock()
        self._waiting: dict[Jid, list[Future[bytes]]] = {}
        self._ended = False
        self._client = shard.open_client("results", read_timeout_s=_BLOCK_S + 5.0)
        self._thread = SupervisedThread(f"results-{shard.name}", self._run)

    def start(self) -> None:
        self._thread.start()

    def add(self, jid: Jid, future: "Future[bytes]") -> bool:
        """Wait for an answer; return false if the thread has ended."""
        with self._lock:
            # Before its start it is not alive either.
            self._ended = self._ended or (self._thread.ident is not None and not self._thread.is_alive())
            if not self._ended:
                self._waiting.setdefault(jid, []).append(future)
            return not self._ended

    def remove(self, jid: Jid, future: "Future[bytes]") -> None:
        with self._lock:
            found = self._waiting.get(jid, [])
            if future in found:
                found.remove(future)
            if not found:
                self._waiting.pop(jid, None)

    def look(self, jids: Sequence[Jid]) -> None:
        """Read the answers that the shard has stored, and end their futures. If it does not answer, it is asked again later."""
        self._look_on(self._shard, jids)

    def _look_everywhere(self, jids: Sequence[Jid]) -> None:
        """Do the same on all shards that answer: the job of a call may have moved to another one."""
        for shard, late in answering([self._shard, *self._others], _OTHERS_WITHIN_S):
            if late is None:
                self._look_on(shard, jids)

    def _look_on(self, shard: Shard, jids: Sequence[Jid]) -> None:
        for start in range(0, len(jids), _PAGE):
            page = jids[start : start + _PAGE]
            try:
                found = cast("Sequence[bytes | None]", shard.read("MGET", *(keys.result(jid) for jid in page)))
            except ShardUnavailableError:
                return
            self._deliver(page, found)

    def _run(self) -> None:
        idle = failures = waits = 0
        wait = threading.Event().wait
        while idle < _IDLE_WAITS or not self._end_if_idle():
            try:
                jids = self._next_jids(self._client)
            except (RedisError, OSError):
                failures += 1
                wait(backoff_s(failures, 0.05, 2.0))
                # After an outage messages are lost; and a user without the right to the command has none.
                jids, waits = [], _LOOK_EVERY
            else:
                failures = 0
            idle = 0 if self._waiting else idle + 1
            if jids:
                self.look(jids)
            elif (waits := waits + 1) >= _LOOK_EVERY:
                waits = 0
                with self._lock:
                    jids = list(self._waiting)
                if jids:
                    self._look_everywhere(jids)
        self._client.close()

    def _next_jids(self, client: "redis.Redis") -> list[Jid]:
        """Wait for the next message; return it with those behind it."""
        reply: Any = client.blpop([self._list], timeout=_BLOCK_S)
        if reply is None:
            return []
        more: Any = client.lpop(self._list, _PAGE) or []
        return [jid.decode(errors="replace") for jid in (reply[1], *more)]

    def _end_if_idle(self) -> bool:
        with self._lock:
            self._ended = not self._waiting
            return self._ended

    def _deliver(self, jids: Sequence[Jid], answers: Sequence[bytes | None]) -> None:
        for jid, answer in zip(jids, answers, strict=True):
            if answer is None:
                continue
            with self._lock:
                futures = self._waiting.pop(jid, [])
            for future in futures:
                # Its waiter may have given up meanwhile.
                with suppress(InvalidStateError):
                    future.set_result(_opened(self._signatures, jid, answer))


def _facts_place(jid: Jid) -> StatePlace:
    return StatePlace("result", result_facts(jid))


def _opened(signatures: StateSignatures, jid: Jid, stored: bytes) -> bytes:
    """Return an answer without its signature; one that is not signed as it must be becomes an end without a result."""
    # A script that ends a job cannot sign: its word has no value, and a writer of such a word could delete the job as well.
    if _SCRIPT_END.fullmatch(stored):
        return stored
    try:
        return signatures.open(result_place(jid), stored)
    except (StateRefusedError, MissingKeyError) as error:
        return end_answer("refused", error.reason).encode()
