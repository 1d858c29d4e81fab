"""Find causes in the server of a shard: no memory, slow answers, refused rights, lost data; and a shard that is away."""

import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar, NamedTuple, cast

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.admin.diagnosis.facts import JobSample, redis_cli
from framework.command_line import command, remedy_command
from framework.errors import ShardUnavailableError
from framework.shard.redis_errors import error_code
from framework.shard.shard import Shard
from framework.store.connect import certificate_end
from framework.store.rights import ROLES
from framework.text import Sentence, decode_escaped, format_bytes, format_count, format_duration
from framework.wire.json import stored_count

ROLE = "diagnose"
"""The role in the name of this command's connections: its own refusals are no cause."""

_FULL, _ALMOST_FULL, _ASKED_FULL = 0.95, 0.85, 0.5
"""The shares of the memory that are a cause: the last one if its alert fires, whose threshold the installation may set."""

_SLOW_S = 0.05
_CERTIFICATE_S = 14 * 86_400.0
_REFUSED_WITHIN_S = 300.0
_MOST_NAMES = 3
_LATENCY, _CALLS = "latency_percentiles_usec_", "cmdstat_"
_CLIENT = re.compile(r"\bname=(\S*)")
_SERVER = frozenset({"not_fetching", "few_slots", "flood", "slow_class", "scheduler_stalled"})


_CONFIGURATION_ALERTS = ("UnsafeRedisConfig", "RedisEvictsKeys")


class _Refusal(NamedTuple):
    """A right that Redis has refused: the user, the reason, the command or key, the number of times, and the age of the last time."""

    user: str
    reason: str
    what: str
    times: int
    age_s: float
    client: str


