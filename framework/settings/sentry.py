"""The settings of the error tracker."""

from urllib.parse import urlsplit

from pydantic import SecretStr, field_validator

from framework.settings.base import Section


class SentrySettings(Section):
    """The error tracker: failures of jobs are sent to ``dsn``. Without a DSN its library is not even loaded."""

    dsn: SecretStr | None = None

    @field_validator("dsn")
    @classmethod
    def _check_dsn(cls, dsn: SecretStr | None) -> SecretStr | None:
        text = dsn.get_secret_value().strip() if dsn is not None else ""
        if not text:
            return None
        try:
            parts = urlsplit(text)
            whole = parts.scheme in ("http", "https") and parts.username and parts.hostname and parts.port != 0
        except ValueError:
            whole = False
        if not whole or not text.rpartition("/")[2].isdecimal():
            raise ValueError("is not a DSN: copy it from the project's settings in Sentry (https://KEY@HOST/PROJECT)")
        return SecretStr(text)
