"""What a Redis URL may say, and how a wrong one is shown without the secret in it."""

import re
from urllib.parse import SplitResult, parse_qsl, urlsplit

from framework.settings.suggest import did_you_mean, nearest

EMBEDDED = "embedded"
"""Stands in a URL's place for a server of our own."""

_SCHEMES = ("redis", "rediss", "unix")
_PARAMETERS = (
    "db",
    "protocol",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
)
_PLACE = re.compile(r"(?:[\w.-]+|\[[\dA-Fa-f:.]+\])?(?P<port>:\d+(?=[/?#]|$))?(?:/[\w./-]*)?", re.ASCII)
_STRAY = "is no URL: what stands for host and port is neither (in a password write / # ? @ : as %2F %23 %3F %40 %3A)"


def check_redis_url(url: str) -> str:
    """The URL, of which redis-py drops no part in silence. Raises ValueError saying what is allowed."""
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("must be a URL without spaces and control characters")
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        hint = did_you_mean(scheme if separator else url, _SCHEMES if separator else (EMBEDDED,))
        raise ValueError(f"must be the word embedded, or begin with redis://, rediss:// or unix://{hint}")
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        # Python's own words quote what it took for the port or the host: it may be a piece of the password.
        raise ValueError(_STRAY) from None
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise ValueError(_STRAY)
    if not port_is_fine or not (parts.path if scheme == "unix" else parts.hostname):
        raise ValueError("names no server, for example redis://127.0.0.1:6379/0")
    _check_rest(parts)
    return url


def without_secrets(url: str) -> str:
    """The text of a URL, which may be none, with *** for credentials, parameters and whatever is not surely a place."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    _, at, place = rest.rpartition("@")
    sure = _PLACE.match(place)
    if sure is None or not (separator or sure["port"] or nearest(url, (EMBEDDED,))):
        return "***"
    shown = sure[0] if sure.end() == len(place) else f"{sure[0]}***"
    return f"{scheme if scheme.isalpha() else '***' * bool(scheme)}{separator}{'***@' if at else ''}{shown}"


def _check_rest(parts: SplitResult) -> None:
    database = parts.path if parts.scheme != "unix" else ""
    if parts.fragment or (database.strip("/") and not re.fullmatch(r"/\d+", database, re.ASCII)):
        raise ValueError("must end with the number of a database or nothing, for example redis://127.0.0.1:6379/0")
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _PARAMETERS:
            # Timeouts and retries are not the URL's to say: their defaults lose or repeat jobs.
            hint = did_you_mean(name, _PARAMETERS)
            raise ValueError(f"has an unknown parameter {name!r}{hint}; allowed: {', '.join(_PARAMETERS)}")
        if name == "db" and not re.fullmatch(r"\d+", value, re.ASCII):
            raise ValueError("must give the parameter db as a whole number")
        if name == "protocol" and value not in ("2", "3"):
            raise ValueError("must give the parameter protocol as 2 or 3")
