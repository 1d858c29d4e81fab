"""Read and write ``workers/released.yml``: the workers of earlier releases whose jobs may be in flight.

Only ``check-compat`` writes the file, from the workers (``snapshot``, ``next_manifest``).
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypedDict

from framework.command_line import command
from framework.declare.declaration import Declaration
from framework.declare.signature import JobSignature
from framework.declare.strict_json import NotJsonError, check_strict_json
from framework.devtools.compat.json_schema import JSON_SCHEMA_DIALECT, JsonSchema, schema_of
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.route.router import Router
from framework.settings.files import MAX_GENERATED_BYTES, YamlError, parse_yaml, read_text
from framework.types import StrictArguments

SCHEMA_NAME = "released.schema.json"
IN_FLIGHT = timedelta(days=30)
"""How long jobs of a kind may be in flight after its last push: 25 retries take three weeks (Sidekiq). Jobs scheduled further
ahead, and the dead set, are not covered."""

HEADER = f"""\
# yaml-language-server: $schema={SCHEMA_NAME}
# The workers as last released: jobs in flight have these shapes. application-worker check-compat compares today's workers with them.
# Written by `application-worker check-compat --release NAME` when a release is cut; not to be edited.
"""

_JsonSchemaForm = TypedDict(
    "_JsonSchemaForm",
    {
        "type": Literal["null", "boolean", "integer", "number", "string", "array", "object"],
        "enum": list[bool | int | str | None],
        "anyOf": "list[_JsonSchemaForm]",
        "items": "_JsonSchemaForm",
        "properties": "dict[str, _JsonSchemaForm]",
        "required": list[str],
        "additionalProperties": "bool | _JsonSchemaForm",
        "propertyNames": "_JsonSchemaForm",
        "minimum": int | float,
        "exclusiveMinimum": int | float,
        "maximum": int | float,
        "exclusiveMaximum": int | float,
        "multipleOf": int | float,
        "minLength": int,
        "maxLength": int,
        "pattern": str,
        "minItems": int,
        "maxItems": int,
        "minProperties": int,
        "maxProperties": int,
        "x-validators": list[str],
        "$ref": str,
        "$defs": "dict[str, _JsonSchemaForm]",
    },
    total=False,
)


class _DaySchema:
    """Give pydantic the schema of a day. It would compare classes, and finds none where a test has frozen the time (freezegun)."""

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> CoreSchema:
        return core_schema.date_schema()


Day: TypeAlias = Annotated[date, _DaySchema]


class _FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Parameter(_FrozenModel):
    """One parameter of a method, or its ``*args`` (``rest``). A ``default`` that JSON cannot carry is left out."""

    name: str
    type: _JsonSchemaForm = Field(default_factory=_JsonSchemaForm)
    optional: bool = False
    default: Any = None
    rest: bool = False

    @property
    def json_schema(self) -> JsonSchema:
        return dict(self.type)


Parameters: TypeAlias = tuple[Parameter, ...]


class ReleasedWorker(_FrozenModel):
    """One worker. ``handlers`` are its perform_v<N>; a date is the first day without pushes of an alias or version."""

    place: str
    version: int
    retry: bool | int
    queue: str
    shard: str
    spread: tuple[str, ...] = ()
    """The shards of a class that names several."""
    retry_queue: str | None = None
    queue_namespace: str | None = None
    aliases: dict[str, Day] = {}
    perform: Parameters = ()
    handlers: dict[int, Parameters] = {}
    former_versions: dict[int, Day] = {}

    def handler_of_version(self, version: int) -> tuple[str, Parameters]:
        """Return the method that runs jobs of a version, and its parameters."""
        handler = self.handlers.get(version)
        return ("perform", self.perform) if handler is None else (f"perform_v{version}", handler)

    @property
    def queues(self) -> list[str]:
        """The queues of its jobs on each of its shards: the routed one, and that of its retries."""
        return [self.queue, *([self.retry_queue] if self.retry_queue else [])]

    @property
    def shards(self) -> tuple[str, ...]:
        """Every shard that gets its jobs."""
        return self.spread or (self.shard,)

    @property
    def locations(self) -> tuple[tuple[str, str], ...]:
        """Every queue that gets its jobs, with its shard."""
        return tuple((queue, shard) for queue in self.queues for shard in self.shards)


# It describes the jobs of earlier releases and not the last code, because jobs outlive a release: retries take three weeks.
class Manifest(_FrozenModel):
    """Every worker by wire name, and the retired ones with the date of the first release without them.

    ``former_queues`` get no more jobs on each shard since the date. ``accepted`` has the reason for each entry that was updated
    to today's code between two releases.
    """

    release: str
    day: Day
    workers: dict[str, ReleasedWorker] = {}
    retired: dict[str, Day] = {}
    former_queues: dict[str, dict[str, Day]] = {}
    accepted: dict[str, str] = {}

    @property
    def queues(self) -> list[str]:
        """Every queue in which jobs of this release and earlier ones may wait."""
        return list(dict.fromkeys(queue for queue, _ in (*self.locations, *self.former_locations)))

    @property
    def locations(self) -> list[tuple[str, str]]:
        """Every queue that gets jobs of this release, with its shard."""
        return [place for entry in self.workers.values() for place in entry.locations]

    @property
    def former_locations(self) -> dict[tuple[str, str], date]:
        """Every queue with its shard that got jobs of an earlier release only, and until when."""
        return {
            (queue, shard): since for queue, shards in self.former_queues.items() for shard, since in shards.items()
        }

    def find_worker(self, name: str) -> tuple[str, ReleasedWorker] | None:
        """Return the wire name and the worker that runs jobs of this name, which may be an alias."""
        if name in self.workers:
            return name, self.workers[name]
        return next(((one, entry) for one, entry in self.workers.items() if name in entry.aliases), None)


def snapshot(
    declarations: Iterable[Declaration],
    router: Router,
    *,
    strict: StrictArguments,
    retired: Iterable[str],
    release: str,
    day: date,
) -> Manifest:
    """Return today's workers as a first release. ``strict`` is the setting, for classes without ``strict_arguments``."""
    return Manifest(
        release=release,
        day=day,
        workers={one.wire_name: _released_worker(one, router, strict, day) for one in declarations},
        retired=dict.fromkeys(retired, day),
    )


