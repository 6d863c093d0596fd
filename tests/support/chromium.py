"""Headless Chromium, steered over two pipes by its own protocol, so that nothing need be installed beside it."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
QUIET = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
]
SECONDS = 60


class Chromium:
    """One page of one browser."""

    def __init__(self):
        program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
        if program is None:
            pytest.skip("no Chromium is installed (apt-get install chromium)")
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()

        def place():
            os.dup2(os.dup(theirs_in), 103)
            os.dup2(os.dup(theirs_out), 104)
            os.dup2(103, 3)
            os.dup2(104, 4)

        self._process = subprocess.Popen(
            [program, *QUIET, f"--user-data-dir={self._folder.name}", "about:blank"],
            close_fds=False,
            preexec_fn=place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = os.fdopen(ours_in, "rb", buffering=0), os.fdopen(ours_out, "wb", buffering=0)
        self._numbers, self._rest = itertools.count(1), b""
        self._session = None
        self.requested = []
        """URLs that the page has asked for."""
        target = next(each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """The result of one command."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            said = self._read()
            if said.get("method") == "Network.requestWillBeSent":
                self.requested.append(said["params"]["request"]["url"])
            if said.get("method") == "Page.javascriptDialogOpening":
                self._out.write(
                    json.dumps(
                        {
                            "id": next(self._numbers),
                            "method": "Page.handleJavaScriptDialog",
                            "params": {"accept": True},
                            "sessionId": self._session,
                        }
                    ).encode()
                    + b"\0"
                )
            if said.get("id") == number:
                assert "error" not in said, said
                return said["result"]

    def _read(self):
        while b"\0" not in self._rest:
            data = self._in.read(65536)
            assert data, "the browser has ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def shows(self, width, height, *, dark=False):
        """Have the window this size and scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url):
        """Load a page."""
        self.call("Page.navigate", url=url)
        self.until(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def tells(self, expression):
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, expression):
        """The value of an expression once it is true."""
        begin = time.monotonic()
        while not (value := self.tells(expression)):
            assert time.monotonic() - begin < SECONDS, f"{expression} is {value!r}"
            time.sleep(0.05)
        return value

    def picture(self, path):
        """Write what is shown, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def close(self):
        """End the browser."""
        self._in.close()
        self._out.close()
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()
