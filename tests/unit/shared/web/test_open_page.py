"""A page that other machines reach: TLS, a certificate's names, and the scopes of tokens."""

import pytest

from cloud_trainer.control.certificates import Identity, issue, make_authority
from edge_agent.config import EdgeConfig
from shared.config import load_config
from shared.errors import ConfigError, ExitCode
from shared.transport.auth.scopes import AN_AGENTS, Scope
from shared.transport.auth.tokens import make_token
from tests.support.browser import NothingBehind, get, post, served, trusting


class Files:
    """The files of one page, in a folder."""

    def __init__(self, folder):
        self.authority = make_authority("ours", 1)
        self.folder = folder
        self.authority.write(folder / "ca.pem", folder / "ca.key")
        self.certify("localhost", "gpu.example.org", "203.0.113.7", "*.lan.example")
        self.write_tokens(reader=[Scope.READ], operator=[Scope.READ, Scope.OPERATE], agent=AN_AGENTS)

    @property
    def keys(self):
        files = {"certificate": "x.pem", "key": "x.key", "tokens": "tokens.toml"}
        return {key: self.folder / name for key, name in files.items()}

    @property
    def trust(self):
        return trusting(self.folder / "ca.pem")

    def certify(self, *hosts):
        issue(self.authority, Identity("x", hosts), 1).write(self.folder / "x.pem", self.folder / "x.key")

    def write_tokens(self, **scopes):
        made = {subject: make_token(subject, each) for subject, each in scopes.items()}
        (self.folder / "tokens.toml").write_text("\n".join(table for _, table in made.values()))
        self.tokens = {subject: f"Bearer {secret}" for subject, (secret, _) in made.items()}


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.mark.parametrize("missing", [{"certificate", "key"}, {"tokens"}, {"certificate", "key", "tokens"}])
def test_a_page_in_the_open_without_tls_or_tokens_is_refused_in_a_sentence(files, missing):
    flags = [f"web.{key}={path}" for key, path in files.keys.items() if key not in missing]
    with pytest.raises(ConfigError, match="which other machines may reach, without") as refused:
        load_config(EdgeConfig, None, ["web.listen=0.0.0.0:8080", *flags], environ={})
    assert refused.value.exit_code is ExitCode.CONFIG
    assert "\n" not in str(refused.value)


def test_a_key_without_its_certificate_is_refused(files):
    with pytest.raises(ConfigError, match="belong together"):
        load_config(EdgeConfig, None, ["web.listen=127.0.0.1:0", f"web.key={files.keys['key']}"], environ={})


async def test_the_page_says_nothing_by_itself_and_calls_need_a_token_with_its_scope(files):
    behind = NothingBehind()
    async with served(behind, files.trust, **files.keys) as page:
        assert (await page.ask(get())).status == 200
        for shown in (None, "Bearer wrong", "Basic x", "Bearer"):
            said = await page.ask(post("GetStatus", authorization=shown))
            assert (said.status, said.json["code"]) == (401, "unauthenticated")
            assert "web.tokens" in said.json["message"]
            assert "trainer.token_file" not in said.json["message"]
        statuses = {
            (subject, method): (await page.ask(post(method, authorization=files.tokens[subject]))).status
            for subject in files.tokens
            for method in ("GetStatus", "GetHistory", "Pause", "Drain")
        }
    allowed = {"reader": ("GetStatus", "GetHistory"), "agent": ("GetStatus", "GetHistory")}
    for (subject, method), status in statuses.items():
        assert status == (200 if method in allowed.get(subject, method) else 403), (subject, method)
    assert len(behind.calls) == 8


async def test_a_token_that_is_withdrawn_opens_nothing_more(files):
    async with served(NothingBehind(), files.trust, **files.keys) as page:
        old = files.tokens["operator"]
        assert (await page.ask(post("Drain", authorization=old))).status == 200
        files.write_tokens(reader=[Scope.READ])
        assert (await page.ask(post("Drain", authorization=old))).status == 401


async def test_the_hosts_are_those_of_the_certificate(files):
    async with served(NothingBehind(), files.trust, **files.keys) as page:
        for host in ("gpu.example.org", "GPU.example.org:8080", "203.0.113.7", "one.lan.example", "localhost"):
            assert (await page.ask(get(host=host))).status == 200, host
            origin = {"origin": f"https://{host}", "authorization": files.tokens["reader"]}
            assert (await page.ask(post("GetStatus", host=host, **origin))).status == 200, host
        for host in ("example.org", "evil.gpu.example.org", "a.b.lan.example", "lan.example", "203.0.113.8"):
            assert (await page.ask(get(host=host))).status == 403, host


async def test_a_new_certificate_is_shown_without_a_restart(files):
    async with served(NothingBehind(), files.trust, **files.keys) as page:
        assert (await page.ask(get())).status == 200
        files.certify("localhost", "another.example.org")
        assert (await page.ask(get(host="another.example.org"))).status == 200
        _, writer = await page.connected()
        names = writer.get_extra_info("peercert")["subjectAltName"]
        writer.transport.abort()
    assert ("DNS", "another.example.org") in names


async def test_what_speaks_no_tls_gets_nothing_and_keeps_nobody_out(files):
    async with served(NothingBehind(), files.trust, **files.keys) as page:
        page_in_clear = type(page)(page.port)
        assert await page_in_clear.ask(get()) is None
        assert (await page.ask(get())).status == 200