def next_manifest(today: Manifest, last: Manifest | None) -> Manifest:
    """Return ``today`` with the dates of the last release: the end of pushes of each former name and version.

    A version is removed when no job of it is in flight and it has no method of its own. A second release under the same name
    changes no date.
    """
    if last is None:
        return today
    day = last.day if last.release == today.release else today.day
    aliases = {alias: since for entry in last.workers.values() for alias, since in entry.aliases.items()}
    workers: dict[str, ReleasedWorker] = {}
    for name, entry in today.workers.items():
        before = next((last.workers[one] for one in (name, *entry.aliases) if one in last.workers), None)
        update = {
            "aliases": {alias: aliases.get(alias, day) for alias in entry.aliases},
            "former_versions": _former_versions(entry, before, day),
        }
        workers[name] = entry.model_copy(update=update)
    retired = {name: last.retired.get(name, day) for name in today.retired}
    update = {"day": day, "workers": workers, "retired": retired, "former_queues": _former_queues(today, last, day)}
    return today.model_copy(update=update)


def accept_worker(last: Manifest, today: Manifest, name: str, reason: str) -> Manifest:
    """Return ``last`` with today's worker of this name, or without it, because no jobs of the former kind are left."""
    workers = {one: entry for one, entry in last.workers.items() if one != name}
    heir = today.find_worker(name)
    if heir is not None:
        workers[heir[0]] = heir[1]
    retired = {one: since for one, since in last.retired.items() if one != name}
    update = {"workers": workers, "retired": retired, "accepted": {**last.accepted, name: reason}}
    return last.model_copy(update=update)


def in_flight(since: date, day: date) -> bool:
    """Return whether jobs of a kind that was pushed until ``since`` may be in flight."""
    return day - since <= IN_FLIGHT


