"""Define the facts about one error in the configuration."""

from typing import NamedTuple


class ConfigurationProblem(NamedTuple):
    """Represent one error in the configuration: file, key and message."""

    file: str
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}: {self.key}" if self.key else self.file
        return f"{place}: {self.message}"