class ServerReader(CauseReader):
    """Find causes in the Redis server."""

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {
        "memory_full": ("RedisMemoryFull", "RedisMemoryHigh", "NoProgress", "ShardAway"),
        "evicts": _CONFIGURATION_ALERTS,
        "not_persistent": ("UnsafeRedisConfig",),
        "not_saved": ("UnsafeRedisConfig",),
        "certificate_ends": ("CertificateExpiry",),
        "slow_shard": ("QueueingApdexBurn", "ExecutionApdexBurn", "HeartbeatLate", "NoProgress", "ShardAway"),
        "rights": ("NoProgress", "QueueNotProcessed", "HeartbeatLate", "FleetMetricsMissing", "ProcessesFlapping"),
    }

    def causes(self) -> Iterator[Cause]:
        yield from self._rights()
        yield from self._memory()
        yield from self._certificate()
        yield from self._slow()

    # --- rights

    def _rights(self) -> Iterator[Cause]:
        for user, found in self._refusals().items():
            commands = sorted({one.what for one in found})
            role = next((one.client.split(":")[1] for one in found if one.client.count(":") >= 1), "worker")
            wanted = role if role in ("producer", "operator") else "worker"
            times = sum(one.times for one in found)
            logged_in = all(one.reason != "auth" for one in found)
            text = (
                Sentence("Redis refuses commands of the user {user}: its rights do not suffice", user=user)
                if logged_in
                else Sentence("Redis refuses the password of the user {user}", user=user)
            )
            yield Cause(
                code="rights",
                shard=self.facts.shard,
                cause=text,
                evidence=[
                    (
                        Sentence(
                            "refused {times:,} times, last {time} ago (ACL LOG): {names}",
                            times=times,
                            time=format_duration(min(one.age_s for one in found)),
                            names=", ".join(commands[:_MOST_NAMES]),
                        )
                    ),
                    *(Sentence("by the connection {client}", client=one.client) for one in found[:1] if one.client),
                ],
                remedy=remedy_command("acl", wanted, "--user", user),
                effect=Sentence(
                    "prints the command that gives {user} the rights of the role {wanted}; its processes go on within 2 s",
                    user=user,
                    wanted=wanted,
                ),
                certainty=40.0,
                jobs=sum(one.size for one in self.facts.queue_states),
                hides=_SERVER | {"unserved", "process_silent"},
            )

    def _refusals(self) -> Mapping[str, list[_Refusal]]:
        log = self.facts.optional_command("ACL", "LOG", 50)
        found: dict[str, list[_Refusal]] = {}
        for entry in cast("list[Any]", log) if isinstance(log, list) else ():
            one = _refusal(entry)
            if one.age_s <= _REFUSED_WITHIN_S and one.user and not _is_usual(one):
                found.setdefault(one.user, []).append(one)
        return found

    # --- memory

    def _memory(self) -> Iterator[Cause]:
        info = self.facts.info
        used, most = _number(info, "used_memory"), _number(info, "maxmemory")
        policy = str(info.get("maxmemory_policy", "noeviction"))
        share = used / most if most else 0.0
        asked = self.facts.scope.alert in self.alerts["memory_full"][:2]
        if share >= (_ASKED_FULL if asked else _ALMOST_FULL):
            yield self._full(used, most, policy, share)
        evicted = _number(info, "evicted_keys")
        is_asked = self.facts.scope.alert in _CONFIGURATION_ALERTS
        if policy != "noeviction" and (is_asked or (most and evicted)):
            yield Cause(
                code="evicts",
                shard=self.facts.shard,
                cause=Sentence(
                    "Redis {evicted} keys, and with them jobs and leases",
                    evicted=(Sentence("evicts") if evicted else Sentence("may evict")),
                ),
                evidence=[
                    Sentence(
                        "maxmemory-policy {policy}, {evicted:,} keys evicted since its start",
                        policy=policy,
                        evicted=evicted,
                    ),
                ],
                remedy=f"{self.facts.redis_cli} CONFIG SET maxmemory-policy noeviction",
                effect=Sentence("no key is evicted any more; a full Redis refuses pushes instead"),
                certainty=30.0,
            )
        if info and not _number(info, "aof_enabled") and self.facts.scope.alert == "UnsafeRedisConfig":
            yield Cause(
                code="not_persistent",
                shard=self.facts.shard,
                cause=Sentence("Redis writes no append-only file: after a restart the last jobs are lost"),
                evidence=[
                    Sentence(
                        "aof_enabled 0, {number:,} changes since the last snapshot",
                        number=_number(info, "rdb_changes_since_last_save"),
                    )
                ],
                remedy=f"{self.facts.redis_cli} CONFIG SET appendonly yes",
                effect=Sentence(
                    "Redis writes its data to the file from now on; a restart then loses a second of changes at most"
                ),
                certainty=5.0,
            )
        if (
            str(info.get("rdb_last_bgsave_status", "ok")) != "ok"
            or str(info.get("aof_last_write_status", "ok")) != "ok"
        ):
            yield Cause(
                code="not_saved",
                shard=self.facts.shard,
                cause=Sentence("Redis cannot save its data to its disk"),
                evidence=[
                    (
                        Sentence(
                            "rdb_last_bgsave_status {rdb}, aof_last_write_status {aof}",
                            rdb=info.get("rdb_last_bgsave_status"),
                            aof=info.get("aof_last_write_status"),
                        )
                    )
                ],
                remedy=f"{self.facts.redis_cli} INFO persistence",
                effect=Sentence("shows the last save; make space on the disk, and Redis saves again by itself"),
                certainty=30.0,
            )

    def _full(self, used: int, most: int, policy: str, share: float) -> Cause:
        evidence: list[str] = [
            Sentence(
                "{size} of maxmemory {most} used ({share:.0%}), maxmemory-policy {policy}",
                size=format_bytes(used),
                most=format_bytes(most),
                share=share,
                policy=policy,
            )
        ]
        places = self._places()
        evidence += [
            Sentence("{place}: {jobs:,} jobs, about {size}", place=place, jobs=jobs, size=format_bytes(size))
            for place, jobs, size in places[:_MOST_NAMES]
            if jobs
        ]
        wanted = round(max(used, most) * 1.5)
        text = (
            Sentence("Redis has no memory left")
            if share >= _FULL
            else Sentence("Redis has used {share:.0%} of its memory", share=share)
        )
        largest, jobs, size = places[0]
        if largest == "dead" and size > used * 0.3:
            cls = self.facts.dead.jobs[0].cls
            remedy = remedy_command("jobs", "delete", "--in", "dead", "--class", cls)
            effect = Sentence(
                "of the dead set's {jobs} those of {cls} go, up to {size}",
                jobs=format_count(jobs, "job"),
                cls=cls,
                size=format_bytes(size),
            )
        else:
            remedy = f"{self.facts.redis_cli} CONFIG SET maxmemory {wanted}"
            effect = Sentence(
                "Redis accepts pushes again at once; its host needs {size} more", size=format_bytes(wanted - most)
            )
        return Cause(
            code="memory_full",
            shard=self.facts.shard,
            cause=Sentence("{text}: it refuses pushes", text=text)
            if policy == "noeviction" and share >= _FULL
            else text,
            evidence=evidence,
            remedy=remedy,
            effect=effect,
            certainty=30.0 if share >= _FULL else 6.0,
            jobs=jobs,
            hides=_SERVER if share >= _FULL else frozenset(),
        )

    def _places(self) -> list[tuple[str, int, float]]:
        """Return the places of jobs with their number and about their bytes, the largest first."""
        facts = self.facts
        samples: list[tuple[str, JobSample]] = [
            (Sentence("queue {name}", name=one.name), one.oldest) for one in facts.queues
        ]
        samples += [("dead", facts.dead), ("retry", facts.retries), ("schedule", facts.scheduled)]
        found = [(name, sample.size, sample.size * sample.mean_bytes) for name, sample in samples]
        return sorted(found, key=lambda one: -one[2])

    # --- certificate

    def _certificate(self) -> Iterator[Cause]:
        ends = certificate_end(self.facts.client)
        asked = self.facts.scope.alert in self.alerts["certificate_ends"]
        if ends is None or (ends - self.facts.now > _CERTIFICATE_S and not asked):
            return
        valid = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(ends))
        yield Cause(
            code="certificate_ends",
            shard=self.facts.shard,
            cause=Sentence(
                "the certificate of Redis ends in {time}", time=format_duration(max(0.0, ends - self.facts.now))
            ),
            evidence=[
                Sentence("valid until {valid}, as {shown} shows it", valid=valid, shown=self.facts.place.endpoint.shown)
            ],
            remedy=f"{self.facts.redis_cli} CONFIG GET tls-cert-file",
            effect=Sentence(
                "names the file: renew it, and let Redis read it again (CONFIG SET tls-cert-file); no connection ends"
            ),
            certainty=5.0,
        )

    # --- speed

    def _slow(self) -> Iterator[Cause]:
        own_s = statistics.median(self.facts.round_trips)
        reported = sorted(one.rtt_us / 1e6 for one in self.facts.running_processes if one.rtt_us)
        theirs_s = statistics.median(reported) if reported else 0.0
        if own_s < _SLOW_S and (theirs_s < _SLOW_S or own_s < _SLOW_S / 10):
            return
        evidence: list[str] = [
            Sentence("a round trip of the smallest command takes {own_s:,.0f} ms from here", own_s=own_s * 1_000)
        ]
        if reported:
            evidence.append(
                Sentence(
                    "{theirs_s:,.0f} ms for the middle one of {processes}, by their records",
                    theirs_s=theirs_s * 1_000,
                    processes=format_count(len(reported), "process"),
                )
            )
        slowest = self._slowest_command()
        if slowest:
            evidence.append(slowest)
        yield Cause(
            code="slow_shard",
            shard=self.facts.shard,
            cause=Sentence("Redis answers slowly: a slow command or its host holds it up, or the network does"),
            evidence=evidence,
            remedy=f"{self.facts.redis_cli} SLOWLOG GET 10",
            effect=Sentence(
                "shows the commands that hold it up, with their clients; without them all jobs go on at full speed"
            ),
            certainty=25.0,
            jobs=sum(one.size for one in self.facts.queue_states),
            hides=_SERVER,
        )

    def _slowest_command(self) -> str:
        """Return the command that takes longest: of a thousand calls the slowest, or before Redis 7 the mean; since its start."""
        found: list[tuple[float, str]] = []
        for name, value in self.facts.info.items():
            if isinstance(value, dict):
                figures = cast("dict[str, Any]", value)
                if name.startswith(_LATENCY):
                    found.append((float(figures.get("p99.9", 0)), name.removeprefix(_LATENCY)))
                elif name.startswith(_CALLS):
                    found.append((float(figures.get("usec_per_call", 0)), name.removeprefix(_CALLS)))
        micros, slowest = max(found, default=(0.0, ""))
        return (
            Sentence(
                "its slowest command is {command}, with up to {micros:,.0f} ms (INFO)",
                command=slowest.upper(),
                micros=micros / 1_000,
            )
            if slowest
            else ""
        )


