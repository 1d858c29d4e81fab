"""The base of every section of the settings: frozen, without unknown keys."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One section."""

    model_config = ConfigDict(frozen=True, extra="forbid")
