"""``simulate``: predict what a fleet does under a scenario, without any Redis."""

from collections.abc import Sequence
from pathlib import Path

import click

from framework.features.reliable_push.settings import ReliablePushSettings
from framework.features.simulation.engine import Simulation, SimulationResult
from framework.features.simulation.model import build_model
from framework.features.simulation.page import page_of
from framework.features.simulation.recorded import read_jobs
from framework.features.simulation.report import SimulationReport, report_of, text_of
from framework.features.simulation.scenario import FleetScenario, read_scenario
from framework.terminal.options import json_option, modules_option
from framework.terminal.output import display_path, echo, echo_json, echo_lines, reports_errors, write_all
from framework.terminal.project import load_project


@click.command("simulate", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("scenarios", metavar="[SCENARIO...]", nargs=-1, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--logs",
    metavar="FILE",
    multiple=True,
    help="Run the jobs of these log lines again, as they came and as long as they took. A pattern, or - for stdin. Repeatable.",
)
@click.option(
    "--page", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write charts into a page."
)
@json_option
@modules_option
@reports_errors
def simulate(
    scenarios: Sequence[Path], *, logs: Sequence[str], page: Path | None, as_json: bool, modules: Sequence[str]
) -> None:
    """Predict waiting times, backlogs, processes and Redis's load of scenarios.

    A SCENARIO is a file of YAML: jobs a second by class, how long they take, processes, and changes meanwhile, such as a limit, an
    outage or a deploy. Routes, weights, limits, urgencies and fairness are those of this installation. No Redis is used. Several
    scenarios are shown one after the other. Give --logs, a scenario, or both: a scenario without `classes` changes the fleet
    for recorded jobs.

    Status 78: a scenario is wrong, or the lines have no ended job.
    """
    if not scenarios and not logs:
        raise click.UsageError("give a SCENARIO, --logs FILE, or both. See --help.")
    project = load_project(modules)
    recorded = read_jobs(logs) if logs else []
    keeps = ReliablePushSettings.of(project.settings).reliable_push.enabled
    given = [read_scenario(path) for path in scenarios] or [FleetScenario()]
    models = [build_model(project, one, recorded, keeps_pushes=keeps) for one in given]
    found: list[tuple[SimulationReport, SimulationResult]] = []
    for model in models:
        if not as_json:
            echo(f"simulating {model.scenario.name or 'recorded jobs'}: {model.seconds:,.0f} s", err=True)
        result = Simulation(model).run()
        found.append((report_of(result), result))
    if page is not None:
        write_all({page: page_of(found)})
        echo(f"wrote {display_path(page.absolute())}", err=True)
    if as_json:
        echo_json({"scenarios": [report.as_json() for report, _ in found]})
        return
    for number, (report, _) in enumerate(found):
        echo_lines([*([""] if number else []), *text_of(report)])
