"""Format times, durations and ages; decode, shorten and escape foreign text; find the known word nearest to a misspelt one."""

import re
import time
from collections.abc import Iterable, Mapping
from typing import Self

from framework.known_secrets import known_secrets

_LONGEST_S = 1_000 * 366 * 86_400
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_MAX_DURATION_S = 366 * 86_400
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
LENGTHS = ("{d} d", "{d} d {h} h", "{h} h", "{h} h {min} min", "{min} min", "{min} min {s} s", "{s} s")
"""The templates of lengths of time."""

_PLURAL_VERBS = {
    "is": "are",
    "was": "were",
    "has": "have",
    "waits": "wait",
    "belongs": "belong",
    "stays": "stay",
    "runs": "run",
    "reads": "read",
    "serves": "serve",
    "agrees": "agree",
}


class Sentence(str):
    """A text with its template and fields, which the dashboard says in other languages. As a string it is English.

    A field that is a sentence itself is translated too. Operations on strings lose the template: join sentences with ``joined``.
    """

    __slots__ = ("fields", "template")
    template: str
    fields: Mapping[str, object]

    def __new__(cls, template: str, /, **fields: object) -> Self:
        return cls.spelt(template.format(**fields) if fields else template, template, fields)

    @classmethod
    def spelt(cls, text: str, template: str, fields: Mapping[str, object]) -> Self:
        """Return a sentence whose English text is not that of the template, as in the plural."""
        made = super().__new__(cls, text)
        made.template, made.fields = template, fields
        return made

    def __str__(self) -> str:
        # The text of an error, ``str(error)``, is the sentence that it was raised with.
        return self


def stored_sentence(text: str) -> str:
    """Return a text that a script has stored as a sentence: the numbers in it are the fields ``a``, ``b`` of its template.

    A text that the catalogues of the dashboard do not have is shown as it is, so an operator's text may be among them.
    """
    if "{" in text or "}" in text:
        return text
    fields = dict(zip("abcdef", _NUMBER.findall(text), strict=False))
    names = iter(fields)
    return Sentence.spelt(text, _NUMBER.sub(lambda _: f"{{{next(names)}}}", text, count=len(fields)), fields)


def joined(parts: Iterable[str], separator: str = "; ") -> str:
    """Return the texts as one sentence."""
    fields = {f"part{number}": one for number, one in enumerate(parts)}
    return Sentence(separator.join(f"{{{name}}}" for name in fields), **fields)


