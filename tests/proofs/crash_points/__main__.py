"""Run cases on request for the suite. A test process has threads and cannot fork; this one has none.

A line of JSON on standard input is a request, a line on standard output its answer: ``{"ask": "commands"}``;
``{"scenario": NAME, "way": WAY, "commands": LIST, "part": [FIRST, STEP]}``, with the commands that are expected of the smallest
batch, and which of the cases run: each ``STEP``-th from the ``FIRST`` on;
``{"scenario": NAME, "batch": N, "way": WAY, "recovered": COMMAND}``, the double faults whose first fault is at the first of
these commands. It ends with its standard input.
"""

import gc
import json
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from framework.telemetry import logs
from tests.proofs.crash_points.cases import Case, CaseRunner, Verdict, folded
from tests.proofs.crash_points.environment import CaseEnvironment
from tests.proofs.crash_points.scenarios import SCENARIOS
from tests.proofs.crash_points.wire import Fault


def answer(runner: CaseRunner, request: dict[str, Any]) -> Any:
    """Return the answer to one request."""
    if request.get("ask") == "commands":
        return {
            name: {str(batch): runner.commands(name, batch) for batch in one.batches} for name, one in SCENARIOS.items()
        }
    name, way = request["scenario"], request["way"]
    if "recovered" in request:
        at = runner.commands(name, request["batch"]).index(request["recovered"]) + 1
        case = Case(name, request["batch"], Fault(at, way))
        first = runner.run_case(case)
        doubles = [
            Case(name, case.batch, case.fault, Fault(at, way))
            for at in folded(first.recoverer, whole=False)
            for way in ("die before", "die sent")
        ]
        return _summary([first, *map(runner.run_case, doubles)])
    runner.expect(name, request["commands"])
    cases = [case for batch in SCENARIOS[name].batches for case in runner.cases(name, batch, (way,), suite=True)]
    first, step = request["part"]
    return _summary(map(runner.run_case, cases[first::step] or cases[:1]))


def _summary(verdicts: Iterable[Verdict]) -> dict[str, Any]:
    cases = list(verdicts)
    faulted = {one.commands[one.case.fault.at - 1] for one in cases if one.case.fault and not one.problems}
    return {
        "cases": len(cases),
        "faulted": sorted(faulted),
        "broken": [one.counterexample for one in cases if one.problems],
    }


environment = CaseEnvironment(Path(sys.argv[1]))
try:
    logs.logger()  # loads structlog here, and not in each of thousands of forked processes
    runner = CaseRunner(environment)
    gc.freeze()
    for line in sys.stdin:
        try:
            reply: Any = answer(runner, json.loads(line))
        except Exception:  # noqa: BLE001 - the tests after this one go on
            reply = {"cases": 0, "faulted": [], "broken": [traceback.format_exc()]}
        print(json.dumps(reply), flush=True)
finally:
    environment.close()
