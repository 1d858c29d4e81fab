"""Explain where the jobs of an isolated class run."""

from framework.admin.explain_reader import ExplainReader
from framework.declare.declaration import Declaration
from framework.text import Sentence


class IsolationReader(ExplainReader):
    """Tell that a job runs in a process of its own."""

    def place_of_run(self, declaration: Declaration) -> str:
        return Sentence("it runs in a process of its own") if declaration.facts.get("isolation") == "process" else ""
