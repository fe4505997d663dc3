"""Chromium for tests, driven over its debugging pipe: no driver, no port, no package.

Each page is in a browser context of its own, so no test sees another's storage. What a page complains
of (exceptions, console errors, blocked loads, violations of its content policy) is kept in `complaints`.

Specification: Chrome DevTools Protocol; messages over `--remote-debugging-pipe` end with a NUL byte.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import os
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio

from tests.support.processes import ROOT

SCREENSHOTS: Final = ROOT / "build" / "screenshots"
LIMIT_S: Final = 30
FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LOWEST_FD: Final = 10  # away from 3 and 4, which the browser talks on

_WAIT_FOR: Final = """new Promise((resolve) => {
  const look = () => {
    let found = null;
    try { found = (%s); } catch { /* not there yet */ }
    if (found) resolve(found); else setTimeout(look, 15);
  };
  look();
})"""


def find_chromium() -> str | None:
    """Return the browser's path; None where there is none."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class CdpError(Exception):
    """The browser refused a command."""


class Browser:
    """A running Chromium."""

    def __init__(self, process: subprocess.Popen[bytes], commands: int, answers: int) -> None:
        self._process = process
        self._commands = commands
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        self._last = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    async def send(
        self, method: str, params: dict[str, Any] | None = None, session: str = ""
    ) -> dict[str, Any]:
        """Send a command and return its answer."""
        future = self.post(method, params, session)
        with anyio.fail_after(LIMIT_S):
            answer = await future
        if "error" in answer:
            raise CdpError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def post(
        self, method: str, params: dict[str, Any] | None = None, session: str = ""
    ) -> asyncio.Future[dict[str, Any]]:
        """Send a command without waiting for its answer."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        future: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._waiting[self._last] = future
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        return future

    @asynccontextmanager
    async def page(
        self, *, width: int = 1440, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> AsyncIterator[Page]:
        """Open a page in a context of its own; it must have no complaints at the end."""
        context = (await self.send("Target.createBrowserContext"))["browserContextId"]
        target = await self.send("Target.createTarget", {"url": "about:blank", "browserContextId": context})
        attached = await self.send("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})
        page = Page(self, attached["sessionId"], context)
        self._pages[attached["sessionId"]] = page
        try:
            for domain in ("Page", "Runtime", "Log", "Network"):
                await page.send(f"{domain}.enable")
            await page.look(width=width, height=height, dark=dark)
            if not scripts:
                await page.send("Emulation.setScriptExecutionDisabled", {"value": True})
            yield page
        finally:
            with anyio.CancelScope(shield=True):
                await self.send("Target.disposeBrowserContext", {"browserContextId": context})
                del self._pages[attached["sessionId"]]

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        os.close(self._commands)
        os.close(self._answers)

    def _read(self) -> None:
        """Pass on what the browser says; a thread, until the browser ends."""
        pending = b""
        while chunk := os.read(self._answers, 1 << 20):
            *messages, pending = (pending + chunk).split(b"\0")
            for message in messages:
                self._loop.call_soon_threadsafe(self._take, json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            future = self._waiting.pop(message["id"])
            if not future.done():
                future.set_result(message)
        elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
            page.note(message["method"], message["params"])


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser = browser
        self._session = session
        self._context = context
        self._loaded = anyio.Event()
        self.complaints: list[str] = []
        """What went wrong in it, as text."""
        self.requests: list[tuple[str, str]] = []
        """Method and URL of all it asked for."""

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a command to this tab."""
        return await self._browser.send(method, params, self._session)

    def note(self, method: str, params: dict[str, Any]) -> None:
        """Take an event of the protocol."""
        match method:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Network.requestWillBeSent":
                self.requests.append((params["request"]["method"], params["request"]["url"]))
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.complaints.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(str([given.get("value") for given in params["args"]]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                entry = params["entry"]
                self.complaints.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")

    async def goto(self, url: str) -> None:
        """Open a URL and wait for its load event."""
        self._loaded = anyio.Event()
        await self.send("Page.navigate", {"url": url})
        with anyio.fail_after(LIMIT_S):
            await self._loaded.wait()

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression; a promise is awaited."""
        answer = await self.send(
            "Runtime.evaluate", {"expression": expression, "awaitPromise": True, "returnByValue": True}
        )
        if "exceptionDetails" in answer:
            raise CdpError(str(answer["exceptionDetails"].get("exception", {}).get("description")))
        return answer["result"].get("value")

    async def wait_for(self, condition: str) -> Any:
        """Return the value of an expression once it is true; looked at in the page."""
        return await self.evaluate(_WAIT_FOR % condition)

    async def text(self, selector: str) -> str:
        """Return the text of an element."""
        return str(await self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent"))

    async def is_visible(self, selector: str) -> bool:
        """Return whether an element is shown."""
        found = f"document.querySelector({json.dumps(selector)})?.checkVisibility() ?? false"
        return bool(await self.evaluate(found))

    async def click(self, selector: str) -> None:
        """Click the middle of an element with the mouse, once it can be seen."""
        name = json.dumps(selector)
        await self.wait_for(f"document.querySelector({name})?.getClientRects().length")
        x, y = await self.evaluate(
            f"(() => {{ const node = document.querySelector({name});"
            " node.scrollIntoView({block: 'center'});"
            " const box = node.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.send(
                "Input.dispatchMouseEvent",
                {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1},
            )

    async def fill(self, selector: str, text: str) -> None:
        """Put text into a field as if it were typed or pasted."""
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).select()")
        if text:
            await self.send("Input.insertText", {"text": text})
        else:
            await self.evaluate("document.execCommand('delete')")

    async def press(self, key: str, *, ctrl: bool = False) -> None:
        """Press and release a key."""
        codes = {"Enter": 13, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37}
        params = {
            "key": key,
            "code": key,
            "windowsVirtualKeyCode": codes[key],
            "modifiers": 2 if ctrl else 0,
        }
        if key == "Enter":
            params["text"] = "\r"
        await self.send("Input.dispatchKeyEvent", {"type": "keyDown", **params})
        await self.send("Input.dispatchKeyEvent", {"type": "keyUp", **params})

    async def look(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Give it a size and a colour scheme; below 600 px it is a phone."""
        phone = width < 600
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone},
        )
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        await self.send("Emulation.setEmulatedMedia", {"features": features})

    async def screenshot(self, name: str) -> None:
        """Keep a picture of the whole page in build/screenshots."""
        how = {"format": "png", "captureBeyondViewport": True}
        shot = await self.send("Page.captureScreenshot", how)
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        (SCREENSHOTS / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))

    async def nameless_controls(self) -> list[str]:
        """Return the roles of what can be used but has no name for those who hear the page."""
        nodes = (await self.send("Accessibility.getFullAXTree"))["nodes"]
        controls = {"button", "link", "textbox", "combobox", "tab", "region", "img"}
        return [
            node["role"]["value"]
            for node in nodes
            if not node["ignored"]
            and node["role"]["value"] in controls
            and not node.get("name", {}).get("value", "").strip()
        ]

    async def screenshots(self, name: str) -> None:
        """Keep pictures of it on a phone and on a desk, light and dark; it must fit both."""
        for width, height in ((375, 812), (1440, 900)):
            for dark in (False, True):
                await self.look(width=width, height=height, dark=dark)
                needed = await self.evaluate("document.documentElement.scrollWidth")
                if needed > width:
                    self.complaints.append(f"{name} needs {needed} pixels of {width}")
                await self.screenshot(f"{name}-{width}-{'dark' if dark else 'light'}")


@asynccontextmanager
async def running_browser(folder: Path) -> AsyncIterator[Browser]:
    """Run Chromium with a fresh profile in `folder`."""
    path = find_chromium()
    assert path is not None
    commands_in, commands_out = os.pipe()
    answers_in, answers_out = os.pipe()
    theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD) for fd in (commands_in, answers_out)]
    os.close(commands_in)
    os.close(answers_out)
    command = [path, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}', "bash", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=theirs,
        )
    for fd in theirs:
        os.close(fd)
    browser = Browser(process, commands_out, answers_in)
    try:
        yield browser
    finally:
        browser.close()
