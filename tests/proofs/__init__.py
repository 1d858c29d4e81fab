"""The proofs behind docs/internals/reliability.md: each module is one, with a short version in the suite and the long one here."""
