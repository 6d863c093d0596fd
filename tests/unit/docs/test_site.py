"""The pages as a site: they build strictly, load nothing from elsewhere, and name only commands and keys that exist."""

import re
import subprocess
import sys

import pytest
import typer.main
import yaml

from cloud_trainer import main as trainer_main
from cloud_trainer.config import TrainerConfig
from edge_agent import main as agent_main
from isthmus import EdgeConfig
from shared.config import tables
from tests.conftest import ROOT
from tests.support.pages import blocks

PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
ROOT_PAGES = ("../README.md", "../CONTRIBUTING.md")
APPS = {"edge-agent": typer.main.get_command(agent_main.app), "cloud-trainer": typer.main.get_command(trainer_main.app)}
COMMAND = re.compile(r"(?:^|[\s/`])(edge-agent|cloud-trainer) ([a-z][a-z-]*)((?: [^`\n#>]*)?)", re.MULTILINE)
FILES = ("pem", "key", "toml", "proto", "py", "token", "safetensors", "md")
KEYS = {
    ".".join((*table.path, key.name))
    for cls in (EdgeConfig, TrainerConfig)
    for table in tables(cls)
    for key in table.keys
} | {".".join(table.path) for cls in (EdgeConfig, TrainerConfig) for table in tables(cls)}
SECTIONS = {key.partition(".")[0] for key in KEYS} - {""}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={folder}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_configuration_reference_has_every_key_of_both_sides(site):
    page = (site / "configuration.html").read_text(encoding="utf-8")
    assert "keys of" not in page
    for cls in (EdgeConfig, TrainerConfig):
        for table in tables(cls):
            assert not table.keys or not table.path or f"[{'.'.join(table.path)}]" in page
            for key in table.keys:
                assert f"<code>{key.name}</code>" in page, key.name


@pytest.mark.slow
def test_a_page_fetches_nothing_from_elsewhere(site):
    fetched = re.compile(
        r"<(?:script|img|iframe|source)[^>]*\ssrc=\"(?:https?:)?//|<link[^>]*rel=\"(?:stylesheet|preconnect)\"[^>]*//"
    )
    built = list(site.rglob("*.html"))
    assert len(built) >= len(PAGES)
    assert [page.name for page in built if fetched.search(page.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("page", [page for page in (*PAGES, *ROOT_PAGES) if page != "limits.md"])
def test_every_command_and_flag_that_a_page_shows_is_there(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for program, name, rest in COMMAND.findall(text.replace("\\\n", " ")):
        commands = APPS[program].commands
        if name not in commands:
            assert f"`{program} {name}" not in text, f"{page}: {program} {name}"  # in a sentence, two words
            continue
        command = commands[name]
        if within := getattr(command, "commands", None):
            command = within[rest.split()[0]]
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        shown = {word.partition("=")[0] for word in rest.split() if word.startswith("--")}
        assert shown <= known, f"{page}: {program} {name}"


@pytest.mark.parametrize("page", [*PAGES, *ROOT_PAGES])
def test_every_key_that_a_page_names_exists(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    named = set(re.findall(rf"`((?:{'|'.join(SECTIONS)})(?:\.[a-z_]+)+)\b", text))
    unknown = {name for name in named if name not in KEYS and name.rpartition(".")[2] not in FILES}
    assert unknown == set()


@pytest.mark.parametrize("page", PAGES)
def test_the_toml_of_a_page_is_a_configuration(page):
    for block in blocks(page):
        if block.language == "toml":
            sections = set(re.findall(r"^\[+([a-z_]+)", block.text, re.MULTILINE))
            assert sections <= SECTIONS | {"token"}, block.text


def test_every_page_stands_in_the_navigation():
    assert sorted(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])) == PAGES


def leaves(tree):
    if isinstance(tree, str):
        yield tree
    for item in tree if isinstance(tree, list) else tree.values() if isinstance(tree, dict) else ():
        yield from leaves(item)
