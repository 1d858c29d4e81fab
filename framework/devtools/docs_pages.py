"""Generate parts of the documentation between markers in Markdown pages: attributes, commands, lint codes, names of other libraries.

A page has what belongs to its subject: `<!-- attributes: cron spread -->` is filled with these two attributes,
`<!-- commands: cron -->` with all commands of that group.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import click

from framework.application_worker import ATTRIBUTES, CONSTRAINTS
from framework.cli.main import main
from framework.declare.misuse import SYSTEMS, ForeignName, rows_of
from framework.devtools.lint.registry import DEFAULT, GITLAB, RULES, SETS, set_of
from framework.messages import did_you_mean

_MARKER = re.compile(
    r"^<!-- ((?P<word>attributes|commands|lint|names): *(?P<name>[^>]*?)|/(?P<end>attributes|commands|lint|names)) *-->$",
    re.MULTILINE,
)
_SHARED_BY = 3
"""An option of so many commands with the same text is explained once."""


class PageError(Exception):
    """The markers of a page do not match; the text begins with the line."""


def default_text(name: str) -> str:
    """Return the default as source text."""
    return repr(ATTRIBUTES[name].default)


def constraint_texts(name: str) -> list[str]:
    """Return the constraints between the attribute and others."""
    return [f"{rule}: {rule.reason}. {rule.remedy}" for rule in CONSTRAINTS if name in rule.attribute_names()]


@cache
def generated_parts() -> Mapping[str, Mapping[str, str]]:
    """Return every generated text, by the two names in its opening marker.

    ``attributes``: each, and the ``rules`` between them. ``commands``: each, each group, and the options that they ``share``.
    ``lint``: the list of ``codes``, and the codes ``explained``. ``names``: those of each other library.
    """
    rules = "\n".join(f"- `{rule}`: {rule.reason}. {rule.remedy}" for rule in CONSTRAINTS)
    return {
        "attributes": {**{name: _attribute_text(name) for name in ATTRIBUTES}, "rules": rules},
        "commands": {**_command_texts(), "shared": _shared_table()},
        "lint": {"codes": _code_lists(), "explained": _code_sections()},
        "names": {system.lower(): _name_list(system) for system in SYSTEMS},
    }


def names_of(word: str, listed: str) -> Sequence[str]:
    """Return the names in an opening marker: those of commands are parted by commas, as some have two words."""
    return [one.strip() for one in listed.split(",")] if word == "commands" else listed.split()


def fill_page(page: str) -> str:
    """Return the text of a page with current generated parts. Raises PageError for markers that do not match."""
    done: list[str] = []
    at, opened, end = 0, "", ""
    for marker in _MARKER.finditer(page):
        line = page.count("\n", 0, marker.start()) + 1
        listed = marker["name"]
        if (listed is None) is (not end):
            raise PageError(
                f"{line}: {marker[0]} " + ("closes nothing" if listed is None else f"before {end} of {opened}")
            )
        if listed is None:
            done.append(end)
            opened = end = ""
        else:
            text = _filled(marker["word"], listed, line)
            done.append(f"{page[at : marker.start()]}<!-- {marker['word']}: {listed} -->\n{text}\n")
            opened, end = listed, f"<!-- /{marker['word']} -->"
        at = marker.end()
    if end:
        raise PageError(f"{page.count(chr(10)) + 1}: {end} of {opened} is missing")
    return "".join([*done, page[at:]])


def _filled(word: str, listed: str, line: int) -> str:
    parts = generated_parts()[word]
    for name in names_of(word, listed):
        if name not in parts:
            raise PageError(f"{line}: there is no part {name!r}{did_you_mean(name, parts)}")
    return "\n".join(parts[name] for name in names_of(word, listed))


def _attribute_text(name: str) -> str:
    """Return what a reader of its page needs beside the text of the page, which tells the effect."""
    one = ATTRIBUTES[name]
    return f"- **`{name}`**: {one.allowed}; default `{default_text(name)}`. {one.meaning} *Trap:* {one.trap}"


def all_commands(command: click.Command = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Return every command that is no group, by its name behind ``application-worker``."""
    if isinstance(command, click.Group):
        for name, child in sorted(command.commands.items()):
            yield from all_commands(child, (*path, name))
    else:
        yield " ".join(path), command


def _command_texts() -> Mapping[str, str]:
    """Return the text of each command, and of each group all texts of its commands."""
    texts = {name: _command_text(name, one) for name, one in all_commands()}
    groups = {" ".join(words[:end]) for words in map(str.split, texts) for end in range(1, len(words))}
    return {
        **texts,
        **{group: "\n".join(text for name, text in texts.items() if name.startswith(f"{group} ")) for group in groups},
    }


def _options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and one.opts[-1] != "--help"]


def _words(option: click.Option) -> str:
    return ", ".join(f"`{word}`" for word in option.opts)


@cache
def _shared() -> Mapping[tuple[str, str], int]:
    counts = Counter((_words(one), one.help or "") for _, command in all_commands() for one in _options(command))
    return {option: count for option, count in counts.items() if count >= _SHARED_BY}


def _shared_table() -> str:
    rows = [f"| {words} | {text} |" for words, text in sorted(_shared())]
    return "\n".join(["| Option | Meaning |", "|---|---|", *rows])


def _command_text(name: str, command: click.Command) -> str:
    """Return the purpose of a command and the names of its options, which ``--help`` explains."""
    pieces = [one for one in command.collect_usage_pieces(click.Context(command)) if one != command.options_metavar]
    words = [f"`{one.opts[0]}`{' (required)' if one.required else ''}" for one in _options(command)]
    line = f"- **`{' '.join([name, *pieces])}`**: {command.get_short_help_str(10_000)}"
    return f"{line} Options: {', '.join(words)}." if words else line


def _name_list(system: str) -> str:
    """Return the names of a library. Names with the same answer share a line, which is linked to the guide."""
    answers: dict[tuple[str, str], list[str]] = {}
    for one in rows_of(system):
        answers.setdefault((one.text(), one.page), []).extend(shown_name(one))
    return "\n".join(f"- [{', '.join(names)}](../{page}): {text}" for (text, page), names in answers.items())


def shown_name(one: ForeignName) -> list[str]:
    """Return the name as a program of the library has it, in each of its forms."""
    forms = {"attribute": "{0}", "option": "{0}=", "method": ".{0}(...)", "self": "self.{0}", "hook": "def {0}"}
    # An attribute that is also an option has its plain name.
    places = [place for place in one.places if not (place == "option" and "attribute" in one.places)]
    return [f"`{forms[place].format(one.name)}`" for place in places]


def _code_lists() -> str:
    codes: dict[str, list[str]] = {name: [] for name in SETS}
    for code, rule in RULES.items():
        codes[set_of(code)].append(f"[{code}](#{code.lower()}) {rule.name}")
    return f"- `{DEFAULT}`: {', '.join(codes[DEFAULT])}\n- `{GITLAB}` adds: {', '.join(codes[GITLAB])}"


def _code_sections() -> str:
    return "\n\n".join(f"### {code}\n\n{rule.summary} Fix: {rule.fix}." for code, rule in RULES.items())
