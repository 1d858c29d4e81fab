"""The store of large arguments outside of Redis."""

from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, Field

from framework.messages import did_you_mean
from framework.settings import validators
from framework.settings.section import Section
from framework.settings.shown_url import shown_url

_SCHEMES = ("file", "s3")
_QUERY = ("endpoint", "region")
_EXAMPLES = "file:///srv/payloads, or s3://bucket/prefix?region=eu-central-1"


class BucketAddress(NamedTuple):
    """Hold the parts of a URL with ``s3://``."""

    bucket: str
    prefix: str
    endpoint: str | None
    region: str | None


def check_store_url(url: str) -> str:
    """Return the URL of a payload store. Raises ValueError saying what is allowed."""
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("must be a URL without spaces and control characters")
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        hint = did_you_mean(scheme, _SCHEMES) if separator else ""
        raise ValueError(f"must begin with file:// or s3://{hint}: {_EXAMPLES}")
    if "#" in url:
        raise ValueError("must have no fragment: write # as %23")
    parts = urlsplit(url)
    if scheme == "file":
        if parts.netloc or parts.query or len(parts.path) < 2:
            raise ValueError("must name a folder by its absolute path: file:///srv/payloads")
    else:
        _check_bucket(url)
    return url


def _check_bucket(url: str) -> None:
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ValueError(
            "must hold no credentials: they come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )
    if not parts.netloc or ":" in parts.netloc:
        raise ValueError("must name a bucket: s3://bucket/prefix; another server is ?endpoint=https://host:port")
    query = parse_qsl(parts.query, keep_blank_values=True)
    for name, value in query:
        if name not in _QUERY:
            raise ValueError(
                f"has the unknown part {name!r}{did_you_mean(name, _QUERY)}: only endpoint and region are allowed"
            )
        if name == "endpoint" and shown_url(value) != value:
            raise ValueError(
                "must hold no credentials in its endpoint, only https://host:port: they come from the environment "
                "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
            )
        if not value or (name == "endpoint" and not value.startswith(("http://", "https://"))):
            raise ValueError(f"has a wrong {name}: for example endpoint=https://host:port, region=eu-central-1")
    if len({name for name, _ in query}) < len(query):
        raise ValueError("must name endpoint and region once")


class PayloadOffloadSettings(Section):
    """Where the arguments of large jobs are stored, from which size on, and for how long without a job."""

    url: Annotated[str, AfterValidator(check_store_url)] | None = Field(default=None, repr=False)
    """``file:///folder``, shared by all hosts, or ``s3://bucket/prefix?endpoint=...&region=...``; without one, nothing is stored."""
    threshold: Annotated[int, validators.whole_number(1_000, 1 << 30)] = 1_000_000
    """Bytes of the stored (compressed, encrypted) arguments from which on they are offloaded."""
    keep: Annotated[float, validators.bounded_number(3_600, 1_000_000_000)] = 604_800.0
    """Seconds after which a blob that no job names is suspected, and after as many more deleted."""

    @property
    def folder(self) -> Path | None:
        """The folder of a URL with ``file://``, ``None`` for a bucket."""
        parts = urlsplit(self.url or "")
        return Path(unquote(parts.path)) if parts.scheme == "file" else None

    @property
    def bucket(self) -> BucketAddress:
        """The parts of a URL with ``s3://``."""
        parts = urlsplit(self.url or "")
        query = dict(parse_qsl(parts.query))
        return BucketAddress(parts.netloc, unquote(parts.path).strip("/"), query.get("endpoint"), query.get("region"))
