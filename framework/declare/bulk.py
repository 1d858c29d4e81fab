"""Bind and check many jobs of one worker at a tenth of the cost of single ones."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from pydantic_core import PydanticSerializationError, to_json

from framework.declare.signature import JobSignature
from framework.declare.strict_json import MAX_DIGITS, PLAIN_TYPES
from framework.errors import ArgumentsError, PayloadError
from framework.text import with_article
from framework.wire.json import dumps_exact

CHUNK_SIZE = 1_000
"""Jobs per round trip (GitLab's and Sidekiq's figure)."""

Coerce: TypeAlias = Callable[[list[Any]], list[Any]]
"""Turn a job's arguments that are not strict into their JSON form. Raises ArgumentsError for arguments that have none."""

_TYPED_FORM = (
    ". Type checkers see such an error in perform_bulk_for(objects, arguments=lambda one: Worker.arguments(...))"
)
_SEQUENCE_TYPES = frozenset({tuple, list})
_JOB_SEPARATOR, _LINE_SEPARATOR = b'],"",[', b"]\n["


# A bulk push is kept as JSON until it is written, since all jobs are checked first: a million tuples take some ten megabytes.
class BulkChunk(NamedTuple):
    """Up to 1,000 jobs: their arguments as JSON, a line per job, and the bytes of the longest line."""

    lines: bytes
    longest_line: int


def bind_all(
    signature: JobSignature, jobs: Iterable[Any], coerce: Coerce | None = None, first: int = 0
) -> list[list[Any]]:
    """Return every job's arguments as a list of positions, checked. Raises ArgumentsError naming the first wrong job.

    Arguments that are not strict are replaced by the result of ``coerce``, where it is given. ``first`` is the index of the first
    job, for messages.
    """
    return [bound for start, part in _chunks(jobs, first) for bound in _bind_each(signature, part, start, coerce)]


def json_chunks(
    signature: JobSignature, jobs: Iterable[Any], coerce: Coerce | None = None, first: int = 0
) -> Iterator[BulkChunk]:
    """Yield every job's arguments as JSON, checked; a fraction of the objects' size.

    Otherwise as ``bind_all``. The caller writes nothing before the last chunk has come.
    """
    for start, part in _chunks(jobs, first):
        yield _fast_chunk(signature, part) or _checked_chunk(signature, part, start, coerce)


def _chunks(jobs: Iterable[Any], start: int) -> Iterator[tuple[int, list[Any]]]:
    given = iter(jobs)
    while part := list(islice(given, CHUNK_SIZE)):
        yield start, part
        start += CHUNK_SIZE


def _fast_chunk(signature: JobSignature, jobs: list[Any]) -> BulkChunk | None:
    """Return the chunk when all arguments are plain values that fit; None where each job needs a check of its own."""
    if not _SEQUENCE_TYPES.issuperset(map(type, jobs)):
        return None
    kinds = set(map(type, chain.from_iterable(jobs)))
    if not PLAIN_TYPES.issuperset(kinds) or not signature.all_valid(jobs):
        return None
    parted: list[Any] = [""] * (2 * len(jobs) - 1)
    parted[::2] = jobs
    try:
        data = to_json(parted)
    # Half a surrogate pair, or an integer of too many digits.
    except (PydanticSerializationError, ValueError):
        return None
    if float in kinds and (b"NaN" in data or b"Infinity" in data):
        return None
    # Plain values have no brackets, and a quote inside of a string is escaped: this text stands between jobs only.
    lines = data[1:-1].replace(_JOB_SEPARATOR, _LINE_SEPARATOR)
    longest = max(map(len, lines.split(b"\n")))
    return BulkChunk(lines, longest) if longest < MAX_DIGITS else None


def _checked_chunk(signature: JobSignature, jobs: list[Any], start: int, coerce: Coerce | None) -> BulkChunk:
    lines: list[bytes] = []
    for index, bound in enumerate(_bind_each(signature, jobs, start, coerce, _TYPED_FORM), start):
        try:
            lines.append(dumps_exact(bound, outer_levels=1))
        except PayloadError as error:
            raise ArgumentsError(signature.worker, f"(job {index} of the bulk) refused: {error.reason}") from None
    return BulkChunk(b"\n".join(lines), max(map(len, lines)))


def _bind_each(
    signature: JobSignature, jobs: list[Any], start: int, coerce: Coerce | None, hint: str = ""
) -> Iterator[list[Any]]:
    for index, args in enumerate(jobs, start):
        if not _is_sequence(args):
            kind = with_article(type(args).__name__)
            reason = f"job {index} of the bulk is {kind}; give each job's arguments as a tuple, such as (1,)"
            raise ArgumentsError(signature.worker, f"{reason}{hint}")
        try:
            bound = signature.bind(args, {})
            try:
                signature.check(bound)
            except ArgumentsError:
                if coerce is None:
                    raise
                bound = coerce(bound)
        except ArgumentsError as error:
            raise ArgumentsError(
                error.worker, f"(job {index} of the bulk) {error.reason}{hint}", argument=error.argument
            ) from None
        yield bound


def _is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (tuple, list))
