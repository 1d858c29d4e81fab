"""Parse the URL of a Redis, check that of a PostgreSQL database, and show a URL without its secrets.

Messages show nothing of a wrong database URL, as it may hold a password.
"""

import re
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qs, parse_qsl, unquote, urlsplit

from framework.text import did_you_mean, nearest

EMBEDDED = "embedded"
"""Stands in place of a URL for a development server that the framework starts itself."""

SENTINEL_PORT = 26379

_SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
_CLUSTER_SCHEMES = ("redis+cluster", "rediss+cluster")
_SCHEMES = ("redis", "rediss", "unix", *_SENTINEL_SCHEMES, *_CLUSTER_SCHEMES)
_REDIS_PORT = 6379
_HOST = r"(?:[\w.-]+|\[[\dA-Fa-f:.]+\])"
_SERVER_ADDRESS = re.compile(rf"{_HOST}?(?P<port>:\d+(?=[/?#]|$))?(?:/[\w./-]*)?", re.ASCII)
_SENTINEL_ADDRESSES = re.compile(rf"{_HOST}(?::\d+)?(?:,{_HOST}(?::\d+)?)*(?P<port>)(?:/[\w./-]*)?(?=[?#]|$)", re.ASCII)
_HOST_AND_PORT = re.compile(rf"(?P<host>{_HOST})(?::(?P<port>\d{{1,5}}))?", re.ASCII)
_MALFORMED_HOST = "is not a URL: its host or port is invalid (in a password write / # ? @ : as %2F %23 %3F %40 %3A)"
_EXAMPLE = "redis+sentinel://10.0.0.7:26379,10.0.0.8:26379/NAME/0"

_CLUSTER_EXAMPLE = "redis+cluster://10.0.0.7:6379,10.0.0.8:6379"

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_CERT_REQS = ("none", "optional", "required")


class RedisUrl(NamedTuple):
    """The parts of a URL. A part that is missing is None or empty."""

    address: str = ""
    """The URL without credentials and parameters; empty where sentinels know the address."""
    sentinels: tuple[tuple[str, int], ...] = ()
    sentinel_name: str | None = None
    cluster: tuple[tuple[str, int], ...] = ()
    """Nodes of the cluster that holds the shard."""
    tag: str | None = None
    """The hash tag of the shard's keys in the cluster; ``None``: the name of the shard."""
    database: int | None = None
    """Only where the address does not name it."""
    username: str | None = None
    password: str | None = None
    protocol: int | None = None
    uses_tls: bool = False
    tls: Mapping[str, Any] = {}
    """Keys of the setting ``tls``."""
    parameters: Mapping[str, str] = {}
    """The parameter that gives each key of ``tls``."""
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    sentinel_tls: bool | None = None


def check_redis_url(url: str) -> str:
    """Return the URL when all its parts are understood. Raises ValueError saying what is allowed."""
    parse_redis_url(url)
    return url


def parse_redis_url(url: str) -> RedisUrl:
    """Return the parts of the URL. Raises ValueError saying what is allowed."""
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("must be a URL without spaces and control characters")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        hint = did_you_mean(scheme if separator else url, _SCHEMES if separator else (EMBEDDED,))
        schemes = ", ".join(f"{one}://" for one in _SCHEMES[:-1])
        raise ValueError(f"must be the word embedded, or begin with {schemes} or {_SCHEMES[-1]}://{hint}")
    if scheme in _CLUSTER_SCHEMES:
        return _parse_cluster_url(scheme, rest)
    return _parse_sentinel_url(scheme, rest) if scheme in _SENTINEL_SCHEMES else _parse_server_url(url)


def is_hash_tag(text: str) -> bool:
    """Return whether a text can be the hash tag of a shard's keys in a cluster: it is a part of patterns, too."""
    return re.fullmatch(r"[\w.-]+", text, re.ASCII) is not None


