"""A processor with real parts on a real server, and policies that follow a script."""

import json
import os
import tempfile

from framework.application_worker import ApplicationWorker
from framework.execute.admission import AdmissionChain
from framework.execute.cancellation import Cancellations
from framework.execute.decoding import PayloadDecoder
from framework.execute.event_loop import EventLoop
from framework.execute.execution import Executor
from framework.execute.job_log import JobLog
from framework.execute.policy_decision import GroupAdmission
from framework.execute.processor import Processor
from framework.execute.stats import RunningJobs
from framework.execute.threads import WorkerThreads
from framework.features.isolation.worker import IsolatedRuns
from framework.features.iteration.store import Iterations
from framework.fetch.fetcher import Fetcher
from framework.fetch.queues import QueueOrder
from framework.finish.report import Handlers
from framework.finish.retry import RetryPolicy
from framework.finish.settle import Settler
from framework.finish.status_writer import StatusWriter
from framework.middleware.chain import SERVER, Chain
from framework.push.argument_checks import StrictArgumentsCheck
from framework.recover.suspects import SuspectRunner
from framework.store.channel import ChannelPool
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.telemetry.logs import ServerLog
from framework.wire import keys
from framework.wire.keys import SetLimits
from tests.harness import IDENTITY, opened, until

WORKING = keys.working(IDENTITY)


class ProcessorBench:
    """A processor on a real server, which keeps its events in lists. ``options`` are those of the executor."""

    def __init__(self, redis, url, slots, middleware, policies=(), budget=None, **options):
        self.redis = redis
        redis.set(keys.lease(IDENTITY), 1, px=60_000)
        self.release_errors: list[str] = []
        self.failed, self.bad, self.fenced_units, self.settle_errors, self.died, self.fetch_errors = (
            [] for _ in range(6)
        )
        self.shard = opened(url)
        client = self.shard.open_client("fetch", read_timeout_s=COMMAND_TIMEOUT_S)
        order = QueueOrder.of([("default", 0)])
        self.fetcher = Fetcher(client, IDENTITY, order, slots, self, SetLimits(100, 3600.0))
        self.loop = EventLoop()
        self.cancellations = Cancellations(self.shard.client, None, self.loop)
        self.runs = RunningJobs(self.cancellations)
        self.runs.show(self.fetcher.in_flight)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
        self.server_log = ServerLog(self._file.fileno(), "info", {"shard": "main"})
        log = JobLog(self.server_log, jobs=True)
        chain = Chain(SERVER)
        for one in middleware:
            chain.add(one)
        self.suspect_runner = suspect_runner = SuspectRunner(self.shard.client, IDENTITY, slots)
        self.unwritten_states, self.unknown = [], []
        states = StatusWriter(self.shard, lambda *facts: self.unwritten_states.append(facts))
        self.pool = WorkerThreads(self.fetcher)
        self.policies = AdmissionChain(policies)
        decoding = PayloadDecoder(self.runs, 10_000 if budget is None else 10_000_000, budget=budget)
        parts = (
            chain.compile(),
            log,
            self.runs,
            decoding,
            self.pool,
            suspect_runner,
            StrictArgumentsCheck(),
        )
        together = GroupAdmission(
            ChannelPool(self.shard.client, read_timeout_s=COMMAND_TIMEOUT_S),
            IDENTITY,
            self.fetcher,
            decoding,
            self.policies,
        )
        options.setdefault("detached", IsolatedRuns(log, self.runs))
        options.setdefault("cursors", Iterations(self.shard.client, IDENTITY, self.runs))
        executor = Executor(*parts, admission=self.policies, together=together, **options)
        self.handlers = Handlers(self)
        settler = Settler(
            self.shard.client, IDENTITY, self, RetryPolicy(), SetLimits(), lambda: None, status_writer=states
        )
        self.processor = Processor(self.fetcher, self.pool, executor, settler, log, self.runs, self.loop, self)

    def job_failed(self, error, facts):
        self.failed.append(error)

    def malformed(self, unit, error):
        self.bad.append(unit)

    def unknown_class(self, unit, payload, outcome):
        self.unknown.append(payload["class"])

    def fenced(self, unit):
        self.fenced_units.append(unit)

    def settle_failed(self, unit, error):
        self.settle_errors.append(error)

    def hook_failed(self, what, error):
        self.died.append((what, error))

    def trimmed(self, count, source):
        pass

    def component_died(self, component, error):
        self.died.append((component, error))

    def queue_wrong_type(self, queue):
        raise AssertionError(queue)

    def release_failed(self, error):
        self.release_errors.append(error)

    def lease_lost(self):
        pass

    def pipeline_failed(self, error, count):
        self.errors.append(error)

    def fetch_failed(self, error):
        self.fetch_errors.append(error)

    def redis_answered(self, *facts):
        pass

    def recovered(self, job):
        pass

    def start(self):
        self.processor.start()
        return self

    def lines(self, **wanted):
        assert self.server_log.writer.flush(timeout_s=20)
        found = [json.loads(line) for line in os.pread(self._file.fileno(), 1 << 24, 0).splitlines()]
        return [line for line in found if all(line.get(name) == value for name, value in wanted.items())]

    def done(self):
        """Return whether every job has ended and is acknowledged."""
        # At one instant: a job that waited for 10 ms returns to its queue.
        places = self.redis.pipeline(transaction=True).llen("queue:default").llen(WORKING).execute()
        return not any(places) and not self.fetcher.in_flight.payloads()

    def threads(self):
        return len(self.pool._threads)

    def end_threads(self):
        self.processor.stop()
        self.processor.cancel_async(5.0)
        self.processor.stop_settling()
        until(lambda: self.processor.join(0.1), "the end of every thread")

    def stop(self):
        self.end_threads()
        self.fetcher._leader._blocking.close()
        self.fetcher._state.wake_up.close()
        self.fetcher._pipeline._call.close()
        self.fetcher._leader._client.close()
        self.shard.close()
        self.server_log.writer.close()
        self._file.close()


class ScriptedPolicy:
    """A policy with scripted answers; each is used once, the last for ever."""

    def __init__(self, *answers, concerned=lambda declaration: True):
        self.answers = list(answers)
        self.asked_of = []
        self.entries = []
        self.concerned = concerned

    def applies_to(self, declaration):
        self.asked_of.append(declaration.wire_name)
        return self.concerned(declaration)

    def admit(self, entry):
        self.entries.append(entry)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer(entry) if callable(answer) else answer


def worker(perform, **attributes):
    body = {"feature_category": "not_owned", "wire_name": "Job", "perform": perform}
    return type(attributes.get("wire_name", "Job"), (ApplicationWorker,), {**body, **attributes})


def state(redis, jid):
    found = redis.get(keys.status(jid))
    return found and found.decode()
