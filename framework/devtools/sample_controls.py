"""Write the leases, limiters, flags, pauses, breakers, locks, profiles and audit log of the sample platform.

Like the jobs of the platform, they follow from the seed and the time.
"""

import gzip
import json
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import redis

from framework.features.breaker.keys import BREAKERS, breaker
from framework.features.flags.flag import Flag, pause_flag, run_flag
from framework.features.leases import keys as lease_keys
from framework.features.limiters import keys as limiter_keys
from framework.features.limiters import kinds
from framework.features.limiters.limiter import Limiter
from framework.features.limiters.store import KEPT_S, LOCK, TAKE
from framework.features.profiling.store import PROFILE_TTL_S
from framework.wire import keys

PAUSED, DEFERRED, PAUSED_QUEUE = "Webhooks::DeliverWorker", "Analytics::BackfillWorker", "accounts_anonymize"
"""A class that an operator has paused, one of which most jobs are deferred, and a paused queue."""

ANN, BOB, DEPLOYS = "ann@ops.example", "bob@ops.example", "deploy@ci.example"
_DAY_S = 86_400.0


class _Lease(NamedTuple):
    name: str
    holder: str
    held_s: float
    left_s: float


class _Taken(NamedTuple):
    """A limiter, what is used of it, and its counts."""

    limiter: Limiter
    used: int
    taken: int
    waited: int
    refused: int
    reclaimed: int = 0


class _Act(NamedTuple):
    """An action of an operator on a shard; ``number`` is ``None`` for one that goes on."""

    shard: str
    ago_s: float
    actor: str
    source: str
    action: str
    what: Mapping[str, str]
    number: int | None
    error: str = ""


_LEASES = (
    _Lease("billing/close-month", "Billing::TaxReportWorker", 2_640, 11_760),
    _Lease("search/reindex:products", "Search::ReindexWorker", 780, 6_420),
    _Lease("mailers/digest", "Mailers::DigestWorker", 95, 3_505),
    _Lease("accounts/sync:crm", "Accounts::SyncWorker", 1_820, 1_780),
)

_LIMITERS = (
    _Taken(kinds.window("payments-api", 5_000, "hour"), 4_180, 1_284_402, 31_877, 1_204),
    _Taken(kinds.bucket("mail-provider", 200_000, "day"), 148_320, 9_402_551, 88_012, 61),
    _Taken(kinds.leaky("webhook-targets", 600, "day"), 212, 733_910, 12_430, 390),
    _Taken(kinds.points("crm-graphql", 100_000, 0.5), 71_400, 208_377, 4_096, 512),
    _Taken(kinds.concurrent("search-cluster", 6, lock_timeout=_DAY_S), 5, 61_222, 7_345, 88, 3),
)

_FLAGS: tuple[tuple[str, float, str, str, float, float | None], ...] = (
    ("new_invoice_layout", 25, "roll out slowly", ANN, 5 * _DAY_S, None),
    ("search_v2", 100, "all tenants since Monday", BOB, 2 * _DAY_S, None),
    ("skip_thumbnails", 50, "the image host is slow", ANN, 5_400, 9_000),
)
"""Name, percentage, reason, operator, seconds since it was set, seconds until it ends."""

_ACTS = (
    _Act("media", 40, ANN, "dashboard", "jobs kill", {"place": "interrupted", "class": "Media::TranscodeWorker"}, None),
    _Act("main", 600, ANN, "dashboard", "jobs pause", {"class": PAUSED, "reason": "their endpoint answers 503"}, 1),
    _Act("shop", 900, BOB, "dashboard", "jobs retry", {"place": "dead", "class": "Orders::ConfirmWorker"}, 12),
    _Act("shop", 1_480, DEPLOYS, "api", "deployed", {"version": "v42"}, 1),
    _Act("main", 1_500, DEPLOYS, "api", "deployed", {"version": "v42"}, 1),
    _Act("media", 1_510, DEPLOYS, "api", "deployed", {"version": "v42"}, 1),
    _Act("media", 2_100, BOB, "command", "jobs delete", {"place": "retry", "error": "TimeoutError"}, 6),
    _Act("main", 2_400, BOB, "dashboard", "jobs pause-queue", {"queue": PAUSED_QUEUE, "reason": "legal hold"}, 1),
    _Act("main", 5_400, ANN, "command", "flags set", {"name": "skip_thumbnails", "percentage": "50"}, 1),
    _Act(
        "media", 7_200, ANN, "dashboard", "jobs drop", {"class": DEFERRED, "reason": "wrong day"}, None, "TimeoutError"
    ),
    _Act("shop", 9_300, ANN, "dashboard", "cron run", {"entry": "sitemap"}, 1),
    _Act("main", 14_000, BOB, "command", "jobs move", {"queue": "mailers_receipt", "to": "mailers_digest"}, 240),
    _Act("shop", 18_200, DEPLOYS, "api", "deployed", {"version": "v41"}, 1),
    _Act("main", _DAY_S, BOB, "dashboard", "limiters resize", {"name": "payments-api", "value": "5000"}, 1),
    _Act("main", 2 * _DAY_S, BOB, "command", "flags set", {"name": "search_v2", "percentage": "100"}, 1),
)
"""The newest first."""


