"""The page, and the calls of one control service, as a browser may ask for them. All else is refused before it is looked at."""

import hashlib
import ipaddress
import re
from base64 import b64encode
from collections.abc import Callable, Collection
from http import HTTPStatus
from pathlib import Path

import grpc

from shared.config import is_loopback
from shared.web.calls import Calls, refused
from shared.web.requests import Request, Response

PAGE = Path(__file__).with_name("page.html")
MOST_PAGE_BYTES = 150_000
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.-]+)(:[0-9]{1,5})?")
_ALWAYS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every answer."""


class Site:
    """The answers. Whatever page a browser comes from, it gets and changes nothing here unless that page is this one."""

    def __init__(self, service: str, calls: Calls, scheme: str, names: Callable[[], Collection[str]]) -> None:
        """service: full name of the one that is shown. scheme: "http" or "https". names: hosts beside this machine's own by
        which a browser may know this server.
        """
        self._calls = calls
        self._scheme = scheme
        self._names = names
        page = PAGE.read_text().replace('data-service="SERVICE"', f'data-service="{service}"')
        policy = {"Content-Security-Policy": _policy(page)}
        self._page = Response(HTTPStatus.OK, page.encode(), "text/html; charset=utf-8", policy)

    async def answer(self, request: Request, peer: str) -> Response:
        """Answer a request. peer: the caller's address in gRPC's form."""
        response = await self._answered(request, peer)
        return Response(response.status, response.body, response.content_type, {**_ALWAYS, **response.headers})

    async def _answered(self, request: Request, peer: str) -> Response:
        host = request.headers.get("host", "")
        if not self._is_ours(host):  # of a name that was made to point here
            return refused(grpc.StatusCode.PERMISSION_DENIED, "the host that was asked for is not this one (Host)")
        match request.method:
            case "GET" if request.path.partition("?")[0] == "/":
                return self._page
            case "GET":
                return refused(grpc.StatusCode.UNIMPLEMENTED, "there is one page, at /")
            case "POST":
                return await self._called(request, peer, f"{self._scheme}://{host}")
        allowed = {"Allow": "GET, POST"}
        return Response(HTTPStatus.METHOD_NOT_ALLOWED, b"the methods are GET and POST\n", headers=allowed)

    async def _called(self, request: Request, peer: str, ours: str) -> Response:
        headers = request.headers
        # A browser names the page's origin with each POST; what names none is no browser.
        if headers.get("origin", ours).lower() != ours.lower() or headers.get("sec-fetch-site", "none") not in _OURS:
            return refused(grpc.StatusCode.PERMISSION_DENIED, "the page that asks is of another origin (Origin)")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return Response(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, b"a call is JSON (Content-Type: application/json)\n")
        return await self._calls.answer(request, peer)

    def _is_ours(self, host: str) -> bool:
        if (match := _HOST.fullmatch(host)) is None:
            return False
        name = match[1].lower()
        return is_loopback(f"{name}:0") or any(_matches(name.strip("[]"), known) for known in self._names())


_OURS = ("same-origin", "none")


def _matches(name: str, known: str) -> bool:
    """Tell whether a certificate's name, which may begin with a star for one label, is that of a host."""
    known = known.lower()
    if known.startswith("*."):
        return name.partition(".")[2] == known[2:]
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(known)
    except ValueError:
        return name == known


def _policy(page: str) -> str:
    """Return a content policy: the page's own script and style, by their hashes, and requests to where it came from."""
    hashes = {
        kind: " ".join(
            f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
            for text in re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        )
        for kind in ("script", "style")
    }
    return (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
