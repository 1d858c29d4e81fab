"""Test that the schema of all_queues.yml accepts exactly the values that the attributes allow."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.application_worker import ATTRIBUTES, ApplicationWorker
from framework.declare import queue_facts, registry
from framework.declare.policy_options import Deduplicate
from framework.declare.spread import spread
from framework.declare.validators import InvalidValue
from framework.devtools.commands import generate_queues
from framework.devtools.commands.generate_queues import all_queues_schema
from framework.features.health.attributes import DeferOnHealth
from framework.settings.files import read_yaml
from tests.tables import each_row

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = all_queues_schema([])
ABSENT = object()


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    with registry.isolated():
        yield


def entry(**body: Any) -> dict[str, Any]:
    head = {"feature_category": "x", "perform": lambda self: None, "__module__": "workers.sample"}
    worker: Any = type("AWorker", (ApplicationWorker,), {**head, **body})
    return queue_facts.queue_facts(worker.declaration(), {})


def holds(instance: Any, schema: dict[str, Any] = SCHEMA) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(instance)


def test_schema_is_valid_and_has_the_fields_in_order():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    items = SCHEMA["items"]
    optional = ["options", "chosen_queues", "spread"]
    assert list(items["properties"]) == [*items["required"], *optional] == [*entry(), *optional]
    assert items["additionalProperties"] is False


def test_schema_accepts_the_committed_file():
    schema = json.loads((ROOT / "workers" / generate_queues.SCHEMA_NAME).read_text())
    file = ROOT / "workers" / "all_queues.yml"
    jsonschema.Draft202012Validator(schema).validate(read_yaml(file))
    assert file.read_text().splitlines()[0] == f"# yaml-language-server: $schema={generate_queues.SCHEMA_NAME}"


@each_row(
    "body",
    [
        {},
        {"urgency": "high", "queue_namespace": "ns", "queue": "a:b.c-d", "shard": "queues-shard", "weight": 5},
        {"tags": ("a:b",), "retry": 0, "version": 3, "wire_name": "Old::Name", "pause_control": "zoekt"},
        {
            "retry": False,
            "idempotent": True,
            "deduplicate": Deduplicate("none"),
            "defer_on_health": DeferOnHealth("ci"),
        },
        {"concurrency_limit": lambda: 3, "data_consistency": "sticky", "resource_boundary": "memory"},
        {"shard": spread("main", "queues-shard")},
        {"concurrency_limit": -1, "has_external_dependencies": True},
    ],
    around=registry.isolated,
)
def test_schema_accepts_every_entry_of_a_class(body: dict[str, Any]):
    jsonschema.Draft202012Validator(SCHEMA).validate([entry(**body)])


@each_row(
    ("field", "value"),
    [
        *((field, ABSENT) for field in SCHEMA["items"]["required"]),
        ("surplus", 1),
        ("name", None),
        ("name", "a b"),
        ("worker_name", "a-b"),
        ("worker_name", ""),
        ("feature_category", None),
        ("feature_category", "s\u0435arch"),
        ("has_external_dependencies", None),
        ("has_external_dependencies", "false"),
        ("urgency", "hihg"),
        ("urgency", None),
        ("resource_boundary", "ram"),
        ("weight", 0),
        ("weight", None),
        ("weight", "1"),
        ("weight", True),
        ("idempotent", 1),
        ("tags", None),
        ("tags", "a"),
        ("tags", ["a b"]),
        ("tags", [1]),
        ("queue_namespace", "a:b"),
        ("version", -1),
        ("retry", -1),
        ("retry", None),
        ("concurrency_limit", "many"),
        ("concurrency_limit", True),
        ("deduplicate", "always"),
        ("defer_on_health", "a b"),
        ("data_consistency", None),
        ("pause_control", ""),
        ("shard", "-a"),
        ("queue", "a/b"),
    ],
    around=registry.isolated,
)
def test_schema_mutated_entry_is_invalid(field: str, value: Any):
    mutated = {**entry(), field: value}
    if value is ABSENT:
        del mutated[field]
    assert holds([entry()])
    assert not holds([mutated])


def test_schema_accepts_only_a_list_of_mappings():
    assert holds([])
    assert not holds({})
    assert not holds([[]])


def test_schema_with_known_categories_refuses_others():
    schema = all_queues_schema(["search", "billing"])
    assert holds([entry(feature_category="search"), entry(feature_category="not_owned")], schema)
    assert not holds([entry(feature_category="x")], schema)
    assert holds([{**entry(), "options": {"audit": True, "level": 2}}])
    assert not holds([{**entry(), "options": {"audit": None}}])


_PLAIN = ("urgency", "resource_boundary", "has_external_dependencies", "idempotent", "queue_namespace", "version")
_VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 30)
    | st.text(max_size=3)
    | st.sampled_from(["high", "low", "cpu", "memory", "always", "sticky", "a_b", "a:b", "a-b", "-a", "ä", "a.b"])
)


@given(st.sampled_from((*_PLAIN, "retry", "data_consistency", "pause_control", "shard", "queue")), _VALUES)
def test_schema_agrees_with_the_attribute_validator(field: str, value: Any):
    try:
        ATTRIBUTES[field].validator(value)
    except InvalidValue:
        allowed = False
    else:
        allowed = True
    # Python's $ also matches before a final line end; the $ of JSON Schema does not.
    if isinstance(value, str) and value.endswith("\n"):
        return
    assert holds([{**entry(), field: value}]) is allowed
