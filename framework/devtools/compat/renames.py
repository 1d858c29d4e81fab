"""Guess which new worker a vanished one became."""

from difflib import SequenceMatcher

from framework.devtools.compat.manifest import Manifest, ReleasedWorker

_MIN_SIMILARITY = 0.6


def likely_renames(last: Manifest, today: Manifest) -> dict[str, str]:
    """Map each removed wire name to the most similar new worker: the same class, else equal parameters and a similar name."""
    vanished = {name: entry for name, entry in last.workers.items() if today.find_worker(name) is None}
    found: dict[str, str] = {}
    free = {
        name: entry for name, entry in today.workers.items() if last.find_worker(name) is None and not entry.aliases
    }
    for name, entry in vanished.items():
        if name in today.retired:
            continue
        likeness = {one: _similarity(name, entry, one, heir) for one, heir in free.items()}
        best = max(likeness, key=lambda one: likeness[one], default=None)
        if best is not None and likeness[best] >= _MIN_SIMILARITY:
            found[name] = best
            del free[best]
    return found


def _similarity(name: str, old: ReleasedWorker, heir: str, new: ReleasedWorker) -> float:
    if old.place == new.place:
        return 3.0
    if old.place.rpartition(".")[2] == new.place.rpartition(".")[2]:
        return 2.0
    like = SequenceMatcher(None, name, heir).ratio()
    same = [(one.name, one.type) for one in old.perform] == [(one.name, one.type) for one in new.perform]
    if not same:
        return 0.0
    # Equal parameters are evidence only if there are parameters; without them the names decide.
    return like + 0.5 * bool(old.perform)
