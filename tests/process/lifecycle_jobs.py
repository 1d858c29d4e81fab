"""Handlers of every lifecycle event for these tests; HANGS names the event whose second handler does not return."""

import os
import threading

import jobs

from framework import lifecycle


def record(event, number):
    def handler():
        jobs.prove("events", f"{event} {number}")
        if number == 1:
            raise OSError(f"the pool of {event}")
        if os.environ.get("HANGS") == event:
            threading.Event().wait()

    return handler


for event in lifecycle.lifecycle_handlers:
    for number in (1, 2):
        getattr(lifecycle, f"on_{event}")(record(event, number))
