"""Define the error of a run that lasts longer than its ``timeout``."""


class JobTimeoutError(BaseException):
    """End a run that lasts longer than its ``timeout`` (``timeout_s`` seconds): the job has failed.

    It is raised inside of ``perform`` where a thread happens to be. ``except Exception`` does not catch it.
    """

    # The public name, which logs and the retry set show.
    __module__ = "framework.errors"
    timeout_s = 0.0

    def explain(self, timeout_s: float) -> "JobTimeoutError":
        """Set the message, and return the error: the interpreter raises it in a thread without arguments."""
        self.timeout_s = timeout_s
        self.args = (f"perform ran for more than {timeout_s:g} s, its timeout",)
        return self
