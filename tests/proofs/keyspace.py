"""Model a Redis as far as jobs need it: the write commands of an append-only file, and their effects.

The model has no expiry: the server writes the DEL or UNLINK of an expired key into its history. Unknown commands are
ignored where no place of a job is concerned, and fail where one is.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from tests.proofs.places import place_of

Move = tuple[bytes, bytes, int, bytes]
"""Key, payload, +1 for added or -1 for removed, and the command's name."""


HELD = (b"aw:lock:", b"aw:limit:")
"""The prefixes of the keys with the resources of jobs."""


class UnknownCommandError(Exception):
    """The history changes a place by a command that the model cannot follow."""


class Sorted(dict[bytes, float]):
    """A sorted set: member -> score."""

    def ranked(self) -> list[bytes]:
        """Return the members in Redis's order."""
        return sorted(self, key=lambda member: (self[member], member))


class Fields(dict[bytes, bytes]):
    """A hash."""


class Keyspace:
    """All keys of all databases. ``moves`` collects the changes of the places of jobs, ``held`` the keys of locks and
    limits that a command named; the reader empties both.
    """

    def __init__(self) -> None:
        self.databases: dict[int, dict[bytes, Any]] = {0: {}}
        self.keys = self.databases[0]
        self.moves: list[Move] = []
        self.held: set[bytes] = set()
        self.ignored = 0
        """The unknown commands that concern no place."""
        self.flushed = False
        self._name = b""

    def apply(self, command: list[bytes]) -> None:
        """Apply a command of the server. Raises UnknownCommandError."""
        name = command[0]
        known = _KNOWN.get(name) or _KNOWN.get(name.upper())
        if known is None:
            self._unknown(command)
            return
        self._name = name
        try:
            known(self, command)
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            message = f"{shown(command)}: the model holds something else there ({error})"
            raise UnknownCommandError(message) from error
        if len(command) > 1 and command[1].startswith(HELD):
            self.held.update(key for key in command[1:] if key.startswith(HELD))

    def _unknown(self, command: list[bytes]) -> None:
        if any(place_of(word) for word in command[1:]):
            message = f"{shown(command)}: a command that the model does not know touches a place of jobs"
            raise UnknownCommandError(message)
        self.ignored += 1

    # --- any key

    def _select(self, command: list[bytes]) -> None:
        self.keys = self.databases.setdefault(int(command[1]), {})

    def _flush(self, command: list[bytes]) -> None:
        for keys in self.databases.values() if command[0].upper() == b"FLUSHALL" else (self.keys,):
            keys.clear()
        self.flushed = True

    def _delete(self, command: list[bytes]) -> None:
        for key in command[1:]:
            self._remove(key)

    def _remove(self, key: bytes) -> None:
        value = self.keys.pop(key, None)
        if value and place_of(key) and isinstance(value, (deque, Sorted)):
            self._took(key, value)

    def _nothing(self, command: list[bytes]) -> None:
        """Do nothing: the server writes an expiry into its history when it happens."""

    def _took(self, key: bytes, payloads: Iterable[bytes]) -> None:
        name = self._name
        self.moves += [(key, payload, -1, name) for payload in payloads]

    def _make(self, key: bytes, kind: type) -> Any:
        value = self.keys.get(key)
        if value is None:
            value = self.keys[key] = kind()
        elif type(value) is not kind:
            message = f"{key!r} is a {type(value).__name__}"
            raise TypeError(message)
        return value

    # --- lists

    def _push(self, command: list[bytes], *, left: bool) -> None:
        key = command[1]
        values = self._make(key, deque)
        payloads = command[2:]
        (values.extendleft if left else values.extend)(payloads)
        if place_of(key):
            name = self._name
            self.moves += [(key, payload, 1, name) for payload in payloads]

    def _push_if_there(self, command: list[bytes], *, left: bool) -> None:
        if command[1] in self.keys:
            self._push(command, left=left)

    def _pop(self, command: list[bytes], *, left: bool) -> None:
        key = command[1]
        values = self.keys.get(key)
        if values is None:
            return
        pop = values.popleft if left else values.pop
        gone = [pop() for _ in range(min(int(command[2]) if len(command) > 2 else 1, len(values)))]
        self._taken(key, values, gone)

    def _taken(self, key: bytes, values: Any, gone: list[bytes]) -> None:
        if not values:
            del self.keys[key]
        if gone and place_of(key):
            self._took(key, gone)

    def _move(self, command: list[bytes]) -> None:
        source, target = command[1], command[2]
        values = self.keys.get(source)
        if not values:
            return
        ways = [way.upper() for way in command[3:5]] or [b"RIGHT", b"LEFT"]
        payload = values.popleft() if ways[0] == b"LEFT" else values.pop()
        self._taken(source, values, [payload])
        self._push([self._name, target, payload], left=ways[1] == b"LEFT")

    def _remove_values(self, command: list[bytes]) -> None:
        _, key, count, payload = command
        values = self.keys.get(key)
        if values is None:
            return
        wanted = int(count)
        gone = 0
        if wanted < 0:
            values.reverse()
        while (gone < abs(wanted) or not wanted) and payload in values:
            values.remove(payload)
            gone += 1
        if wanted < 0:
            values.reverse()
        self._taken(key, values, [payload] * gone)

    def _set_value(self, command: list[bytes]) -> None:
        _, key, index, payload = command
        values = self.keys[key]
        old, values[int(index)] = values[int(index)], payload
        self._taken(key, values, [old])
        if place_of(key):
            self.moves.append((key, payload, 1, self._name))

    def _insert(self, command: list[bytes]) -> None:
        _, key, side, pivot, payload = command
        values = self.keys.get(key, ())
        if pivot not in values:
            return
        values.insert(values.index(pivot) + (side.upper() == b"AFTER"), payload)
        if place_of(key):
            self.moves.append((key, payload, 1, self._name))

    def _trim(self, command: list[bytes]) -> None:
        key = command[1]
        values = self.keys.get(key)
        if values is None:
            return
        first, last = _span(command[2], command[3], len(values))
        old = list(values)
        values.clear()
        values.extend(old[first : last + 1])
        self._taken(key, values, old[:first] + old[max(last + 1, first) :])

    # --- sorted sets

    def _add_scores(self, command: list[bytes]) -> None:
        key, words = command[1], command[2:]
        options: set[bytes] = set()
        while words[0].upper() in {b"NX", b"XX", b"GT", b"LT", b"CH", b"INCR"}:
            options.add(words.pop(0).upper())
        if b"XX" in options and key not in self.keys:
            return
        members = self._make(key, Sorted)
        for text, member in zip(words[::2], words[1::2], strict=True):
            score, old = float(text), members.get(member)
            if b"INCR" in options:
                score += old or 0.0
            if old is None:
                if b"XX" in options:
                    continue
                if place_of(key):
                    self.moves.append((key, member, 1, self._name))
            elif b"NX" in options or (b"GT" in options and score <= old) or (b"LT" in options and score >= old):
                continue
            members[member] = score

    def _raise_score(self, command: list[bytes]) -> None:
        self._add_scores([command[0], command[1], b"INCR", *command[2:]])

    def _take_members(self, key: bytes, gone: list[bytes]) -> None:
        members = self.keys[key]
        for member in gone:
            del members[member]
        self._taken(key, members, gone)

    def _remove_members(self, command: list[bytes]) -> None:
        if members := self.keys.get(command[1]):
            self._take_members(command[1], [member for member in dict.fromkeys(command[2:]) if member in members])

    def _pop_members(self, command: list[bytes], *, lowest: bool) -> None:
        if members := self.keys.get(command[1]):
            count = int(command[2]) if len(command) > 2 else 1
            ranked = members.ranked()
            self._take_members(command[1], ranked[:count] if lowest else ranked[::-1][:count])

    def _remove_scores(self, command: list[bytes]) -> None:
        if members := self.keys.get(command[1]):
            low, high = _bound(command[2]), _bound(command[3])
            inside = [one for one, score in members.items() if _above(score, low) and _below(score, high)]
            self._take_members(command[1], inside)

    def _remove_ranks(self, command: list[bytes]) -> None:
        if members := self.keys.get(command[1]):
            first, last = _span(command[2], command[3], len(members))
            self._take_members(command[1], members.ranked()[first : last + 1])

    # --- sets, hashes, strings

    def _add_members(self, command: list[bytes]) -> None:
        self._make(command[1], set).update(command[2:])

    def _discard_members(self, command: list[bytes]) -> None:
        if members := self.keys.get(command[1]):
            members.difference_update(command[2:])
            if not members:
                del self.keys[command[1]]

    def _set_fields(self, command: list[bytes]) -> None:
        self._make(command[1], Fields).update(zip(command[2::2], command[3::2], strict=True))

    def _set_fields_kept(self, command: list[bytes]) -> None:
        # HSETEX key KEEPTTL FIELDS count field value ...: so Redis 8 writes HINCRBYFLOAT, which Redis 7 writes as HSET.
        if command[2:4] != [b"KEEPTTL", b"FIELDS"]:
            raise ValueError(f"HSETEX in a form that is not known here: {command}")
        self._set_fields([b"HSET", command[1], *command[5:]])

    def _set_field_if_new(self, command: list[bytes]) -> None:
        self._make(command[1], Fields).setdefault(command[2], command[3])

    def _delete_fields(self, command: list[bytes]) -> None:
        if fields := self.keys.get(command[1]):
            for name in command[2:]:
                fields.pop(name, None)
            if not fields:
                del self.keys[command[1]]

    def _raise_field(self, command: list[bytes]) -> None:
        fields = self._make(command[1], Fields)
        fields[command[2]] = b"%d" % (int(fields.get(command[2], 0)) + int(command[3]))

    def _set(self, command: list[bytes]) -> None:
        key, options = command[1], {word.upper() for word in command[3:]}
        if (b"NX" in options and key in self.keys) or (b"XX" in options and key not in self.keys):
            return
        self._remove(key)
        self.keys[key] = command[2]

    def _set_late(self, command: list[bytes]) -> None:
        self._set([command[0], command[1], command[3]])

    def _set_if_new(self, command: list[bytes]) -> None:
        self._set([*command, b"NX"])

    def _raise(self, command: list[bytes], *, sign: int) -> None:
        value = self.keys.get(command[1], b"0")
        self.keys[command[1]] = b"%d" % (int(value) + sign * (int(command[2]) if len(command) > 2 else 1))


