"""``scripts/chaos run``: run all rounds, each with two shards and worker processes of its own, then print the tables and the
pictures.
"""

import argparse
import json
import os
import random
import secrets
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import framework
from demo.folder import RunFolder
from demo.stop import StopSignal
from framework import ApplicationWorker
from framework.store.embedded import LONGEST_SOCKET_PATH
from tests.chaos.rounds import guard_load, report
from tests.chaos.rounds.account import account
from tests.chaos.rounds.call_load import CallLoad
from tests.chaos.rounds.effects import ENDED, FOLDER, Effects
from tests.chaos.rounds.faults import FaultInjector
from tests.chaos.rounds.guard_load import GuardLoad
from tests.chaos.rounds.impact import impact
from tests.chaos.rounds.jobs import (
    LOCKED,
    SEALED,
    SEPARATE,
    ControlWorker,
    KeyedWorker,
    LimitedWorker,
    LockedWorker,
    SealedWorker,
    SeparateWorker,
    StampWorker,
)
from tests.chaos.rounds.options import TRACKED, has_tracked
from tests.chaos.rounds.plan import Round, planned
from tests.chaos.rounds.policy_load import PolicyLoad
from tests.chaos.rounds.producer import Load, Producer
from tests.chaos.rounds.round_result import RoundResult
from tests.chaos.rounds.round_shard import RoundShard
from tests.chaos.rounds.running_round import RunningRound
from tests.chaos.rounds.stores import SingleStore, Store
from tests.chaos.rounds.timeline import Timeline, drawn
from tests.chaos.rounds.tracked_round import run_tracked_round
from tests.chaos.rounds.worker_processes import BareProcesses, ClusterProcesses, WorkerProcesses
from tests.proofs import leftover_keys
from tests.proofs.end_marks import STORES
from tests.servers.guarded import credentials, lacking

HELD, BROKEN, INTERRUPTED = 0, 1, 130

FAULTY, CONTROL = "main", "control"
"""The two shards: one with faults, one without."""

NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})

_STEP_S, _BURST_S = 0.05, 0.25
"""The time between two batches of pushes. Where servers forget, jobs are pushed in bursts: a job that never waits is
never forgotten.
"""

_FOREIGN = ("FRAMEWORK_", "REDIS_URL")
_LONGEST_NAME = "00-failover-witnessed"
_WORKER_PROCESSES: dict[str, type[WorkerProcesses]] = {"bare": BareProcesses, "cluster": ClusterProcesses}


def run(root: Path, options: argparse.Namespace, stop: StopSignal) -> int:
    """Run the rounds, print the tables, write ``report.json``; return the exit status."""
    parent = Path(os.environ.get("FRAMEWORK_VAR_DIR") or root / "var").resolve() / "chaos"
    folder = RunFolder(parent).path
    if len(os.fsencode(folder / _LONGEST_NAME / CONTROL / "server.sock")) > LONGEST_SOCKET_PATH:
        print(f"scripts/chaos: {folder} is too long a path for a socket; set FRAMEWORK_VAR_DIR", file=sys.stderr)
        return 2
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    print(f"Seed {seed}; logs, effects and pictures under {os.path.relpath(folder)}", flush=True)
    clear_environment()
    outcomes, failed = _rounds(root, folder, options, seed, stop)
    over = stop.asked or failed or not has_tracked(options)
    tracked_held = over or _tracked(folder / TRACKED, options, seed, stop)
    paths = [folder / "report.json", parent / "report.json", *([Path(options.out)] if options.out else [])]
    report.write(outcomes, options, seed, paths, failed)
    report.show(outcomes, failed)
    if stop.asked:
        return INTERRUPTED
    return HELD if tracked_held and not failed and all(outcome.held for outcome in outcomes) else BROKEN


def _rounds(
    root: Path, folder: Path, options: argparse.Namespace, seed: int, stop: StopSignal
) -> tuple[list[RoundResult], list[str]]:
    """Run the rounds; return the results, and the name of the round that failed with an error, which is the last."""
    outcomes: list[RoundResult] = []
    for number, chosen in enumerate(planned(options)):
        place = folder / f"{number}-{chosen.name}-{chosen.mode}".replace(" ", "-")
        try:
            outcomes.append(_round(root, place, chosen, options, seed, stop))
        except Exception:  # noqa: BLE001 - the rounds before this one took minutes, and have an account
            traceback.print_exc()
            return outcomes, [f"{chosen.name}, {chosen.mode}"]
        if stop.asked:
            break
    return outcomes, []


