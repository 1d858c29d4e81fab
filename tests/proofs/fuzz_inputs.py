"""Make malicious inputs: distorted valid ones, unusual values, exceptions with false properties.

Everything is drawn from a ``random.Random``: equal seeds give equal inputs.
"""

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any, NoReturn

LONGEST = 65_536
"""The bytes of a mutated input; targets make longer ones on purpose."""

_MANY_DIGITS = 20_000

TOKENS: tuple[bytes, ...] = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-0", b"-0.0", b"1e-999", b"0x1F", b"1_000", b"9007199254740993", b"true",
    b"null", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\\ud800", b"\\udc00\\ud800", b"\\u0000", b"\\u2028",
    "\u2028\u2029\u202e\u0085".encode(), "\U0001f600".encode(), b"\x1b]52;c;AAAA\x07", b"\r\n", b"\n", b"\t", b'"', b"'", b"\\",
    b"{}", b"[]", b"{", b"}", b"[", b"]", b",", b":", b'"":', b'"class":', b'"args":', b'"class":"","class":"A",',
    b'"compressed":true,', b"'; DROP TABLE jobs; --", b"{{7*7}}", b"${x}", b"%s%n", b"../../etc/passwd", b"*", b"&", b"|",
    b"!=", b"=",
    b"<<: *a", b"&a", b"*a", b"!!python/object:os.system", b"!!binary aGk=", b"!!set {a, b}", b"? [1, 2]\n: x", b"? {a: 1}\n: x",
    b"2020-01-01: x\n", b"1: 2\n", b"null: x\n", b"---\n", b"...\n", b"%YAML 9.9\n", b"190:20:30", b"0o17", b".inf", b".nan",
    b"|\n  x",
)  # fmt: skip

_ATOM = re.compile(rb'"[^"\\]*"|-?\d+(?:\.\d+)?|\w+')


def mutate(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """Return an input of the corpus, unchanged or distorted in up to eight ways."""
    data = rng.choice(corpus)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 8))):
        data = rng.choice(_MUTATIONS)(rng, data, corpus)[:LONGEST]
    return data


