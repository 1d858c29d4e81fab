"""Serve the dashboard on its own: ``application-worker dashboard``."""

import signal
from ipaddress import ip_address

import uvicorn
from starlette.requests import Request

from framework.dashboard.application import app
from framework.dashboard.security import Authorize
from framework.pages.caller import Caller, Role
from framework.process.identity import operator_name


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def serve(host: str, port: int, authorize: Authorize | None, role: Role) -> None:
    """Serve until TERM or INT. Without ``authorize`` each caller is the user of this process, with the role; then only on loopback.

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
    made = app(authorize or authorize_local, loopback_only=authorize is None)
    uvicorn.run(
        made,
        host=host.strip("[]"),
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )


def _ended(*_: object) -> None:
    """Let the process end with status 0."""
