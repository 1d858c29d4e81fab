"""The application's workers: real examples that run, one package per feature."""
