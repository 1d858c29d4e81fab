"""Name the owners of working lists: a process, or a further capsule of a process."""

from collections.abc import Iterable

_CAPSULE_FIELD = "capsule:"


def capsule_field(capsule: str) -> str:
    """Return the field of the HASH ``process`` that has the slots of a further capsule."""
    return f"{_CAPSULE_FIELD}{capsule}"


# Decision 20: each capsule has a working list, because the reaper judges jobs by their places in it. All share one lease.
def capsule_owner(identity: str, capsule: str) -> str:
    """Return the owner of the working list of a capsule; the first capsule, whose name is empty here, has the process's own."""
    return f"{identity}/{capsule}" if capsule else identity


def split_owner(owner: str) -> tuple[str, str]:
    """Return the identity of the process that an owner belongs to, and the name of its capsule, empty for the first."""
    # The host name cannot contain a slash.
    identity, _, capsule = owner.partition("/")
    return identity, capsule


def capsules_of(fields: Iterable[bytes]) -> list[str]:
    """Return the names of the further capsules in the fields of the HASH ``process``."""
    prefix = _CAPSULE_FIELD.encode()
    return sorted(name.removeprefix(prefix).decode(errors="replace") for name in fields if name.startswith(prefix))
