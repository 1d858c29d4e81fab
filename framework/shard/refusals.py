"""What to do about a Redis that answers, but refuses."""

from collections.abc import Mapping

from redis.exceptions import RedisError

_ADVICE: Mapping[str, str] = {
    "OOM": "it is full; let workers empty its queues, or raise its maxmemory",
    "READONLY": "it is a replica; point the shard at its master, or name its Sentinels, in config/redis.yml",
    "LOADING": "it is reading its data after a start; push again in a moment",
    "MASTERDOWN": "it is a replica without its master; point the shard at a master in config/redis.yml",
    "MISCONF": "it cannot save to its disk; its log says why",
    "NOREPLICAS": "too few of its replicas are in touch (its setting min-replicas-to-write)",
    "NOAUTH": "it wants credentials; give the shard a username and password in config/redis.yml",
    "WRONGPASS": "it does not accept the shard's username and password in config/redis.yml",
    "NOPERM": "its ACL does not let this user write; see the shard's username in config/redis.yml",
    "WRONGTYPE": "a key that is no list has the name of the queue, or one that is no set is named queues (or schedule)",
}


def code_of(error: RedisError) -> str:
    """Return the server's own word for its refusal (OOM, READONLY), empty when it gave none."""
    word = error.status_code or str(error).partition(" ")[0]
    return word if word.isalpha() and word.isupper() else ""


def advice_for(error: RedisError) -> str | None:
    """Return what to do, or ``None`` when the error is no refusal that we know."""
    return _ADVICE.get(code_of(error))
