"""Name the keys of results beside the answers of jobs, which ``wire/keys.py`` names."""


def result_facts(jid: str) -> str:
    """STRING with a TTL: facts of an integration beside the result of a job, such as the function of ``django.tasks``."""
    return f"aw:result:{jid}:facts"


def result_calls(caller: str) -> str:
    """LIST with a TTL: the ids of the jobs that have ended, for the process that has called them."""
    return f"aw:result_calls:{caller}"
