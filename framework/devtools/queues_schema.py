"""Build the JSON schema of ``all_queues.yml`` from the validators of the attributes."""

from collections.abc import Collection, Mapping
from typing import Any, get_args

from framework.application_worker import ATTRIBUTES
from framework.declare import validators
from framework.declare.declaration import NOT_OWNED
from framework.declare.policy_options import DeduplicateStrategy

JSON_SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_FIELDS = (
    *("name", "worker_name", "feature_category", "has_external_dependencies", "urgency", "resource_boundary", "weight"),
    *(
        "idempotent",
        "tags",
        "queue_namespace",
        "version",
        "retry",
        "concurrency_limit",
        "deduplicate",
        "defer_on_health",
    ),
    *("data_consistency", "pause_control", "shard", "queue", "retry_queue", "aliases"),
)

_FIELD_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "name": validators.queue.schema,
    "worker_name": validators.wire_name.schema,
    "feature_category": validators.identifier.schema,
    "weight": validators.integer(1).schema,
    "concurrency_limit": {"anyOf": [{"type": "integer"}, {"const": "computed"}, {"type": "null"}]},
    "deduplicate": validators.optional(validators.one_of(*get_args(DeduplicateStrategy))).schema,
    "defer_on_health": validators.optional(validators.identifier).schema,
}
"""Fields that are no attribute, or have another form in the file than in the class."""


def all_queues_schema(categories: Collection[str]) -> dict[str, Any]:
    """Return the schema (draft 2020-12) of the file: a list of entries with exactly these fields; ``options`` and ``chosen_queues``
    are optional.

    ``categories`` come from config/feature_categories.yml; without any, every name is allowed. The schema does not list shards,
    because their names may differ between environments and the generated files may not.
    """
    properties = {field: dict(_FIELD_SCHEMAS.get(field) or ATTRIBUTES[field].validator.schema) for field in _FIELDS}
    properties["options"] = {"type": "object", "additionalProperties": {"type": ["boolean", "number", "string"]}}
    properties["chosen_queues"] = {"type": "array", "items": dict(validators.queue.schema)}
    if categories:
        properties["feature_category"] = {"enum": [*sorted(categories), NOT_OWNED]}
    return {
        "$schema": JSON_SCHEMA_DIALECT,
        "title": "all_queues.yml",
        "description": "Every worker class of the application and what it declares. Generated together with all_queues.yml.",
        "type": "array",
        "items": {
            "type": "object",
            "properties": properties,
            "required": list(_FIELDS),
            "additionalProperties": False,
        },
    }