def manifest_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of the file."""
    return {"$schema": JSON_SCHEMA_DIALECT, **Manifest.model_json_schema(), "title": "released.yml"}


def manifest_text(manifest: Manifest) -> str:
    """Return the text of the file: workers sorted by name, one line per parameter, no defaults. Equal manifests give equal texts."""
    content = manifest.model_dump(exclude_defaults=True)
    content["workers"] = {name: _with_flow_parameters(content["workers"][name]) for name in sorted(manifest.workers)}
    for key in ("retired", "former_queues", "accepted"):
        content[key] = dict(sorted(content.get(key, {}).items()))
    return HEADER + yaml.dump(content, Dumper=_ManifestDumper, sort_keys=False, allow_unicode=True, width=1_000_000)


def read_manifest(path: Path, place: str) -> Manifest | None:
    """Read the file, named ``place`` in messages; None if it does not exist. Raises ConfigurationError."""
    if not path.exists():
        return None
    try:
        text = read_text(path, max_bytes=MAX_GENERATED_BYTES)
    except YamlError as error:
        raise ConfigurationError([ConfigurationProblem(place, "", str(error))]) from None
    return parse_manifest(text, place)


def parse_manifest(text: str, place: str) -> Manifest:
    """Parse the text of ``place``. Raises ConfigurationError with every problem."""
    try:
        return Manifest.model_validate(parse_yaml(text))
    except YamlError as error:
        problems = [ConfigurationProblem(place, "", str(error))]
    except ValidationError as error:
        problems = [
            ConfigurationProblem(place, ".".join(map(str, one["loc"])), f"{one['msg'].lower()}: {_restore_hint()}")
            for one in error.errors(include_url=False, include_context=False)
        ]
    raise ConfigurationError(problems)


def _restore_hint() -> str:
    return f"the file is written by `{command('check-compat --release')}`; restore it from version control"


def _released_worker(declaration: Declaration, router: Router, strict: StrictArguments, day: date) -> ReleasedWorker:
    target = router.route(declaration)
    checked = (declaration.strict_arguments or strict) == "raise"
    handlers = sorted(declaration.version_handlers.items())
    return ReleasedWorker(
        place=declaration.qualified_name,
        version=declaration.version,
        retry=declaration.retry,
        queue=target.queue,
        shard=target.shard,
        spread=() if declaration.several_shards is None else router.shards_of(declaration),
        retry_queue=declaration.retry_queue,
        queue_namespace=declaration.queue_namespace,
        aliases=dict.fromkeys(declaration.aliases, day),
        perform=parameters_of(declaration.signature, checked=checked),
        handlers={number: parameters_of(one.signature, checked=checked) for number, one in handlers},
        former_versions={number: day for number, _ in handlers},
    )


def parameters_of(signature: JobSignature, *, checked: bool) -> Parameters:
    """Return the parameters. Unless types are ``checked``, a job with the right number of arguments runs with any types."""
    shapes = [schema_of(annotation) if checked else {} for annotation in signature.annotations]
    found: list[Parameter] = []
    for index, (name, shape) in enumerate(zip(signature.names, shapes, strict=False)):
        given = (
            {"optional": True, **_default(signature.defaults[index - signature.required])}
            if index >= signature.required
            else {}
        )
        found.append(Parameter.model_validate({"name": name, "type": shape, **given}))
    if signature.varargs is not None:
        found.append(Parameter.model_validate({"name": signature.varargs, "type": shapes[-1], "rest": True}))
    return tuple(found)


def _default(value: Any) -> dict[str, Any]:
    try:
        check_strict_json(value)
    except NotJsonError:
        return {}
    return {"default": value}


def _former_versions(entry: ReleasedWorker, before: ReleasedWorker | None, day: date) -> dict[int, date]:
    if before is None:
        return entry.former_versions
    found = {**entry.former_versions, before.version: day, **before.former_versions}
    return {
        number: found[number]
        for number in sorted(found)
        if number < entry.version and (number in entry.handlers or in_flight(found[number], day))
    }


def _former_queues(today: Manifest, last: Manifest, day: date) -> dict[str, dict[str, date]]:
    used = set(today.locations)
    former: dict[str, dict[str, date]] = {}
    for (queue, shard), since in {**dict.fromkeys(last.locations, day), **last.former_locations}.items():
        if (queue, shard) not in used and in_flight(since, day):
            former.setdefault(queue, {})[shard] = since
    return former


class _FlowMapping(dict[str, Any]):
    """A mapping that is written in one line."""


class _ManifestDumper(yaml.SafeDumper):
    """Block layout except for ``_FlowMapping``, without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal parts out each time."""
        del data
        return True


_ManifestDumper.add_representer(
    _FlowMapping, lambda dumper, line: dumper.represent_mapping("tag:yaml.org,2002:map", line, flow_style=True)
)


def _with_flow_parameters(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry with each parameter in one line."""
    found = dict(entry)
    found["perform"] = _flow_mappings(entry.get("perform", ()))
    if "handlers" in entry:
        found["handlers"] = {
            number: _flow_mappings(parameters) for number, parameters in sorted(entry["handlers"].items())
        }
    return found


def _flow_mappings(parameters: Sequence[Mapping[str, Any]]) -> list[_FlowMapping]:
    return [_FlowMapping(parameter) for parameter in parameters]
