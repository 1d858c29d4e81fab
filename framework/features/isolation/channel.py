"""Exchange messages between a worker process and the process of an isolated job: JSON objects with their length in front.

An error travels as JSON too. The new one has the class of the old one if the worker process has loaded that class, else that of its
nearest base. Class name, message, attributes that JSON can hold, cause, context and traceback are those of the old error. Nothing is
imported for it.
"""

import socket
import struct
import sys
import traceback
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, cast

from pydantic_core import to_json

from framework.errors import PayloadError
from framework.telemetry.logs import object_text
from framework.text import error_message
from framework.typeguards import has_type, is_mapping, is_tuple
from framework.wire.json import loads

_LENGTH = struct.Struct(">I")
_RECEIVED_BYTES = 1 << 16
MAX_REPORT_BYTES = 8 << 20
"""The longest message that a worker process accepts from a job's process."""
SERVER_MODULE = "framework.wiring.isolation"
"""The module that ``python -m`` runs as this process."""

READY = b"R"
"""The byte that it sends once it has loaded the modules of the workers. It stays in the socket: a later look finds it too."""


class ChannelError(Exception):
    """The other process sent bytes that are no message."""


def encoded(message: bytes) -> bytes:
    """Return a message as it is sent."""
    return _LENGTH.pack(len(message)) + message


def encoded_object(fields: dict[str, Any]) -> bytes:
    """Return an object as it is sent; a value that JSON cannot hold becomes text."""
    return encoded(object_text(fields).encode())


class MessageReader:
    """Read messages of a socket, at most ``limit`` bytes each."""

    def __init__(self, connection: socket.socket, limit: int) -> None:
        self._connection = connection
        self._limit = limit
        self._buffer = bytearray()

    def receive(self) -> bool:
        """Wait for bytes; return false at the end. Raises OSError if the socket is closed, or its timeout has passed."""
        data = self._connection.recv(_RECEIVED_BYTES)
        self._buffer += data
        return bool(data)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the received messages that are complete. Raises ChannelError at bytes that are no message."""
        while (message := self._next()) is not None:
            yield message

    def receive_one(self) -> dict[str, Any] | None:
        """Wait for a message; return ``None`` at the end. Raises as the other two."""
        while (message := self._next()) is None:
            if not self.receive():
                return None
        return message

    def _next(self) -> dict[str, Any] | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
        if end > _LENGTH.size + self._limit:
            raise ChannelError(f"a message has {end:,} bytes")
        if len(self._buffer) < end:
            return None
        data = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        try:
            message: Any = loads(data, None)
        except PayloadError as error:
            raise ChannelError(str(error)) from error
        if not is_mapping(message):
            raise ChannelError("a message is no object")
        return message


_MAX_MESSAGE = 20_000
_MAX_FRAMES = 200
_MAX_CAUSES = 5


def described(error: BaseException, causes: int = _MAX_CAUSES) -> dict[str, Any]:
    """Return an error as an object of JSON. Raises nothing, whatever the error does."""
    kinds = [kind for kind in type.mro(type(error)) if issubclass(kind, BaseException)]
    fields: dict[str, Any] = {
        "kinds": [[_text(type.__getattribute__(kind, "__module__")), _text(kind.__qualname__)] for kind in kinds],
        "message": error_message(error, _MAX_MESSAGE),
        "args": _plain(_attribute(error, "args", ())),
        "attributes": _plain_attributes(_attribute(error, "__dict__", {})),
        "frames": _frames(error.__traceback__),
    }
    if causes:
        for name in ("cause", "context"):
            led_to = _attribute(error, f"__{name}__", None)
            if has_type(led_to, BaseException) and not (name == "context" and error.__suppress_context__):
                fields[name] = described(led_to, causes - 1)
    return fields


def rebuilt(description: dict[str, Any]) -> BaseException:
    """Return the error of a description. Raises any error if a process has sent another object."""
    kinds = cast("list[tuple[str, str]]", description["kinds"])
    message = str(description["message"])
    error = _rebuilt_as(kinds, description, message)
    error.__traceback__ = _traceback([(str(file), int(line), str(name)) for file, line, name in description["frames"]])
    # In this order: an assignment to ``__cause__`` hides the context.
    if "context" in description:
        error.__context__ = rebuilt(description["context"])
    if "cause" in description:
        error.__cause__ = rebuilt(description["cause"])
    return error


def _rebuilt_as(kinds: Sequence[tuple[str, str]], description: dict[str, Any], message: str) -> BaseException:
    position, base = next((place, kind) for place, pair in enumerate(kinds) if (kind := _loaded(*pair)) is not None)
    if position == 0:
        error = _instance(base, description)
        if error is not None and error_message(error, _MAX_MESSAGE) == message:
            return error
    module, name = kinds[0]

    def show(_error: BaseException) -> str:
        return message

    named: dict[str, Any] = {"__module__": module, "__qualname__": name, "__str__": show}
    error = _instance(type(name.rpartition(".")[2], (base,), named), description)
    if error is not None:
        return error
    # Its constructor needs arguments that were not sent.
    error = type(name.rpartition(".")[2], (Exception,), named)(message)
    return cast("BaseException", error)


def _loaded(module: str, name: str) -> type[BaseException] | None:
    """Return the class of this name if its module is loaded here."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _instance(kind: type[BaseException], description: dict[str, Any]) -> BaseException | None:
    """Return an instance that was made without ``__init__``, which may do or require anything."""
    try:
        arguments = tuple(description["args"] or ())
        error = kind.__new__(kind, *arguments)
        error.args = arguments
        for name, value in dict(description["attributes"]).items():
            object.__setattr__(error, name, value)
    except Exception:  # noqa: BLE001 - the class is the application's: any other form of the error will do
        return None
    return error


def _attribute(error: BaseException, name: str, absent: Any) -> Any:
    try:
        return object.__getattribute__(error, name)
    except BaseException:  # noqa: BLE001 - a descriptor of the error's class may raise anything
        return absent


def _text(value: object) -> str:
    return value if type(value) is str else "builtins"


def _plain_attributes(found: Any) -> dict[str, Any]:
    if not is_mapping(found):
        return {}
    # None stands for any other: code that handles the error finds each attribute.
    plain = {name: value for name, value in dict(found).items() if type(name) is str}
    return {name: value if _is_plain(value) else None for name, value in plain.items()}


def _plain(arguments: Any) -> list[Any] | None:
    """Return the arguments if JSON can hold all of them."""
    found = list(arguments) if is_tuple(arguments) else []
    return found if _is_plain(found) else None


def _is_plain(value: Any) -> bool:
    try:
        return len(to_json(value, inf_nan_mode="constants")) <= _MAX_MESSAGE
    except BaseException:  # noqa: BLE001 - the value is the application's: it stays there
        return False


def _frames(trace: TracebackType | None) -> list[tuple[str, int, str]]:
    found = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_tb(trace)]
    return found[-_MAX_FRAMES:]


def _traceback(frames: Sequence[tuple[str, int, str]]) -> TracebackType | None:
    """Return a traceback with these places: log lines, payloads and the error tracker read it as any other."""
    trace: TracebackType | None = None
    for file, line, name in reversed(frames):
        code = compile("frame = current()", file, "exec").replace(co_name=name, co_qualname=name)
        place: dict[str, Any] = {"current": sys._getframe}  # pyright: ignore[reportPrivateUsage]
        exec(code, place)  # noqa: S102 - the code is the constant above
        # Instruction -1: the line is the given one, and not that of the constant.
        trace = TracebackType(trace, place.pop("frame"), -1, max(1, line))
    return trace
