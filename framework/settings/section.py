"""What every section of the settings is: frozen, and without keys that nobody reads."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One section."""

    model_config = ConfigDict(frozen=True, extra="forbid")
