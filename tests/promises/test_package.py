"""The package that users install: its versions, its extras, and its page on an index."""

import re
import runpy
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
PYTHONS = ("3.11", "3.12", "3.13")


def test_the_same_interpreters_are_claimed_everywhere():
    claimed = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert tuple(claimed) == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    for page in ("README.md", "docs/install.md"):
        assert "Python 3.11, 3.12 or 3.13" in (ROOT / page).read_text()


def test_only_the_build_of_jax_that_computes_wrong_rows_is_excluded_and_one_version_is_pinned():
    assert [name for name in PROJECT["dependencies"] if re.match(r"jax(lib)?\b", name)] == [
        "jax>=0.8,!=0.10.2",
        "jaxlib!=0.10.2",
    ]
    assert re.findall(r"^jax(?:lib)?==(.*)$", CONSTRAINTS, re.MULTILINE) == ["0.8.2", "0.8.2"]


def test_every_extra_is_on_the_page_about_installing():
    page = (ROOT / "docs" / "install.md").read_text()
    assert set(re.findall(r"^\| `\.\[(\w+)\]` \|", page, re.MULTILINE)) == set(PROJECT["optional-dependencies"])


@pytest.fixture
def page_for_index(monkeypatch):
    """The function that hatchling calls; hatchling itself is only there when it builds."""
    interface = SimpleNamespace(MetadataHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    return runpy.run_path(str(ROOT / "tools" / "index_readme.py"))["page_for_index"]


README = "A\n\n![a picture](docs/a.png)\n\nSee [the page](docs/a.md), [above](#a) and [all](https://a.org/b).\n"


def test_on_an_index_links_lead_to_the_repository(page_for_index):
    assert page_for_index(README, "https://host.org/me/pdml/") == (
        "A\n\n![a picture](https://host.org/me/pdml/raw/main/docs/a.png)\n\n"
        "See [the page](https://host.org/me/pdml/blob/main/docs/a.md), [above](#a) and [all](https://a.org/b).\n"
    )


def test_on_an_index_no_link_leads_nowhere_while_the_repository_has_no_address(page_for_index):
    assert page_for_index(README, None) == "A\n\nSee the page, [above](#a) and [all](https://a.org/b).\n"
    page = page_for_index((ROOT / "README.md").read_text(), PROJECT.get("urls", {}).get("Repository"))
    assert not re.search(r"\]\((?!https?:|#)", page)
    assert "## From Python" in page


def test_ci_tries_a_second_interpreter_and_says_where_there_is_none():
    script = (ROOT / ".ci" / "run").read_text()
    assert "make test-second SECOND=" in script
    assert "no second Python found" in script
    for version in PYTHONS:
        assert version in script
    assert "test-second:" in (ROOT / "Makefile").read_text()
