"""Serve the dashboard on its own: ``application-worker dashboard``."""

import asyncio
import signal
import socket
from ipaddress import ip_address

import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from framework.dashboard.application import DashboardSite
from framework.dashboard.installation import read_installation
from framework.dashboard.security import Authorize
from framework.pages.caller import Caller, Role
from framework.process.identity import operator_name
from framework.terminal.output import echo

_END_WITHIN_S = 1
"""How long requests may go on after TERM. Streams end at once."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def serve(host: str, port: int, authorize: Authorize | None, role: Role) -> None:
    """Serve until TERM or INT, and print the address once it answers.

    Without ``authorize`` each caller is the user of this process, with the role; then only on loopback.

    Raises:
        ValueError: the address is beyond loopback, and nothing decides about callers.
    """
    if authorize is None and not is_loopback(host):
        raise ValueError(f"{host} is beyond this machine: name what decides about callers with --authorize MODULE:NAME")
    local = Caller(operator_name(), role)

    def authorize_local(_request: Request) -> Caller:
        return local

    # uvicorn sends the signal again when it has ended, to the handler that was there before.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ended)
    site = DashboardSite(authorize or authorize_local)
    # The import of the worker classes takes seconds, and no request waits for it.
    read_installation()
    config = uvicorn.Config(
        EndedRequests(site.application(loopback_only=authorize is None)),
        host=host.strip("[]"),
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_END_WITHIN_S,
    )
    _Server(config, site).run()


class EndedRequests:
    """Answer a request that is cancelled at the end of the process: it is no error of the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        has_begun = False

        async def send_noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            if not has_begun:
                await send({"type": "http.response.start", "status": 503, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, site: DashboardSite) -> None:
        super().__init__(config)
        self._site = site

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # Stdout belongs to log lines.
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        echo(f"The dashboard is at http://{host}:{self.config.port}/ (Ctrl-C ends it)", err=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._site.end_streams()
        await super().shutdown(sockets)


def _ended(*_: object) -> None:
    """Let the process end with status 0."""
