"""Drop or defer jobs by feature flags of operators."""
