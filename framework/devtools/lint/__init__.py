"""Check the source of workers by rules, without importing it. A comment with a reason suppresses a finding."""