def mask_secrets(url: str) -> str:
    """Return a text that may be a URL with *** for credentials, parameters and everything that is not surely an address."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    _, at, place = rest.rpartition("@")
    has_several = scheme in (*_SENTINEL_SCHEMES, *_CLUSTER_SCHEMES)
    sure = (_SENTINEL_ADDRESSES if has_several else _SERVER_ADDRESS).match(place)
    if sure is None or not (separator or sure["port"] or nearest(url, (EMBEDDED,))):
        return "***"
    shown = sure[0] if sure.end() == len(place) else f"{sure[0]}***"
    return (
        f"{scheme if has_several or scheme.isalpha() else '***' * bool(scheme)}{separator}{'***@' if at else ''}{shown}"
    )


def _parse_server_url(url: str) -> RedisUrl:
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        # Python's own message quotes what it took for the port or the host, which may be a part of the password.
        raise ValueError(_MALFORMED_HOST) from None
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise ValueError(_MALFORMED_HOST)
    if not port_is_fine or not (parts.path if parts.scheme == "unix" else parts.hostname):
        raise ValueError("has no server, for example redis://127.0.0.1:6379/0")
    _check_database(parts)
    parsed = _parse_query(parts.query)
    path = "" if parsed.get("database") is not None and parts.scheme != "unix" else parts.path
    return RedisUrl(
        address=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}",
        username=_decoded(parts.username),
        password=_decoded(parts.password),
        uses_tls=parts.scheme == "rediss",
        **parsed,
    )


def _parse_sentinel_url(scheme: str, rest: str) -> RedisUrl:
    # By hand: Python's own splitting knows one host.
    before, _, query = rest.partition("?")
    authority, _, path = before.partition("/")
    credentials, at, places = authority.rpartition("@")
    if "#" in rest or "@" in path or "@" in query or "@" in credentials:
        raise ValueError(_MALFORMED_HOST)
    sentinels = tuple(_parse_address(place, "sentinel", SENTINEL_PORT, _EXAMPLE) for place in places.split(","))
    name, _, database = path.partition("/")
    if not name or (name.isdecimal() and not database):
        raise ValueError(f"has no name of a master: write it after the hosts, for example {_EXAMPLE}")
    if not re.fullmatch(r"\d*", database, re.ASCII):
        raise ValueError(f"must end with the name of the master and the number of a database, for example {_EXAMPLE}")
    of_path: dict[str, Any] = {"database": int(database)} if database else {}
    parsed = of_path | _parse_query(query, of_sentinels=True)
    return RedisUrl(
        sentinels=sentinels,
        sentinel_name=unquote(name),
        **_credentials(credentials, has_any=bool(at)),
        uses_tls=scheme == "rediss+sentinel",
        **parsed,
    )


def _parse_cluster_url(scheme: str, rest: str) -> RedisUrl:
    before, _, query = rest.partition("?")
    authority, _, path = before.partition("/")
    credentials, at, places = authority.rpartition("@")
    if "#" in rest or "@" in path or "@" in query or "@" in credentials:
        raise ValueError(_MALFORMED_HOST)
    nodes = tuple(_parse_address(place, "node", _REDIS_PORT, _CLUSTER_EXAMPLE) for place in places.split(","))
    parsed = _parse_query(query, of_cluster=True)
    if path not in ("", "0") or parsed.pop("database", 0):
        raise ValueError(
            f"must not name a database other than 0: a cluster has no other, for example {_CLUSTER_EXAMPLE}"
        )
    return RedisUrl(
        cluster=nodes, **_credentials(credentials, has_any=bool(at)), uses_tls=scheme == "rediss+cluster", **parsed
    )


def _credentials(text: str, *, has_any: bool) -> dict[str, Any]:
    username, colon, password = text.partition(":")
    if has_any and not colon:
        raise ValueError(
            "has a user name without a password: write user:password@ before the hosts, or :password@ for no user name"
        )
    return {"username": _decoded(username), "password": _decoded(password)}


def _parse_address(place: str, kind: str, default_port: int, example: str) -> tuple[str, int]:
    found = _HOST_AND_PORT.fullmatch(place)
    if found is None:
        raise ValueError(_MALFORMED_HOST if place else f"has no {kind}, for example {example}")
    port = int(found["port"] or default_port)
    if not 0 < port < 65536:
        raise ValueError(_MALFORMED_HOST)
    return found["host"].strip("[]"), port


def _decoded(text: str | None) -> str | None:
    return unquote(text) if text else None


def _check_database(parts: SplitResult) -> None:
    database = parts.path if parts.scheme != "unix" else ""
    if parts.fragment or (database.strip("/") and not re.fullmatch(r"/\d+", database, re.ASCII)):
        raise ValueError("must end with the number of a database or nothing, for example redis://127.0.0.1:6379/0")


def _parse_query(query: str, *, of_sentinels: bool = False, of_cluster: bool = False) -> dict[str, Any]:
    """Return the settings of the parameters. Raises ValueError for an unknown one, and names the right place for a known one."""
    parsed: dict[str, Any] = {}
    tls: dict[str, Any] = {}
    parameters: dict[str, str] = {}
    own = _SENTINEL_PARAMETERS if of_sentinels else _CLUSTER_PARAMETERS if of_cluster else _NO_PARAMETERS
    allowed = (*_COMMON_PARAMETERS, *_TLS_PARAMETERS, *own)
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _TLS_PARAMETERS:
            key, read = _TLS_PARAMETERS[name]
            tls[key], parameters[key] = read(name, value), name
        elif name in _COMMON_PARAMETERS:
            key, read = _COMMON_PARAMETERS[name]
            parsed[key] = read(name, value)
        elif name in own:
            parsed[name] = own[name](name, value)
        else:
            advice = (
                _misplaced_parameter_advice(name) or f"{did_you_mean(name, allowed)}; allowed: {', '.join(allowed)}"
            )
            raise ValueError(f"has an unknown parameter {name!r}{advice}")
    if parsed.get("sentinel_username") and not parsed.get("sentinel_password"):
        raise ValueError("has a sentinel_username without a sentinel_password: give both, or neither")
    return {**parsed, "tls": tls, "parameters": parameters} if tls else parsed


def _misplaced_parameter_advice(name: str) -> str | None:
    """Return the remedy for a parameter of other programs."""
    if name in _SENTINEL_PARAMETERS:
        return f": it belongs to a {_SENTINEL_SCHEMES[0]}:// url"
    if name in _CLUSTER_PARAMETERS:
        return f": it belongs to a {_CLUSTER_SCHEMES[0]}:// url"
    if name in _ADVICE:
        return f": {_ADVICE[name]}"
    if name.startswith(("socket_", "retry", "health_check", "max_connections", "timeout")):
        # A URL may not set timeouts and retries: their usual values lose or repeat jobs.
        return ": timeouts, retries and the number of connections are fixed, because a retried command repeats a job: remove it"
    return None


def _number(name: str, value: str) -> int:
    if not re.fullmatch(r"\d+", value, re.ASCII):
        raise ValueError(f"must give the parameter {name} as a whole number")
    return int(value)


def _protocol(name: str, value: str) -> int:
    if value not in ("2", "3"):
        raise ValueError(f"must give the parameter {name} as 2 or 3")
    return int(value)


def _text(name: str, value: str) -> str:
    if not value:
        raise ValueError(f"must give the parameter {name} a value, or leave it out")
    return value


def _hash_tag(name: str, value: str) -> str:
    if not is_hash_tag(value):
        raise ValueError(f"must give the parameter {name} ASCII letters, digits, _, - and . only")
    return value


def _boolean(name: str, value: str) -> bool:
    if value.lower() not in (*_TRUE, *_FALSE):
        raise ValueError(f"must give the parameter {name} as true or false")
    return value.lower() in _TRUE


def _requires_certificate(name: str, value: str) -> bool:
    """Return the value of ``none``, ``optional``, ``required``, or Python's names of them. To a client the last two are one."""
    word = value.lower().removeprefix("ssl.").removeprefix("cert_")
    if word not in _CERT_REQS:
        hint = did_you_mean(word, _CERT_REQS)
        raise ValueError(
            f"must give the parameter {name} as {', '.join(_CERT_REQS)}{hint}, or use the setting tls.verify instead"
        )
    return word != "none"


