"""Name the framework's commands in messages as this process was started: ``application-worker NAME``, or ``scripts/NAME``.

A library cannot know how its user starts commands, so the installed form is the default. Files that are generated or committed
hold the installed form whatever wrote them. A remedy is a whole command line, which works when it is pasted into the shell of the
operator: it has the config folder and the modules that were given to this process, and quotes names that jobs bring along.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

CONSOLE_SCRIPT = "application-worker"
"""The console script of the distribution."""

_FROM_CHECKOUT_VARIABLE = "FRAMEWORK_FROM_CHECKOUT"
"""The variable by which a supervisor passes to its children how it was started."""

_CONFIG_FOLDER_VARIABLE = "FRAMEWORK_CONFIG_DIR"

_COMMAND = re.compile(rf"\b{CONSOLE_SCRIPT} (?P<name>[a-z]+(?:-[a-z]+)*)")


class _Invocation:
    """How this process was started. One fact per process, set once by its entry point, before any message."""

    from_checkout = False
    in_django = False
    modules: tuple[str, ...] = ()
    """The modules of ``-r``."""


def use_checkout_commands() -> None:
    """Name commands as in a checkout: ``scripts/generate_queues`` for ``application-worker generate-queues``."""
    _Invocation.from_checkout = True


def started_from_checkout() -> bool:
    """Return whether this process was started as a command of a checkout, ``scripts/NAME``."""
    return _Invocation.from_checkout


def use_manage_py() -> None:
    """Name ``manage.py worker`` as the command of a worker process: it sets up Django, and loads the jobs of all apps."""
    _Invocation.in_django = True


def use_modules(modules: Sequence[str]) -> None:
    """Give remedies these modules, which this command loads by ``-r``."""
    _Invocation.modules = tuple(modules)


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


def remedy_command(*words: str, loads_classes: bool = False) -> str:
    """Return the command ``NAME ARGUMENTS`` as it can be pasted; ``loads_classes``: the command needs the worker classes."""
    modules = _Invocation.modules if loads_classes else ()
    return f"{_folder()}{command(shlex.join([*words, *_with_option(modules)]))}"


def worker_command(*arguments: str, modules: Sequence[str] | None = None) -> str:
    """Return the command of a worker process as it can be pasted; ``modules`` are those of ``-r``, by default of this process."""
    if _Invocation.in_django:
        return f"{_folder()}{shlex.join(['python', 'manage.py', 'worker', *arguments])}"
    given = _Invocation.modules if modules is None else modules
    return f"{_folder()}{command(shlex.join(['worker', *_with_option(given), *arguments]))}"


def _with_option(modules: Sequence[str]) -> list[str]:
    return [word for module in modules for word in ("-r", module)]


def _folder() -> str:
    """Return the config folder as the environment names it, unless a command finds the same one without it."""
    given = os.environ.get(_CONFIG_FOLDER_VARIABLE, "")
    try:
        if not given or Path(given).resolve() == Path("config").resolve():
            return ""
    # The working folder has been removed.
    except OSError:
        pass
    return f"{_CONFIG_FOLDER_VARIABLE}={shlex.quote(given)} "


def with_local_commands(text: str) -> str:
    """Return ``text`` of the framework, which names commands in the installed form, with the names that hold here."""
    return _COMMAND.sub(lambda found: command(found["name"]), text)


# The exit codes of every command and process (sysexits.h from 64 on). Supervisors depend on the numbers: keep them.
EXIT_OK = 0
"""The command has done its work; a worker process has stopped in order."""

EXIT_FAILED = 1
"""A check found problems, a step failed, or a part of the process died."""

EXIT_USAGE = 2
"""An option or argument of the command is wrong (click's number)."""

EXIT_UNREACHABLE = 75
"""Redis did not answer in time; a later try may succeed (EX_TEMPFAIL)."""

EXIT_CONFIGURATION = 78
"""The configuration is invalid (EX_CONFIG); a restart does not help."""
