"""Hold the waits on which recovery depends: the leases, heartbeats, blocking calls and periodic tasks of a process.

One frozen table, because the values depend on each other, and because all processes of a shard must agree on them: a setting
per process could make live processes look dead. Tests scale the whole table down.
"""

import random
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The waits, in seconds."""

    lease_s: float = 15.0
    """Lifetime of a lease without heartbeats (promise 3 of ``docs/internals/reliability.md``: recovery within 25 s)."""
    heartbeat_period_s: float = 3.0
    """Period of a process's heartbeats: four may be lost before the lease expires."""
    child_renewal_period_s: float = 4.0
    """Period at which a supervisor renews the leases of children whose heartbeats are late."""
    silence_limit_s: float = 120.0
    """How long a supervisor renews the lease of a live child that sends no heartbeat."""
    record_period_s: float = 5.0
    """Period at which a process writes its record, and reads its signals and the paused queues."""
    orders_period_s: float = 1.0
    """Period at which a process with running jobs reads the orders about them (``jobs stack``, ``jobs stop``)."""
    sweep_period_s: float = 5.0
    """Period at which a process looks for dead processes, and maintains the policies. Varied by a fifth."""
    main_thread_period_s: float = 1.0
    """Period at which the main thread checks for a dead component and a dead supervisor."""
    block_timeout_s: float = 10.0
    """Longest wait of one blocking call; it bounds how long a dead process's list must be swept."""
    reply_margin_s: float = 2.0
    """A reply later than this after ``block_timeout_s`` means a dead connection."""
    queue_sweep_period_s: float = 1.0
    """Period of the fetches from queues without a blocking call: those beyond the first 16, or all if Redis refuses BLMOVE."""
    stale_after_s: float = 10.0
    """A job fetched this long ago is not started: the process was stopped (SIGSTOP, a suspended machine), and the lease that the
    fetch renewed may have expired, so another process may own the job."""
    inspection_valid_s: float = 10.0
    """How long the inspection of a dead process is valid; a command that a frozen Redis runs later does nothing."""
    fetch_silence_limit_s: float = 30.0
    """A child without an answered fetch for this time does not serve; normally the gap is ``block_timeout_s`` at most."""
    redis_patience_s: float = 60.0
    """How long a process waits for its Redis at boot before it ends with status 75 (EX_TEMPFAIL)."""
    stuck_s: float = 150.0
    """A child whose main thread is silent for this time is stuck: by then its supervisor has killed it, if it could."""
    loop_limit_s: float = 30.0
    """The longest legitimate iteration of the supervisor's loop."""
    first_unserved_check_s: float = 3.0
    """Time before the first check for queues that no process serves, and before the second: processes that start together
    serve by then."""
    first_unserved_check_in_group_s: float = 10.0
    """The same for a process of a group, whose siblings may need longer to start."""
    unserved_check_period_s: float = 60.0
    """Period of this check while a queue is not served."""
    served_check_period_s: float = 600.0
    """Period of this check while every queue is served."""
    metrics_period_s: float = 10.0
    """Period at which a process writes the metrics of Sidekiq's page, that of Sidekiq's heartbeat."""
    eviction_check_period_s: float = 30.0
    """Period of the check whether Redis evicts keys: a change is reported within this time (reference F15)."""
    memory_check_period_s: float = 3.0
    """Period at which a supervisor reads the memory of its children."""
    longest_poll_period_s: float = 10.0
    """Longest period of the poller for due jobs, however many processes there are: living ones must not wait for dead ones."""
    leader_lease_s: float = 6.0
    """Lifetime of the lease of a leader without renewals; with one check of another process, a new leader comes within 10 s."""
    leader_renewal_period_s: float = 2.0
    """Longest period of a leader's renewals."""
    leader_check_period_s: float = 3.0
    """Period at which the other processes try to lead. Varied by a fifth."""
    cron_read_period_s: float = 5.0
    """Period at which a leader reads the states and the operators' orders of its cron entries."""
    cron_missed_after_s: float = 60.0
    """Delay from which a tick of cron counts as missed; longer than a change of the leader and a restart of Redis."""
    poll_sync_period_s: float = 30.0
    """Period at which a poller reads the server's time and the number of processes."""
    suspect_turn_s: float = 0.5
    """Longest turn of a suspect, during which no other suspect of its process starts."""
    suspect_trial_s: float = 5.0
    """Longest turn of a suspect after two deaths."""

    @property
    def lease_ms(self) -> int:
        """The lifetime of a lease in milliseconds, as Redis takes it."""
        return round(self.lease_s * 1_000)

    @property
    def late_heartbeat_s(self) -> float:
        """The silence of a child after which its supervisor renews its lease: two heartbeats."""
        return 2 * self.heartbeat_period_s

    @property
    def silent_after_s(self) -> float:
        """The silence after which a process with a lease counts as dead, frozen or cut off: three heartbeats."""
        return 3 * self.heartbeat_period_s

    @property
    def alive_within_s(self) -> float:
        """The age of the last heartbeat up to which a process counts as alive: a lease and one heartbeat period."""
        return self.lease_s + self.heartbeat_period_s

    @property
    def longest_sweep_period_s(self) -> float:
        """The longest time between two sweeps of a process."""
        return 1.2 * self.sweep_period_s

    @property
    def record_ttl_s(self) -> int:
        """The lifetime of a process record: four leases, so that an outage of Redis leaves the process on a dashboard."""
        return max(1, round(4 * self.lease_s))

    @property
    def slot_ttl_s(self) -> int:
        """The lifetime of a slot of a limit without renewals, longer than the silence that a supervisor tolerates of a child."""
        return max(1, round(1.5 * self.silence_limit_s))

    @property
    def fetcher_limit_s(self) -> float:
        """The time without a fetch after which a process is stuck: the leader acts at the end of a blocking call at the latest."""
        return 6 * self.block_timeout_s

    @property
    def ready_timeout_s(self) -> float:
        """The time until the successor of a child must serve: it may wait for its Redis, and its imports take time too."""
        return 1.5 * self.redis_patience_s

    @property
    def blocking_call_s(self) -> float:
        """The longest life of a blocking call."""
        return self.block_timeout_s + self.reply_margin_s

    @property
    def unregister_after_s(self) -> float:
        """The silence after which no blocking call of a dead process can be alive: 39 s."""
        return self.lease_s + 2 * self.blocking_call_s

    def scaled(self, factor: float) -> "Timings":
        """Return the table with every wait multiplied by ``factor``."""
        return replace(self, **{field.name: getattr(self, field.name) * factor for field in fields(self)})


STANDARD = Timings()
"""The waits of this release."""

_current = STANDARD


def current() -> Timings:
    """Return the waits of this process; read when its components are built."""
    return _current


def use(timings: Timings) -> None:
    """Make the components that are built from now on use ``timings``: for tests, before the process starts."""
    global _current  # noqa: PLW0603 - one table per process, like the clock
    _current = timings


_MAX_DOUBLINGS = 16
"""A factor of 65,536. Without an end to the exponent the power becomes an OverflowError after a thousand failures."""


def backoff_s(failures: int, first_s: float, longest_s: float, *, jitter: float = 0.0) -> float:
    """Return the wait after this number of failures in a row: ``first_s``, and twice as long after each further failure.

    ``jitter`` is the largest share of the wait that is taken off at random, so that processes do not try again in step; the
    wait never exceeds ``longest_s``.
    """
    wait_s: float = min(longest_s, first_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))
    return wait_s * (1.0 - jitter * random.random()) if jitter else wait_s