_COMMON_PARAMETERS: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "db": ("database", _number),
    "protocol": ("protocol", _protocol),
}
_TLS_PARAMETERS: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "ssl_ca_certs": ("ca_file", _text),
    "ssl_certfile": ("cert_file", _text),
    "ssl_keyfile": ("key_file", _text),
    "ssl_cert_reqs": ("verify", _requires_certificate),
    "ssl_check_hostname": ("check_hostname", _boolean),
}
"""Each parameter, the key of the setting ``tls`` that it gives, and how its value is read."""
_SENTINEL_PARAMETERS: Mapping[str, Callable[[str, str], Any]] = {
    "sentinel_username": _text,
    "sentinel_password": _text,
    "sentinel_tls": _boolean,
}
_NO_PARAMETERS: Mapping[str, Callable[[str, str], Any]] = {}
_CLUSTER_PARAMETERS: Mapping[str, Callable[[str, str], Any]] = {"tag": _hash_tag}
_ADVICE: Mapping[str, str] = {
    "username": "write redis://user:password@host, or use the setting username",
    "password": "write redis://:password@host, or use the setting password",
    "ssl": "write rediss://, or use the setting tls",
    "tls": "write rediss://, or use the setting tls",
    "ssl_ca_path": "give one file with ssl_ca_certs, or the setting tls.ca_file",
    "ssl_ca_data": "give a file with ssl_ca_certs, or the setting tls.ca_file",
    "ssl_password": "give a key without a password, in a file that only this user may read (tls.key_file)",
    "master_name": f"write the name of the master in the path: {_EXAMPLE}",
    "service_name": f"write the name of the master in the path: {_EXAMPLE}",
    "sentinel_name": f"write the name of the master in the path: {_EXAMPLE}",
    "sentinelMasterId": f"write the name of the master in the path: {_EXAMPLE}",
}
"""Parameters of other programs and libraries, with the setting to use here."""