def cause_away(shard: Shard, error: ShardUnavailableError, *, embedded: bool) -> Cause:
    """Return the cause for a shard that does not answer, or refuses to. ``embedded``: this framework runs its store."""
    reason = error.__cause__
    if isinstance(reason, NoPermissionError | AuthenticationError):
        user = shard.endpoint.user
        return Cause(
            code="rights",
            shard=shard.name,
            cause=Sentence("Redis refuses the user {user} of this command", user=user),
            evidence=[error.reason],
            remedy=remedy_command("acl", "read-only", "--user", user),
            effect=Sentence(
                "prints the command that gives {user} the rights of the role read-only; nothing else is known of this shard",
                user=user,
            ),
            certainty=100.0,
        )
    code = error_code(reason) if isinstance(reason, RedisError) else ""
    states = {
        "LOADING": Sentence("reads its data after a start"),
        "MASTERDOWN": Sentence("is a replica without its master"),
        "READONLY": Sentence("is a replica"),
    }
    return Cause(
        code="shard_away",
        shard=shard.name,
        cause=Sentence(
            "the shard {shard} {state}", shard=shard.name, state=states.get(code, Sentence("does not answer"))
        ),
        evidence=[error.reason],
        remedy=command("store start") if embedded else f"{redis_cli(shard.endpoint)} PING",
        effect=(
            Sentence(
                "its processes go on by themselves within 2 s of its first answer; until then pushes raise "
                "ShardUnavailableError, or are kept (setting reliable_push), and its jobs wait"
            )
        ),
        certainty=100.0,
    )


