"""Where a job can be (docs/internals/redis.md): the keys whose members are jobs, and how a job is told from another by its bytes."""

import base64
import json
from functools import lru_cache

WAITING, DUE, WORKING, PARKED, END = "waiting", "due", "working", "parked", "end"
"""A queue; ``schedule`` or ``retry``; a working list; where a policy lets jobs wait, for a slot or for the end of a pause;
``dead`` or ``interrupted``, where a job may stay, or be trimmed."""

_SETS = {b"schedule": DUE, b"retry": DUE, b"dead": END, b"interrupted": END}
_PREFIXES = {b"queue:": WAITING, b"aw:working:": WORKING, b"aw:paused_jobs:": PARKED}
_LIMIT, _WAITING_FOR_SLOT = b"aw:limit:", b":waiting"

_MALFORMED = b'{"class":"aw.Malformed"'
_JID = b'"jid"'
_QUOTED = b'"jid":"'


@lru_cache(maxsize=4096)
def place_of(key: bytes) -> str | None:
    """Return what kind of place a key is; None when no job can be in it."""
    if key in _SETS:
        return _SETS[key]
    if key.startswith(_LIMIT):
        return PARKED if _WAITING_FOR_SLOT in key else None
    return next((kind for prefix, kind in _PREFIXES.items() if key.startswith(prefix)), None)


def payload_in(key: bytes, member: bytes) -> bytes:
    """Return the job's own bytes: a parked one has its ticket before them, in a line of its own."""
    return member.partition(b"\n")[2] if place_of(key) == PARKED else member


def jid_of(payload: bytes) -> bytes:
    """Return the job's id; for what is no job, the bytes themselves in brackets, also when they lie dead in an object.

    An unescaped ``"jid"`` can only be a key, and where there is one only it must be the job's: no parsing is needed.
    """
    payload = unwrapped(payload)
    start = payload.find(_JID)
    if start >= 0 and payload.startswith(_QUOTED, start) and payload.find(_JID, start + 5) < 0:
        start += len(_QUOTED)
        return payload[start : payload.find(b'"', start)]
    fields = _fields(payload)
    return str(fields["jid"]).encode() if fields.get("jid") else b"[%b]" % payload


def unwrapped(payload: bytes) -> bytes:
    """Return the bytes that an object of the dead set stands for, if it is one of those; else the payload itself."""
    if not payload.startswith(_MALFORMED):
        return payload
    return base64.b64decode(str(_fields(payload)["aw_raw"]))


def readable(jid: bytes) -> bool:
    """Whether it is the id of a job: of what is none, the same bytes may be there more than once."""
    return not jid.startswith(b"[")


def transit(payload: bytes) -> bytes | None:
    """The token of a job that is on its way to another shard."""
    if b'"aw_transfer"' not in payload:
        return None
    token = _fields(payload).get("aw_transfer")
    return str(token).encode() if token else None


def _fields(payload: bytes) -> dict[str, object]:
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
