"""Test every help page: whole sentences, no cut-off text, one text per option."""

from collections.abc import Iterator

import click
from click.testing import CliRunner

from framework.cli.main import main
from framework.terminal.groups import SectionedGroup
from tests.tables import each_row

SHARED = (
    "--require",
    "--json",
    "--shard",
    "--timeout",
    "--reason",
    "--for",
    "--dry-run",
    "--yes",
    "--tag",
    "--label",
)
OTHERS = {
    "--shard": ("worker", "jobs enqueue", "shards move"),
    "--yes": ("jobs undo",),
    "--tag": tuple(
        f"jobs {name}"
        for name in ("list", "top", "retry", "kill", "delete", "undo", "requeue", "cancel", "held drop", "clear")
    ),
}
"""Commands to which an option is another one of the same name: a worker and a push have one shard, a move takes all of one;
without `--yes`, deleted jobs are listed."""


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), command
    if isinstance(command, click.Group):
        for name, child in sorted(command.commands.items()):
            yield from walk(child, (*path, name))


COMMANDS = dict(walk(main))
every_command = each_row("name", COMMANDS, ids=[name or "all" for name in COMMANDS])


def options(command: click.Command) -> dict[str, click.Option]:
    return {one.opts[-1]: one for one in command.params if isinstance(one, click.Option)}


def page(name: str) -> str:
    ended = CliRunner().invoke(main, [*name.split(), "--help"], terminal_width=80, prog_name="application-worker")
    assert ended.exit_code == 0, ended.output
    return ended.stdout


@every_command
def test_help_fits_80_columns_and_is_not_cut_off(name: str) -> None:
    lines = page(name).splitlines()
    assert max(map(len, lines)) <= 80
    usage = next(number for number, line in enumerate(lines) if not line.strip())
    assert "..." not in "\n".join(lines[usage:]).replace("CODE[,CODE]...", "")  # this text is a metavar


@every_command
def test_help_is_whole_sentences(name: str) -> None:
    command = COMMANDS[name]
    assert command.help is not None
    for paragraph in command.help.strip().split("\n\n"):
        assert paragraph.strip()[0].isupper() or paragraph.split()[0].isupper(), paragraph
        assert paragraph.rstrip().endswith("."), paragraph
    first = command.get_short_help_str(10_000)
    assert first.endswith(".")
    assert len(first) <= 100, first
    for word, option in options(command).items():
        help_text = option.help or ""
        assert help_text[:1].isupper(), (word, help_text)
        assert help_text.endswith("."), (word, help_text)


@each_row(
    "name", [name for name, one in COMMANDS.items() if isinstance(one, click.Group)], ids=lambda name: name or "all"
)
def test_group_help_has_whole_sentences(name: str) -> None:
    group = COMMANDS[name]
    assert isinstance(group, click.Group)
    words = " ".join(page(name).split())
    lines = [one.help for one in main.entries.values()] if group is main else []
    for line in lines or [child.get_short_help_str(10_000) for child in group.commands.values()]:
        assert line.endswith(".")
        assert line in words


@each_row("word", SHARED)
def test_option_shared_by_commands_has_one_text(word: str) -> None:
    texts = {
        (option.help, option.multiple, *option.opts)
        for name, command in COMMANDS.items()
        if name not in OTHERS.get(word, ())
        for option in [options(command).get(word)]
        if option is not None
    }
    assert len(texts) == 1, texts


def test_jobs_help_lists_each_command_in_one_section() -> None:
    group = COMMANDS["jobs"]
    assert isinstance(group, SectionedGroup)
    assert sorted(name for names in group.sections.values() for name in names) == sorted(group.commands)
    assert "Others:" not in page("jobs")
