"""Build the endpoint of a shard (addresses and connection options of its Redis and sentinels) from its settings."""

from typing import Any

from framework.settings.model import CoreSettings
from framework.settings.redis_url import RedisUrl
from framework.settings.shard import ShardSettings, TlsSettings
from framework.store.connect import Endpoint
from framework.store.embedded import embedded_url, store_dir


def endpoint_of(settings: CoreSettings, shard: str) -> Endpoint:
    """Return the endpoint of a shard.

    An embedded store that does not run gets the address at which it will listen: the first command then fails with an error that
    names the remedy, and works as soon as the store runs.
    """
    chosen, from_url = settings.shards[shard], settings.shards[shard].url_parts
    url = from_url.address
    if chosen.is_embedded:
        url = embedded_url(settings.var_dir, shard) or f"unix://{store_dir(settings.var_dir, shard) / 'server.sock'}"
    if chosen.tls is not None and url.startswith("redis://"):
        url = "rediss://" + url.removeprefix("redis://")
    sentinels = tuple((sentinel.host, sentinel.port) for sentinel in chosen.sentinels) or from_url.sentinels
    return Endpoint(
        url,
        sentinels,
        chosen.sentinel_name or from_url.sentinel_name or "",
        tuple(_options(chosen, from_url, has_sentinels=bool(sentinels)).items()),
        tuple(_sentinel_options(chosen, from_url).items()) if sentinels else (),
        source=settings.config_file_label("redis.yml"),
    )


def _options(chosen: ShardSettings, from_url: RedisUrl, *, has_sentinels: bool) -> dict[str, Any]:
    """Return redis-py's options for credentials, protocol and TLS. A setting overrides the same part of the URL."""
    options: dict[str, Any] = {
        "username": chosen.username or from_url.username,
        "password": chosen.password.get_secret_value() if chosen.password is not None else from_url.password,
        "protocol": chosen.protocol or from_url.protocol,
        "db": from_url.database,
    }
    tls = chosen.effective_tls
    if tls is not None:
        options |= {"ssl": True if has_sentinels else None, **_tls_options(tls)}
    return {name: value for name, value in options.items() if value is not None}


def _sentinel_options(chosen: ShardSettings, from_url: RedisUrl) -> dict[str, Any]:
    """Return the options that differ for the sentinels; empty where they are the same as for the Redis."""
    options: dict[str, Any] = {}
    password = chosen.sentinel_password.get_secret_value() if chosen.sentinel_password else from_url.sentinel_password
    if password is not None:
        options = {"username": chosen.sentinel_username or from_url.sentinel_username, "password": password}
    tls = chosen.effective_sentinel_tls
    if tls != chosen.effective_tls:
        options |= {"ssl": True, **_tls_options(tls)} if tls is not None else {"ssl": False}
    return {name: value for name, value in options.items() if value is not None}


def _tls_options(tls: TlsSettings) -> dict[str, Any]:
    return {
        "ssl_ca_certs": str(tls.ca_file) if tls.ca_file else None,
        "ssl_certfile": str(tls.cert_file) if tls.cert_file else None,
        "ssl_keyfile": str(tls.key_file) if tls.key_file else None,
        "ssl_cert_reqs": "required" if tls.verify else "none",
        "ssl_check_hostname": tls.verify and tls.check_hostname,
    }
