"""What becomes of arguments that are not strict: refused, or taken as JSON gives them, with or without a line (Sidekiq's modes)."""

import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from framework.declare.declaration import Declaration
from framework.declare.signature import JobSignature
from framework.errors import ArgumentsError
from framework.telemetry import logs
from framework.telemetry.rate_limit import LogRateLimit
from framework.types import Jid, StrictArguments

LOG_INTERVAL_S = 60.0
"""At most one line per class in this time."""

_MAX_SHOWN = 20
"""Arguments in one line: ``*args`` may be any number."""

_PUSH_MESSAGE = "arguments are not strict: they are pushed as JSON gives them"
_RUN_MESSAGE = "a job's arguments do not fit {}: it runs with what came"


class StrictArgumentsCheck:
    """Decides by the class's ``strict_arguments``, and where that is ``None`` by ``setting``. Shared between threads.

    Asked only about arguments that were refused: those that fit pay nothing.
    """

    def __init__(self, setting: StrictArguments = "raise", *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._setting: StrictArguments = setting
        self._log_limit = LogRateLimit(LOG_INTERVAL_S, monotonic)

    def coerce(self, declaration: Declaration, args: list[Any], error: ArgumentsError) -> list[Any]:
        """Return arguments of a push that were refused with ``error`` as JSON gives them, if the class's mode lets them pass.

        Raises:
            ArgumentsError: ``error`` in the mode ``raise``; another where JSON has no form for them.
        """
        loosener = self.coercer(declaration)
        if loosener is None:
            raise error
        form = loosener(args)
        loosener.log_complaints()
        return form

    def coercer(self, declaration: Declaration) -> "ArgumentCoercer | None":
        """Return what loosens the arguments of one bulk push; ``None`` in the mode ``raise``."""
        mode = self._mode(declaration)
        return None if mode == "raise" else ArgumentCoercer(self, declaration, warns=mode == "warn")

    def allows_run(self, declaration: Declaration, signature: JobSignature, args: list[Any], jid: Jid) -> bool:
        """Tell whether a job runs with arguments that were refused before its run: of the right number, and not in ``raise``.

        ``signature`` is that of the method which runs it.
        """
        mode = self._mode(declaration)
        if mode == "raise":
            return False
        try:
            signature.check_count(args)
        except ArgumentsError:
            return False
        if mode == "warn":
            self.warn(
                declaration, _RUN_MESSAGE.format(signature.method), signature.strictness_problems(args, args), jid=jid
            )
        return True

    def warn(self, declaration: Declaration, message: str, complaints: dict[str, str], **facts: Any) -> None:
        """Write a line, unless the class had one a moment ago: names and reasons, never values."""
        count = self._log_limit.hit(declaration.wire_name)
        if count:
            logs.logger(**{"class": declaration.wire_name}).warning(
                message,
                event_name="arguments.not_strict",
                arguments=dict(islice(complaints.items(), _MAX_SHOWN)),
                suppressed=count - 1,
                **facts,
            )

    def _mode(self, declaration: Declaration) -> StrictArguments:
        said = declaration.strict_arguments
        return self._setting if said is None else said


class ArgumentCoercer:
    """Makes the JSON form of one push's arguments, and remembers why it had to."""

    def __init__(self, check: StrictArgumentsCheck, declaration: Declaration, *, warns: bool) -> None:
        self._check = check
        self._declaration = declaration
        self._warns = warns
        self._complaints: dict[str, str] = {}
        self._jobs = 0

    def __call__(self, args: list[Any]) -> list[Any]:
        """Return the form. Raises ArgumentsError for a wrong number of arguments, and for what JSON cannot carry at all."""
        signature = self._declaration.signature
        form = signature.to_json_values(args)
        if self._warns:
            self._jobs += 1
            self._complaints = {**signature.strictness_problems(args, form), **self._complaints}
        return form

    def log_complaints(self) -> None:
        """Write one line for the push, where the mode is ``warn`` and there is anything to tell."""
        if self._complaints:
            self._check.warn(self._declaration, _PUSH_MESSAGE, self._complaints, jobs=self._jobs)
