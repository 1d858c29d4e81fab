"""Name the places of a job (docs/internals/redis.md): the keys whose members are jobs, and how its bytes identify a
job.
"""

import base64
import json
from contextlib import suppress
from functools import lru_cache

from framework.errors import PayloadError
from framework.store.block_store import IN_REDIS, BlockStore
from framework.wire.blocks import is_block, unpack, unpack_members

WAITING, DUE, WORKING, HELD, END = "waiting", "due", "working", "held", "end"
"""The kinds of places: a queue; ``schedule`` or ``retry``; a working list; the jobs that a policy holds, for a slot or
for the end of a pause; ``dead`` or ``interrupted``, where a job may stay, or be trimmed.
"""

_SETS = {b"schedule": DUE, b"retry": DUE, b"dead": END, b"interrupted": END}
_PREFIXES = {b"queue:": WAITING, b"aw:working:": WORKING, b"aw:paused_jobs:": HELD}
_LIMIT, _WAITING_FOR_SLOT = b"aw:limit:", b":waiting"


class _Blocks:
    """The payload store of the proofs of this process, for blocks that are not in Redis."""

    store: BlockStore = IN_REDIS


BLOCKS = _Blocks()

_PACKED = b"packed { "
_MALFORMED = b'{"class":"aw.Malformed"'
_JID = b'"jid"'
_QUOTED = b'"jid":"'


@lru_cache(maxsize=4096)
def place_of(key: bytes) -> str | None:
    """Return the kind of place of a key; None when it holds no jobs."""
    if key in _SETS:
        return _SETS[key]
    if key.startswith(_LIMIT):
        return HELD if _WAITING_FOR_SLOT in key else None
    return next((kind for prefix, kind in _PREFIXES.items() if key.startswith(prefix)), None)


def payload_in(key: bytes, member: bytes) -> bytes:
    """Return the job's own bytes: a held job has its ticket before them, in a line of its own."""
    return member.partition(b"\n")[2] if place_of(key) == HELD and not is_block(member) else member


def jobs_in(payload: bytes) -> list[bytes]:
    """Return the jobs of an element of a place: many for a block, which ``BLOCKS`` may have, and none for the text that stands for
    packed ones within a step."""
    if payload.startswith(_PACKED):
        return []
    if not is_block(payload):
        return [payload]
    block = BLOCKS.store.read(payload)
    with suppress(PayloadError):
        # A block of held jobs has their tickets too.
        return [one.data.partition(b"\n")[2] for one in unpack_members(block)] if b"\n" in block else unpack(block)
    return [payload]


def jid_of(payload: bytes) -> bytes:
    """Return the job's id; for malformed bytes the bytes in brackets, also when a dead set entry wraps them.

    An unescaped ``"jid"`` can only be a key, and a single one must be the job's: the payload is not parsed.
    """
    payload = unwrapped(payload)
    start = payload.find(_JID)
    if start >= 0 and payload.startswith(_QUOTED, start) and payload.find(_JID, start + 5) < 0:
        start += len(_QUOTED)
        return payload[start : payload.find(b'"', start)]
    fields = _fields(payload)
    return str(fields["jid"]).encode() if fields.get("jid") else b"[%b]" % payload


def unwrapped(payload: bytes) -> bytes:
    """Return the malformed bytes that a dead set entry wraps; for any other payload the payload itself."""
    if not payload.startswith(_MALFORMED):
        return payload
    return base64.b64decode(str(_fields(payload)["aw_raw"]))


def readable(jid: bytes) -> bool:
    """Return whether it is the id of a job: equal malformed bytes may exist more than once."""
    return not jid.startswith(b"[")


def transit(payload: bytes) -> bytes | None:
    """Return the token of a job that is being transferred to another shard."""
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
