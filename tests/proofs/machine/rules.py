"""Define the rules by which hypothesis makes histories. Numbers are taken modulo the choices, so that every rule always
applies.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from redis.exceptions import OutOfMemoryError

from framework.errors import ShardUnavailableError
from framework.features.flags.flag import Flag, pause_flag
from framework.features.flags.redis_flags import set_flag, unset_flag
from framework.wire import keys
from tests.proofs.machine.ending import drain
from tests.proofs.machine.interleaving import Act, Fate
from tests.proofs.machine.job_model import Broken
from tests.proofs.machine.payloads import GARBAGE, KINDS
from tests.proofs.machine.servers import SHARDS
from tests.proofs.machine.simulated_cluster import SimulatedCluster
from tests.proofs.machine.worker import CLASSES, ENDS, QUEUES, Worker

T = TypeVar("T")

WHICH = st.integers(0, 11)
FATES = st.sampled_from(["go", "go", "go", "go", "reset", "lost"])
PARTS = ("lease", "reaper", "poller", "policies", "record", "processor-0", "processor-1", "processor-2", "main")
PERIODS = (4, 8, 12, 20, 44)
"""Seconds whose sums differ from the limits of the framework (6, 10, 15, 18, 39): the real duration of a step must not
matter.
"""

MOST_WORKERS = 4
_WRONG_TYPE_KEYS = (
    *("queue:a", "queue:b", keys.DEAD, keys.RETRY, keys.SCHEDULE, keys.QUEUES, keys.INTERRUPTED),
    *(keys.limit("Limited") + part for part in ("", ":running", ":waiting:", ":turns")),
    *(keys.paused_jobs("Limited"), keys.PAUSED_CLASSES, keys.FLAGS, keys.LIMITS_WAITING),
)
_RARELY = 9
_FAR = 6


def one_of(found: Sequence[T], which: int) -> T | None:
    """Return one of them, if there is any."""
    return found[which % len(found)] if found else None


class States(RuleBasedStateMachine):
    """Starts with two processes of the first shard and one of the second."""

    cluster: ClassVar[SimulatedCluster]

    def __init__(self) -> None:
        super().__init__()
        self.whole = True
        self.number = 0
        self.cluster.reset()
        for shard in ("main", "main", "second"):
            self.cluster.boot(shard)

    def teardown(self) -> None:
        """Check that without faults every job ends; after a broken invariant there is nothing more to check."""
        try:
            if self.whole:
                drain(self.cluster)
        finally:
            self.cluster.abandon()

    def _guarded(self, what: Callable[[], Any]) -> None:
        self.whole = False
        what()
        self.cluster.reap_left()
        self.whole = True

    # --- producers

    @rule(kind=st.sampled_from(sorted(KINDS)), queue=st.sampled_from(QUEUES), fate=FATES)
    def push(self, kind: str, queue: str, fate: Fate) -> None:
        """Push a job to its queue, as a producer."""
        jid = self._jid()
        data = KINDS[kind](jid, queue)
        self._guarded(lambda: self._write(jid, fate, lambda: self.cluster.producer.enqueue_one(queue, data)))

    @rule(
        kind=st.sampled_from(sorted(KINDS)),
        queue=st.sampled_from(QUEUES),
        delay=st.sampled_from([-5, 11, 41]),
        fate=FATES,
    )
    def schedule(self, kind: str, queue: str, delay: int, fate: Fate) -> None:
        """Write a job that is due later, as a producer."""
        jid = self._jid()
        data = KINDS[kind](jid, queue)
        due = self.cluster.servers.time("main") + delay
        self._guarded(lambda: self._write(jid, fate, lambda: self.cluster.producer.schedule_one(due, data)))

    @rule(which=WHICH, queue=st.sampled_from(QUEUES), delay=st.sampled_from([0, 0, 11]), fate=FATES)
    def push_by_class(self, which: int, queue: str, delay: int, fate: Fate) -> None:
        """Push with a worker class, as an application."""
        chosen: Any = self.cluster.jobs[which % len(self.cluster.jobs)].set(queue=queue)  # type: ignore[attr-defined]
        push = (lambda: chosen.perform_in(delay, 1)) if delay else (lambda: chosen.perform_async(1))
        self._guarded(lambda: self._write("", fate, push))

    def _jid(self) -> str:
        self.number += 1
        return f"{self.number:024x}"

    def _write(self, jid: str, fate: Fate, push: Callable[[], Any]) -> None:
        done: list[Any] = []

        def produce() -> None:
            try:
                done.append(push() or jid)
            except ShardUnavailableError as error:
                done.append(error)

        act = self.cluster.others.begin("producer", produce)
        self.cluster.step(act)
        self.cluster.step(act, fate)
        self.cluster.turn(act)
        came = done[0]
        # An empty one was dropped as a duplicate.
        if isinstance(came, str) and came and came.encode() not in self.cluster.checks.model.jobs:
            raise Broken(f"I1: the push of {came} was accepted, and it is in no key")
        if (
            isinstance(came, ShardUnavailableError)
            and not came.maybe_written
            and jid.encode() in self.cluster.checks.model.jobs
        ):
            raise Broken(f"I17: the push of {jid} was refused, and it is there")

    # --- processes

    @rule(which=WHICH, queue=st.sampled_from(QUEUES), count=st.integers(1, 4))
    def rush(self, which: int, queue: str, count: int) -> None:
        """Push some jobs at once, and let the threads of a process fetch them."""
        for _ in range(count):
            self.push(kind="plain", queue=queue, fate="go")
        self.work(which)

    @rule(which=WHICH)
    def work(self, which: int) -> None:
        """Let the threads of a process fetch jobs."""
        worker = self._worker(which)
        if worker is not None:
            self._guarded(lambda: self.cluster.work(worker))

    @rule(which=WHICH, part=st.sampled_from(PARTS))
    def turn(self, which: int, part: str) -> None:
        """Let one thread of a process run until it waits again, or runs a job."""
        worker = self._worker(which)
        act = worker.act(part) if worker is not None else None
        if act is not None and act.at != "perform":
            self._guarded(lambda: self.cluster.turn(act))

    @rule(which=WHICH, part=st.sampled_from(PARTS))
    def begin(self, which: int, part: str) -> None:
        """End the wait of one thread of a process; it stops before its first command."""
        worker = self._worker(which)
        act = worker.act(part) if worker is not None else None
        if act is not None and act.at == "wait":
            self._guarded(lambda: self.cluster.step(act))

    @rule(which=WHICH, fate=FATES)
    def step(self, which: int, fate: Fate) -> None:
        """Let a thread that stopped before a command send it."""
        act = one_of(self.cluster.moving(), which)
        if act is not None:
            self._guarded(lambda: self.cluster.step(act, fate))

    @rule(which=WHICH, how=st.sampled_from(ENDS), on=st.booleans())
    def end(self, which: int, how: str, on: bool) -> None:  # noqa: FBT001 - hypothesis passes by name
        """End a job; its thread goes ``on``, or stops before its next command."""
        act = one_of(self.cluster.performing(), which)
        if act is not None:
            self._guarded(lambda: self._end(act, how, on=on))

    def _end(self, act: Act, how: str, *, on: bool) -> None:
        self.cluster.finish(act, how)
        if on:
            self.cluster.turn(act)

    @rule(which=WHICH, late=st.booleans())
    def crash(self, which: int, late: bool) -> None:  # noqa: FBT001 - as above
        """Kill a process with -9; ``late``: one of its commands is under way, and runs at a later step."""
        worker = one_of(self.cluster.workers, which)
        if worker is not None:
            spare = one_of([act for act in worker.acts if act.at == "command"], which) if late else None
            self._guarded(lambda: self.cluster.crash(worker, spare=spare))

    @rule(which=WHICH)
    def mark_dead(self, which: int) -> None:
        """Mark a process dead, as its supervisor does."""
        worker = one_of(self.cluster.zombies, which)
        if worker is not None:
            self._guarded(lambda: self.cluster.turn(self.cluster.mark_dead(worker)))

    @rule(shard=st.sampled_from(["main", *SHARDS]), eager=st.booleans())
    def boot(self, shard: str, eager: bool) -> None:  # noqa: FBT001 - as above
        """Start another process; ``eager``: and its threads."""
        if len(self.cluster.workers) < MOST_WORKERS and self.cluster.servers.is_up(shard):
            self._guarded(lambda: self.cluster.boot(shard, eager=eager))

    @rule(which=WHICH, patient=st.booleans())
    def stop(self, which: int, patient: bool) -> None:  # noqa: FBT001 - as above
        """Stop a process with TERM; a patient one waits for its jobs as long as they take."""
        worker = self._worker(which)
        if worker is not None:
            worker.stop(patient=patient)
            self._guarded(lambda: self.cluster.turn(worker.acts[0]))

    @rule(which=WHICH)
    def freeze(self, which: int) -> None:
        """Stop a process with SIGSTOP."""
        worker = self._worker(which)
        if worker is not None:
            worker.frozen = worker.slept = True

    @rule(which=WHICH)
    def thaw(self, which: int) -> None:
        """Continue a process with SIGCONT: it continues where it was, and does not know the time that has passed."""
        worker = one_of([worker for worker in self.cluster.workers if worker.frozen], which)
        if worker is not None:
            worker.frozen = False

    @rule(which=WHICH, steps=st.integers(0, _FAR), back=st.booleans(), how=st.sampled_from(ENDS))
    def outlive(self, which: int, steps: int, back: bool, how: str) -> None:  # noqa: FBT001 - as above
        """Stop a process for longer than its lease, while another starts to reclaim its jobs; it may be ``back``
        midway, send a heartbeat, and end its jobs.
        """
        worker = self._worker(which)
        if worker is not None:
            self.rush(which=which, queue=QUEUES[which % len(QUEUES)], count=2)
            self._guarded(lambda: self._outlive(worker, steps, how if back else ""))

    def _outlive(self, worker: Worker, steps: int, how: str) -> None:
        worker.frozen = worker.slept = True
        self.cluster.pass_time(PERIODS[-1])
        others = [other.act("reaper") for other in self.cluster.awake() if other.shard == worker.shard]
        reaper = next((act for act in others if act is not None and act.at == "wait"), None)
        for _ in range(steps if reaper is not None else 0):
            if reaper is not None and (reaper.movable or reaper.at == "wait"):
                self.cluster.step(reaper)
        if not how:
            return
        worker.frozen = False
        lease = worker.act("lease")
        for act in (lease, reaper):
            if act is not None and act.movable | (act is lease):
                self.cluster.turn(act)
        for act in worker.slots():
            if act.at == "perform":
                self._end(act, how, on=True)

    @rule(which=WHICH, steps=st.integers(0, _FAR), fate=FATES)
    def cross(self, which: int, steps: int, fate: Fate) -> None:
        """Transfer a due job to another shard; a fault hits the poller on its way, or stops it."""
        self.schedule(kind="for another shard", queue=QUEUES[which % len(QUEUES)], delay=-5, fate="go")
        worker = self._worker(which)
        poller = worker.act("poller") if worker is not None else None
        if poller is not None:
            self._guarded(lambda: self._cross(poller, steps, fate))

    def _cross(self, poller: Act, steps: int, fate: Fate) -> None:
        self.cluster.pass_time(PERIODS[0])
        self.cluster.turn(poller)  # the job is marked
        self.cluster.pass_time(PERIODS[0])
        for _ in range(steps):
            if poller.at in ("wait", "command"):
                self.cluster.step(poller)
        if poller.at == "command":
            self.cluster.step(poller, fate)

    @rule(seconds=st.sampled_from(PERIODS), beating=st.booleans())
    def pass_time(self, seconds: int, beating: bool) -> None:  # noqa: FBT001 - as above
        """Let time pass; not ``beating``: no lease is renewed meanwhile."""
        self._guarded(lambda: self.cluster.pass_time(seconds, beating=beating))

    @rule()
    def notice(self) -> None:
        """Let the servers notice which connections are dead."""
        self._guarded(self.cluster.notice_deaths)

    # --- servers, operators, and other writers

    @rule(shard=st.sampled_from(SHARDS), what=st.sampled_from(["full", "room", "forget scripts", "hang up", "start"]))
    def server(self, shard: str, what: str) -> None:
        """Fill or empty the memory of a server, flush its scripts, close every connection, or start it if it was down."""
        acts: dict[str, Callable[[Any], Any]] = {
            "full": lambda client: client.config_set("maxmemory", 1),
            "room": lambda client: client.config_set("maxmemory", 0),
            "forget scripts": lambda client: client.script_flush(),
            "hang up": lambda client: client.client_kill_filter(_type="normal", skipme=True),
            "start": lambda client: client.ping(),
        }
        if what == "start":
            self._guarded(lambda: self.cluster.servers.bring_up(shard))
        self._operate(shard, acts[what])

    @rule(shard=st.sampled_from(SHARDS), chance=st.integers(0, _RARELY), up=st.booleans())
    def kill_server(self, shard: str, chance: int, up: bool) -> None:  # noqa: FBT001 - as above
        """Kill the server with -9, sometimes; it starts again at once (``up``), or later."""
        if chance < _RARELY:
            return
        self.cluster.servers.kill(shard)
        if up:
            self._guarded(lambda: self.cluster.servers.bring_up(shard))
            self._guarded(self.cluster.check)

    @rule(
        shard=st.sampled_from(SHARDS),
        what=st.sampled_from(["pause", "unpause", "pause class", "unpause class", "break", "repair"]),
        which=WHICH,
    )
    def operate(self, shard: str, what: str, which: int) -> None:
        """Pause or resume a queue or a class; create or remove a key of a wrong type."""
        queue, key = QUEUES[which % len(QUEUES)], _WRONG_TYPE_KEYS[which % len(_WRONG_TYPE_KEYS)]
        flag = pause_flag(CLASSES[which % len(CLASSES)])
        acts: dict[str, Callable[[Any], Any]] = {
            "pause": lambda client: client.sadd(keys.PAUSED, queue),
            "unpause": lambda client: client.srem(keys.PAUSED, queue),
            "pause class": lambda client: set_flag(client, Flag(flag, 100.0), None),
            "unpause class": lambda client: unset_flag(client, flag),
            "break": lambda client: self.cluster.servers.break_key(client, key, on=True),
            "repair": lambda client: self.cluster.servers.break_key(client, key, on=False),
        }
        self._operate(shard, acts[what])

    @rule(
        shard=st.sampled_from(SHARDS),
        what=WHICH,
        where=st.sampled_from([keys.RETRY, keys.SCHEDULE, "queue", "working"]),
    )
    def corrupt(self, shard: str, what: int, where: str) -> None:
        """Write malformed bytes into a queue, a set, or a working list."""
        self.number += 1
        data = GARBAGE[what % len(GARBAGE)](self.number)
        owner = one_of([worker for worker in self.cluster.workers if worker.shard == shard], what)
        key = {"queue": "queue:a", "working": keys.working(owner.identity) if owner else "queue:b"}.get(where, where)
        self._operate(shard, lambda client: self.cluster.servers.inject(client, key, data))

    @rule(shard=st.sampled_from(SHARDS), key=st.sampled_from([keys.DEAD, keys.INTERRUPTED]), which=WHICH)
    def retry_by_hand(self, shard: str, key: str, which: int) -> None:
        """Retry a dead job, as an operator does."""
        self._operate(shard, lambda client: self.cluster.servers.revive(client, key, which))

    def _operate(self, shard: str, act: Callable[[Any], Any]) -> None:
        if self.cluster.servers.is_up(shard):
            with suppress(OutOfMemoryError):
                act(self.cluster.servers.clients[shard])
            self._guarded(lambda: self.cluster.check(operator=True))

    def _worker(self, which: int) -> Worker | None:
        return one_of(self.cluster.awake(), which)


def machine_on(cluster: SimulatedCluster) -> type[States]:
    """Return the machine on these servers."""
    return type("States", (States,), {"cluster": cluster, "__module__": __name__})
