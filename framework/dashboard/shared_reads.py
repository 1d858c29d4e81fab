"""Share what was read for a page among its viewers, and bound what a caller and a page that is left open may cost."""

import asyncio
import json
import time
from collections import deque
from functools import partial

from starlette.exceptions import HTTPException

from framework.pages.page import Page
from framework.pages.view import Facts, View
from framework.text import Sentence

EXPENSIVE_A_MINUTE = 60
"""The expensive reads that a caller may begin in a minute."""

_VIEWER_S = 0.002
"""The processor time of a request or an event of a viewer for what others have read and rendered, beside the rendering: with that of
the server, both together take 2.4 to 3.3 ms on a busy machine."""

PARTIAL_S = 1.0
"""A page that shows a part is read again after this time: its next read goes on."""

COMMANDS_A_SECOND, PROCESSOR_SHARE = 5.0, 0.01
"""What a page that is left open may cost: commands to Redis, and the share of a core."""


def period_of(fresh_s: float, commands: int, processor_s: float) -> float:
    """Return for how long pages that are left open share a read, in seconds: then they cost no more than they may."""
    return max(fresh_s, commands / COMMANDS_A_SECOND, processor_s / PROCESSOR_SHARE)


class SharedRead:
    """What was read for a page, and the HTML that was made of it."""

    def __init__(self, began: float, reading: "asyncio.Task[Facts]") -> None:
        self.began = began
        self.reading = reading
        self.facts: Facts = {}
        self.is_partial = False
        self.fresh_s = 0.0
        """For how long pages that are opened share it."""
        self.period_s = 0.0
        """For how long pages that are left open share it: then they cost little, whatever the number of viewers."""
        self.text = ""
        """The facts as JSON, by which streams see a change."""
        self.processor_s = 0.0
        """The processor time that counts for the next period: of the reads that have shown a part, and of viewers."""
        self.commands = 0
        """The commands that count for it: of the reads that have shown a part."""
        self.parts: dict[tuple[str, ...], str] = {}
        """The part of the page that changes, by language and address, with a mark for the token of the viewer."""


class SharedReads:
    """Share what was read among the viewers of a page: a hundred of them cost Redis and this process as much as one."""

    _MOST = 200

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], SharedRead] = {}
        self._expensive: dict[str, deque[float]] = {}
        """When each caller has begun expensive reads in the last minute."""

    async def read(self, key: tuple[object, ...], page: Page, view: View, *, is_live: bool = False) -> SharedRead:
        """Return what the page reads, or has read for the same key within ``fresh_s``, an open page within its period.

        Raises:
            HTTPException: 429, the caller asks for too many expensive reads. Raises what the page raises, too.
        """
        loop = asyncio.get_running_loop()
        shared = self._found.get(key)
        if shared is None or shared.reading.get_loop() is not loop or self._is_old(shared, loop.time(), live=is_live):
            # A page that shows a part goes on with the same read.
            if page.is_expensive(view) and not (shared is not None and shared.is_partial):
                self._check_rate(view.caller.name, loop.time())
            while len(self._found) >= self._MOST:
                self._found.pop(next(iter(self._found)))
            before, shared = shared, SharedRead(loop.time(), asyncio.create_task(page.read(view)))
            if before is not None:
                shared.processor_s, shared.commands = before.processor_s, before.commands
            shared.reading.add_done_callback(partial(_note_read, shared, page, view))
            self._found[key] = shared
        # A viewer who leaves does not end the read of the others.
        await asyncio.shield(shared.reading)
        shared.processor_s += _VIEWER_S
        return shared

    @staticmethod
    def _is_old(shared: SharedRead, now: float, *, live: bool) -> bool:
        return shared.reading.done() and now >= shared.began + (shared.period_s if live else shared.fresh_s)

    def _check_rate(self, caller: str, now: float) -> None:
        begun = self._expensive.setdefault(caller, deque())
        while begun and begun[0] < now - 60.0:
            begun.popleft()
        if len(begun) >= EXPENSIVE_A_MINUTE:
            wait_s = int(begun[0] + 60.0 - now) + 1
            headers = {"Retry-After": str(wait_s)}
            detail = Sentence(
                "This search is expensive, and you have asked for {number} in a minute: ask again in {wait_s} s.",
                number=len(begun),
                wait_s=wait_s,
            )
            raise HTTPException(429, detail, headers)
        while len(self._expensive) > self._MOST:
            self._expensive.pop(next(iter(self._expensive)))
        begun.append(now)

    def forget(self) -> None:
        """Let each page be read again: something was changed."""
        self._found.clear()


def _note_read(shared: SharedRead, page: Page, view: View, reading: "asyncio.Task[Facts]") -> None:
    """Keep what was read, and work out how often pages that are left open may read it."""
    shared.commands += view.commands
    shared.processor_s += view.processor_s
    if reading.cancelled() or reading.exception() is not None:
        return
    began = time.thread_time()
    shared.facts = {**reading.result(), "unanswered": dict(view.unanswered)}
    shared.text = json.dumps(shared.facts, default=str)
    shared.processor_s += time.thread_time() - began
    shared.fresh_s = page.fresh_s
    shared.is_partial = view.is_partial
    if view.is_partial:
        shared.fresh_s = shared.period_s = PARTIAL_S
        return
    shared.period_s = period_of(page.fresh_s, shared.commands, shared.processor_s)
    shared.processor_s, shared.commands = 0.0, 0
