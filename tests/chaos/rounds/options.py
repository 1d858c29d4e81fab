"""Define the command line of ``scripts/chaos``."""

import argparse

TRACKED = "tracked"
"""The round of recorded jobs. It has a shape and an account of its own (``tracked_round.py``)."""
ROUNDS = ("kill", "freeze", "rolling", "redis", "network", "failover", "mixed", "limits", "guards", "calls")
MODES = ("bare", "cluster", "kept", "cut", "plain", "witnessed", "single", "sentinels", "calm", "kills")


def parse(doc: str | None) -> argparse.Namespace:
    """Return the options; ``options.command`` is ``run`` (or its older name ``kill``) or ``idle``."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="run|idle")
    _add_run(commands.add_parser("run", aliases=["kill"], help="break processes, Redis and the network, then count"))
    _add_idle(commands.add_parser("idle", help="watch an idle process"))
    options = parser.parse_args()
    for name, value in vars(options).items():
        if isinstance(value, int | float) and name not in ("seed", "settle") and value <= 0:
            parser.error(f"--{name.replace('_', '-')} must be more than 0")
    return options


def has_tracked(options: argparse.Namespace) -> bool:
    """Return whether the round of recorded jobs is asked for."""
    return not options.round or bool({TRACKED, "all"} & set(options.round))


def _add_run(run: argparse.ArgumentParser) -> None:
    rounds = (*ROUNDS, TRACKED, "all")
    run.add_argument(
        "--round", choices=rounds, action="append", help="repeatable; default: all", metavar="|".join(rounds)
    )
    run.add_argument(
        "--mode",
        choices=(*MODES, "both"),
        default="both",
        help="of rounds with several modes only this",
        metavar="MODE",
    )
    run.add_argument(
        "--processes", type=int, default=None, metavar="N", help="workers of the faulty shard (default 3; limits: 5)"
    )
    run.add_argument("--concurrency", type=int, default=10, metavar="N", help="jobs at a time per process (default 10)")
    run.add_argument(
        "--jobs", type=int, default=100_000, metavar="N", help="jobs per round, of 1 to 10 ms (default 100,000)"
    )
    run.add_argument(
        "--other-jobs", type=int, default=None, metavar="N", help="jobs of the control shard (default a fifth)"
    )
    run.add_argument(
        "--every", type=float, default=None, metavar="S", help="pause between two kills (default 0.7; limits: 2)"
    )
    run.add_argument("--seconds", type=float, default=60.0, metavar="S", help="how long jobs are pushed (default 60)")
    run.add_argument(
        "--settle", type=float, default=45.0, metavar="S", help="longest wait for dead names to go (default 45)"
    )
    run.add_argument("--seed", type=int, default=None, metavar="N", help="repeat the choices of an earlier run")
    run.add_argument("--out", metavar="FILE.json", help="write the report there, too")


def _add_idle(idle: argparse.ArgumentParser) -> None:
    idle.add_argument("--seconds", type=float, default=60.0, metavar="S", help="how long to watch (default 60)")
    idle.add_argument("--queues", type=int, default=1, metavar="N", help="queues it serves (default 1)")
    idle.add_argument("--concurrency", type=int, default=10, metavar="N", help="jobs at a time (default 10)")
