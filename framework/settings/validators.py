"""Validators of single settings: each takes a value and returns it normalised, or says what is allowed."""

import json
import math
import os
import re
import ssl
from keyword import iskeyword
from pathlib import Path
from typing import Any

from pydantic import BeforeValidator

from framework.typeguards import short_repr
from framework.types import WIRE_NAME, WIRE_NAME_FORMAT

_NAME = re.compile(r"\w[\w-]*", re.ASCII)
_IDENTIFIER = re.compile(r"\w+", re.ASCII)
_QUEUE_PATTERN = re.compile(r"[A-Za-z0-9_.:*?-]+")
_MAX_SHOWN = 60
_MAX_LABEL = 100
_LEAST_BYTES = 1_000_000


def format_value(value: Any) -> str:
    """Return a value for a message: as JSON writes it, shortened."""
    try:
        text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    # YAML has keys of any kind, and numbers longer than Python prints.
    except (TypeError, ValueError):
        text = short_repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def parse_whole_number(value: Any, low: int, high: int | None = None) -> int:
    """Return the whole number in these bounds that a value is or spells. Raises ValueError."""
    number = _finite_number(value)
    if number is None or number != int(number) or number < low or (high is not None and number > high):
        raise ValueError(f"must be a whole number from {low:,} {f'to {high:,}' if high is not None else 'on'}")
    return int(number)


def parse_number(value: Any, low: float, high: float) -> float:
    """Return the number in these bounds that a value is or spells. Raises ValueError."""
    number = _finite_number(value)
    if number is None or not low <= number <= high:
        raise ValueError(f"must be a number from {low:,g} to {high:,g}")
    return float(number)


def whole_number(low: int, high: int | None = None) -> BeforeValidator:
    """Return a validator around ``parse_whole_number``. A variable of the environment is always text."""
    return BeforeValidator(lambda value: parse_whole_number(value, low, high))


def bounded_number(low: float, high: float) -> BeforeValidator:
    return BeforeValidator(lambda value: parse_number(value, low, high))


def bytes_or_share(value: Any) -> int | float:
    """Return a number of bytes, or a share: of "70%" and of 0.7. Raises ValueError."""
    text = str(value).strip()
    number = _finite_number(text.removesuffix("%").strip() if text.endswith("%") else value)
    share = None if number is None else number / 100 if text.endswith("%") else number
    if share is not None and 0.01 <= share <= 1:
        return float(share)
    if share is not None and share >= _LEAST_BYTES and share == int(share):
        return int(share)
    raise ValueError("must be a number of bytes from 1,000,000 on, or a percentage from 1% to 100%, for example 70%")


def _finite_number(value: Any) -> int | float | None:
    """Return the finite number that a value is or spells. A bool is none."""
    if isinstance(value, str) and value.isascii():
        for kind in (int, float):
            try:
                value = kind(value)
                break
            except ValueError:
                pass
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return None if isinstance(value, float) and not math.isfinite(value) else value


def shard_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError("must be a name of ASCII letters, digits, _ and -")
    return name


def environment_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError("must be a name of ASCII letters, digits, _ and -, for example production or staging")
    return name


def folder_path(value: Any) -> Any:
    """Validate the path of a folder, which may be made later."""
    if not isinstance(value, str | Path) or not str(value).strip():
        raise ValueError("must be the path of a folder")
    if str(value).startswith("~"):
        raise ValueError("must be the path of a folder without ~, which only a shell reads")
    return value


def identifier(name: str) -> str:
    """Validate the name of a category or a namespace."""
    if _IDENTIFIER.fullmatch(name) is None:
        raise ValueError("must be a name of ASCII letters, digits and underscores")
    return name


def category(name: str) -> str:
    """Validate the name of a category that has an owner."""
    if name == "not_owned":
        raise ValueError("is reserved for workers that no team owns: it needs no entry")
    return identifier(name)


def class_pattern(pattern: str) -> str:
    """Validate a pattern of wire names: ``*``, ``?`` and ``[...]`` match as in a shell."""
    if not pattern or any(character.isspace() or character == "," for character in pattern):
        raise ValueError("must be a class name, or a pattern of class names, for example Ruby::* or *::LegacyJob")
    return pattern


