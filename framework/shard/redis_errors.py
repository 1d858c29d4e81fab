"""What to do about a Redis that answers, but refuses."""

from collections.abc import Mapping

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.sentinel import MasterNotFoundError

from framework.errors import ShardUnavailableError
from framework.store.connect import Endpoint
from framework.store.modes import UnsupportedServerError, cluster_advice
from framework.store.sentinels import SentinelSettingsError
from framework.store.tls import tls_advice

_ADVICE: Mapping[str, str] = {
    "OOM": "it is full; let workers empty its queues, or raise its maxmemory",
    "READONLY": "it is a replica; point the shard at its master, or name its Sentinels, in {source}",
    "LOADING": "it is reading its data after a start; push again in a moment",
    "MASTERDOWN": "it is a replica without its master; point the shard at a master in {source}",
    "MISCONF": "it cannot save to its disk; its log says why",
    "NOREPLICAS": "too few of its replicas are in touch (its setting min-replicas-to-write)",
    "NOAUTH": "it wants credentials; give the shard a username and password in {source}",
    "WRONGPASS": "it does not accept the shard's username and password in {source}",
    "NOPERM": "its ACL does not let this user do that; `application-worker acl ROLE` prints what to grant (producer, worker, ...)",
    "WRONGTYPE": "a key that is no list has the name of the queue, or one that is no set is named queues (or schedule)",
}

_NO_MASTER_ADVICE = (
    "see that the sentinels run and can be reached from here; their addresses are in {source}, or in the environment"
)


def error_code(error: RedisError) -> str:
    """Return the server's own word for its refusal (OOM, READONLY), empty when it gave none."""
    word = error.status_code or str(error).partition(" ")[0]
    return word if word.isalpha() and word.isupper() else ""


def advice_for(error: RedisError, source: str = "config/redis.yml") -> str | None:
    """Return what to do, or ``None`` when the error is no refusal that we know; ``source`` is the file to change."""
    if isinstance(error, SentinelSettingsError):
        return f"{error.setting} stands in {source}, or in the environment"
    if isinstance(error, MasterNotFoundError):
        of_tls = tls_advice(error)
        return (
            f"of a sentinel: {of_tls} (sentinel_tls is for the sentinels alone)"
            if of_tls
            else _NO_MASTER_ADVICE.format(source=source)
        )
    if isinstance(error, UnsupportedServerError):
        return f"its address stands in {source}, or in the environment"
    if isinstance(error, NoPermissionError):
        return _ADVICE["NOPERM"]
    word = error_code(error)
    known = _ADVICE.get(word)
    return known.format(source=source) if known else cluster_advice(word) or tls_advice(error)


def wrong_setting(error: BaseException) -> str | None:
    """Return the key of a shard's settings that an error shows to be wrong, ``None`` for an outage, which may end."""
    if isinstance(error, SentinelSettingsError):
        return error.setting
    if isinstance(error, UnsupportedServerError) or (
        isinstance(error, RedisError) and cluster_advice(error_code(error))
    ):
        return "url"
    return "password" if isinstance(error, AuthenticationError) else None


def unavailable_error(shard: str, endpoint: Endpoint, error: RedisError | OSError) -> ShardUnavailableError:
    """Return what a command prints of a shard that does not answer, or refuses."""
    advice = advice_for(error, endpoint.source) if isinstance(error, RedisError) else None
    reason = f"{endpoint.shown}: {str(error).rstrip('.')}"
    return ShardUnavailableError(shard, reason, advice=advice, source=endpoint.source)
