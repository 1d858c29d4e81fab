"""Name the remedy for an error that a Redis server replied."""

from collections.abc import Mapping

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from framework.errors import ShardUnavailableError
from framework.store.cluster_slot import SlotMovedError
from framework.store.connect import Endpoint, UnsupportedServerError, cluster_advice, tls_advice
from framework.store.sentinels import SentinelSettingsError
from framework.text import Sentence

_ADVICE: Mapping[str, str] = {
    "OOM": Sentence("it is full; let workers empty its queues, or raise its maxmemory"),
    "READONLY": Sentence("it is a replica; point the shard at its master, or name its Sentinels, in {source}"),
    "LOADING": Sentence("it is reading its data after a start; push again in a moment"),
    "MASTERDOWN": Sentence("it is a replica without its master; point the shard at a master in {source}"),
    "MISCONF": Sentence(
        "it cannot save to its disk; look at its log, and make space on the disk or correct its rights"
    ),
    "NOREPLICAS": Sentence(
        "too few of its replicas are connected; start them, or lower its setting min-replicas-to-write"
    ),
    "NOAUTH": Sentence("it requires credentials; give the shard a username and password in {source}"),
    "WRONGPASS": Sentence("it does not accept the shard's username and password in {source}"),
    "NOPERM": Sentence(
        "its ACL refuses the command; `application-worker acl ROLE` prints the rights (ROLE: producer, worker, ...)"
    ),
    "WRONGTYPE": (
        Sentence(
            "the key of the queue is not a list, the key `queues` is not a set, or `schedule` is not a sorted set; check "
            "the keys with TYPE, then delete the wrong one"
        )
    ),
}

_NO_MASTER_ADVICE = Sentence(
    "no sentinel named a running master; check that the sentinels and the master run and are reachable (the "
    "addresses of the sentinels are in {source}, or in the environment)"
)

_REFUSAL_ADVICE = Sentence(
    "it runs, but a command or script on it failed. Look for keys that another program wrote, with TYPE; if "
    "there are none, report this text as a defect"
)
"""Of a reply without a known code, such as the error of a script: the server needs no start."""


BACKLOG_FULL = "BACKLOGFULL"
"""The code of the reply of a push that counts its jobs (``parts/count_accepted.lua``)."""


def error_code(error: RedisError) -> str:
    """Return the server's error code (OOM, READONLY), or an empty string."""
    code = error.status_code or str(error).partition(" ")[0]
    return code if code.isalpha() and code.isupper() else ""


def advice_for(error: RedisError, source: str = "config/redis.yml") -> str | None:
    """Return the remedy, or ``None`` for a server that does not answer; ``source`` is the file to change."""
    if isinstance(error, SentinelSettingsError):
        return Sentence("{setting} is in {source}, or in the environment", setting=error.setting, source=source)
    if isinstance(error, MasterNotFoundError):
        tls_remedy = tls_advice(error)
        return (
            Sentence("of a sentinel: {advice} (sentinel_tls is for the sentinels alone)", advice=tls_remedy)
            if tls_remedy
            else Sentence(_NO_MASTER_ADVICE, source=source)
        )
    if isinstance(error, UnsupportedServerError):
        return Sentence("its address is in {source}, or in the environment", source=source)
    if isinstance(error, NoPermissionError):
        return _ADVICE["NOPERM"]
    code = error_code(error)
    known = _ADVICE.get(code)
    if known:
        return Sentence(known, source=source)
    return cluster_advice(error, code) or tls_advice(error) or (_REFUSAL_ADVICE if is_refusal(error) else None)


def wrong_setting(error: BaseException) -> str | None:
    """Return the key of a shard's settings that an error shows to be wrong; ``None`` for an outage, which may end."""
    if isinstance(error, SentinelSettingsError):
        return error.setting
    if isinstance(error, SlotMovedError):
        return None
    if isinstance(error, UnsupportedServerError) or (
        isinstance(error, RedisError) and cluster_advice(error, error_code(error))
    ):
        return "url"
    return "password" if isinstance(error, AuthenticationError) else None


_OUTAGES = frozenset({"OOM", "READONLY", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS"})
"""Codes of replies that other pushes get too, until the server recovers."""


def is_refusal(error: BaseException | None) -> bool:
    """Return whether the server has answered that this command fails, as opposed to a server that no command reaches."""
    return (
        isinstance(error, ResponseError) and not isinstance(error, SlotMovedError) and error_code(error) not in _OUTAGES
    )


def is_outage(error: ShardUnavailableError) -> bool:
    """Return whether the shard is down for every push: it does not answer, or its reply shows a state that ends.

    Any other reply (rights, a password, a key of another type) refuses this push, and would refuse its repetition.
    """
    cause = error.__cause__
    # The circuit is open.
    if cause is None:
        return True
    if not isinstance(cause, RedisError) or wrong_setting(cause) is not None:
        return False
    return isinstance(cause, (RedisConnectionError, RedisTimeoutError, SlotMovedError)) or error_code(cause) in _OUTAGES


def unavailable_error(
    shard: str, endpoint: Endpoint, error: RedisError | OSError, *, state: str = ""
) -> ShardUnavailableError:
    """Return the error for a shard that does not answer, or refuses; ``state`` says what has been done nevertheless."""
    advice = advice_for(error, endpoint.source) if isinstance(error, RedisError) else None
    reason = Sentence(
        "{shown}: {error}{state}", shown=endpoint.shown, error=str(error).rstrip("."), state=state and f"; {state}"
    )
    return ShardUnavailableError(shard, reason, refused=is_refusal(error), advice=advice, source=endpoint.source)
