"""``application-worker``: every command of the framework under one name."""

import click

from framework.cli.attributes import attributes
from framework.cli.check_compat import check_compat
from framework.cli.cluster import cluster
from framework.cli.generate_queues import generate_queues
from framework.cli.jobs import jobs
from framework.cli.lint_workers import lint_workers
from framework.cli.migrate_jobs import migrate_jobs
from framework.cli.retired import retired
from framework.cli.route import route
from framework.cli.store import store
from framework.cli.worker import worker
from framework.version import VERSION


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="application-worker")
def main() -> None:
    """Run and look after workers."""


for command in (
    worker,
    cluster,
    generate_queues,
    route,
    attributes,
    lint_workers,
    check_compat,
    retired,
    migrate_jobs,
    jobs,
    store,
):
    main.add_command(command)
