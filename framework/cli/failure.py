"""How a command ends when it cannot go on: the message on stderr, the exit status of design section 5."""

import sys
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

from framework.errors import EXIT_CONFIGURATION, ConfigurationError, DeclarationError, FrameworkError
from framework.settings.suggest import did_you_mean

EXIT_FAILED = 1
EXIT_USAGE = 2

P = ParamSpec("P")
R = TypeVar("R")


def explained(command: Callable[P, R]) -> Callable[P, R]:
    """Turn the framework's errors into one message and a status: 78 for configuration and declarations, else 1."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (ConfigurationError, DeclarationError) as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(EXIT_CONFIGURATION)
        except FrameworkError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(EXIT_FAILED)

    return run


def refuse_unknown(names: Iterable[str], known: Collection[str], say: Callable[[str, str], str]) -> None:
    """Tell of each name that is not known what ``say`` makes of it and of the nearest, and end with status 2; else go on."""
    unknown = [name for name in names if name not in known]
    for name in unknown:
        sys.stderr.write(f"{say(name, did_you_mean(name, known))}\n")
    if unknown:
        sys.exit(EXIT_USAGE)


def no_worker(name: str, hint: str) -> str:
    """What to say of a worker that does not exist."""
    return f"there is no worker {name!r}{hint}"
