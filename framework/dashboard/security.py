"""Decide about a request before a page sees it: its caller, host, language, site and token. Add headers to answers."""

import hmac
import inspect
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from framework.dashboard.texts import LANGUAGE_COOKIE, language_names
from framework.pages.caller import Caller
from framework.text import Sentence

Authorize: TypeAlias = Callable[[Request], Caller | Awaitable[Caller | None] | None]
"""Returns the caller of a request, or ``None`` to refuse it. May be ``async def``."""

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src "
        "'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With no-referrer, browsers send "Origin: null" with the forms of our own pages: check_change would refuse each.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

TOKEN_FIELD = "token"  # noqa: S105 - the name of a field
_COOKIE = "aw_token"
_TOKEN_BYTES = 32

_LOOPBACK_HOSTS = frozenset(("localhost", "127.0.0.1", "[::1]"))


class SecureHeaders:
    """Add the headers to every answer, also to errors. Answers are not stored, but for static files."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                is_static = "/static/" in scope["path"] and message["status"] in (200, 304)
                headers["Cache-Control"] = "public, max-age=86400" if is_static else "no-store"
            await send(message)

        await self._app(scope, receive, send_with_headers)


class LoopbackHosts:
    """Refuse requests whose Host is no name of this machine: another site may let its own name lead here (DNS rebinding)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        if scope["type"] == "http" and not is_loopback_host(HTTPConnection(scope).headers.get("host", "")):
            await send({"type": "http.response.start", "status": 421, "headers": [(b"content-type", b"text/plain")]})
            await send(
                {"type": "http.response.body", "body": b"This dashboard answers to localhost and 127.0.0.1 only.\n"}
            )
            return
        await self._app(scope, receive, send)


class ChosenLanguage:
    """Let the language that a viewer has chosen (a cookie) stand before those of the browser: pages read ``Accept-Language`` only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        if scope["type"] == "http":
            request = HTTPConnection(scope)
            chosen = request.cookies.get(LANGUAGE_COOKIE)
            if chosen in language_names():
                accepted = f"{chosen},{request.headers.get('accept-language', '')}".encode("latin-1")
                others = [(name, value) for name, value in scope["headers"] if name != b"accept-language"]
                scope = {**scope, "headers": [*others, (b"accept-language", accepted)]}
        await self._app(scope, receive, send)


def is_loopback_host(host: str) -> bool:
    """Return whether the value of a Host header names this machine: ``localhost:7433``."""
    name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "")
    return name.lower() in _LOOPBACK_HOSTS and (not port or port.isdecimal())


async def caller_of(request: Request, authorize: Authorize | None) -> Caller:
    """Return the caller of the request.

    Raises:
        HTTPException: 403, there is none.
    """
    found = None if authorize is None else authorize(request)
    caller = await found if inspect.isawaitable(found) else found
    if caller is None:
        raise HTTPException(
            403,
            Sentence("You may not see this dashboard. framework.dashboard.app(authorize=...) decides about callers."),
        )
    return caller


def token_of(request: Request) -> str:
    """Return the token of this browser, a new one if it has none: forms repeat it."""
    found = request.cookies.get(cookie_name(request), "")
    return found if len(found) >= _TOKEN_BYTES and found.isascii() else secrets.token_urlsafe(_TOKEN_BYTES)


def cookie_name(request: Request) -> str:
    """Return the name of the cookie with the token. Over TLS, no other host of the domain can set it."""
    return f"__Host-{_COOKIE}" if request.url.scheme == "https" else _COOKIE


def check_change(request: Request, form: Mapping[str, Sequence[str]]) -> None:
    """Refuse a change that no page of this dashboard has sent.

    The browser says which site has sent a request (``Sec-Fetch-Site``, or ``Origin`` over plain HTTP), and the form repeats the token
    of its cookie, which pages of other sites cannot read.

    Raises:
        HTTPException: 403.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site not in (None, "same-origin"):
        raise HTTPException(403, Sentence("This change comes from a page of another site: nothing was changed."))
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise HTTPException(403, Sentence("This change comes from a page of another origin: nothing was changed."))
    expected = request.cookies.get(cookie_name(request), "")
    given = (form.get(TOKEN_FIELD) or [""])[0]
    if len(expected) < _TOKEN_BYTES or not hmac.compare_digest(expected.encode(), given.encode()):
        raise HTTPException(
            403, Sentence("The token of this form has expired: nothing was changed. Load the page again.")
        )
