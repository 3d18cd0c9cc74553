"""A headless Chromium driven over its DevTools pipe: no driver, no web socket, only file descriptors and JSON."""

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio", "--remote-debugging-pipe",
)  # fmt: skip
KEYS = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
PATIENCE = 30.0


def find_chromium() -> str | None:
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


class Chromium:
    """One browser with one tab. What the tab asks the network for and what goes wrong in it is kept."""

    def __init__(self, executable: str, profile: Path) -> None:
        (read_in, write_in), (read_out, write_out) = os.pipe(), os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (read_in, write_out)]
        actions = [(os.POSIX_SPAWN_DUP2, ends[0], 3), (os.POSIX_SPAWN_DUP2, ends[1], 4)]
        actions += [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in (0, 1, 2)]
        command = [executable, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = os.posix_spawn(executable, command, dict(os.environ), file_actions=actions, setpgroup=0)
        for end in (*ends, read_in, write_out):
            os.close(end)
        self._write, self._read, self._rest = write_in, read_out, b""
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.requested: list[str] = []
        self.wrong: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        os.close(self._write)  # the end of the pipe ends the browser
        deadline = time.monotonic() + PATIENCE
        while os.waitpid(self._process, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.killpg(self._process, signal.SIGKILL)
            time.sleep(0.02)
        os.close(self._read)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "Chromium does not answer"
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "Chromium has ended"
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, parameters: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.wrong.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.wrong.append(parameters["entry"]["text"])

    def evaluate(self, script: str) -> Any:
        result = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, script: str) -> Any:
        """What `script` gives as soon as it is true."""
        deadline = time.monotonic() + PATIENCE
        while not (value := self.evaluate(script)):
            assert time.monotonic() < deadline, f"never true: {script}"
            time.sleep(0.03)
        return value

    def open(self, url: str) -> None:
        """The page from anew, even at the same address, and ready."""
        self.send("Page.navigate", url="about:blank")
        self.wait("location.href === 'about:blank' && document.readyState === 'complete'")
        self.send("Page.navigate", url=url)
        self.wait("document.documentElement?.dataset.ready !== undefined")

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def press(self, key: str, control: bool = False) -> None:
        code = {"windowsVirtualKeyCode": KEYS[key], "key": key, "code": key, "modifiers": 2 if control else 0}
        text = {"text": "\r"} if key == "Enter" else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **code)

    def point(self, selector: str, click: bool = False) -> None:
        """Move the mouse to the middle of an element (of its first line), and press the button."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getClientRects()[0];"
        x, y = self.evaluate(f"{box} return [b.x + b.width / 2, b.y + b.height / 2]; }})()")
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def choose_file(self, selector: str, path: Path) -> None:
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", files=[str(path)], nodeId=node)

    def save_downloads_in(self, folder: Path) -> None:
        self.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def resize(self, width: int, height: int, phone: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.send("Emulation.setTouchEmulationEnabled", enabled=phone)

    def prefer(self, scheme: str) -> None:
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))
