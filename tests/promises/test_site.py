"""The documentation site: it builds, what it names exists, what a run writes is explained, its examples work."""

import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from page_blocks import blocks, save_modules
from tiny import TINY, tiny_of

from pdml.cli import main
from pdml.cli.info import settings_table
from pdml.cli.parser import Parser
from pdml.config.defaults import defaults
from pdml.config.fields import change, leaves
from pdml.config.files import to_json
from pdml.config.methods import METHODS, Feature, readers
from pdml.config.parse import parse
from pdml.config.start_from import StartFrom
from pdml.config.validate import check, refuse_foreign
from pdml.reporting.style import FIGURES
from pdml.runs.session import start_run
from pdml.runs.tensor_file import read_arrays

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FAKE_TRACKERS = ROOT / "tests" / "support" / "fake_trackers"
PAGES = [ROOT / "README.md", *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)]


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in PAGES[1:]:
        text = (tmp_path / page.relative_to(DOCS).with_suffix(".html")).read_text()
        assert not re.search(r'<(script|link|img)[^>]*(src|href)="(https?:)?//', text), page
        written = re.sub(r"<(pre|code|annotation)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert not re.search(r"\$\$|\\(frac|sum|pi|xi|hat)\b", written), f"{page}: a formula was not read as one"


def sections(text):
    """Return the text below each heading of the second level."""
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def table(text):
    """Return the cells of the rows of the first table."""
    lines = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(cell):
    """Return the names in a cell; `a_01` … `a_20` stands for all between."""
    found = re.findall(r"`([^`]+)`", cell)
    if "…" not in cell:
        return found
    (stem, first), (_, last) = (name.rsplit("_", 1) for name in found)
    return [f"{stem}_{i:0{len(first)}d}" for i in range(int(first), int(last) + 1)]


LEARNED_END, PRIOR = "progress.csv, with --termination learned", "progress.csv, with prior transitions"
BOUND = "progress.csv, with --double.kl_bound"
FAMILIES = {
    "all": (),
    "model-based": (Feature.MODEL,),
    "MBPO's family": (Feature.BRANCHES,),
    "double-horizon": (Feature.DOUBLE_HORIZON,),
}


def explained(method, more=None):
    """Return the columns of each file that docs/metrics.md says a method has.

    Args:
        more: The section of what a run adds that is not like others.
    """
    families = {name: readers(features) for name, features in FAMILIES.items()}
    found = {}
    for file, text in sections((DOCS / "metrics.md").read_text()).items():
        rows = [(name, families.get(who) or names(who)) for cell, _, who in table(text) for name in names(cell)]
        assert len({name for name, _ in rows}) == len(rows), f"{file}: something is explained twice"
        assert all(methods and set(methods) <= set(METHODS) for _, methods in rows), file
        found[file] = {name for name, methods in rows if method in methods}
    return {file: columns for file, columns in found.items() if file not in {LEARNED_END, PRIOR, BOUND} - {more}}


def ones(shape):
    """Return an array of ones, or keys where keys are meant."""
    if jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(1), shape.shape)
    return jnp.asarray(np.ones(shape.shape, shape.dtype))


