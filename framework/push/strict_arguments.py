"""Refuse arguments that do not fit their annotations, or convert them to JSON values (Sidekiq's strict-argument modes)."""

import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from framework.declare.declaration import Declaration
from framework.declare.signature import JobSignature
from framework.errors import ArgumentsError
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit
from framework.types import Jid, StrictArguments

LOG_INTERVAL_S = 60.0
"""At most one warning per class in this time."""

_MAX_SHOWN = 20
"""The most arguments named in one warning: ``*args`` may be any number."""

_PUSH_MESSAGE = "arguments are not strict: their JSON values are pushed. Correct the call or the annotations."
_RUN_MESSAGE = (
    "a job's arguments do not fit {}: the job runs with them unchanged. Correct the caller or the annotations."
)


class StrictArgumentsCheck:
    """Apply the mode of the class's ``strict_arguments``, or ``setting`` where it is ``None``. Shared between threads.

    Called only for arguments that were refused: a push with strict arguments has no cost.
    """

    def __init__(self, setting: StrictArguments = "raise", *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._setting: StrictArguments = setting
        self._log_limit = LogRateLimit(LOG_INTERVAL_S, monotonic)

    def checked(self, declaration: Declaration, args: list[Any]) -> list[Any]:
        """Return the arguments of a push, or their JSON values if they are not strict and the class's mode allows it.

        Raises:
            ArgumentsError: they are refused.
        """
        try:
            declaration.signature.check(args)
        except ArgumentsError as error:
            return self.coerce(declaration, args, error)
        return args

    def coerce(self, declaration: Declaration, args: list[Any], error: ArgumentsError) -> list[Any]:
        """Return the JSON values of a push's arguments that were refused with ``error``, if the class's mode allows it.

        Raises:
            ArgumentsError: ``error`` in the mode ``raise``; another error if JSON cannot carry the arguments.
        """
        coercer = self.coercer(declaration)
        if coercer is None:
            raise error
        values = coercer(args)
        coercer.log_complaints()
        return values

    def coercer(self, declaration: Declaration) -> "ArgumentCoercer | None":
        """Return the coercer for the arguments of one bulk push; ``None`` in the mode ``raise``."""
        mode = self._mode(declaration)
        return None if mode == "raise" else ArgumentCoercer(self, declaration, warns=mode == "warn")

    def allows_run(self, declaration: Declaration, signature: JobSignature, args: list[Any], jid: Jid) -> bool:
        """Return whether a job runs with arguments that were refused: their count is right and the mode is not ``raise``.

        ``signature`` is the signature of the method that runs the job.
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
        mode = declaration.strict_arguments
        return self._setting if mode is None else mode


class ArgumentCoercer:
    """Convert the arguments of one push to JSON values and collect the reasons."""

    def __init__(self, check: StrictArgumentsCheck, declaration: Declaration, *, warns: bool) -> None:
        self._check = check
        self._declaration = declaration
        self._warns = warns
        self._complaints: dict[str, str] = {}
        self._jobs = 0

    def __call__(self, args: list[Any]) -> list[Any]:
        """Return the JSON values.

        Raises:
            ArgumentsError: the number of arguments is wrong, or JSON cannot carry one of them.
        """
        signature = self._declaration.signature
        form = signature.to_json_values(args)
        if self._warns:
            self._jobs += 1
            self._complaints = {**signature.strictness_problems(args, form), **self._complaints}
        return form

    def log_complaints(self) -> None:
        """Log one warning for the push if the mode is ``warn`` and there are complaints."""
        if self._complaints:
            self._check.warn(self._declaration, _PUSH_MESSAGE, self._complaints, jobs=self._jobs)