def format_duration(seconds: float) -> str:
    """Return a length of time in its two greatest units: ``4 s``, ``12 min 5 s``, ``2 d 4 h``."""
    if seconds > _LONGEST_S:
        return Sentence("thousands of years")
    left = max(0, round(max(seconds, 0.0)))
    parts: dict[str, int] = {}
    for unit, size in _UNITS:
        if parts:
            parts |= {unit: left // size} if left >= size else {}
            break
        count, left = divmod(left, size)
        if count or unit == "s":
            parts[unit] = count
    return Sentence(" ".join(f"{{{unit}}} {unit}" for unit in parts), **parts)


def parse_duration(text: str) -> float:
    """Return the seconds of a length of time: ``90s``, ``15m``, ``2h``, ``1d``, ``1h30m``.

    Raises:
        ValueError: the text is none, or not above 0 and at most a year.
    """
    parts = re.findall(r"(\d+)([smhd])", text, re.ASCII)
    seconds = sum(int(number) * _SECONDS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not 0 < seconds <= _MAX_DURATION_S:
        raise ValueError(f"{text!r} is not a duration: write 90s, 15m, 2h, 1d or 1h30m, at most a year")
    return float(seconds)


def format_time(epoch_s: float) -> str:
    """Return a time in UTC: ``2026-02-28 09:15:00Z``."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(epoch_s))


def format_clock_time(epoch_s: float) -> str:
    """Return a time in UTC without its date: ``09:15:00Z``."""
    return time.strftime("%H:%M:%SZ", time.gmtime(epoch_s))


def format_count(count: int, noun: str, verb: str = "") -> str:
    """Return a count with its noun, and with a verb: ``1 job is``, ``2,000 held jobs are``, ``3 batches``."""
    template = f"{{count:,}} {noun} {verb}".rstrip()
    if count == 1:
        return Sentence(template, count=count)
    plural = f"{noun}{'es' if noun.endswith(('s', 'ch', 'sh', 'x')) else 's'}"
    text = f"{count:,} {plural} {_PLURAL_VERBS.get(verb, verb)}".rstrip()
    return Sentence.spelt(text, template, {"count": count})


def with_article(noun: str) -> str:
    """Return a noun with its article: ``an int``, ``a UUID``. The names of types that begin with U are spoken as ``you``."""
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"


def format_bytes(size: float) -> str:
    """Return a number of bytes in the unit that fits: ``380 B``, ``4.25 MB``."""
    for unit in ("B", "kB", "MB"):
        if abs(size) < 1_000:
            return f"{size:,.3g} {unit}"
        size /= 1_000
    return f"{size:,.3g} GB"


def format_times(count: int) -> str:
    """Return how many times something happened."""
    return Sentence("once") if count == 1 else Sentence("{count:,} times", count=count)


def format_age(now: float, then: float | None) -> str:
    """Return how long ago ``then`` was, ``-`` if it is unknown."""
    return "-" if then is None else format_duration(now - then)


def decode_name(raw: bytes) -> str | None:
    """Return bytes from Redis as a name that can be sent to Redis again; ``None`` if they are no valid UTF-8, so no name of ours."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def decode_escaped(raw: bytes) -> str:
    """Return bytes from Redis as text: other programs write names there that need not be valid UTF-8.

    Such a byte becomes an escape (``\\xff``), so that two names stay different.
    """
    return raw.decode(errors="backslashreplace")


_MAX_NAME = 500


def error_class(error: BaseException) -> str:
    """Return an error's class name with its module, as Unicode; builtins without module."""
    # Bypass the metaclass, whose attribute access may run any code; __module__ itself may be any object.
    kind = type(error)
    name, module = (vars(type)[part].__get__(kind) for part in ("__qualname__", "__module__"))
    package = _plain(module) if isinstance(module, str) else "builtins"
    return _plain(name) if package == "builtins" else f"{package}.{_plain(name)}"


def _plain(text: str) -> str:
    """Return the first characters of a str, or of a subclass with any behaviour, as Unicode."""
    return str.encode(str.__getitem__(text, slice(_MAX_NAME)), "utf-8", "replace").decode()


_MOST_SECRET = 1_000
"""Characters behind a cut that are read too, so that no secret is cut before it is masked."""


def error_message(error: BaseException, limit: int) -> str:
    """Return at most ``limit`` characters of an error's message, as Unicode, without secrets, whatever its ``__str__`` does."""
    try:
        # Slice as a plain str: __str__ may return a subclass whose slicing runs any code. Before the cut nothing is half a secret.
        text = known_secrets.masked(str.__getitem__(str(error), slice(limit + _MOST_SECRET)))[:limit]
    except BaseException as failure:  # noqa: BLE001 - a job's exception may raise anything, and reporting it must not fail
        text = f"<its message cannot be read: __str__ raised {type(failure).__name__}>"
    return text.encode("utf-8", "replace").decode("utf-8")


# Foreign text must not forge output: any program with access to Redis writes names, messages and payloads. ESC moves the cursor and
# fills the clipboard (OSC 52), a newline starts another line, bidirectional controls change the reading order, and zero-width
# characters make two names look alike.

MOST = 20_000
"""The shown characters of one text."""

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_NUMBER = re.compile(r"\d+")
_HIDDEN = re.compile(
    "[\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)
"""Control, format and line separator characters and lone surrogates, except those below U+0020, which JSON always escapes."""


def visible(text: str, most: int = MOST) -> str:
    """Return ``text`` as one line of at most about ``most`` characters, with Python's escapes for unprintable ones."""
    if len(text) > most:
        text = f"{text[:most]}..."
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else _escaped(char) for char in text])


def visible_json(text: str) -> str:
    """Return the JSON text with escapes for the characters that a terminal or a page would interpret."""
    return _HIDDEN.sub(_escaped_in_json, text)


def _escaped(char: str) -> str:
    number = ord(char)
    if char in _NAMED:
        return _NAMED[char]
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def _escaped_in_json(found: re.Match[str]) -> str:
    number = ord(found.group())
    if number <= 0xFFFF:
        return f"\\u{number:04x}"
    high, low = divmod(number - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def nearest(word: object, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word closest to ``word``, or the only one that begins with it; None when nothing is close."""
    if not isinstance(word, str):
        return None
    # With the first misspelt word only: `import framework` loads this module.
    import difflib  # noqa: PLC0415

    candidates = list(known)
    matches = difflib.get_close_matches(word, candidates, n=1, cutoff=cutoff)
    if not matches:
        by_lower = {candidate.lower(): candidate for candidate in candidates}
        matches = [by_lower[word.lower()]] if word.lower() in by_lower else []
    if not matches and len(word) > 2:
        longer = [candidate for candidate in candidates if candidate.startswith(word)]
        matches = longer if len(longer) == 1 else []
    return matches[0] if matches else None


def join_names(known: Iterable[str], max_names: int = 20) -> str:
    """Return the names in the given order: at most ``max_names``, then how many more there are."""
    names = list(known)
    shown, more = ", ".join(names[:max_names]), len(names) - max_names
    return Sentence("{names} and {more} more", names=shown, more=more) if more > 0 else shown


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return a parenthesis to append to a message; "" when nothing is close, or ``word`` is known itself."""
    match = nearest(word, known)
    return Sentence(" (did you mean {name!r}?)", name=match) if match not in (None, word) else ""


_BOUNDARY = re.compile(r"(?<=[A-Z])(?=[A-Z][a-z])|(?<=[a-z0-9])(?=[A-Z])")


def underscored(name: str) -> str:
    """Return a class name as Rails underscores it, without colons: ``Orders::HTTPSyncWorker`` gives ``orders_http_sync_worker``."""
    return "_".join(_BOUNDARY.sub("_", segment).lower() for segment in name.split("::"))
