"""Find Chromium, and start it without a window."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.harness import until

_IS_READY = (
    "document.readyState === 'complete' && !document.querySelector('.htmx-request, [hx-trigger^=load] > p:only-child')"
)
"""Whether a page has what it shows: also the parts that it has asked for after itself."""

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


class BrowserPage:
    """A page of a browser, driven over the pipes of its DevTools protocol."""

    def __init__(self, browser: str, folder: Path) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        command = browser_command(browser, folder, "--remote-debugging-pipe", "about:blank")
        # The browser reads commands from descriptor 3, and writes answers to 4.
        with (folder / "browser.err").open("wb") as errors:
            self._process = subprocess.Popen(
                ["bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "browser", *command],
                pass_fds=(commands, answers),
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
        os.close(commands)
        os.close(answers)
        self._unread = b""
        self._session: str | None = None
        self.problems: list[str] = []
        """Exceptions of scripts, and what the policy of the page or the browser has refused."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log"):
            self.call(f"{part}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of a command of the protocol."""
        session = {"sessionId": self._session} if self._session else {}
        os.write(
            self._commands, json.dumps({"id": 1, "method": method, "params": parameters, **session}).encode() + b"\0"
        )
        while (message := self._read()).get("id") != 1:
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.problems.append(json.dumps(message["params"]))
        return message.get("result", {})

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            part = os.read(self._answers, 1 << 16)
            if not part:
                raise EOFError("the browser has ended")
            self._unread += part
        text, _, self._unread = self._unread.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression; ``None`` while the page is being left."""
        return self.call("Runtime.evaluate", expression=expression, userGesture=True).get("result", {}).get("value")

    def open(self, url: str) -> None:
        """Open an address, and wait until the page and what htmx asks for are there."""
        self.call("Page.navigate", url=url)
        until(lambda: self.evaluate(_IS_READY), url)

    def press(self, key: str) -> None:
        """Press a key, such as ``j`` or ``Enter``."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def awaited(self, expression: str) -> Any:
        """Return what the promise of an expression is resolved with, as JSON."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return found["result"]["value"]

    def text(self) -> str:
        """Return the visible text of the page."""
        return str(self.evaluate("document.body?.innerText"))

    def click(self, selector: str) -> None:
        """Wait for an element, and click on it."""
        element = f"document.querySelector({json.dumps(selector)})"
        until(lambda: self.evaluate(f"!!{element} && document.readyState === 'complete'"), f"{selector} in the page")
        self.evaluate(f"{element}.click()")

    def close(self) -> None:
        """End the browser with its processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        os.close(self._commands)
        os.close(self._answers)