AWAY_ALERTS: Mapping[CauseCode, Sequence[str]] = {
    "shard_away": ("ShardAway", "PushesKept", "NoProgress", "HeartbeatLate", "FleetMetricsMissing", "SchedulerStalled"),
}


def _refusal(entry: Any) -> _Refusal:
    """Return an entry of ACL LOG, which is a list of pairs (RESP 2) or a mapping."""
    fields: dict[str, Any] = {}
    pairs: Any = cast("Any", entry).items() if isinstance(entry, dict) else zip(entry[::2], entry[1::2], strict=False)
    for name, value in pairs:
        fields[_text(name)] = value
    client = _CLIENT.search(_text(fields.get("client-info", b"")))
    try:
        age_s = float(_text(fields.get("age-seconds", b"inf")))
    except ValueError:
        age_s = float("inf")
    reason, what = _text(fields.get("reason", b"")), _text(fields.get("object", b""))
    return _Refusal(
        _text(fields.get("username", b"")),
        reason,
        f"{reason} {what}",
        stored_count(fields.get("count")),
        age_s,
        client[1] if client else "",
    )


def _is_usual(one: _Refusal) -> bool:
    """Return whether a refusal harms nothing: of this command, of an optional right, or of what a producer asks at its boot."""
    if one.client.startswith(f"framework:{ROLE}") or one.client.endswith(":boot"):
        return True
    kind, _, name = one.what.partition(" ")
    optional = [
        text for role in ROLES.values() for text in (role.optional if kind == "command" else role.optional_keys)
    ]
    return any(fnmatchcase(name.lower() if kind == "command" else name, text) for text in optional)


def _text(value: Any) -> str:
    return decode_escaped(value) if isinstance(value, bytes) else str(value)


def _number(info: Mapping[str, Any], name: str) -> int:
    value = info.get(name)
    return int(value) if isinstance(value, int | float) else 0
