"""Read YAML strictly: each error names its position."""

from pathlib import Path

import pytest

from framework.settings.files import MAX_BYTES, YamlError, parse_yaml, read_yaml
from tests.tables import each_row


def test_yaml_of_plain_content_is_read(tmp_path: Path):
    file = tmp_path / "a.yml"
    file.write_text("a: &x [1, {b: yes}]\nc: *x\n")
    assert read_yaml(file) == {"a": [1, {"b": True}], "c": [1, {"b": True}]}
    file.write_text("# nothing\n")
    assert read_yaml(file) is None


NESTED_ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


@each_row(
    ("text", "words"),
    [
        ("a: [1", "line 2, column 1"),
        ("a: 1\nb: c: d", "line 2, column 5"),
        ("\tx: 1", "line 1, column 1"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: the key 'a' occurs for the second time"),
        ("a: {b: 1, b: 2}", "line 1, column 11"),
        (NESTED_ALIASES, "aliases expand"),
        ("a: &a [*a]", "refers to a value that contains it"),
        ("[" * 50_000, "nested deeper than 32"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: *nowhere", "undefined alias"),
        ("a: 1\n---\nb: 2", "line 2"),
        ("{[1]: 2}: 3", "line 1"),
        ("a: 2026-99-99", "cannot be read"),
        ("é: 1\na: \x00", "line 2, column 4: the character #x0000"),
    ],
)
def test_yaml_text_with_fault_is_refused(text: str, words: str):
    with pytest.raises(YamlError) as caught:
        parse_yaml(text)
    assert words in str(caught.value)


def test_yaml_file_with_fault_is_refused(tmp_path: Path):
    large, latin = tmp_path / "large.yml", tmp_path / "latin.yml"
    large.write_text("#" * (MAX_BYTES + 1))
    latin.write_bytes(b"a: \xe4\n")
    for file, words in (
        (large, "larger than"),
        (latin, "not UTF-8 (byte 3)"),
        (tmp_path, "cannot be read"),
        (tmp_path / "no", "cannot be read"),
    ):
        with pytest.raises(YamlError) as caught:
            read_yaml(file)
        assert words in str(caught.value)
