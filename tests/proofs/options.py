"""Define the command line of ``scripts/prove``: one sub-command per proof, run by ``run`` of the module of its name."""

import argparse
import os
from pathlib import Path


def parse(doc: str | None) -> argparse.Namespace:
    """Return the options; ``options.proof`` is the module to run."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    proofs = parser.add_subparsers(dest="proof", required=True, metavar="PROOF")

    matrix = proofs.add_parser("matrix", help="the tables of docs/internals/reliability.md: which row a test shows")
    matrix.add_argument("--tests", action="store_true", help="print the tests of each row")
    matrix.add_argument("--write", action="store_true", help="write them into the page")
    matrix.add_argument("--check", action="store_true", help="status 1 when the page is not as it should be")

    history = proofs.add_parser("history", help="replay append-only files: was a job in no key after any command?")
    history.add_argument(
        "places", nargs="*", type=Path, metavar="PLACE",
        help="data folders, appendonlydirs or files of the shards of one installation (default: a history is made)",
    )  # fmt: skip
    history.add_argument("--run", type=float, default=20.0, metavar="S", help="seconds of the one made (default 20)")
    history.add_argument("--seed", type=int, default=None, metavar="N", help="repeat the choices of an earlier run")

    prefixes = proofs.add_parser("prefixes", help="Redis dies at any byte of its append-only file: is anything lost?")
    prefixes.add_argument(
        "history", nargs="?", type=Path, metavar="PLACE", help="a data folder (default: a history is made)"
    )
    prefixes.add_argument("--cuts", type=int, default=200, metavar="N", help="how many prefixes (default 200)")
    prefixes.add_argument("--seed", type=int, default=None, metavar="N", help="repeat the choices of an earlier run")

    kills = proofs.add_parser("kills", help="kill jobs in flight by the thousand, and account for each")
    kills.add_argument("--jobs", type=int, default=100_000, metavar="N", help="jobs to kill (default 100,000)")
    kills.add_argument("--mode", choices=("cluster", "bare"), default="cluster", help="what notices a death: scripts/cluster, "
                       "or the other processes when the lease has run out (default cluster)")  # fmt: skip
    kills.add_argument("--processes", type=int, default=3, metavar="N", help="worker processes (default 3)")
    kills.add_argument(
        "--concurrency", type=int, default=2_000, metavar="N", help="threads or async jobs of each (default 2,000)"
    )
    kills.add_argument("--seed", type=int, default=None, metavar="N", help="repeat the choices of an earlier run")
    kills.add_argument("--keep-history", action="store_true", help="keep each command, for `scripts/prove history`")

    drain = proofs.add_parser(
        "drain", help="threads take turns at every step: does a thread of the framework die, is a job lost?"
    )
    drain.add_argument("--jobs", type=int, default=100_000, metavar="N", help="jobs that do nothing (default 100,000)")
    drain.add_argument("--processes", type=int, default=2, metavar="N", help="worker processes (default 2)")
    drain.add_argument(
        "--concurrency", type=int, default=25, metavar="N", help="threads or async jobs of each (default 25)"
    )
    drain.add_argument("--switch-interval", type=float, default=1e-6, metavar="S", help="seconds until the interpreter lets "
                       "another thread on (default 0.000001; Python's own is 0.005)")  # fmt: skip
    drain.add_argument("--kills", action="store_true", help="a process is killed with -9 every few seconds")
    drain.add_argument("--seed", type=int, default=None, metavar="N", help="repeat the choices of an earlier run")

    states = proofs.add_parser("states", help="histories of whole processes, one command at a time, made by hypothesis")
    states.add_argument("--examples", type=int, default=2_000, metavar="N", help="histories (default 2,000)")
    states.add_argument("--steps", type=int, default=60, metavar="N", help="steps of each (default 60)")
    states.add_argument("--seed", type=int, default=None, metavar="N", help="repeat the choices of an earlier run")
    states.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="at a time (default: one a core)"
    )

    mutants = proofs.add_parser("mutants", help="wrong versions of the core: does the suite catch each?")
    mutants.add_argument("--only", action="append", default=[], metavar="NAME", help="m4, for example; may be repeated")
    mutants.add_argument("--fast", action="store_true", help="the first test of each, as in the suite")

    fuzz = proofs.add_parser("fuzz", help="malicious inputs: does anything but typed errors come out?")
    fuzz.add_argument("--inputs", type=int, default=1_000_000, metavar="N", help="how many (default 1,000,000)")
    fuzz.add_argument("--target", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    fuzz.add_argument("--seed", type=int, default=None, metavar="N", help="repeat the inputs of an earlier run")
    fuzz.add_argument("--case", type=int, default=None, metavar="N", help="the one input of this number of the target")

    points = proofs.add_parser("points", help="kill, or cut off, a process at each single command that it sends")
    points.add_argument("--only", action="append", default=[], metavar="SCENARIO", help="this one; may be given again")
    points.add_argument("--batch", type=int, action="append", default=[], metavar="N", help="so many jobs at once; may be "
                        "given again (default: those of each scenario, 1 and 8)")  # fmt: skip
    points.add_argument("--at", type=int, default=None, metavar="N", help="only at the command of this number")
    points.add_argument("--rounds", type=int, default=0, metavar="N", help="rounds of double faults: in round k the process that "
                        "recovers the jobs dies at its k-th command (default 0)")  # fmt: skip

    limit = proofs.add_parser(
        "limit", help="five at a time, fifty threads, a kill every 2 s: the jobs that run, and the cost"
    )
    limit.add_argument(
        "--seconds", type=float, default=30.0, metavar="S", help="each half, without and with kills (default 30)"
    )
    limit.add_argument("--seed", type=int, default=None, metavar="N", help="repeat the choices of an earlier run")

    return parser.parse_args()
