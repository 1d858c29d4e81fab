"""Name the framework's commands in messages as this process was started: ``application-worker NAME``, or ``scripts/NAME``.

A library cannot know how its user starts commands, so the installed form is the default. Files that are generated or committed
hold the installed form whatever wrote them.
"""

import os
import re
from collections.abc import Mapping

CONSOLE_SCRIPT = "application-worker"
"""The console script of the distribution."""

_FROM_CHECKOUT_VARIABLE = "FRAMEWORK_FROM_CHECKOUT"
"""The variable by which a supervisor passes to its children how it was started."""

_COMMAND = re.compile(rf"\b{CONSOLE_SCRIPT} (?P<name>[a-z]+(?:-[a-z]+)*)")


class _Invocation:
    """How this process was started. One fact per process, set once by its entry point, before any message."""

    from_checkout = False


def use_checkout_commands() -> None:
    """Name commands as in a checkout: ``scripts/generate_queues`` for ``application-worker generate-queues``."""
    _Invocation.from_checkout = True


def started_from_checkout() -> bool:
    """Return whether this process was started as a command of a checkout, ``scripts/NAME``."""
    return _Invocation.from_checkout


def inherit_command_form() -> None:
    """Name commands as the supervisor of this process does, if there is one. The variable is not passed on."""
    if os.environ.pop(_FROM_CHECKOUT_VARIABLE, ""):
        use_checkout_commands()


def child_environment() -> Mapping[str, str]:
    """Return the variables that make a child name commands as this process does."""
    return {_FROM_CHECKOUT_VARIABLE: "1"} if _Invocation.from_checkout else {}


def command(line: str) -> str:
    """Return the command line ``NAME ARGUMENTS`` of the framework as it is typed here; NAME in the installed form."""
    if not _Invocation.from_checkout:
        return f"{CONSOLE_SCRIPT} {line}"
    name, space, arguments = line.partition(" ")
    return f"scripts/{name.replace('-', '_')}{space}{arguments}"


def with_local_commands(text: str) -> str:
    """Return ``text`` of the framework, which names commands in the installed form, with the names that hold here."""
    return _COMMAND.sub(lambda found: command(found["name"]), text)
