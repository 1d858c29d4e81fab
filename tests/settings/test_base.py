"""Check that files, keys and messages follow the class of the settings, whatever its bases declare."""

from typing import Annotated

import pytest
from pydantic import Field, SecretStr

from framework.errors import ConfigurationError
from framework.settings.base import FileKey, Section, SettingsBase, SettingsSchema
from framework.settings.load import load_as
from framework.settings.model import CoreSettings


class VaultSection(Section):
    place: str = "cellar"
    doors: dict[str, int] = Field(default_factory=dict[str, int], repr=False)
    word: SecretStr | None = None


class VaultSettings(SettingsBase):
    vault: VaultSection = VaultSection()
    guards: Annotated[dict[str, int], FileKey("guards.yml", expected="must hold guards")] = Field(
        default_factory=dict[str, int]
    )


class HouseSettings(VaultSettings, CoreSettings):
    """The core with one feature."""


SCHEMA = SettingsSchema(HouseSettings)


def test_keys_of_a_feature_are_in_their_files():
    assert SCHEMA.file_by_key["vault"] == "application.yml"
    assert SCHEMA.keys_by_file["guards.yml"] == ("guards",)
    assert SCHEMA.keys_at(["vault"]) == ["place", "doors", "word"]
    assert "root" not in SCHEMA.file_by_key


@pytest.mark.parametrize(
    ("path", "hidden"),
    [("vault", True), ("vault.doors", True), ("vault.doors.x", True), ("vault.word", True), ("vault.place", False)],
)
def test_parts_without_repr_are_hidden_in_messages(path, hidden):
    assert ("hunter2" not in SCHEMA.actual_value_note("hunter2", path.split("."))) is hidden


def test_file_of_a_feature_is_loaded_and_checked(tmp_path):
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "guards.yml"
    file.write_text("guards: {ada: 2}")
    settings = load_as(HouseSettings, {"FRAMEWORK_VAULT__PLACE": "attic"}, tmp_path)
    assert (settings.guards, settings.vault.place, settings.timeout) == ({"ada": 2}, "attic", 25)
    file.write_text("guards: [ada]")
    with pytest.raises(ConfigurationError) as caught:
        load_as(HouseSettings, {}, tmp_path)
    assert list(caught.value.problems) == [("config/guards.yml", "guards", 'must hold guards, not ["ada"]')]


def test_settings_are_those_of_a_feature_if_composed(tmp_path):
    settings: CoreSettings = load_as(HouseSettings, {}, tmp_path)
    assert VaultSettings.of(settings).vault.place == "cellar"
    with pytest.raises(TypeError, match="CoreSettings has no base VaultSettings"):
        VaultSettings.of(load_as(CoreSettings, {}, tmp_path))
