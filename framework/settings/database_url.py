"""Check the URL of a PostgreSQL database. Messages show nothing of a wrong URL, as it may hold a password."""

from urllib.parse import parse_qs, urlsplit

from framework.messages import did_you_mean

_DRIVER = "postgresql+psycopg"
_SCHEMES = (_DRIVER, "postgresql", "postgres")
"""All three are read as the first: the driver that SQLAlchemy takes for the others depends on its version."""
_MALFORMED_HOST = "is not a URL: its host or port is invalid (in a password write / # ? @ : as %2F %23 %3F %40 %3A)"


def check_database_url(url: str) -> str:
    """Return the URL with its driver named, as SQLAlchemy takes it. Raises ValueError saying what is allowed."""
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("must be a URL without spaces and control characters")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        hint = did_you_mean(scheme, _SCHEMES) if separator else ""
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
    if scheme not in _SCHEMES:
        hint = did_you_mean(scheme, ("sqlite", *_SCHEMES))
        raise ValueError(f"must begin with sqlite:/// or {_DRIVER}://{hint}")
    return check_database_url(url)
