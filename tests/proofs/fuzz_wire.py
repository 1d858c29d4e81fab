"""Targets: bytes that come out of Redis."""

import base64
import json
import zlib
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from framework.errors import PayloadError
from framework.features.deduplication.push import Deduplicator
from framework.features.flags.flag import decode_flag
from framework.fetch.unit_of_work import UnitOfWork
from framework.process import components, push_back, record
from framework.process.signals import accepted_signals
from framework.push.argument_checks import OversizeReporter, SizeLimiter, SizeLimits
from framework.recover import reaper
from framework.recover.suspects import InterruptionLimit, RunEvidence
from framework.route.router import Router
from framework.schedule.cross_shard import CrossShardTransfer, DueAction
from framework.schedule.due_job_planner import DestinationResolver, DueJobPlanner
from framework.settings.model import RoutingRule
from framework.store.absent_keys import AbsentKeys
from framework.wire import keys
from framework.wire.compress import decompress_arguments
from framework.wire.job import INTERRUPTED_COUNT, Job, count_of, decode, rewrite, timestamp, version_of
from framework.wire.json import loads
from framework.wire.status_key import most_advanced, tracked_job
from tests.proofs.fuzz_inputs import TOKENS, json_value, mutate, replace_atoms
from tests.proofs.fuzz_target import Target, expect
from tests.proofs.places import unwrapped