_DRIVER = "postgresql+psycopg"
_DATABASE_SCHEMES = (_DRIVER, "postgresql", "postgres")
"""All three are read as the first: the driver that SQLAlchemy takes for the others depends on its version."""


def check_database_url(url: str) -> str:
    """Return the URL with its driver named, as SQLAlchemy takes it. Raises ValueError saying what is allowed."""
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("must be a URL without spaces and control characters")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _DATABASE_SCHEMES:
        hint = did_you_mean(scheme, _DATABASE_SCHEMES) if separator else ""
        raise ValueError(f"must begin with {_DRIVER}://{hint}: positions of the WAL are PostgreSQL's")
    try:
        parts = urlsplit(f"postgresql://{rest}")
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        raise ValueError(_MALFORMED_HOST) from None
    if "@" in f"{parts.path}{parts.query}{parts.fragment}" or parts.fragment or not port_is_fine:
        raise ValueError(_MALFORMED_HOST)
    if not (parts.hostname or parse_qs(parts.query).get("host")):
        raise ValueError(f"has no server, for example {_DRIVER}://user@127.0.0.1:5432/shop")
    if not parts.path.strip("/"):
        raise ValueError(f"has no database, for example {_DRIVER}://user@127.0.0.1:5432/shop")
    return f"{_DRIVER}://{rest}"


def check_task_url(url: str) -> str:
    """Return the URL of the database of tasks: a file of SQLite or PostgreSQL. Raises ValueError saying what is allowed."""
    if url.startswith("sqlite:"):
        if not url.startswith("sqlite:///") or url in ("sqlite:///", "sqlite:///:memory:"):
            raise ValueError(
                "must name a file: sqlite:///var/tasks.db, or sqlite:////srv/tasks.db for an absolute path"
            )
        return url
    scheme = url.partition("://")[0]
    if scheme not in _DATABASE_SCHEMES:
        hint = did_you_mean(scheme, ("sqlite", *_DATABASE_SCHEMES))
        raise ValueError(f"must begin with sqlite:/// or {_DRIVER}://{hint}")
    return check_database_url(url)


LINK_FIELDS = ("jid", "class", "queue", "shard", "correlation_id", "trace_id", "span_id")
"""What a link of the dashboard may name of a job."""


def check_link(url: str) -> str:
    """Return the template of a link: a web address with fields such as ``{jid}``. Raises ValueError saying what is allowed."""
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("must be a URL without spaces and control characters")
    if not url.startswith(("http://", "https://")):
        raise ValueError("must begin with https:// or http://")
    try:
        parts = [(field, bool(form or sign)) for _, field, form, sign in Formatter().parse(url) if field is not None]
        host = urlsplit(url.replace("{", "").replace("}", "")).hostname
    except ValueError:
        raise ValueError("is not a URL with fields in braces: write a brace itself as %7B or %7D") from None
    allowed = ", ".join(f"{{{one}}}" for one in LINK_FIELDS)
    wrong = next((field for field, has_format in parts if has_format or field not in LINK_FIELDS), None)
    if wrong is not None:
        hint = did_you_mean(wrong, LINK_FIELDS) if wrong not in LINK_FIELDS else ""
        raise ValueError(f"may have the fields {allowed}{hint}")
    place = url.partition("://")[2].partition("/")[0]
    if not host or "{" in place or "@" in place:
        raise ValueError(
            "must name its server, without a field or a password there, for example https://logs.example/?q={jid}"
        )
    if not parts:
        raise ValueError(f"names nothing of the job: give one of {allowed}")
    return url


_END_OF_PLACE = re.compile(r"[?#]")


def shown_url(url: str) -> str:
    """Return a checked URL without credentials: scheme, host, port and path. User, password, query and fragment are left out."""
    scheme, separator, rest = url.partition("://")
    place = _END_OF_PLACE.split(rest, maxsplit=1)[0]
    # A password with an unescaped slash reaches into the path. A path alone may have an @.
    return f"{scheme}{separator}{place if place.startswith('/') else place.rpartition('@')[2]}"
