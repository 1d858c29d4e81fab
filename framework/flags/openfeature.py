"""Flags of an OpenFeature provider, evaluated beside the work for the names that somebody may ask for: never per job."""

import importlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from framework.flags.flag import Flag, FlagSource
from framework.flags.inquiry import Inquiry
from framework.flags.redis_flags import FRESH_S
from framework.telemetry import logs
from framework.telemetry.repeated import Repeated

_QUIET_S = 300.0
_FIRST_ANSWER_S = 2.0
_DOMAIN = "application-worker"


class OpenFeatureFlags(FlagSource):
    """What the provider of the application's last said of ``names()``; a flag that it does not know is not set.

    A boolean says 0 or 100 per cent. The provider is asked as this process (``targeting_key``), so that a share is one of
    processes, not of jobs.

    Raises ImportError when the SDK is not installed.
    """

    def __init__(self, names: Callable[[], Iterable[str]], targeting_key: str, *, lazy: bool = False) -> None:
        self._api: Any = importlib.import_module("openfeature.api")
        evaluation: Any = importlib.import_module("openfeature.evaluation_context")
        errors: Any = importlib.import_module("openfeature.exception")
        self._context = evaluation.EvaluationContext(targeting_key)
        self._unknown = errors.ErrorCode.FLAG_NOT_FOUND
        self._names = names
        self._lazy = lazy
        self._asked_at: float | None = None
        self._inquiry: Inquiry[Mapping[str, Flag]] = Inquiry("the OpenFeature provider", self._evaluate, {})
        self._seen: Mapping[str, Flag] = {}
        self._told = Repeated(_QUIET_S)

    def find(self, name: str) -> Flag | None:
        """See ``Flags``."""
        if self._lazy and (self._asked_at is None or time.monotonic() - self._asked_at >= FRESH_S):
            self.read()
        return self._inquiry.answer.get(name)

    def names(self) -> frozenset[str]:
        """See ``Flags``."""
        return frozenset(self._inquiry.answer)

    def read(self) -> bool:
        """Ask the provider anew, beside the work; return whether what it said until now is news.

        Only the first time its answer is waited for, and not for long.
        """
        first, self._asked_at = self._asked_at is None, time.monotonic()
        self._inquiry.ask()
        if first:
            self._inquiry.wait(_FIRST_ANSWER_S)
        before, self._seen = self._seen, self._inquiry.answer
        return before != self._seen

    def _evaluate(self) -> Mapping[str, Flag]:
        client = self._api.get_client(_DOMAIN)
        known = self._inquiry.answer
        found = {name: self._one(client, name, known.get(name)) for name in self._names()}
        return {name: flag for name, flag in found.items() if flag is not None}

    def _one(self, client: Any, name: str, known: Flag | None) -> Flag | None:
        details = client.get_boolean_details(name, False, self._context)
        if details.error_code == self._unknown:
            return None
        if details.error_code is not None:
            if self._told.due(name, time.monotonic()):
                logs.logger().warning(
                    "the OpenFeature provider cannot say a flag; its last word counts",
                    event_name="flags.unanswered",
                    flag=name,
                    error_code=str(details.error_code),
                    reason=details.error_message,
                )
            return known
        # A provider may give back our own default for a flag that it does not know: then the other default comes back too.
        if not details.value and client.get_boolean_value(name, True, self._context):
            return None
        return Flag(name, 100.0 if details.value else 0.0, "as the OpenFeature provider says", "OpenFeature")
