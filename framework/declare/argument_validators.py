"""Validate the positions of a method with strict pydantic schemas. Their output is not used: a job gets the original values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import SchemaError, SchemaValidator

from framework.errors import DeclarationError
from framework.typeguards import is_list, is_mapping

Validate: TypeAlias = Callable[[Any], object]
"""Raises pydantic's ValidationError for a value that does not fit."""


@dataclass(frozen=True, slots=True)
class ArgumentValidators:
    """Make the validators of one method, which their errors name. Each raises DeclarationError for an annotation without a schema."""

    worker: str
    method: str

    def for_positions(self, annotations: Sequence[Any]) -> Validate | None:
        """Return a validator for one value per annotation, None when every value fits."""
        if _accepts_anything(annotations):
            return None
        return self._compile(tuple.__class_getitem__(tuple(annotations)))

    def for_bulk(self, annotations: Sequence[Any]) -> Validate | None:
        """Return a validator for a list of such tuples, made at its first use; None when every value fits."""
        if _accepts_anything(annotations):
            return None
        made: list[Validate] = []

        def validate(value: Any) -> object:
            if not made:
                made.append(self._compile(list.__class_getitem__(tuple.__class_getitem__(tuple(annotations)))))
            return made[0](value)

        return validate

    def for_varargs(self, annotation: Any) -> Validate | None:
        """Return a validator for the values of ``*args``, None when every value fits.

        Apart from the positions: pydantic builds a wrong schema for ``tuple[int, *tuple[str, ...]]`` (2.14).
        """
        if annotation is Any or annotation is object:
            return None
        return self._compile(list.__class_getitem__(annotation))

    def _compile(self, shape: Any) -> Validate:
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(shape)
            schema: Any = adapter.core_schema
            validator = (
                SchemaValidator(_with_typed_literals(schema)) if _has_non_text_literal(schema) else adapter.validator
            )
        except (PydanticSchemaGenerationError, PydanticUserError, SchemaError, TypeError) as error:
            reason = str(error).splitlines()[0]
            message = f"{self.method}'s annotations cannot be checked: {reason}"
            raise DeclarationError(self.worker, message, attribute=self.method) from error
        return partial(validator.validate_python, strict=True)


def _accepts_anything(annotations: Sequence[Any]) -> bool:
    return all(annotation is Any or annotation is object for annotation in annotations)


def _has_non_text_literal(schema: Any) -> bool:
    """Whether a Literal in the schema holds anything but text."""
    if is_list(schema):
        return any(map(_has_non_text_literal, schema))
    if not is_mapping(schema):
        return False
    if schema.get("type") == "literal":
        return not all(type(member) is str for member in schema["expected"])
    return any(map(_has_non_text_literal, schema.values()))


def _with_typed_literals(schema: Any) -> Any:
    """Return the schema with Literals that compare types too: pydantic takes True and 1.0 for ``Literal[1]`` even when strict."""
    if is_list(schema):
        return [_with_typed_literals(part) for part in schema]
    if not is_mapping(schema):
        return schema
    if schema.get("type") != "literal":
        return {key: _with_typed_literals(part) for key, part in schema.items()}
    expected: list[Any] = schema["expected"]

    def compare(value: Any) -> Any:
        if any(type(value) is type(member) and value == member for member in expected):
            return value
        raise ValueError(f"input should be {' or '.join(map(repr, expected))}")

    return {"type": "function-plain", "function": {"type": "no-info", "function": compare}}