def _tracked(folder: Path, options: argparse.Namespace, seed: int, stop: StopSignal) -> bool:
    """Run the round of recorded jobs, and print its account; return whether it held its promises."""
    folder.mkdir()
    print(f"\nRound {TRACKED}: {options.jobs:,} jobs", flush=True)
    try:
        account = run_tracked_round(folder, options.jobs, random.Random(f"{seed} {TRACKED}"), lambda: stop.asked)
    except (AssertionError, pytest.fail.Exception) as error:
        print(f"Round {TRACKED} broke a promise: {error}", flush=True)
        return False
    except pytest.skip.Exception as skipped:
        print(f"Round {TRACKED} did not run: {skipped}", flush=True)
        return True
    (folder / "account.json").write_text(json.dumps(account, indent=1))
    print("\n".join(f"{name}: {found}" for name, found in account.items()), flush=True)
    return True


def clear_environment() -> None:
    """Remove the settings of the calling environment."""
    for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
        del os.environ[name]


@contextmanager
def configured(
    folder: Path, shards: dict[str, Any], rules: list[list[Any]], application: Mapping[str, Any] = NO_SETTINGS
) -> Iterator[None]:
    """Let this process push to these shards, and its children too."""
    config = folder / "config"
    config.mkdir()
    (config / "redis.yml").write_text(json.dumps({"shards": shards}))  # JSON is YAML
    (config / "routing.yml").write_text(json.dumps({"routing_rules": rules}))
    (config / "application.yml").write_text(json.dumps(dict(application)))
    os.environ["FRAMEWORK_CONFIG_DIR"] = str(config)
    os.environ["FRAMEWORK_LOGGING__JOBS"] = "false"
    framework.boot()
    yield
    clear_environment()


def environment(
    root: Path, effects: Path, marks: str = "", shards: Sequence[str] = (FAULTY, CONTROL)
) -> dict[str, str]:
    """Return the environment of the workers, with the rights of their role; children of a supervisor find the modules
    by it.
    """
    rights = {
        f"FRAMEWORK_SHARDS__{shard}__{key}".upper(): value
        for shard in shards
        for key, value in credentials("worker").items()
    }
    found = {**os.environ, **rights, "PYTHONPATH": str(root), FOLDER: str(effects)}
    return found | ({STORES: marks} if marks else {})