def replace_atoms(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """Return an input of the corpus with one or two atoms of another kind: most of it stays meaningful."""
    data = rng.choice(corpus)
    for _ in range(rng.choice((1, 1, 2))):
        data = _replace(rng, data, corpus)[:LONGEST]
    return data


def mutate_text(rng: Random, corpus: Sequence[bytes]) -> str:
    """Return a mutated input as text, sometimes with characters that are no Unicode."""
    return mutate(rng, corpus).decode("utf-8", rng.choice(("replace", "ignore", "surrogateescape", "backslashreplace")))


def text(rng: Random) -> str:
    """Return a text of any kind and length, sometimes with characters that are no Unicode."""
    kind = rng.randrange(6)
    if kind == 0:
        return ""
    if kind == 1:
        return "".join(chr(rng.randrange(0x110000)) for _ in range(rng.randrange(1, 40)))
    if kind == 2:
        return rng.choice(TOKENS).decode("utf-8", "surrogateescape") * rng.randrange(1, 4)
    if kind == 3:
        return chr(rng.randrange(0x20)) * rng.randrange(1, 9)
    if kind == 4:
        return "x" * rng.choice((1, 255, 4_095, 4_097, 20_000))
    return "".join(rng.choice("abcXYZ_09:. -") for _ in range(rng.randrange(1, 20)))


def json_value(rng: Random, depth: int = 4) -> Any:
    """Return a value that JSON can hold exactly."""
    kind = rng.randrange(9 if depth else 6)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind == 1:
        return rng.randrange(-(1 << 200), 1 << 200) >> rng.randrange(200)
    if kind == 2:
        return rng.choice((0.0, -0.0, 1e22, 5e-324, 1.7e308, 1700000000.123456, rng.uniform(-1e9, 1e9)))
    if kind < 6:
        return text(rng).encode("utf-8", "replace").decode()
    if kind < 8:
        return [json_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {text(rng).encode("utf-8", "replace").decode(): json_value(rng, depth - 1) for _ in range(rng.randrange(4))}


def hostile_value(rng: Random, depth: int = 3) -> Any:
    """Return any object that a job may pass to its logger."""
    simple: list[Callable[[], Any]] = [
        lambda: text(rng),
        lambda: rng.randbytes(rng.randrange(40)),
        lambda: rng.choice((math.nan, math.inf, -math.inf, 1e308, -0.0)),
        lambda: rng.choice((1, -1)) * (10 ** rng.choice((3, 30, 4_299, 4_301, _MANY_DIGITS))),
        lambda: rng.choice((None, True, object(), UnreadableObject(rng.randrange(4)), ..., int, len, UnreadableObject)),
        lambda: rng.choice((Decimal("NaN"), Decimal("1e999"), timedelta.max, datetime.max.replace(tzinfo=UTC), 1j)),
        lambda: json_value(rng, 2),
    ]
    if not depth or rng.random() < 0.5:
        return rng.choice(simple)()
    inner = [hostile_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    kind = rng.randrange(6)
    if kind == 0:
        inner.append(inner)  # contains itself
    if kind < 3:
        return inner
    if kind == 3:
        return tuple(inner)
    if kind == 4:
        return nested(rng.choice((40, 300, 3_000)))
    return {
        rng.choice((text(rng), rng.randrange(9), None, (1, "2"), 1.5, b"x", UnreadableObject(1))): value
        for value in inner
    }


def nested(levels: int) -> list[Any]:
    """Return lists in lists."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


class UnreadableObject:
    """An object whose text cannot be read, or is no text."""

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def __str__(self) -> str:
        return _unreadable_text(self.kind)

    __repr__ = __str__


class UnreadableMessageError(Exception):
    """The same as an exception."""

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def __str__(self) -> str:
        return _unreadable_text(self.kind)

    __repr__ = __str__


class _Tricky(str):
    __slots__ = ()

    def __getitem__(self, _: Any) -> NoReturn:
        raise SystemExit

    def encode(self, *_: Any) -> bytes:
        return b"\xff"


def _unreadable_text(kind: int) -> Any:
    if kind == 0:
        raise ValueError("no text")
    if kind == 1:
        return _Tricky("\ud800\x00")
    if kind == 2:
        raise SystemExit
    return 5


def hostile_error(rng: Random) -> BaseException:
    """Return an exception that no correct job raises."""
    kind = rng.randrange(8)
    error: BaseException
    if kind == 0:
        error = UnreadableMessageError(rng.randrange(4))
    elif kind == 1:
        error = rng.choice((SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError, RecursionError, StopIteration))(
            text(rng)
        )
    elif kind == 2:
        error = ExceptionGroup(text(rng), [ValueError(text(rng)) for _ in range(rng.choice((1, 50)))])
    elif kind == 3:
        error = UnicodeDecodeError("utf-8", rng.randbytes(9), 0, 1, text(rng))
    elif kind == 4:
        error = type(
            text(rng).replace("\x00", "").encode("utf-8", "replace").decode() or "E",
            (Exception,),
            {"__module__": hostile_value(rng, 0)},
        )()
    else:
        error = rng.choice((ValueError, KeyError, OSError, Exception))(
            *[hostile_value(rng, 1) for _ in range(rng.randrange(3))]
        )
    if rng.random() < 0.2:
        error.__cause__ = error if rng.random() < 0.5 else UnreadableMessageError(2)
    return _raised(error, rng.choice((0, 1, 30))) if rng.random() < 0.5 else error


def _raised(error: BaseException, frames: int) -> BaseException:
    def deeper(left: int) -> NoReturn:
        if left:
            deeper(left - 1)
        raise error

    try:
        deeper(frames)
    except BaseException as caught:  # noqa: BLE001 - that is the point
        return caught


def _flip(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    if not data:
        return data
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def _cut(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start = rng.randint(0, len(data))
    return data[:start] + data[rng.randint(start, len(data)) :]


def _truncate(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: rng.randint(0, len(data))]


def _double(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start = rng.randint(0, len(data))
    piece = data[start : start + rng.randrange(1, 40)]
    return data[:start] + piece * rng.choice((1, 2, 100)) + data[start:]


def _splice(rng: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = rng.choice(corpus)
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


def _insert(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    place = rng.randint(0, len(data))
    return data[:place] + rng.choice(TOKENS) + data[place:]


def _replace(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """Replace one atom by one of another kind."""
    atoms = list(_ATOM.finditer(data[:4_096]))
    if not atoms:
        return data
    atom = rng.choice(atoms)
    return data[: atom.start()] + _atom(rng) + data[atom.end() :]


def _atom(rng: Random) -> bytes:
    kind = rng.randrange(7)
    if kind == 6:
        return rng.choice((b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1e-999", b"-0"))
    if kind == 0:
        return b"9" * rng.choice((19, 400, 4_299, 4_301, _MANY_DIGITS))
    if kind == 1:
        levels = rng.choice((5, 63, 70, 201, 5_000))
        return b"[" * levels + b"]" * levels
    if kind == 2:
        levels = rng.choice((5, 63, 70, 201, 2_000))
        return b'{"a":' * levels + b"1" + b"}" * levels
    if kind == 3:
        return b'"' + b"x" * rng.choice((1, 300, 20_000)) + b'"'
    if kind == 4:
        return b"%d.%de%d" % (rng.randrange(10), rng.randrange(10**17), rng.randrange(-400, 400))
    return rng.choice(TOKENS)


def _recode(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-32", "utf-16-be", "utf-8-sig")))


_MUTATIONS = (_flip, _cut, _truncate, _double, _splice, _insert, _insert, _replace, _replace, _replace, _recode)
