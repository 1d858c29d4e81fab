"""Collect the faults of one worker class from every check, and raise them once."""

from collections.abc import Generator
from contextlib import contextmanager

from framework.errors import DeclarationError


class ErrorCollector:
    """The faults of the class that messages call ``worker``, in the order in which they were found."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.errors: list[DeclarationError] = []

    def add(self, message: str, attribute: str) -> None:
        """Note one fault."""
        self.errors.append(DeclarationError(self.worker, message, attribute=attribute))

    @contextmanager
    def collect(self) -> Generator[None]:
        """Note a DeclarationError that the block raises, and go on after the block."""
        try:
            yield
        except DeclarationError as error:
            self.errors += error.problems

    def has_error_in(self, attribute: str) -> bool:
        """Whether a fault of this attribute, method or parameter has been noted."""
        return any(fault.attribute == attribute for fault in self.errors)

    def raise_errors(self) -> None:
        """Raise all noted faults as one DeclarationError; without any, return."""
        if self.errors:
            raise _combined(self.worker, self.errors)


def _combined(worker: str, errors: list[DeclarationError]) -> DeclarationError:
    """Return one error for all faults of a class: the only one, or a list of them."""
    problems = list({problem.message: problem for error in errors for problem in error.problems}.values())
    if len(problems) == 1:
        return problems[0]
    listed = "".join(f"\n  - {problem.message}" for problem in problems)
    error = DeclarationError(worker, f"{len(problems)} problems:{listed}", attribute=problems[0].attribute)
    error.problems = tuple(problems)
    return error
