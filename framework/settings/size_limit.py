"""Limits of the size of arguments: bytes of JSON, and the memory that they take when decoded."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, model_validator
from pydantic_settings import NoDecode

from framework.settings import validators
from framework.settings.base import Section

_MAX_REDIS_STRING = 512 * 1024 * 1024
"""The longest string that a Redis server takes."""

_MAX_MEMORY = 1 << 40

_QueuePattern = Annotated[str, AfterValidator(validators.queue_pattern)]


class SizeLimitSettings(Section):
    """Limits of a job's arguments as JSON, in bytes (GitLab's size limiter). ``track`` only reports, ``compress`` refuses."""

    mode: Literal["compress", "track"] = "compress"
    compression_threshold: Annotated[int, validators.whole_number(0, _MAX_REDIS_STRING)] = 100_000
    limit: Annotated[int, validators.whole_number(0, _MAX_REDIS_STRING)] = 5_000_000
    """0 = no limit."""
    decompressed_limit: Annotated[int, validators.whole_number(1, 4 * _MAX_REDIS_STRING)] = 100_000_000
    uncompressed_queues: Annotated[tuple[_QueuePattern, ...], NoDecode, BeforeValidator(validators.split_list)] = ()
    """Queues, or patterns of their names (``legacy:*``), whose jobs are not compressed, because plain Ruby serves them."""
    decoded_limit: Annotated[int, validators.whole_number(1_000_000, _MAX_MEMORY)] = 256_000_000
    """Bytes of memory that the decoded arguments of one job may take."""
    decoding_budget: Annotated[int, validators.whole_number(1_000_000, _MAX_MEMORY)] = 256_000_000
    """Bytes of memory that the large arguments of all running jobs of a process may take together; further jobs wait."""

    @model_validator(mode="after")
    def _check_order(self) -> "SizeLimitSettings":
        limit, threshold = self.limit, self.compression_threshold
        if self.decompressed_limit < limit:
            raise ValueError(
                f"decompressed_limit = {self.decompressed_limit} is below limit = {limit}: accepted arguments "
                "must be readable again"
            )
        if self.mode == "compress" and limit and threshold > limit:
            raise ValueError(
                f"compression_threshold = {threshold} is above limit = {limit}: arguments between the two would be refused without "
                "being compressed, while larger arguments pass"
            )
        if self.mode == "compress" and threshold > self.decompressed_limit:
            raise ValueError(
                f"compression_threshold = {threshold} is above decompressed_limit = {self.decompressed_limit}: compressed "
                "arguments could not be read again"
            )
        if self.decoding_budget < self.decoded_limit:
            raise ValueError(
                f"decoding_budget = {self.decoding_budget} is below decoded_limit = {self.decoded_limit}: one job could use "
                "more than all jobs together"
            )
        return self
