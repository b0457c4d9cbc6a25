"""Opens a page in Chromium, through its DevTools protocol: what a reader of a report sees and does."""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import connect

PATIENCE = 60.0  # seconds for any one answer; the machine may be busy with trainings
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--hide-scrollbars",
]


def chromium() -> str | None:
    """The browser's path, or None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def open_page(path: Path, width: int, height: int) -> "Page":
    """Open a file in a browser of its own. Below 600 pixels it behaves as a phone does."""
    page = Page()
    try:
        page.start(width, height)
        page.go(path)
    except BaseException:
        page.close()
        raise
    return page


class Page:
    """One page in one browser process. Close it, or use it in a `with` statement."""

    def __init__(self) -> None:
        binary = chromium()
        if binary is None:
            raise FileNotFoundError("no Chromium on this machine")
        self._profile = tempfile.TemporaryDirectory(prefix="pdml-browser-", ignore_cleanup_errors=True)
        command = [binary, *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={self._profile.name}", "about:blank"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
        self._open = contextlib.ExitStack()  # closed in reverse order: the socket, the process, its files
        self._open.callback(self._profile.cleanup)
        self._open.callback(self._end)
        self._socket: Any = None
        self._session: str | None = None
        self._calls = 0
        self._events: list[dict[str, Any]] = []
        self._file = ""

    def start(self, width: int, height: int) -> None:
        """Connect to the browser and make a page of this size."""
        ready = Path(self._profile.name) / "DevToolsActivePort"
        deadline = time.monotonic() + PATIENCE
        while not (ready.exists() and len(ready.read_text().splitlines()) == 2):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("Chromium did not start")
            time.sleep(0.02)
        port, address = ready.read_text().splitlines()
        socket = connect(f"ws://127.0.0.1:{port}{address}", max_size=None, proxy=None, compression=None)
        self._socket = self._open.enter_context(socket)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol, and keep the events that come before its answer."""
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": params}
        self._socket.send(json.dumps(message | ({"sessionId": self._session} if self._session else {})))
        while (answer := self._receive()).get("id") != self._calls:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        answer = json.loads(self._socket.recv(timeout=PATIENCE))
        if "method" in answer:
            self._events.append(answer)
        return answer

    def go(self, path: Path, fragment: str = "") -> None:
        """Load a file again and forget what was reported before."""
        self.call("Page.navigate", url="about:blank")  # else a new fragment alone would not load the page again
        self._file = path.resolve().as_uri()
        self._events.clear()
        self.call("Page.navigate", url=self._file + fragment)
        while self.evaluate("[location.protocol, document.readyState].join()") != "file:,complete":
            time.sleep(0.01)

    def resize(self, width: int, height: int) -> None:
        """Give the page another size."""
        phone = width < 600
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", **size, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def evaluate(self, script: str) -> Any:
        """The value of an expression, or of what it promises."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", script))
        return answer["result"].get("value")

    def point(self, selector: str, across: float = 0.5, down: float = 0.5) -> dict[str, float]:
        """Scroll an element into sight; where it is: at its centre, or at other shares of its width and height."""
        x, y = self.evaluate(f"""(() => {{
            const node = document.querySelector({json.dumps(selector)});
            node.scrollIntoView({{block: "center", inline: "center", behavior: "instant"}});
            const box = node.getBoundingClientRect();
            return [box.left + {across} * box.width, box.top + {down} * box.height];
        }})()""")
        return {"x": x, "y": y}

    def hover(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        """Move the mouse over an element."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **self.point(selector, across, down))

    def click(self, selector: str) -> None:
        """Click at an element's centre."""
        place = self.point(selector)
        for kind, buttons in (("mouseMoved", 0), ("mousePressed", 1), ("mouseReleased", 0)):
            button = {"button": "none" if kind == "mouseMoved" else "left", "buttons": buttons, "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **place, **button)

    def touch(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        """Touch an element with one finger and lift it again."""
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[self.point(selector, across, down)])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write what is seen, or the whole length of the page, as a PNG."""
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(image["data"]))

    def pdf(self, path: Path) -> None:
        """Write the page as it would be printed."""
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True)["data"]))

    @property
    def errors(self) -> list[str]:
        """Exceptions, console errors and warnings, and requests for anything but the file itself."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")  # what is on its way
        found = (_complaint(event["method"], event["params"], self._file) for event in self._events)
        return [text for text in found if text]

    def close(self) -> None:
        """End the browser: this one and its children, no other."""
        self._open.close()

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its own session, begun above
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _complaint(method: str, params: dict[str, Any], file: str) -> str | None:
    if method == "Runtime.exceptionThrown":
        details = params["exceptionDetails"]
        return f"exception: {details.get('exception', {}).get('description', details['text'])}"
    if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
        return f"log: {params['entry']['text']}"
    if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
        return f"console: {[argument.get('value') for argument in params['args']]}"
    if method == "Network.requestWillBeSent":
        address = params["request"]["url"]
        if not address.startswith("data:") and address.split("#")[0] != file:
            return f"request: {address}"
    return None
