"""The comparison with other systems: what counts as a line, and programs that train the same."""

import re
import runpy
import tomllib

import pytest
import torch

from benchmarks.compare.counting import lines_of
from benchmarks.compare.made import BATCH, EPOCHS, save_digits, save_texts
from benchmarks.compare.systems import FLOWER, ISTHMUS, LIGHTNING, PLAIN, PROGRAMS, SYSTEMS, TRAININGS
from shared.model.random_state import derive_seed


def test_blanks_comments_docstrings_and_the_order_that_all_have_are_no_lines(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        '"""What it is,\nin two lines."""\n\nfrom order import Order\nimport os  # counts\n\n# no\n\n'
        'def f(\n    a,\n):\n    """No."""\n    return """one\n\ntwo"""\n'
    )
    assert lines_of(program) == 7
    settings = tmp_path / "settings.toml"
    settings.write_text("# no\n\n[section]\nkey = 1  # counts\n")
    assert lines_of(settings) == 2


@pytest.mark.parametrize("training", TRAININGS)
def test_each_system_has_its_programs_and_the_same_recipe(training):
    files = {system: [PROGRAMS / training / name for name in system.files] for system in SYSTEMS}
    assert all(file.exists() for named in files.values() for file in named)
    ours = tomllib.loads(files[ISTHMUS][0].read_text())
    rate, epochs = ours["training"]["optimizer"]["learning_rate"], ours["training"]["epochs"]
    assert epochs == EPOCHS
    for system in (PLAIN, LIGHTNING):
        (told,) = re.findall(r"^EPOCHS, RATE = (.+), (.+)$", files[system][0].read_text(), re.MULTILINE)
        assert (int(told[0]), float(told[1])) == (epochs, rate)
    halves = next(file for file in files[FLOWER] if file.name == "halves.py").read_text()
    assert [(float(one), int(two)) for one, two in re.findall(r"RATE, BATCH = (.+), (.+)", halves)] == [(rate, BATCH)]


def test_all_programs_get_the_samples_in_the_order_of_a_run():
    order = runpy.run_path(str(PROGRAMS / "order.py"))["Order"](50, seed=3)
    for epoch in range(2):
        seed = derive_seed(3, "order", epoch)
        assert list(order) == torch.randperm(50, generator=torch.Generator().manual_seed(seed)).tolist()


def test_the_data_are_a_folder_for_each_class_and_texts_of_two_kinds(tmp_path):
    pytest.importorskip("PIL")
    save_digits(tmp_path, part=0.1)
    assert {path.name for path in (tmp_path / "digits" / "train").iterdir()} == set("0123456789")
    save_texts(tmp_path, part=0.1)
    rows = (tmp_path / "train.csv").read_text().splitlines()
    assert rows[0] == "text,label"
    assert {row[-1] for row in rows[1:]} == {"0", "1"}
