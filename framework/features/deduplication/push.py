"""Decide which pushes are deduplicated, compute the lock key of a job, and log duplicates (GitLab's guideline)."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import timedelta
from functools import partial
from typing import Any, cast

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.declare.policy_options import Deduplicate
from framework.declare.signature import JobSignature
from framework.features.deduplication.attributes import DeduplicationAttributes
from framework.features.flags.process_flags import PROCESS_FLAGS
from framework.push.client import Client
from framework.push.deduplication import KeyMaker, PushLocks
from framework.telemetry import logs
from framework.telemetry.counters import series_name
from framework.telemetry.logs import LogRateLimit
from framework.types import Jid, Payload
from framework.wire.job import bid_of, expiry_of, version_of
from framework.wire.json import dumps, loads
from framework.wire.resources import (
    IDEMPOTENCY_KEY,
    Lock,
    LockRequest,
    LockTerms,
    WindowMode,
    WindowTerms,
    lock_key,
    lock_keys,
    lock_of,
    lock_prefix,
    wal_positions_of,
)
from framework.wire.status_key import StatusCommand
from framework.wire.waiters import awaited_job_of

COUNTER = "sidekiq_jobs_deduplicated_total"
_DEFAULT_HOOK: Any = vars(DeduplicationAttributes)["idempotency_arguments"].__func__
# Seconds between two lines about one class's hook, or one flag.
_LOG_INTERVAL_S = 60.0
_MAX_ITEMS, _MAX_BYTES = 1_000, 65_536


def flag_always_on(shard: str, flag: str) -> bool:
    """Return ``True`` for every flag."""
    del shard, flag
    return True


# The script that writes a job takes its lock, after all middlewares: a push that is refused later leaves no lock behind.
# The key names the method that runs the job, because two versions may
# use the same positions for other values.
class Deduplicator(PushLocks):
    """Make the lock requests of jobs. Shared between threads.

    ``enabled`` receives a shard and a feature flag, and returns whether the flag is on for jobs of the shard.
    """

    def __init__(self, enabled: Callable[[str, str], bool] = flag_always_on) -> None:
        self._enabled = enabled
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def policy(self, declaration: Declaration, shard: str, *, scheduled: bool) -> Deduplicate | None:
        """Return the deduplication policy for a push, or ``None`` if this push must not be deduplicated."""
        policy = declaration.deduplicate if declaration.deduplicates else None
        if policy is None or (scheduled and not policy.including_scheduled):
            return None
        flag = policy.feature_flag
        return policy if flag is None or self._flag_enabled(shard, flag, declaration) else None

    def set_key(self, payload: Payload, declaration: Declaration, args: list[Any]) -> None:
        """Set the lock key of a payload (field ``idempotency_key``), computed from ``args``; an existing key is kept.

        Two jobs are equal if the same method would run them and their arguments bind to the same values. ``args`` are the
        arguments as the application knows them (not compressed). A payload with a key already owns the lock under that key.
        """
        if lock_of(payload, None) is None:
            version = version_of(payload)
            significant = self._significant_arguments(declaration, declaration.signature_for(version), args)
            payload[IDEMPOTENCY_KEY] = lock_key(
                declaration.wire_name, significant, declaration.signature_since(version)
            )

    def key_maker(self, declaration: Declaration) -> KeyMaker:
        """Return the function that makes the lock keys of jobs pushed now, as ``set_key`` computes them."""
        signature = declaration.signature_for(declaration.version)
        prefix = lock_prefix(declaration.wire_name, declaration.signature_since(declaration.version))
        if not signature.json_defaults and not self._has_hook(declaration) and not _accumulates(declaration):
            return partial(lock_keys, prefix)

        def keys_of(arguments: Sequence[bytes]) -> list[str]:
            significant = (self._significant_arguments(declaration, signature, loads(one, None)) for one in arguments)
            return lock_keys(prefix, significant)

        return keys_of

    def lock_terms(self, declaration: Declaration, policy: Deduplicate) -> LockTerms:
        """Return the terms that the lock requests of all jobs of a push share."""
        series = series_name(COUNTER, {"worker": declaration.wire_name, "strategy": policy.strategy})
        return LockTerms(declaration.wire_name, policy.waiting_ttl.total_seconds(), declaration.idempotent, series)

    def window_terms(self, declaration: Declaration, policy: Deduplicate) -> WindowTerms | None:
        """Return the terms that the jobs of a push with a window share; ``None`` for a strategy without a window."""
        if not policy.has_window:
            return None
        worker, ttl_s, _, series = self.lock_terms(declaration, policy)
        mode: WindowMode = "accumulate" if _accumulates(declaration) else "debounce"
        longest_s = policy.max_window.total_seconds() if policy.max_window else 0.0
        bounds = policy.max_items or _MAX_ITEMS, policy.max_bytes or _MAX_BYTES
        return WindowTerms(worker, ttl_s, mode, longest_s, *bounds, series)

    def lock_request(
        self,
        payload: Payload,
        declaration: Declaration,
        policy: Deduplicate,
        status_command: StatusCommand | None,
        due: float | None = None,
    ) -> LockRequest:
        terms = self.lock_terms(declaration, policy)
        key, jid, expiry = payload[IDEMPOTENCY_KEY], str(payload["jid"]), expiry_of(payload, due)
        lock = Lock(key, jid, terms.ttl_s, terms.worker, expiry or 0.0, bid_of(payload))
        positions, awaited = wal_positions_of(payload), awaited_job_of(payload)
        return LockRequest(lock, terms.drop_duplicate, terms.counter, positions, status_command, awaited)

    def log_duplicate(self, payload: Payload, declaration: Declaration, policy: Deduplicate, owner: Jid) -> None:
        """Log a dropped duplicate, with GitLab's fields."""
        kind = policy.strategy.replace("_", " ")
        logs.logger().info(
            f"{declaration.wire_name} JID-{payload.get('jid')}: deduplicated: {kind}",
            **{
                "class": declaration.wire_name,
                "jid": payload.get("jid"),
                "queue": payload.get("queue"),
                "correlation_id": payload.get("correlation_id"),
                "job_status": "deduplicated",
                "duplicate-of": owner,
                IDEMPOTENCY_KEY: payload.get(IDEMPOTENCY_KEY),
                "deduplication.type": kind,
                **_changed_options(policy),
            },
        )

    def _significant_arguments(self, declaration: Declaration, signature: JobSignature, args: Any) -> bytes:
        """Return the JSON of the arguments that make jobs equal, chosen by the class's hook if it has one.

        The hook receives every argument, with defaults filled in. A failing hook is ignored and all arguments count. Without a
        hook the defaults are left out, so that the key stays the same when a release adds a parameter with a default.
        """
        # A client middleware may have put in anything.
        if not isinstance(args, list):
            return dumps(args)
        given = cast("list[Any]", args)
        # The last argument of a class that accumulates is the list to which others are added.
        compared = given[:-1] if _accumulates(declaration) else signature.without_defaults(given)
        shortest = dumps(compared)
        if not self._has_hook(declaration):
            return shortest
        worker: Any = registry.find(declaration.wire_name)
        try:
            # A copy: what the hook changes in its list does not change the job.
            chosen: Any = worker.idempotency_arguments(loads(dumps(signature.with_defaults(given)), None))
            if not isinstance(chosen, list | tuple):
                raise TypeError(f"it returned {type(chosen).__name__}, not a list")
            return dumps(list(cast("list[Any]", chosen)))
        except Exception as error:  # noqa: BLE001 - an application's hook may raise anything; the push goes on
            self._hook_failed(declaration, error)
            return shortest

    def _has_hook(self, declaration: Declaration) -> bool:
        worker: Any = registry.find(declaration.wire_name)
        return worker is not None and worker.idempotency_arguments.__func__ is not _DEFAULT_HOOK

    def _hook_failed(self, declaration: Declaration, error: Exception) -> None:
        self._log_limit.warning(
            declaration.wire_name,
            "idempotency_arguments raised an error, so all arguments are compared. Correct this hook of the class.",
            "deduplication.hook_failed",
            error=error,
            **{"class": declaration.wire_name},
        )

    def _flag_enabled(self, shard: str, flag: str, declaration: Declaration) -> bool:
        try:
            return self._enabled(shard, flag)
        except Exception as error:  # noqa: BLE001 - the flag store may raise anything; without an answer no job is dropped
            self._log_limit.warning(
                flag,
                f"the feature flag {flag} cannot be read; until it can, jobs of the class are not deduplicated. Look at the error",
                "deduplication.flag_unknown",
                error=error,
                **{"class": declaration.wire_name},
            )
            return False


def open_locks(client: Client) -> Deduplicator:
    """Return the object that makes the lock requests of the client's pushes. Flags are read at the first push that needs one."""
    return Deduplicator(lambda shard, flag: client.service(PROCESS_FLAGS).enabled_on(shard, flag))


def _accumulates(declaration: Declaration) -> bool:
    return declaration.deduplicate is not None and declaration.deduplicate.strategy == "accumulate"


def _changed_options(policy: Deduplicate) -> dict[str, Any]:
    """Return the options of a policy that differ from their defaults, as log fields."""
    changed = {
        option.name: getattr(policy, option.name)
        for option in fields(policy)
        if option.name not in ("strategy", "_") and getattr(policy, option.name) != option.default
    }
    return {
        f"deduplication.options.{name}": value.total_seconds() if isinstance(value, timedelta) else value
        for name, value in changed.items()
    }