def split_list(value: Any) -> Any:
    """Return a list: one word is a list of one; the environment may write ``a,b`` or a JSON list."""
    if not isinstance(value, str):
        return value
    if value.startswith("["):
        try:
            return json.loads(value)
        except RecursionError:
            raise ValueError("is nested deeper than any setting") from None
        except ValueError as error:
            raise ValueError(f"must be a,b or a JSON list ({error})") from None
    return [part.strip() for part in value.split(",")] if value.strip() else []


def digit(value: Any) -> Any:
    """Return the digit of a text: a variable of the environment is always text."""
    return int(value) if isinstance(value, str) and value in set("0123456789") else value


def off_switch(value: Any) -> Any:
    """Return "off" for False, as YAML reads the word ``off``."""
    return "off" if value is False else value


def existing_file(value: Any) -> Any:
    """Return the path of a file that can be opened when the first connection is made, or None."""
    if value is not None and not (isinstance(value, str | Path) and Path(value).is_file()):
        raise ValueError("must be the path of a file that exists")
    return value


def check_ca_file(path: Path) -> None:
    """Raise ValueError when no certificate of an authority can be read from the file."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        raise ValueError(f"{path} holds no certificates in PEM form") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def check_certificate(certificate: Path, key: Path | None) -> None:
    """Raise ValueError when a client certificate or its key cannot be read, or the two do not belong together."""
    place = f"key_file {key}" if key is not None else f"key_file is missing, and cert_file {certificate}"
    for name, path in (("cert_file", certificate), ("key_file", key)):
        if path is not None and not os.access(path, os.R_OK):
            raise ValueError(f"{name} {path} cannot be read: Permission denied")
    try:
        check_ca_file(certificate)
    except ValueError as error:
        raise ValueError(f"cert_file {error}") from None
    try:
        # Without a password it would be asked for on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password=_refuse_password_prompt)
    except _EncryptedKeyError:
        raise ValueError(
            f"{place} is encrypted: give a key without a password, in a file that only this user may read"
        ) from None
    except ssl.SSLError as error:
        if "MISMATCH" in str(error):
            raise ValueError(f"{place} does not belong to the certificate cert_file {certificate}") from None
        raise ValueError(f"{place} holds no private key in PEM form") from None


class _EncryptedKeyError(Exception):
    """A key needs a password."""


def _refuse_password_prompt() -> str:
    raise _EncryptedKeyError


def wire_name(name: str) -> str:
    if WIRE_NAME.fullmatch(name) is None:
        raise ValueError(f"must be {WIRE_NAME_FORMAT}")
    return name


def queue_pattern(pattern: str) -> str:
    """Validate the name of a queue, or a pattern of such names."""
    if _QUEUE_PATTERN.fullmatch(pattern) is None:
        raise ValueError("must be the name of a queue, or a pattern with * and ?, for example legacy or legacy:*")
    return pattern


def retirement_reason(value: Any) -> Any:
    """Validate the reason for which a class was retired."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text: the reason and the date of the removal of the class")
    return value.strip()


def process_label(text: str) -> str:
    """Validate a tag or a label of a process, as dashboards show them."""
    if not text.isprintable() or not 0 < len(text.strip()) <= _MAX_LABEL:
        raise ValueError(f"must be a text of 1 to {_MAX_LABEL} characters that can be printed")
    return text.strip()


def object_name(name: str) -> str:
    """Validate the name of an object in a module: ``shop.features:TENANT``."""
    module, _, attribute = name.partition(":")
    if not attribute.isidentifier():
        raise ValueError("must be a module and a name in it, for example shop.features:TENANT")
    module_name(module)
    return name


def module_name(name: str) -> str:
    """Validate the name of a module or package, as an import statement has it."""
    if not all(part.isidentifier() and not iskeyword(part) for part in name.split(".")):
        raise ValueError("must be the name of a module, for example workers or shop.jobs")
    return name
