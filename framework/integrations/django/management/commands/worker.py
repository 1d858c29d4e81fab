"""``manage.py worker``: run a worker process with the jobs of all installed apps."""

import argparse
from typing import Any

from django.core.management.base import BaseCommand

from framework.cli.worker import worker

_ALL_JOBS = "framework.integrations.django.all_jobs"
_OPTIONS_OF_MODULES = ("-r", "--require")


class Command(BaseCommand):
    """Run ``application-worker worker`` within Django. It takes the options of that command."""

    help = "Run a worker process with the jobs of all installed apps. Options: manage.py worker --help"

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command with the options that are not Django's."""
        _, options = _django_options().parse_known_args(argv[2:])
        self.execute_worker(options, f"{argv[0]} {argv[1]}")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run it from ``call_command("worker")``, without options."""
        del args, options
        self.execute_worker([], "worker")

    def execute_worker(self, options: list[str], program: str) -> None:
        """Run the command, with all jobs unless ``options`` name other modules. It ends by SystemExit."""
        named = any(one.startswith(_OPTIONS_OF_MODULES) for one in options)
        worker.main(args=options if named else [*options, "-r", _ALL_JOBS], prog_name=program)


def _django_options() -> argparse.ArgumentParser:
    """Return a parser of the options that every command of ``manage.py`` has. ``manage.py`` has already applied them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--settings", "--pythonpath", "--verbosity"):
        parser.add_argument(name)
    for name in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
        parser.add_argument(name, action="store_true")
    return parser
