"""Name the framework's commands in messages as this process was started: ``application-worker NAME``, or ``scripts/NAME``.

A library cannot know how its user starts commands, so the installed form is the default. Files that are generated or committed
hold the installed form whatever wrote them.
"""

import os
import re
from collections.abc import Mapping

INSTALLED = "application-worker"
"""The console script of the distribution."""

_FROM_CHECKOUT = "FRAMEWORK_FROM_CHECKOUT"
"""The variable by which a supervisor tells its children how it was started itself."""

_COMMAND = re.compile(rf"\b{INSTALLED} (?P<name>[a-z]+(?:-[a-z]+)*)")


class _Start:
    """How this process was started. One fact per process, written once by its entry point, before any message."""

    from_checkout = False


def start_from_checkout() -> None:
    """Name commands as a checkout has them from now on: ``scripts/generate_queues`` for ``application-worker generate-queues``."""
    _Start.from_checkout = True


def inherit_start() -> None:
    """Name commands as the supervisor of this process does, if one started it. The variable goes no further."""
    if os.environ.pop(_FROM_CHECKOUT, ""):
        start_from_checkout()


def handed_to_children() -> Mapping[str, str]:
    """Return the variables that make a child name commands as this process does."""
    return {_FROM_CHECKOUT: "1"} if _Start.from_checkout else {}


def command(line: str) -> str:
    """Return the command line ``NAME ARGUMENTS`` of the framework as it is typed here; NAME in the installed form."""
    if not _Start.from_checkout:
        return f"{INSTALLED} {line}"
    name, space, arguments = line.partition(" ")
    return f"scripts/{name.replace('-', '_')}{space}{arguments}"


def as_started(text: str) -> str:
    """Return ``text`` of the framework, which names commands in the installed form, with the names that hold here."""
    return _COMMAND.sub(lambda found: command(found["name"]), text)