def _span(first: bytes, last: bytes, length: int) -> tuple[int, int]:
    """Return positions as Redis counts them: below 0 from the end, the last one included."""
    begin, end = int(first), int(last)
    return max(begin + length if begin < 0 else begin, 0), min(end + length if end < 0 else end, length - 1)


def _bound(text: bytes) -> tuple[float, bool]:
    """Return a bound of a range of scores, and whether it is inclusive."""
    return (float(text[1:]), False) if text.startswith(b"(") else (float(text), True)


def _above(score: float, low: tuple[float, bool]) -> bool:
    return score > low[0] or (low[1] and score == low[0])


def _below(score: float, high: tuple[float, bool]) -> bool:
    return score < high[0] or (high[1] and score == high[0])


def shown(command: list[bytes]) -> str:
    """Return a command in one line."""
    words = [word.decode(errors="backslashreplace") for word in command]
    return " ".join(word if len(word) <= _LONGEST_SHOWN else f"{word[:_LONGEST_SHOWN]}..." for word in words)


_LONGEST_SHOWN = 200

_Do = Callable[[Keyspace, list[bytes]], None]
_space: Any = Keyspace
_KNOWN: dict[bytes, _Do] = {
    b"SELECT": _space._select,
    **dict.fromkeys((b"FLUSHALL", b"FLUSHDB"), _space._flush),
    **dict.fromkeys((b"DEL", b"UNLINK"), _space._delete),
    **dict.fromkeys((b"EXPIRE", b"PEXPIRE", b"EXPIREAT", b"PEXPIREAT", b"PERSIST"), _space._nothing),
    b"LPUSH": partial(_space._push, left=True),
    b"RPUSH": partial(_space._push, left=False),
    b"LPUSHX": partial(_space._push_if_there, left=True),
    b"RPUSHX": partial(_space._push_if_there, left=False),
    b"LPOP": partial(_space._pop, left=True),
    b"RPOP": partial(_space._pop, left=False),
    **dict.fromkeys((b"LMOVE", b"RPOPLPUSH"), _space._move),
    b"LREM": _space._remove_values,
    b"LSET": _space._set_value,
    b"LINSERT": _space._insert,
    b"LTRIM": _space._trim,
    b"ZADD": _space._add_scores,
    b"ZINCRBY": _space._raise_score,
    b"ZREM": _space._remove_members,
    b"ZPOPMIN": partial(_space._pop_members, lowest=True),
    b"ZPOPMAX": partial(_space._pop_members, lowest=False),
    b"ZREMRANGEBYSCORE": _space._remove_scores,
    b"ZREMRANGEBYRANK": _space._remove_ranks,
    b"SADD": _space._add_members,
    b"SREM": _space._discard_members,
    **dict.fromkeys((b"HSET", b"HMSET"), _space._set_fields),
    b"HSETEX": _space._set_fields_kept,
    b"HSETNX": _space._set_field_if_new,
    b"HDEL": _space._delete_fields,
    b"HINCRBY": _space._raise_field,
    b"SET": _space._set,
    **dict.fromkeys((b"SETEX", b"PSETEX"), _space._set_late),
    b"SETNX": _space._set_if_new,
    b"INCR": partial(_space._raise, sign=1),
    b"INCRBY": partial(_space._raise, sign=1),
    b"DECR": partial(_space._raise, sign=-1),
    b"DECRBY": partial(_space._raise, sign=-1),
}
"""The commands of the framework and of Ruby, and those that the server makes of blocking and reading commands."""
