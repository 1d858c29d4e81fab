"""Find classes that encrypt without a key."""

from collections.abc import Iterator

from framework.errors import ConfigurationProblem
from framework.features.encryption.settings import EncryptionSettings
from framework.route.router import LoadedWorkers


def key_problems(workers: LoadedWorkers) -> Iterator[ConfigurationProblem]:
    """Yield a problem for each class that encrypts, if there is no key."""
    settings = EncryptionSettings.of(workers.settings)
    if settings.encryption.secrets:
        return
    file = settings.config_file_label("application.yml")
    message = "{} declares `encrypt = True`: set encryption.keys, which `application-worker encryption new-key` makes"
    for one in workers.declarations:
        if one.encrypt:
            yield ConfigurationProblem(file, "encryption.keys", message.format(one.wire_name))
