"""The page and its calls: one origin, one file, and nothing of another site's may come in."""

import base64
import hashlib
import re

import pytest

from shared.transport.rpc.status import StatusError
from shared.web.site import MOST_PAGE_BYTES, PAGE
from tests.support.browser import EVIL, SERVICE, NothingBehind, get, post, served

HTML = PAGE.read_text()


def test_the_page_is_one_small_file_that_asks_for_nothing_else():
    assert PAGE.stat().st_size <= MOST_PAGE_BYTES
    assert set(re.findall(r"""(?:src|href)\s*=\s*["']?([^"'>]*)""", HTML)) == {"data:,"}
    assert not re.search(r"@import|url\(|https?:|//[a-z]+\.", HTML.replace("http://www.w3.org/2000/svg", ""))


def test_the_page_has_no_code_but_its_script_and_puts_everything_in_as_text():
    assert not re.search(r"<[^>]+\s(on\w+|style)\s*=", HTML)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(|cssText", HTML)


async def test_the_policy_lets_that_script_run_and_no_other():
    async with served(NothingBehind()) as page:
        said = await page.ask(get())
    shown = HTML.replace('"SERVICE"', f'"{SERVICE.full_name}"')
    assert (said.status, said.body.decode()) == (200, shown)
    policy = dict(part.strip().split(" ", 1) for part in said.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for kind in ("script", "style"):
        (text,) = re.findall(rf"<{kind}>(.*?)</{kind}>", HTML, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert said.headers["x-content-type-options"] == "nosniff"
    assert policy["frame-ancestors"] == "'none'"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "127.8.9.1", "[::1]:8080"])
async def test_this_machine_is_known_by_its_own_names(host):
    async with served(NothingBehind()) as page:
        assert (await page.ask(get(host=host))).status == 200
        assert (await page.ask(post("GetStatus", host=host, origin=f"http://{host}"))).status == 200


@pytest.mark.parametrize(
    "host",
    [None, "", "evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "user@localhost", "0x7f.1", "10.0.0.1"],
)
async def test_a_name_that_was_made_to_point_here_gets_nothing(host):
    behind = NothingBehind()
    async with served(behind) as page:
        assert (await page.ask(get(host=host))).status == 403
        assert (await page.ask(post("Drain", host=host))).status == 403
    assert behind.calls == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": EVIL}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:1"}, 403),
        ({"origin": "https://localhost"}, 403),
        ({"origin": "http://localhost.evil.example"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_type": None}, 415),
    ],
)
async def test_another_sites_page_steers_nothing(headers, status):
    behind = NothingBehind()
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    async with served(behind) as page:
        assert (await page.ask(post("Drain", **headers))).status == status
    assert behind.calls == []


async def test_a_get_steers_nothing_and_what_is_not_there_is_not_found():
    behind = NothingBehind()
    async with served(behind) as page:
        assert (await page.ask(get("/isthmus.v1.EdgeControlService/Drain"))).status == 404
        assert (await page.ask(get("/favicon.ico"))).status == 404
        assert (await page.ask(get("/../../etc/passwd"))).status == 404
        for method in ("Watch", "Nothing", "../TrainerControlService/Drain"):
            assert (await page.ask(post(method))).status == 404
        assert (await page.ask(get("/?anything"))).status == 200
    assert behind.calls == []


async def test_a_call_comes_with_its_request_and_a_refusal_with_its_sentence():
    class Refuses(NothingBehind):
        async def pin(self, request):
            self.calls.append(request)
            raise StatusError(grpc_code("FAILED_PRECONDITION"), "no session is open now")

    behind = Refuses()
    async with served(behind) as page:
        said = await page.ask(post("Pin", '{"cut": 3}', origin="http://localhost"))
        assert (said.status, said.json) == (400, {"code": "failed_precondition", "message": "no session is open now"})
        assert behind.calls[0].cut == 3
        for broken in ("", "{", '{"cut": -1}', '{"nothing": 1}', '{"cut": 1, "cut": 2}', "[" * 5000, b"\xff"):
            said = await page.ask(post("Pin", broken))
            assert (said.status, said.json["code"]) == (400, "invalid_argument"), broken
    assert len(behind.calls) == 1


def grpc_code(name):
    import grpc

    return grpc.StatusCode[name]
