"""Send what libraries still hold before a process ends: it ends by ``os._exit``, which calls no handler of ``atexit``."""

from collections.abc import Callable

from framework.telemetry import logs

LAST_CALL_S = 2.0
"""The time of one call. A supervisor kills a stopping process 2 s after its deadline."""

_calls: list[Callable[[float], object]] = []


def call_last(call: Callable[[float], object]) -> None:
    """Call ``call`` once before the process ends, with the seconds that it has. The same function is called once."""
    if call not in _calls:
        _calls.append(call)


def make_last_calls() -> None:
    """Make the calls. Raises nothing."""
    for call in _calls:
        try:
            call(LAST_CALL_S)
        except Exception as error:  # noqa: BLE001 - an exporter of the application may raise anything
            logs.logger().warning(
                "a library failed to send what it held when the process ended. Look at the error",
                event_name="trace.failed",
                error=error,
            )