def _round(
    root: Path, folder: Path, chosen: Round, options: argparse.Namespace, seed: int, stop: StopSignal
) -> RoundResult:
    folder.mkdir()
    rng = random.Random(f"{seed} {chosen.name} {chosen.mode}")
    with ExitStack() as stack:
        store = stack.enter_context(chosen.store(folder / FAULTY))
        other = stack.enter_context(SingleStore(folder / CONTROL))
        shards = {FAULTY: dict(store.settings), CONTROL: dict(other.settings)}
        rules = [["worker_name=ControlWorker", None, CONTROL], ["*", None]]
        more = _settings(chosen, folder)
        stack.enter_context(configured(folder, shards, rules, more))
        load = _load(chosen, options)
        processes = options.processes or chosen.processes
        worker = StampWorker if chosen.per_second is None else LimitedWorker
        faulty = _round_shard(root, folder, FAULTY, store, worker, load, chosen, processes, options, rng)
        other_load = Load(options.other_jobs or max(1, load.jobs // 5), options.seconds, head_start=0.0)
        control = _round_shard(root, folder, CONTROL, other, ControlWorker, other_load, chosen, 1, options, rng)
        injector = FaultInjector(
            faulty, chosen.faults, chosen.pause_s, rng, at_once=chosen.at_once, rest_s=chosen.rest_s
        )
        print(f"\nRound {chosen.name} ({chosen.mode}): {load.jobs:,} jobs, {processes} processes", flush=True)
        policy_load = None if chosen.per_second is None else _policy_load(faulty, folder / FAULTY / "effects", options)
        guards = _guard_load(faulty, folder, options) if chosen.guards else None
        calls = CallLoad(options.seconds, rng) if chosen.calls else None
        running = RunningRound(faulty, control, injector, options.seconds, policy_load, guards, calls)
        try:
            running.run(stop)
            if not stop.asked:
                leftover_keys.settle(store.client, options.settle, processes)
        finally:
            for round_shard in running.round_shards:
                round_shard.stop()
        outcome = _outcome(chosen, running, options, load.jobs, folder)
        (folder / "timeline.svg").write_text(drawn(_timeline(outcome, running)))
        return outcome


def _settings(chosen: Round, folder: Path) -> Mapping[str, Any]:
    if chosen.guards:
        return guard_load.settings(folder)
    return guard_load.signed_settings() if chosen.calls else guard_load.key_settings()


def _load(chosen: Round, options: argparse.Namespace) -> Load:
    """Return so many jobs that some wait until the last second, where a limit holds them; else the requested number."""
    if chosen.per_second is not None:
        jobs = min(options.jobs, int(options.seconds * chosen.per_second))
        return Load(jobs, options.seconds / 2, least_ms=30, most_ms=50)
    return Load(options.jobs, options.seconds, long=chosen.long, step_s=_BURST_S if chosen.forgets else _STEP_S)


def _policy_load(round_shard: RoundShard, effects: Path, options: argparse.Namespace) -> PolicyLoad:
    policy_load = PolicyLoad(KeyedWorker, round_shard.store.client, effects, options.seconds, round_shard.rng)
    policy_load.open()
    return policy_load


def _round_shard(
    root: Path, folder: Path, shard: str, store: Store, worker: type[ApplicationWorker], load: Load,
    chosen: Round, processes: int, options: argparse.Namespace, rng: random.Random,
) -> RoundShard:  # fmt: skip
    effects = folder / shard / "effects"
    effects.mkdir()
    marks = "" if chosen.forgets and shard == FAULTY else store.marks
    workers = _WORKER_PROCESSES[chosen.supervision](
        root, folder / shard / "logs", environment(root, effects, marks), shard=shard, queue=str(worker.queue),
        processes=processes, concurrency=options.concurrency, timeout_s=chosen.timeout_s,
    )  # fmt: skip
    witness = store.witness if chosen.witnessed and shard == FAULTY else None
    return RoundShard(store, workers, Producer(worker, load, rng, witness), Effects(effects), rng)


def _guard_load(round_shard: RoundShard, folder: Path, options: argparse.Namespace) -> GuardLoad:
    workers = {LOCKED: LockedWorker, SEALED: SealedWorker, SEPARATE: SeparateWorker}
    return GuardLoad(workers, folder, options.seconds, round_shard.rng)


def _outcome(chosen: Round, running: RunningRound, options: argparse.Namespace, jobs: int, folder: Path) -> RoundResult:
    faulty, control, injections = running.faulty, running.control, running.injector.injections
    clients = {FAULTY: faulty.store.client, CONTROL: control.store.client}
    return RoundResult(
        name=chosen.name,
        mode=chosen.mode,
        supervision=chosen.supervision,
        jobs=jobs,
        slots=options.concurrency,
        seconds=time.monotonic() - running.started,
        faulty=faulty,
        control=control,
        injections=injections,
        account=account(
            faulty.producer.accepted_pushes, faulty.seen, injections, faulty.producer.doubtful, faulty.store.fetchers()
        ),
        account_control=account(control.producer.accepted_pushes, control.seen, [], control.producer.doubtful),
        impact=impact(
            control.producer.pushed_at, control.seen, injections, running.started, running.started + running.seconds
        ),
        set_aside=leftover_keys.set_aside(faulty.store.client) | leftover_keys.set_aside(control.store.client),
        histories=[
            history for round_shard in running.round_shards if (history := round_shard.store.history()) is not None
        ],
        refused=lacking([*faulty.store.refusals(), *control.store.refusals()]),
        keys_left=[*leftover_keys.leaks(faulty.store.client), *leftover_keys.leaks(control.store.client)],
        policy_load=running.policy_load.found(faulty.seen, faulty.aside, injections, running.calm_s)
        if running.policy_load
        else None,
        guards=running.guard_load.found(faulty.aside, injections, clients, folder / FAULTY)
        if running.guard_load
        else None,
        calls=running.call_load.found(faulty.aside, injections, clients[FAULTY]) if running.call_load else None,
    )


def _timeline(outcome: RoundResult, running: RunningRound) -> Timeline:
    ends = [[effect.at for effect in round_shard.seen if effect.kind == ENDED] for round_shard in running.round_shards]
    found = outcome.account
    return Timeline(
        title=f"Round {outcome.title}: {outcome.jobs:,} jobs, {len(outcome.injections)} injections, {len(found.lost)} lost",
        facts=f"{found.interrupted:,} runs cut off, {found.repeated:,} extra runs, "
        f"{len(found.forgotten):,} jobs forgotten with their server",
        since=running.started,
        until=max([running.started + running.seconds, *ends[0][-1:]]),
        faulty=ends[0],
        control=ends[1],
        injections=outcome.injections,
        lives=list(running.faulty.workers.lives.values()),
        recoveries=found.spans,
    )
