"""Define ``spread``, the value of the attribute ``shard`` for a class whose jobs are on several shards."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from framework.declare import validators
from framework.declare.validators import InvalidValue, Validator
from framework.errors import DeclarationError
from framework.typeguards import short_repr

_MOST = 100
"""The most shards of one class: each push of it looks at all of them."""

_ALLOWED = f"names of 2 to {_MOST} different shards, such as spread('queues_a', 'queues_b')"


@dataclass(frozen=True, slots=True)
class Spread:
    """Several shards that have the jobs of one class. Make it with ``framework.spread``."""

    shards: tuple[str, ...]

    # Rendezvous hashing: another shard takes its part of the keys, and no other key changes its shard.
    def shard_of(self, key: str) -> str:
        """Return the shard for a key, the same in every process."""
        return max(
            self.shards, key=lambda shard: blake2b(f"{shard} {key}".encode(errors="replace"), digest_size=8).digest()
        )

    def __str__(self) -> str:
        return f"spread({', '.join(map(repr, self.shards))})"


def spread(*shards: str) -> Spread:
    """Spread the jobs of a class over several shards: ``shard = spread("queues_a", "queues_b")``.

    Jobs that may be duplicates of each other are always on the same shard; the id decides for any other job. The first shard is the
    one of the jobs that must be together: members of batches, ticks of cron.

    Raises:
        DeclarationError: a name is not allowed, or is missing.
    """
    for name in shards:
        try:
            validators.shard(name)
        except InvalidValue as error:
            raise DeclarationError("framework.spread", f"{short_repr(name)} is not allowed. Allowed: {error}") from None
    if not 2 <= len(set(shards)) == len(shards) <= _MOST:
        raise DeclarationError("framework.spread", f"{shards!r} is not allowed. Allowed: {_ALLOWED}")
    return Spread(shards)


def _check_shard(value: Any) -> str | Spread:
    if isinstance(value, Spread):
        return value
    try:
        name: str = validators.shard(value)
    except InvalidValue:
        raise InvalidValue(shard_or_spread.allowed) from None
    return name


shard_or_spread = Validator(
    f"{validators.shard.allowed}, or spread(...) of several", _check_shard, validators.shard.schema
)
"""Allow the name of a shard, and several shards."""
