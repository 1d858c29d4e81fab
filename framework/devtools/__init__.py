"""Tools of development and continuous integration: lint, compatibility, generated files. The runtime never imports them."""
