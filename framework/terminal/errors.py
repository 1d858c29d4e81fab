"""End a command that cannot continue: message on stderr, exit status of ``exit_codes``."""

import sys
import traceback
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar, cast

import click

from framework.errors import ConfigurationError, DeclarationError, FrameworkError
from framework.exit_codes import EXIT_CONFIGURATION, EXIT_FAILED, EXIT_USAGE
from framework.messages import did_you_mean
from framework.telemetry.visible import visible
from framework.terminal.output import echo, echo_text
from framework.typeguards import is_text, short_repr

P = ParamSpec("P")
R = TypeVar("R")


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turn the framework's errors into one message and a status: 78 for configuration and declarations, else 1.

    Any other exception is shown with its traceback. All output passes ``terminal.py``. Words that are no UTF-8 are wrong usage.
    """

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            _check_texts(kwargs.values())
            return command(*args, **kwargs)
        except (ConfigurationError, DeclarationError) as error:
            echo_text(str(error), err=True)
            sys.exit(EXIT_CONFIGURATION)
        except FrameworkError as error:
            echo(error, err=True)
            sys.exit(EXIT_FAILED)
        except click.ClickException as error:
            vars(error).update(message="\n".join(map(visible, error.message.split("\n"))))
            raise
        except (click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:  # noqa: BLE001 - a bug of the framework is shown whole, with its texts escaped
            echo_text("".join(traceback.format_exception(error)).rstrip(), err=True)
            sys.exit(EXIT_FAILED)

    return run


def _check_texts(values: Iterable[object]) -> None:
    """Check the words of a command. Python reads bytes that are no UTF-8 as lone surrogates, which Redis and JSON refuse.

    The name of a file may have them: it is a ``Path`` here. Raises UsageError.
    """
    for value in values:
        if isinstance(value, list | tuple):
            _check_texts(cast("Iterable[object]", value))
        elif isinstance(value, str) and not is_text(value):
            raise click.UsageError(f"{short_repr(value)} is no text in UTF-8: give it in the encoding UTF-8.")


def refuse_unknown(
    names: Iterable[str], known: Collection[str], message_for: Callable[[str, str], str], *, status: int = EXIT_USAGE
) -> None:
    """Print ``message_for`` each unknown name and the nearest known one, and end with ``status``; else go on."""
    unknown = [name for name in names if name not in known]
    for name in unknown:
        echo(message_for(name, did_you_mean(name, known)), err=True)
    if unknown:
        sys.exit(status)


def unknown_worker_message(name: str, hint: str) -> str:
    """Return the message for a worker that does not exist."""
    return f"there is no worker {name!r}{hint}"
