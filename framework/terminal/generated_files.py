"""Write the files that a command makes for an installation, and overwrite no file of another origin."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from framework.command_line import EXIT_FAILED
from framework.terminal.output import display_path, echo, write_all


def mark_of(command: str) -> str:
    """Return the first line of each file that ``application-worker COMMAND`` writes."""
    return f"# Written by application-worker {command}. It overwrites this file: change its options instead.\n"


def write_generated(texts: Mapping[Path, str], is_own: Callable[[Path], bool]) -> None:
    """Write the files that changed, and print what became of each.

    A file for which ``is_own`` is false ends the command with status 1 before anything is written.
    """
    foreign = [path for path in texts if path.is_file() and not is_own(path)]
    for path in foreign:
        echo(
            f"{display_path(path.absolute())} was not written by this command. Move it, or choose another folder.",
            err=True,
        )
    if foreign:
        sys.exit(EXIT_FAILED)
    changed = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    write_all({path: texts[path] for path in changed})
    for path in texts:
        echo(f"{'wrote' if path in changed else 'unchanged'} {display_path(path.absolute())}")


def yaml_text(value: Any) -> str:
    """Return a document of YAML: keys keep their order, equal values are written in full, texts of several lines are blocks."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=10_000)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature of the base
        """Write equal values in full."""
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _Dumper.represent_text)
