"""Words from outside (file names, parser messages) made safe to store in any database and to show anywhere."""


def printable(text: str, limit: int = 300) -> str:
    """``text`` with everything a terminal, a database or a reader could stumble over written as an escape.

    Control characters, lone surrogates (file names that are not UTF-8) and direction marks become ``\\x..`` or
    ``\\u....``; more than ``limit`` characters are cut with an ellipsis. Markup is not touched: the page escapes it.
    """
    shown = "".join(character if character.isprintable() else _escaped(character) for character in text[: limit + 1])
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
