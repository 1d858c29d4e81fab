"""Post to a URL that a user chose, and read as much of the answer as is needed.

The whole exchange has one deadline, from the name to the last header line: with a limit per read, a server that sends
a byte every few seconds could hold a job for hours. No redirect is followed, as it could lead past the check of addresses.
"""

import asyncio
import io
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import cache
from http.client import HTTPException, HTTPResponse
from socket import socket
from typing import Final, NamedTuple, cast
from urllib.parse import SplitResult, quote, urlsplit

from workers.webhooks.addresses import checked_addresses

TIMEOUT_VARIABLE: Final = "WEBHOOKS_TIMEOUT_S"
DEFAULT_TIMEOUT_S: Final = 10.0
MAX_HEAD_BYTES: Final = 16 * 1024
MAX_EXCERPT_BYTES: Final = 4 * 1024
EXCERPT_TIMEOUT_S: Final = 1.0
"""The text of an answer is for the page of the hook only. Later bytes are not waited for."""

_PATH_SAFE: Final = "/%:@!$&'()*+,;=~?-._"
_INTERIM: Final = re.compile(rb"HTTP/1\.[01] 1\d\d\b")
_MAX_INTERIM: Final = 5
_ENCODED_HOST: Final = "idna"


class Answer(NamedTuple):
    """The answer of the receiver: the status, two headers, and the beginning of the text."""

    status: int
    retry_after_s: float | None
    location: str | None
    excerpt: str


class NoAnswerError(Exception):
    """The receiver could not be reached, was too slow, or did not speak HTTP; the text says which."""


async def post(url: str, body: bytes, headers: Mapping[str, str], *, now: float) -> Answer:
    """Send ``body`` to ``url`` and return the answer. ``now`` is what a date in ``Retry-After`` is compared with.

    Raises ``AddressRefusedError`` for a URL that leads inside, and ``NoAnswerError``.
    """
    timeout_s = float(os.environ.get(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT_S))
    parts = urlsplit(url)
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await _connect(parts)
            # Not drained: a server may answer before it has read everything, and close; its answer is valid.
            writer.write(_head(parts, len(body), headers) + body)
            head, response = await _final_head(reader)
        text = await _read_excerpt(reader, head, response)
    except TimeoutError:
        raise NoAnswerError(f"no answer within {timeout_s:g} s") from None
    except (OSError, EOFError, HTTPException, UnicodeError, asyncio.LimitOverrunError) as error:
        # The error may quote the answer of the receiver, with its line breaks.
        raise NoAnswerError(" ".join(f"{type(error).__name__}: {error}".split())[:300]) from error
    finally:
        if writer is not None:
            writer.transport.abort()
    return Answer(
        status=response.status,
        retry_after_s=_retry_after_s(response.getheader("Retry-After"), now),
        location=response.getheader("Location"),
        excerpt=text,
    )


def url_problem(url: str) -> str | None:
    """Return why ``url`` cannot be a hook's, for the user who types it; ``None`` when it can."""
    try:
        parts = urlsplit(url)
        port = parts.port
        parts.netloc.encode(_ENCODED_HOST)
    except ValueError as error:
        return str(error)
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return "a hook's URL begins with http:// or https:// and names a host"
    if parts.username is not None:
        return "a hook's URL holds no user and password: lists and logs show the URL; check the signature instead"
    return None


async def _connect(url: SplitResult) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host = (url.hostname or "").encode(_ENCODED_HOST).decode()
    port = url.port or (443 if url.scheme == "https" else 80)
    tls = _tls() if url.scheme == "https" else None
    refusal: OSError = OSError(f"{host} has no address")
    for address in await checked_addresses(host, port):
        try:
            return await asyncio.open_connection(
                address, port, limit=MAX_HEAD_BYTES, ssl=tls, server_hostname=host if tls else None
            )
        except OSError as error:
            refusal = error
    raise refusal


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _head(url: SplitResult, length: int, headers: Mapping[str, str]) -> bytes:
    path = quote(url.path or "/", safe=_PATH_SAFE) + (f"?{quote(url.query, safe=_PATH_SAFE)}" if url.query else "")
    host = url.netloc.encode(_ENCODED_HOST).decode()
    fields = {"Host": host, "Content-Type": "application/json", "Content-Length": str(length), "Connection": "close"}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in (fields | dict(headers)).items()), "", ""]
    return "\r\n".join(lines).encode("ascii")


async def _final_head(reader: asyncio.StreamReader) -> tuple[bytes, HTTPResponse]:
    for _ in range(_MAX_INTERIM):
        head = await reader.readuntil(b"\r\n\r\n")
        if not _INTERIM.match(head):
            return head, _parsed(head)
    raise HTTPException("only interim answers")


def _parsed(data: bytes) -> HTTPResponse:
    """Parse an answer with the standard library."""
    response = HTTPResponse(cast("socket", _BytesSocket(data)), method="POST")
    response.begin()
    return response


class _BytesSocket:
    """The methods of a socket that ``HTTPResponse`` calls."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


async def _read_excerpt(reader: asyncio.StreamReader, head: bytes, response: HTTPResponse) -> str:
    """Return the beginning of the answer's text, as far as it came in time. It decides nothing, so it cannot fail."""
    received = bytearray()
    wanted = MAX_EXCERPT_BYTES if response.length is None else min(response.length, MAX_EXCERPT_BYTES)
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(EXCERPT_TIMEOUT_S):
            while len(received) < wanted and (piece := await reader.read(wanted - len(received))):
                received += piece
    return b"".join(_decode_chunks(head + bytes(received)))[:MAX_EXCERPT_BYTES].decode("utf-8", "replace")


def _decode_chunks(data: bytes) -> Iterator[bytes]:
    with _parsed(data) as response, suppress(HTTPException, ValueError):
        while piece := response.read1(MAX_EXCERPT_BYTES):
            yield piece


def _retry_after_s(retry_after: str | None, now: float) -> float | None:
    """``Retry-After``, a number of seconds or a date, as seconds from now; ``None`` when it says nothing."""
    if not retry_after:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    with suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - now)
    return None
