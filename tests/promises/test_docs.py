"""The pages about methods: every number in them is the default that a run would have."""

import re
from pathlib import Path

import pytest

from pdml.config.defaults import defaults
from pdml.config.fields import get
from pdml.config.methods import METHODS, PRESETS
from pdml.config.parse import shown
from pdml.config.tasks import TASKS
from pdml.reporting import published

PAGES = Path(__file__).parents[2] / "docs" / "methods"


@pytest.mark.parametrize("method", METHODS)
def test_tables_of_settings_are_the_defaults(method):
    text = (PAGES / f"{method}.md").read_text()
    lines = [line for line in text.split("## Settings by environment")[1].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["setting", *TASKS]
    assert len(cells) > 2
    for name, *values in cells[2:]:
        expected = [shown(get(defaults(f"{env}-v5", method), name.strip("`"))) for env in TASKS]
        assert values == expected, name


def test_two_updates_per_step_are_where_the_published_returns_on_the_page_are_better():
    row = r"^  \| (\w+) \| (\d+ ± \d+ \(\d\)) \| (\d+ ± \d+ \(\d\)) \|$"
    table = re.findall(row, (PAGES / "dhmbpo.md").read_text(), re.MULTILINE)
    assert [env for env, *_ in table] == ["Walker2d", "HalfCheetah", "Ant", "Humanoid", "Hopper"]
    for env, *cells in table:
        curves = [published.dhmbpo_curve(f"{env}-v5", updates) for updates in (1, 2)]
        points = [(one.mean[3], (one.high - one.mean)[3], one.seeds) for one in curves]
        assert all(one.steps[3] + published.DHMBPO_WARMUP == 50_000 for one in curves)
        assert cells == [f"{mean:.0f} ± {deviation:.0f} ({seeds})" for mean, deviation, seeds in points]
        better = 2 if points[1][0] > points[0][0] else 1
        for method in ("dhmbpo", "pdml-dhmbpo"):
            assert defaults(f"{env}-v5", method).learning.updates_per_step == better
            assert defaults(f"{env}-v5", method, "published").learning.updates_per_step == 1


@pytest.mark.parametrize("method", METHODS)
def test_settings_that_all_environments_share_are_the_defaults(method):
    text = " ".join((PAGES / f"{method}.md").read_text().split())
    shared = re.search(r"The same for all: (.*?)\. ", text)
    pairs = re.findall(r"`([\w.]+)` ([-\w.,]*\w)", shared[1]) if shared else []
    assert (len(pairs) > 5) == (method in ("mbpo", "ampo"))
    for name, value in pairs:
        found = {get(defaults(f"{env}-v5", method), name) for env in TASKS}
        assert len(found) == 1
        assert value in (shown(found.copy().pop()), f"{found.copy().pop():g}" if "," not in value else ""), name


def test_every_page_says_where_it_comes_from_and_what_differs():
    for method in METHODS:
        text = (PAGES / f"{method}.md").read_text()
        for part in ("**Source.**", "**In one sentence.**", "**Equation", "**What we do differently, and why.**"):
            assert part in text, (method, part)


def test_the_index_lists_all_methods_and_the_changes_of_the_preset():
    text = (PAGES / "index.md").read_text()
    for name, method in METHODS.items():
        assert f"| [`{name}`]({name}.md) | {method.summary} |" in text
    rows = re.findall(r"^\| `([\w.]+)` \| ([\w.]+) \|", text, re.MULTILINE)
    assert dict(rows) == {name: shown(value) for name, value in PRESETS["released"].changes.items()}
