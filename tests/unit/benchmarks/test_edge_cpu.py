"""The measurement of processor time: both sides compute the same, and a longer run prepares no more images."""

import torch

from benchmarks.edge_cpu import start_process
from benchmarks.networks import DISTINCT_IMAGES, RandomImages


def test_a_longer_run_draws_no_more_images_and_repeats_those_there_are():
    short, long = RandomImages(DISTINCT_IMAGES, size=4), RandomImages(3 * DISTINCT_IMAGES + 1, size=4)
    assert len(long) == 3 * DISTINCT_IMAGES + 1
    for index in (0, DISTINCT_IMAGES - 1, DISTINCT_IMAGES, len(long) - 1):
        (image, label), (again, its_label) = long[index], short[index % DISTINCT_IMAGES]
        assert torch.equal(image, again)
        assert label == its_label == long.label(index)
    held = {long[index][0].data_ptr() for index in range(len(long))}
    assert len(held) == DISTINCT_IMAGES


def test_another_checkouts_processes_import_the_networks_and_data_of_this_one(tmp_path):
    for package in ("benchmarks", "edge_agent"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    paths = "import sys, benchmarks, edge_agent; print(benchmarks.__file__, edge_agent.__file__, file=sys.stderr)"
    _, printed = start_process(tmp_path, "-c", paths).communicate(timeout=60)
    benchmarks, edge_agent = printed.split()
    assert not benchmarks.startswith(str(tmp_path))
    assert edge_agent.startswith(str(tmp_path))
