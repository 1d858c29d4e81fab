"""Find Chromium, and start it without a window."""

import os
import shutil
from pathlib import Path

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> str:
    """Return the path of the browser; skip the test without one, but never in CI."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no Chromium, and this run may not do without: run `scripts/setup --system`")
        pytest.skip("no Chromium: the page was not looked at in a browser (`scripts/setup --system` brings one)")
    return found


def browser_command(browser: str, folder: Path, *flags: str) -> list[str]:
    """Return the command that opens a page (the last flag is its address) with a new profile in the folder."""
    quiet = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-breakpad",
        "--disable-dev-shm-usage",
    ]  # fmt: skip
    return [browser, *quiet, f"--user-data-dir={folder / 'profile'}", *flags]