def only_shapes(function, **kwargs):
    """Stand in for `jax.jit`: find the shapes of what a function returns and return ones, without compiling it."""
    known = {}

    def call(*args):
        leaves, structure = jax.tree.flatten(args)
        asked = (structure, *((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))
        if asked not in known:
            returned = []

            def flat(*args):
                leaves, structure = jax.tree.flatten(function(*args))
                returned.append(structure)
                return leaves

            known[asked] = jax.eval_shape(flat, *args), returned
        shapes, returned = known[asked]
        return jax.tree.unflatten(returned[0], [ones(shape) for shape in shapes])

    return call


def written(method, path, start=None, **more):
    """Return the columns of each file that a run of a method writes, in three blocks of one step after the warm-up."""
    changes = {"steps": 63, "model_every": 1, "epoch_steps": 2, "eval_every": 63, "eval_episodes": 1}
    changes |= {"diagnose": True, "diagnose_every": 63, "diagnose_steps": 5, "updates_per_step": 1}
    changes |= {"agent.hidden_sizes": (4,), "agent.num_critics": 2, "dynamics.hidden_sizes": (4,)}  # most is tracing
    changes |= {"dynamics.weight_decay": (0.0, 0.0), "dynamics.num_members": 1, "dynamics.num_elites": 1, **more}
    read = {leaf.name for leaf in leaves() if method in leaf.methods}
    changes = {name: value for name, value in changes.items() if name in read}
    start_run(change(tiny_of(method), changes), path, 1, "test", start=start)
    found = {file.name: set(file.read_text().splitlines()[0].split(",")) for file in path.glob("*.csv")}
    blocks = sorted(path.glob("blocks/*"))
    entries = set(read_arrays(blocks[-1])[0]) if blocks else set()
    return {"diagnostics.csv": set(), "blocks": entries} | found


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_what_a_run_writes_is_what_the_page_explains(method, tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "jit", only_shapes)  # names of columns do not depend on numbers
    assert written(method, tmp_path / "run") == explained(method)


def test_what_a_learned_termination_adds_is_what_the_page_explains(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "jit", only_shapes)
    found = written("mbpo", tmp_path / "run", termination="learned")["progress.csv"]
    page = explained("mbpo", LEARNED_END)
    assert found == page["progress.csv"] | page[LEARNED_END]


@pytest.mark.slow
def test_what_a_bound_of_the_divergence_adds_is_what_the_page_explains(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "jit", only_shapes)
    found = written("dhmbpo", tmp_path / "run", **{"double.kl_bound": 1.0})["progress.csv"]
    page = explained("dhmbpo", BOUND)
    assert found == page["progress.csv"] | page[BOUND]


def test_what_prior_transitions_add_is_what_the_page_explains(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "jit", only_shapes)
    written("mbpo", tmp_path / "old")
    found = written("mbpo", tmp_path / "run", StartFrom(tmp_path / "old", ("rows",)))["progress.csv"]
    page = explained("mbpo", PRIOR)
    assert found == page["progress.csv"] | page[PRIOR]


def test_the_page_of_settings_has_them_all():
    assert "\n".join(settings_table()) in (DOCS / "settings.md").read_text(), "pdml list settings prints another table"


def test_every_symbol_has_its_name_in_the_code():
    rows = table(sections((DOCS / "algorithm.md").read_text())["Symbols"])
    assert {row[0] for row in rows if not row[3]} == {*(f"**({i})**" for i in range(1, 8)), "**Algorithm 2**"}
    named = [(names(row[2]), names(row[3])) for row in rows if row[3]]
    assert len(named) > 40
    for (name,), (file,) in named:
        source = (ROOT / "src" / "pdml" / file).read_text()
        for part in name.split("."):
            assert re.search(rf"\b{part}\b", source), f"{file} has no {part}"


def test_blocks_are_found_by_their_language_and_in_order():
    listed = "- item\n\n  ```python\n  b = a\n\n  ```\n"
    text = f"```python\na = 1\n```\ntext\n\n{listed}\n```sh\npdml list envs\n```\n\n```\nc\n```\n"
    assert blocks(text, "python") == ["a = 1\n", "b = a\n\n"]
    assert blocks(text, "sh", "") == ["pdml list envs\n", "c\n"]


@functools.cache
def with_python():
    """Return the pages that have Python to run."""
    return [path for path in PAGES if blocks(path.read_text(), "python")]


SMALLER = ("agent", "dynamics", "rollouts", "batch_size", "updates_per_step", "eval_episodes", "mixture.reservoir")
SMALL_NETWORKS = f"""
import pdml.api
from pdml.config.fields import change

SMALL = { {name: value for name, value in TINY.items() if name.startswith(SMALLER)} }
full_size = pdml.api.defaults
pdml.api.defaults = lambda *args, **kwargs: change(full_size(*args, **kwargs), SMALL)
"""
"""Makes the default networks and minibatches tiny. Of the examples only the README's is run at its full size."""


@pytest.mark.slow
@pytest.mark.parametrize("page", with_python(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_python_of_a_page_runs(page, tmp_path):
    """All its blocks in order, in one process, in a directory with the files that the page says to make."""
    save_modules(page, tmp_path)
    code = "\n".join([*([SMALL_NETWORKS] if page != PAGES[0] else []), *blocks(page.read_text(), "python")])
    places = os.pathsep.join(filter(None, [str(FAKE_TRACKERS), os.environ.get("PYTHONPATH")]))
    env, words = {**os.environ, "PYTHONPATH": places}, [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{page}\n{done.stderr}"


def commands():
    """Yield the page and the words of every line of a shell block that calls pdml."""
    for page in PAGES:
        for block in blocks(page.read_text(), "sh", "console", ""):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line.removeprefix("$ "), comments=True) if "pdml " in line else []
                if words[:1] == ["pdml"]:
                    yield page.relative_to(ROOT), words[1:]


def accept(options):
    """Stand in for a command: check what it would check first, and do nothing."""
    if options.command == "train":
        given = {
            name[6:]: text for name, text in vars(options).items() if name.startswith("field:") and text is not None
        }
        changes = {name: parse(name, text) for name, text in given.items()}
        refuse_foreign(options.base.learning.method, changes)
        check(change(options.base, changes), options.task)
    assert options.command != "figure" or options.name in FIGURES
    return 0


@pytest.mark.parametrize(("page", "words"), [pytest.param(*found, id=" ".join(found[1])) for found in commands()])
def test_a_command_of_a_page_is_understood(page, words, tmp_path, monkeypatch, capsys):
    if any(word.startswith("dm_control/") for word in words):
        pytest.importorskip("shimmy")  # an extra that Python 3.13 has not

    def parse_known_args(self, *args, _real=Parser.parse_known_args, **kwargs):
        options, unknown = _real(self, *args, **kwargs)
        if hasattr(options, "run"):
            options.run = accept
        return options, unknown

    monkeypatch.setattr(Parser, "parse_known_args", parse_known_args)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    save_modules(ROOT / page, tmp_path)
    if "--config" in words:
        file = Path(words[words.index("--config") + 1])
        file.parent.mkdir(parents=True)
        file.write_text(to_json(defaults("Hopper-v5")))
    try:
        code = main(words)
    except SystemExit as stopped:  # --help, --version
        code = stopped.code
    assert code == 0, capsys.readouterr().err
