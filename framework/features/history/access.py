"""Open the database of the history at its first use: importing this module loads no SQLAlchemy."""

from importlib import import_module
from typing import Any

from framework.features.tasks.access import load_part


def load_rollup() -> Any:
    """Import the module that loads SQLAlchemy.

    Raises:
        TaskError: the extra tasks is not installed.
    """
    load_part("database")
    return import_module(f"{__package__}.rollup")
