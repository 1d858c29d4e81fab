"""Read flags from an OpenFeature provider, in the background and by name: never once per job."""

import importlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from framework.features.flags.flag import BackgroundValue, Flag, FlagSource
from framework.telemetry.logs import LogRateLimit

_LOG_INTERVAL_S = 300.0
_FIRST_READ_TIMEOUT_S = 2.0
_DOMAIN = "application-worker"


class OpenFeatureFlags(FlagSource):
    """Keep the provider's last values of ``names()``; a flag that the provider does not know is not set.

    A boolean counts as 0 or 100 percent. The targeting key is this process, so a percentage of the provider is one of
    processes, not of jobs.

    Raises ImportError if the SDK is not installed.
    """

    def __init__(self, names: Callable[[], Iterable[str]], targeting_key: str) -> None:
        self._api: Any = importlib.import_module("openfeature.api")
        evaluation: Any = importlib.import_module("openfeature.evaluation_context")
        errors: Any = importlib.import_module("openfeature.exception")
        self._context = evaluation.EvaluationContext(targeting_key)
        self._unknown = errors.ErrorCode.FLAG_NOT_FOUND
        self._names = names
        self._watched: set[str] = set()
        self._first_read = True
        self._flags: BackgroundValue[Mapping[str, Flag | None]] = BackgroundValue(
            "the OpenFeature provider", self._evaluate, {}
        )
        self._previous: Mapping[str, Flag | None] = {}
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def find(self, name: str) -> Flag | None:
        return self._flags.value.get(name)

    def names(self) -> frozenset[str]:
        return frozenset(name for name, flag in self._flags.value.items() if flag is not None)

    def watch(self, name: str) -> None:
        """See ``Flags``. The first call for a name waits for its value, for two seconds at most."""
        if name in self._watched:
            return
        self._watched.add(name)
        deadline = time.monotonic() + _FIRST_READ_TIMEOUT_S
        # An evaluation that already runs may have begun without the name: then a second one follows.
        for _ in range(2):
            if name not in self._flags.value:
                self._flags.refresh()
                self._flags.wait(max(0.0, deadline - time.monotonic()))

    def read(self) -> bool:
        """Read the flags again in the background; return whether the values known so far have changed.

        Only the first read waits for its result, and not for long.
        """
        first, self._first_read = self._first_read, False
        self._flags.refresh()
        if first:
            self._flags.wait(_FIRST_READ_TIMEOUT_S)
        before, self._previous = self._previous, self._flags.value
        return before != self._previous

    def _evaluate(self) -> Mapping[str, Flag | None]:
        client = self._api.get_client(_DOMAIN)
        known = self._flags.value
        # The set is copied in one step: other threads add to it.
        names = [*self._names(), *self._watched.copy()]
        return {name: self._evaluate_one(client, name, known.get(name)) for name in names}

    def _evaluate_one(self, client: Any, name: str, known: Flag | None) -> Flag | None:
        details = client.get_boolean_details(name, False, self._context)
        if details.error_code == self._unknown:
            return None
        if details.error_code is not None:
            self._log_limit.warning(
                name,
                f"the OpenFeature provider cannot evaluate the flag {name}; its last value is used. Check the provider",
                "flags.provider_error",
                flag=name,
                error_code=str(details.error_code),
                reason=details.error_message,
            )
            return known
        # A provider may return the default for a flag that it does not know: then another default is returned too.
        if not details.value and client.get_boolean_value(name, True, self._context):
            return None
        return Flag(name, 100.0 if details.value else 0.0, "set by the OpenFeature provider", "OpenFeature")