_DEFLATED = base64.b64encode(zlib.compress(b'["' + b"y" * 300 + b'",1.5,null]'))
_INFLATING = tuple(
    base64.b64encode(zlib.compress(b"[" + inside * (4_000_000 // len(inside)) + b"0]"))
    for inside in (b"0,", b"[],", b"{},", b'{"a":[]},', b'"ab",', b"[[[[]]]],", b'"\xf0\x9f\x98\x80",')
)
"""Payloads that take 30 to 120 MB when they are decoded."""

INFLATED_LIMIT = 5_000_000
DECODED_LIMIT = 20_000_000

PAYLOADS: tuple[bytes, ...] = (
    (b'{"class":"Fuzz::NightlyWorker","args":[17,"x",null],"retry":true,"queue":"default","jid":"a1b2c3d4e5f6a1b2c3d4e5f6",'
    b'"created_at":1732190000.123456,"enqueued_at":1732190001.0}'),
    (b'{"retry":5,"queue":"reports","version":0,"dead":false,"status_expiration":1800,"args":[{"a":[1,2.5,{"b":false}]}],'
    b'"class":"Fuzz::NightlyWorker","jid":"0","created_at":1732190000123,"enqueued_at":1732190000124,"correlation_id":"c",'
    b'"meta.user":"root","tags":["a"],"retry_count":3,"failed_at":1732190000.5,"retried_at":1732190000.5,'
    b'"error_class":"RuntimeError","error_message":"boom","interrupted_count":2}'),
    (b'{"class":"Gone::Worker","wrapped":"App::MailJob","args":[{"job_class":"App::MailJob","arguments":[]}],"queue":"mailers",'
    b'"jid":"b","aw_queue":"mailers","aw_shard":"fast","aw_transfer":"t","backtrace":20,"retry_queue":"low","retry_for":3600}'),
    b'{"class":"Fuzz::NightlyWorker","compressed":true,"original_job_size_bytes":314,"args":["' + _DEFLATED
    + b'"],"queue":"q"}',
    '{"class":"Fuzz::NightlyWorker","args":["Übergröße","\u2028","\\ud83d\\ude00"],"queue":"größe","jid":"\\u0000"}'.encode(),
    b'{"args":[9007199254740993,1e22,-0.0,5e-324],"class":"Fuzz::NightlyWorker","queue":"default"}',
)  # fmt: skip

FIELDS = (
    "class", "args", "queue", "jid", "retry", "created_at", "enqueued_at", "failed_at", "retried_at", "retry_count", "version",
    "interrupted_count", "aw_death_count", "aw_suspect",
    "compressed", "original_job_size_bytes", "status_expiration", "at", "aw_transfer", "aw_shard",
    "aw_queue", "retry_queue", "retry_for", "backtrace", "dead", "correlation_id", "tags", "meta.user", "error_message",
    "error_backtrace", "size_limiter", "bid", "wrapped", "\u2028", "",
)  # fmt: skip
_ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, 10**30, -(10**400), 1e308, 253_402_300_801, 1e-9, "", "0", "9" * 19, "1e999", "nan", [], {},
    [[]],
    {"a": None}, "Fuzz::NightlyWorker", "os.system", "builtins.eval", "fast", "main", "common", "\x00", "x" * 5_000,
)  # fmt: skip

_INFO = (
    (
        b'{"hostname":"h","started_at":1.5,"pid":1,"tag":"","concurrency":10,"queues":["default","low"],"weights":[{"default":1}],'
        b'"identity":"h:1:abc","capsules":{}}'
    ),
)
_FLAGS = (
    b'{"v":1,"percentage":100.0,"reason":"incident","set_by":"root","set_at":1795284241.0,"expires_at":null}',
    b'{"v":1,"percentage":0,"expires_at":1e9}',
    b'{"v":2,"percentage":12.5}',
)
_FIELDS = (b"slots", b"10", b"da39a3ee5e6b4b0d3255bfef95601890afd80709", b"1")
_SIGNALS = (b"TSTP", b"TERM", b"TTIN", b"USR1", b"KILL", b"_", b"")


def check_payload(data: bytes) -> str:
    """Give a payload to every reader of a queue, a set or a working list."""
    _shown(data)
    fate = reaper._disposition(data, RunEvidence(2, frozenset()), 0)
    if fate.destination == keys.DEAD and unwrapped(data) == data:
        expect(unwrapped(fate.data) == data, "a payload that cannot be given back must be kept byte for byte")
    holds = reaper._resources_of("h:1:abc", fate)
    for resources in (holds.on_end(), holds.on_requeue(), holds.on_delay(5.0)):
        slots = loads(resources.encode())["slots"]
        expect(all(isinstance(slot[0], str) and slot[1] for slot in slots), "slots have names")
    try:
        payload = decode(data)
    except PayloadError:
        expect(fate.destination == keys.DEAD, "what cannot be read goes to the dead set")
        return "PayloadError"
    expect(_by_another_reader(data) in (payload, None), "decode reads what JSON says, and nothing else")
    for value in payload.values():
        timestamp(value)
    job = Job(payload)
    expect(isinstance(f"{job.jid}{job.worker}{job.queue}", str), "names are text")
    version_of(payload)
    tracked_job(payload)
    changed = rewrite(data, {**payload, "queue": "another", "retry_count": 1})
    expect(
        _same(loads(changed), {**payload, "queue": "another", "retry_count": 1}), "what was not changed stays as it was"
    )
    _check_cut_off(data, payload)
    # A payload that Ruby cannot display is wrapped there.
    kept = payload.keys() if fate.destination != keys.DEAD else set[str]()
    expect(loads(fate.data).keys() >= kept, "what is taken back keeps its fields")
    return "read"


def _check_cut_off(data: bytes, payload: dict[str, Any]) -> None:
    """Check the payload of a process that died during the run; malformed bytes have never run."""
    for limit, ends in ((-1, False), (1, True)):
        stop = push_back._count_interruption(UnitOfWork("q", data), 1.0, InterruptionLimit(limit))
        push_back._interrupt_call("h:1:abc", stop)
        again = loads(stop.data)
        expect(again.keys() >= payload.keys(), "what is given back keeps its fields")
        if stop.data != data:  # else the count is too large to be written
            expect(count_of(again, INTERRUPTED_COUNT) == count_of(payload, INTERRUPTED_COUNT) + 1, "a stop is counted")
            expect(stop.gives_up is ends, "the limit ends a job, and nothing else does")


def check_compressed(payload: dict[str, Any]) -> str:
    """Check compressed arguments, or a payload that claims to have them."""
    before = dict(payload)
    try:
        decompress_arguments(payload, INFLATED_LIMIT, DECODED_LIMIT)
    except PayloadError:
        expect(payload == before, "a payload that cannot be decompressed stays as it was")
        return "PayloadError"
    expect(isinstance(payload["args"], list) or not before.get("compressed"), "arguments are a list")
    return "inflated" if before.get("compressed") else "plain"


def check_frames(frames: list[bytes]) -> str:
    """Check the process records in Redis, and the commands to processes."""
    fields = dict(zip(frames[::2], frames[1::2], strict=False))
    evidence = RunEvidence.from_hash(fields)
    expect(evidence.concurrency is None or evidence.concurrency >= 0, "slots are a count")
    verdict = evidence.classify(frames[0], {"aw_suspect": True}, 0)
    expect(verdict in ("started", "not_started"), "of a suspect it is known")
    evidence.classify(frames[0], {}, 3)
    seen = record.process_info("h:1:abc", *(frames * 4)[:4])
    expect(seen.busy >= 0 and seen.slots >= 0, "slots are a count")
    most_advanced(frames)
    signals = accepted_signals(record.ProcessRecord._take_signals(_reading(frames)))
    paused: list[Any] = []
    parts = SimpleNamespace(
        record=SimpleNamespace(
            client=SimpleNamespace(smembers=lambda _: set(frames), execute_command=lambda *_: frames[:1])
        ),
        capsules=SimpleNamespace(pause=paused.append),
        blocking=SimpleNamespace(blocked=lambda: ()),
        process=SimpleNamespace(absent=AbsentKeys()),
    )
    process: Any = SimpleNamespace(_components=parts)
    process._read_paused = partial(components.ProcessTasks._read_paused, process)
    process._paused, process._blocked, process._log = [], [], SimpleNamespace(info=lambda *_, **__: None)
    components.ProcessTasks.read_pauses(process)
    expect(all(isinstance(name, str) for names in paused for name in names), "names are text")
    return "signals" if signals else "nothing"


def check_flag(data: bytes) -> str:
    """Check the value of a feature flag."""
    try:
        flag = decode_flag("pause_jobs_Fuzz::NightlyWorker", data)
    except ValueError:
        return "ValueError"
    expect(flag.sampled(lambda: 1.0) is False, "a draw of 1 is above every percentage")
    expect(decode_flag(flag.name, flag.encode()) == flag, "a flag is read as it was written")
    return "on" if flag.percentage else "off"


def check_due(data: bytes) -> str:
    """Check a due member of ``schedule`` or ``retry``."""
    step = _preparation.plan(keys.RETRY, data)
    if isinstance(step, DueAction):
        expect(step.member == data, "a member is found by its bytes")
        if step.on_done is not None:
            step.on_done()
        if step.action in ("queue", "mark"):
            loads(step.data)
        return step.action
    loads(step.data)
    return "crossing"


def make_payload(rng: Random) -> bytes:
    """Return a payload: distorted bytes, or good JSON with wrong values in its fields."""
    kind = rng.randrange(5)
    if kind < 2:
        return mutate(rng, PAYLOADS)
    if kind == 2:
        return replace_atoms(rng, PAYLOADS)
    payload = json.loads(rng.choice(PAYLOADS))
    for name in rng.sample(FIELDS, rng.choice((1, 1, 2, 5))):
        payload[name] = rng.choice(_ODD) if rng.random() < 0.5 else json_value(rng, 3)
    return json.dumps(payload, ensure_ascii=rng.random() < 0.5).encode("utf-8", "replace")


def _compressed(rng: Random) -> dict[str, Any]:
    kind = rng.randrange(4)
    if kind == 0 and rng.random() < 0.1:
        text = rng.choice(_INFLATING)
    elif kind == 0:
        text = mutate(rng, (_DEFLATED, _INFLATING[0][:300], rng.choice(_INFLATING)))
    else:
        insides = (
            json.dumps([json_value(rng)]).encode(),
            mutate(rng, (b'["x",1]', b"[" * 70 + b"]" * 70, b"{}", *PAYLOADS)),
        )
        packed = zlib.compress(rng.choice(insides), rng.randrange(10))
        text = base64.b64encode(mutate(rng, (packed,)) if kind == 1 else packed)
    args: list[Any] = [text.decode("utf-8", "replace")]
    size = rng.choice((None, 314, -1, 1.5, "314", True, json_value(rng, 1)))
    odd = rng.random() < 0.3
    return {
        "class": "A",
        "args": rng.choice(([text.decode("latin-1"), 1], [], json_value(rng, 2))) if odd else args,
        "compressed": rng.choice((1, "no", json_value(rng, 1))) if odd else True,
        **({"original_job_size_bytes": size} if odd else {}),
    }


def _frames(rng: Random) -> list[bytes]:
    seeds = (*_INFO, *_FIELDS, *_SIGNALS, *PAYLOADS[:1], b"running", b"completed")
    return [
        rng.choice(TOKENS) if rng.random() < 0.2 else mutate(rng, (rng.choice(seeds),))
        for _ in range(rng.randrange(1, 7))
    ]


def _flag(rng: Random) -> bytes:
    return mutate(rng, _FLAGS) if rng.random() < 0.5 else replace_atoms(rng, _FLAGS)


def _reading(frames: list[bytes]) -> Any:
    return SimpleNamespace(
        client=SimpleNamespace(rpop=lambda *_: frames),
        identity="h:1:abc",
        rtt_us=0,
        process=SimpleNamespace(absent=AbsentKeys()),
    )


def _shown(data: bytes) -> None:
    shown = record.display_payload(data)
    expect(len(shown) <= max(8_192, len(data)), "a page must stay readable")
    if len(data) > 4_096:
        json.loads(shown)


def _by_another_reader(data: bytes) -> Any:
    """Return the value that Python's own JSON reads, with NaN allowed; ``None`` where it fails, at long numbers and
    deep nesting.
    """
    try:
        return json.loads(data, parse_constant=_NoJsonError)
    except (ValueError, RecursionError):
        return None


class _NoJsonError(Exception):
    """Replaces NaN and infinities in a decoded value: equal to no other value."""


def _same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other) if _long(one) is None else one == other


def _long(value: Any) -> str | None:
    """Return whether a number is too long for Python to print."""
    try:
        repr(value)
    except ValueError as error:
        return str(error)
    return None


class _Events:
    """Accepts the events of a poller."""

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None


_router = Router(
    [RoutingRule("feature_category=not_owned", "common", "fast"), RoutingRule("*", None)], ["main", "fast"]
)
_preparation = DueJobPlanner(
    cast("Any", _Events()),
    DestinationResolver(_router, "main"),
    CrossShardTransfer(cast("Any", None), "main", {}, cast("Any", _Events())),
    cast("Any", _Events()),
    limiter=SizeLimiter(SizeLimits(decompressed_limit=INFLATED_LIMIT, decoded_limit=DECODED_LIMIT), OversizeReporter()),
    locks=Deduplicator(),
)

TARGETS = (
    Target("payload", 22, make_payload, check_payload),
    Target("compressed", 10, _compressed, check_compressed),
    Target("frames", 12, _frames, check_frames),
    Target("due", 6, make_payload, check_due),
    Target("flag", 4, _flag, check_flag),
)
