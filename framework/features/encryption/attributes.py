"""Declare the attribute of classes whose arguments are encrypted."""

from typing import ClassVar

from framework.declare import validators
from framework.declare.attribute import attribute, attribute_group


@attribute_group()
class EncryptionAttributes:
    """Whether the arguments are encrypted."""

    encrypt: ClassVar[bool] = attribute(
        False,
        validator=validators.boolean,
        group="payload",
        effect="The push encrypts all arguments with AES-GCM, under the active key of the setting `encryption`; the run "
        "decrypts them. Log lines, commands and Sidekiq's pages show `[encrypted data]`.",
        trap="The message of an error, and the context, are stored as they are: keep secrets out of them. Processes need a "
        "new key before producers use it.",
    )
    """The arguments are stored encrypted."""
