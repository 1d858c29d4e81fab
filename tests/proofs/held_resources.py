"""Check locks and slots in a replayed history: each must belong to a job.

I9   the owner of a lock is in a key where it may still run
I10  the owner of a slot of a limit is in the working list of the process that the slot names
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from tests.proofs.keyspace import Fields, Keyspace, Sorted
from tests.proofs.places import END, place_of

_LOCK = b"aw:lock:"
_RUNNING = b":running"
_WORKING = b"aw:working:"

Holding = tuple[bytes, bytes]
"""The key of a lock, and nothing; or the key of a limit's running jobs, and the member: process (none yet), space, job.
"""


class HeldResources:
    """The locks and slots of one keyspace."""

    def __init__(self) -> None:
        self.by_job: dict[bytes, set[Holding]] = defaultdict(set)
        self.most: dict[bytes, int] = {}
        """By key of a limit's running jobs: the most there were at an instant."""
        self._known: dict[bytes, dict[bytes, Holding]] = {}

    def update(self, keyspace: Keyspace) -> set[bytes]:
        """Apply the changes of locks and limits; return the jobs that acquired one."""
        came: set[bytes] = set()
        for key in keyspace.held:
            before, after = self._known.get(key, {}), _holders(key, keyspace.keys.get(key))
            for jid, holding in before.items() - after.items():
                self.by_job[jid].discard(holding)
                if not self.by_job[jid]:
                    del self.by_job[jid]
            for jid, holding in after.items() - before.items():
                self.by_job[jid].add(holding)
                came.add(jid)
            self._known[key] = after
            if key.endswith(_RUNNING) and place_of(key) is None:
                self.most[key] = max(self.most.get(key, 0), len(after))
        keyspace.held.clear()
        return came

    def clear(self) -> None:
        """Forget every lock and slot."""
        self.by_job.clear()
        self._known.clear()

    def broken(self, jids: Iterable[bytes], at: Mapping[bytes, tuple[bytes, ...]]) -> Iterator[tuple[str, str, bytes]]:
        """Yield for each of these jobs the resources that it must not hold: rule, words, job."""
        for jid in jids:
            places = at.get(jid, ())
            for key, member in self.by_job.get(jid, ()):
                if not member and all(place_of(place) == END for place in places):
                    yield "I9", f"has the lock {_text(key)}, and will not run", jid
                elif member and not _there(member.rpartition(b" ")[0], places):
                    yield "I10", f"has the slot {_text(member)} in {_text(key)}, and is not there", jid


def _there(identity: bytes, places: tuple[bytes, ...]) -> bool:
    if identity:
        return _WORKING + identity in places
    return any(place_of(place) != END for place in places)


def _holders(key: bytes, value: object) -> dict[bytes, Holding]:
    """Return the owners of a key, by job."""
    if key.startswith(_LOCK):
        return {value[b"jid"]: (key, b"")} if isinstance(value, Fields) and b"jid" in value else {}
    if key.endswith(_RUNNING) and place_of(key) is None and isinstance(value, Sorted):
        return {member.rpartition(b" ")[2]: (key, member) for member in value}
    return {}


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
