"""Test the guide's table of variables: exactly the settings of the model, with their defaults."""

import json
import re
from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

from framework.all_settings import Settings
from framework.settings.base import ENV_PREFIX, SettingsSchema, unwrap_annotation
from tests.reference_pages import text_of

ROW = re.compile(r"^\| `([A-Z_]+)` \| (.*?) \| (.+) \|$", re.MULTILINE)
OTHERS = {"REDIS_URL", "SENTRY_DSN", "FRAMEWORK_ENV", "FRAMEWORK_CONFIG_DIR", "FRAMEWORK_VAR_DIR"}
"""Read from the environment alone."""


def variables(kind: Any, name: str, default: Any) -> Iterator[tuple[str, str]]:
    """Return every variable at or below this one, with its default as JSON."""
    kind = unwrap_annotation(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for key, field in kind.model_fields.items():
            inner = getattr(default, key) if isinstance(default, kind) else field.get_default(call_default_factory=True)
            yield from variables(field.annotation, f"{name}__{(field.alias or key).upper()}", inner)
    elif get_origin(kind) is dict and issubclass(type(unwrap_annotation(get_args(kind)[1])), type(BaseModel)):
        yield from variables(get_args(kind)[1], f"{name}__NAME", None)
    else:
        yield name, shown(default)


def shown(default: Any) -> str:
    if default in (PydanticUndefined, None, "") or isinstance(default, SecretStr):
        return "none"
    return f"`{json.dumps(default, default=str)}`".replace('"', "")


def test_table_of_variables_matches_the_settings_model():
    known = dict(
        entry
        for key, field in Settings.model_fields.items()
        if key in SettingsSchema(Settings).file_by_key
        for entry in variables(
            field.annotation, f"{ENV_PREFIX}{key.upper()}", field.get_default(call_default_factory=True)
        )
    )
    rows = {name: default for name, default, _ in ROW.findall(text_of("Settings"))}
    assert rows.keys() - OTHERS == known.keys()
    assert rows.keys() >= OTHERS
    assert {name: rows[name] for name in known} == known