class SampleControls:
    """Write the controls into the shards of the platform. Methods raise redis errors."""

    def __init__(self, clients: "Mapping[str, redis.Redis]", seed: int, now: float) -> None:
        self._clients = clients
        self._chance = random.Random(seed)
        self._now = now

    def write(self, job: Callable[..., bytes]) -> None:
        """Write all; ``job`` returns the payload of a class, a queue, and an age in seconds."""
        self._write_leases()
        self._write_limiters()
        self._write_flags()
        self._write_pauses(job)
        self._write_breakers(job)
        self._write_locks()
        self._write_profiles()
        self._write_deleted(job)
        self._write_audit()

    def _jid(self) -> str:
        return f"{self._chance.getrandbits(96):024x}"

    def _write_leases(self) -> None:
        client = self._clients["main"]
        for number, one in enumerate(_LEASES):
            key, ends_s = lease_keys.exclusive_lease(one.name), int(one.left_s)
            holder = f"{one.holder} {self._jid()} main-{1 + number % 3}.example:{101 + number % 3}"
            client.hset(key, mapping={"token": self._jid(), "holder": holder, "since": self._now - one.held_s})
            client.expire(key, ends_s)
            client.zadd(lease_keys.EXCLUSIVE_LEASES, {one.name: self._now + one.left_s})

    def _write_limiters(self) -> None:
        client = self._clients["main"]
        for one in _LIMITERS:
            rule = one.limiter.rule
            names = [limiter_keys.limiter(rule.name), limiter_keys.state(rule.name, ""), limiter_keys.NAMES]
            if rule.kind == "concurrent":
                for _ in range(one.used):
                    LOCK(client, names, [rule.name, rule.wire, self._jid(), "", KEPT_S])
            else:
                TAKE(client, names, [rule.name, rule.wire, one.used, self._jid(), "", KEPT_S, "", ""])
            counts: dict[Any, Any] = {
                "taken": one.taken,
                "waited": one.waited,
                "refused": one.refused,
                "reclaimed": one.reclaimed,
            }
            client.hset(names[0], mapping=counts)

    def _write_flags(self) -> None:
        paused = Flag(pause_flag(PAUSED), 100, "their endpoint answers 503", ANN, self._now - 600, self._now + 6_600)
        deferred = Flag(run_flag(DEFERRED), 20, "the warehouse is busy", BOB, self._now - 4_000, self._now + 9_000)
        for client in self._clients.values():
            for name, percentage, reason, operator, ago_s, left_s in _FLAGS:
                ends = None if left_s is None else self._now + left_s
                flag = Flag(name, percentage, reason, operator, self._now - ago_s, ends)
                client.hset(keys.FLAGS, name, flag.encode())
        for shard, flag in (("main", paused), ("media", deferred)):
            self._clients[shard].hset(keys.FLAGS, flag.name, flag.encode())

    def _write_pauses(self, job: Callable[..., bytes]) -> None:
        """Let the jobs of the paused class be held, and a queue be paused."""
        client = self._clients["main"]
        queue = "webhooks_deliver"
        held = {
            json.dumps([queue]).encode() + b"\n" + job(PAUSED, queue, 590.0 - 9 * number): self._now - 590 + 9 * number
            for number in range(48)
        }
        client.zadd(keys.paused_jobs(PAUSED), dict(held))
        client.sadd(keys.PAUSED_CLASSES, PAUSED)
        client.sadd(keys.PAUSED, PAUSED_QUEUE)
        records = (
            ("pause-queue", PAUSED_QUEUE, BOB, "legal hold", 2_400),
            ("pause", PAUSED, ANN, "their endpoint answers 503", 600),
        )
        for action, name, by, reason, ago_s in records:
            record = {"action": action, "name": name, "by": by, "reason": reason, "at": self._now - ago_s}
            client.lpush(keys.PAUSE_LOG, json.dumps(record))

    def _write_breakers(self, job: Callable[..., bytes]) -> None:
        """Let the breaker of a class be open after deaths, and that of another one count some."""
        client = self._clients["media"]
        opened: dict[Any, Any] = {
            "state": "open",
            "cause": "deaths",
            "reason": "3 processes died that ran it",
            "wait": 240,
            "until": self._now + 200,
            "opened_at": self._now - 280,
            "opens": 3,
        }
        held = {
            b'["media_transcode"]\n' + job("Media::TranscodeWorker", "media_transcode", 270.0 - 11 * number): self._now
            - 270
            for number in range(18)
        }
        client.zadd(keys.paused_jobs("Media::TranscodeWorker"), dict(held))
        client.sadd(keys.PAUSED_CLASSES, "Media::TranscodeWorker")
        closed: dict[Any, Any] = {"opens": 0}
        for name, fields, deaths in (("Media::TranscodeWorker", opened, 3), ("Media::ScanWorker", closed, 1)):
            client.sadd(BREAKERS, name)
            client.hset(breaker(name), mapping=fields)
            died = {self._jid(): self._now - 300 * (1 + number) for number in range(deaths)}
            client.zadd(f"{breaker(name)}:deaths", dict(died))
            for key in (breaker(name), f"{breaker(name)}:deaths"):
                client.expire(key, int(_DAY_S))

    def _write_locks(self) -> None:
        """Write locks whose jobs run."""
        client = self._clients["shop"]
        for number, cls in enumerate(("Orders::RestockWorker", "Orders::ExportWorker", "Billing::DunningWorker")):
            key = keys.lock(f"{self._chance.getrandbits(160):040x}")
            client.hset(key, mapping={"v": 1, "jid": self._jid(), "class": cls, "since": self._now - 30 * (1 + number)})
            client.expire(key, 600 * (1 + number))

    def _write_profiles(self) -> None:
        """Write profiles of runs, which are kept for a day."""
        profiles = (
            ("main", "Search::ReindexWorker", 4.813, "", 420),
            ("shop", "Orders::ConfirmWorker", 0.041, "KeyError", 1_260),
            ("shop", "Billing::InvoiceWorker", 2.207, "", 3_900),
            ("media", "Analytics::RollupWorker", 38.22, "", 7_400),
            ("main", "Mailers::DigestWorker", 1.508, "", 30_000),
        )
        for shard, cls, duration_s, error, ago_s in profiles:
            client, jid, at = self._clients[shard], self._jid(), self._now - ago_s
            page = gzip.compress(f"<!DOCTYPE html><title>{cls}</title><p>{cls} {jid}: {duration_s} s".encode(), mtime=0)
            facts: dict[Any, Any] = {"class": cls, "at": at, "duration_s": duration_s, "error": error}
            client.hset(keys.profile(jid), mapping={**facts, "bytes": len(page), "page": page})
            client.expire(keys.profile(jid), PROFILE_TTL_S)
            client.zadd(keys.PROFILES, {jid: at})
            client.expire(keys.PROFILES, PROFILE_TTL_S)

    def _write_deleted(self, job: Callable[..., bytes]) -> None:
        """Write the jobs that the operator of the audit log has deleted."""
        client, deleted_at = self._clients["media"], self._now - 2_100
        failed = {"error_class": "TimeoutError", "error_message": "no answer after 30 s", "retry_count": 3}
        members: dict[bytes, float] = {}
        for number in range(6):
            payload = job("Media::PublishWorker", "media_publish", 5_000.0, **failed, failed_at=self._now - 4_000)
            score = f"{self._now + 600 + 60 * number:.6f}"
            members[f"retry {score}\n".encode() + payload] = deleted_at
        client.zadd(keys.DELETED, dict(members))
        client.incrby(f"{keys.DELETED}:bytes", sum(map(len, members)))
        for key in (keys.DELETED, f"{keys.DELETED}:bytes"):
            client.expire(key, int(_DAY_S))

    def _write_audit(self) -> None:
        for one in sorted(_ACTS, key=lambda act: -act.ago_s):
            client, ms = self._clients[one.shard], int((self._now - one.ago_s) * 1000)
            address = "10.20.0.7" if one.source == "dashboard" else ""
            record: dict[str, str] = {"actor": one.actor, "source": one.source, "address": address}
            _add(client, ms, {**record, "action": one.action, "what": json.dumps(one.what)})
            if one.number is not None or one.error:
                end = {"error": one.error} if one.error else {"count": str(one.number)}
                _add(client, ms + 140, {"end_of": f"{ms}-0", **end})


def _add(client: "redis.Redis", ms: int, fields: Mapping[str, str]) -> None:
    entry: dict[Any, Any] = dict(fields)
    client.xadd(keys.AUDIT, entry, id=f"{ms}-0")
