"""Keep the profiles of jobs on their shard, the newest few for a day, so that operators read them from any machine.

At a crash: the hash, its end, and its name in the list are written in one transaction, before the job is acknowledged. A process
that dies before it leaves nothing, and the job runs again. One that dies after it leaves the profile, which the job's next run
replaces.
"""

import zlib
from html import escape
from typing import Any, NamedTuple, cast

import redis

from framework.store.connect import server_time
from framework.types import Jid
from framework.wire import keys
from framework.wire.json import stored_count, stored_number, stored_time

PROFILE_TTL_S = 86_400
"""For how long a profile is kept (Sidekiq: a day)."""

MAX_PROFILES = 20
"""Profiles that one shard keeps; with the limit of each, at most 20 MiB."""

MAX_PROFILE_BYTES = 1 << 20
"""Bytes of one page in gzip."""

_MAX_HTML_BYTES = 64 << 20
"""Bytes of one page without gzip: few bytes in gzip may become very many."""

_GZIP = 31
"""The number (``wbits``) by which zlib knows the format of gzip."""

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; font-src data:"
"""Scripts and styles of the page itself; nothing is loaded or sent."""

_SANDBOX = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>html, body, iframe {{ margin: 0; border: 0; width: 100%; height: 100%; display: block }}</style>
</head>
<body><iframe sandbox="allow-scripts" title="{title}" srcdoc="{page}"></iframe></body>
</html>
"""
"""A frame of an origin of its own: its scripts reach no file, cookie or window of the page around it. It inherits the policy."""

_STORAGE = """<!DOCTYPE html><script>Object.defineProperty(window, "localStorage", {value: {
getItem() { return null }, setItem() {}, removeItem() {}, clear() {}}})</script>
"""
"""Stands before the page in the frame: pyinstrument's page ends with an error where a frame has no storage for its view options."""

_FACTS = ("class", "at", "duration_s", "error", "bytes")


class JobProfile(NamedTuple):
    """The profile of the last profiled run of a job. ``page`` is a page of HTML in gzip; listings leave it out."""

    jid: Jid
    cls: str
    duration_s: float
    error: str
    """The class of the error with which the run ended; empty if it returned."""
    page_bytes: int
    """Bytes of ``page``."""
    page: bytes = b""
    shard: str = ""
    at: float = 0.0
    """When it was written, in epoch seconds of Redis's clock."""

    @property
    def html(self) -> str:
        """The page. It needs no other file and no network, and a browser lets it reach neither. Empty in a listing.

        A client that may write to Redis may have changed it, so it stands in a frame without rights.

        Raises:
            ValueError: the stored bytes are no page in gzip, or it is too large.
        """
        if not self.page:
            return ""
        unpacker = zlib.decompressobj(wbits=_GZIP)
        try:
            page = unpacker.decompress(self.page, _MAX_HTML_BYTES)
        except zlib.error as error:
            raise ValueError(f"it is no page in gzip: {error}") from error
        if not unpacker.eof:
            raise ValueError("the page is cut off, or too large")
        return _SANDBOX.format(
            title=escape(f"{self.cls} {self.jid}"), policy=_POLICY, page=escape(_STORAGE + page.decode())
        )


def keep_profile(client: "redis.Redis", profile: JobProfile) -> None:
    """Keep a profile instead of an older one of the job, and delete the oldest beyond the limit. Raises redis errors."""
    now, key = server_time(client), keys.profile(profile.jid)
    facts: dict[str | bytes, bytes | float | int | str] = {
        "class": profile.cls,
        "at": now,
        "duration_s": round(profile.duration_s, 6),
        "error": profile.error,
        "bytes": profile.page_bytes,
        "page": profile.page,
    }
    pipeline: Any = client.pipeline(transaction=True)
    pipeline.delete(key)
    pipeline.hset(key, mapping=facts)
    pipeline.expire(key, PROFILE_TTL_S)
    pipeline.zadd(keys.PROFILES, {profile.jid: now})
    pipeline.expire(keys.PROFILES, PROFILE_TTL_S)
    pipeline.zrange(keys.PROFILES, 0, -MAX_PROFILES - 1)
    oldest = cast("list[bytes]", pipeline.execute()[-1])
    if oldest:
        # Deleting the names first could leave profiles that no listing shows, until they expire. Two processes may do this at once.
        client.delete(*(b"".join((keys.profile("").encode(), jid)) for jid in oldest))
        client.zremrangebyrank(keys.PROFILES, 0, -MAX_PROFILES - 1)


def read_profiles(client: "redis.Redis", shard: str) -> list[JobProfile]:
    """Return the kept profiles without their pages, the newest first. Raises redis errors."""
    jids = cast("list[bytes]", client.zrange(keys.PROFILES, 0, -1))
    pipeline: Any = client.pipeline(transaction=False)
    for jid in jids:
        pipeline.hmget(b"".join((keys.profile("").encode(), jid)), *_FACTS)
    # A profile expires before its name.
    found = zip(jids, pipeline.execute() if jids else (), strict=False)
    return [_profile(shard, jid.decode(errors="replace"), facts) for jid, facts in reversed(list(found)) if facts[1]]


def read_profile(client: "redis.Redis", shard: str, jid: Jid, *, with_page: bool = True) -> JobProfile | None:
    """Return the kept profile of a job, with its page or without; ``None`` if there is none. Raises redis errors."""
    wanted = (*_FACTS, "page") if with_page else _FACTS
    facts = cast("list[bytes | None]", client.hmget(keys.profile(jid), *wanted))
    page = facts.pop() if with_page else b""
    return None if facts[1] is None or page is None else _profile(shard, jid, facts, page)


def _profile(shard: str, jid: Jid, facts: list[bytes | None], page: bytes = b"") -> JobProfile:
    cls, at, duration_s, error, size = ((fact or b"").decode(errors="replace") for fact in facts)
    return JobProfile(
        jid, cls, stored_number(duration_s), error, stored_count(size), page, shard, stored_time(at) or 0.0
    )
