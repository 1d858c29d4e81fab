"""Test the suggestion of the nearest known word."""

from framework.text import did_you_mean
from tests.tables import each_row


@each_row(
    ("word", "hint"),
    [
        ("urgnet", " (did you mean 'urgent'?)"),
        ("URGENT", " (did you mean 'urgent'?)"),
        ("cron", " (did you mean 'cronjob'?)"),
        ("urgent", ""),  # a known word needs no suggestion
        ("mails", ""),
        (7, ""),
    ],
)
def test_did_you_mean_suggests_the_nearest_known_word(word, hint):
    assert did_you_mean(word, ["urgent", "cronjob", "default"]) == hint
