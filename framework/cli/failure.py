"""How a command ends when it cannot go on: the message on stderr, the exit status of design section 5."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from framework.errors import EXIT_CONFIGURATION, ConfigurationError, DeclarationError, FrameworkError

EXIT_FAILED = 1

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
