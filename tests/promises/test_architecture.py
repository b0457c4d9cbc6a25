"""The house rules of the source: which package imports which, sizes of modules and functions, one meaning per name."""

import ast
import runpy
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import pdml
from pdml.config.methods import METHODS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "pdml"

BASE = {"core", "config"}
PARTS = BASE | {"data", "models", "agents", "weighting"}
BELOW_RUNS = PARTS | {"envs", "dhmbpo", "training"}
ALLOWED = {
    "core": set(),
    "config": {"core"},
    "data": BASE,
    "envs": BASE,
    "models": BASE | {"data"},
    "agents": BASE | {"data"},
    "weighting": BASE | {"data"},
    "dhmbpo": PARTS,
    "training": PARTS | {"envs", "dhmbpo"},
    "runs": BELOW_RUNS,
    "reporting": BASE,
    "sweeps": BELOW_RUNS | {"runs", "reporting"},
    "studies": BELOW_RUNS | {"runs", "reporting"},
    "views": BELOW_RUNS | {"runs", "api"},
    "api": BELOW_RUNS | {"runs", "studies", "reporting", "views"},
    "callbacks": {"core", "runs", "api", "views"},
    "cli": BELOW_RUNS | {"runs", "studies", "reporting", "sweeps", "api", "callbacks"},
    "__init__": {"api", "core", "envs", "runs", "sweeps", "views"},
    "__main__": {"cli"},
}
"""What each package or top-level module may import, beside itself."""

FORBIDDEN = {
    "config": {"jax", "jaxlib", "optax", "gymnasium", "mujoco"},
    "reporting": {"jax", "jaxlib", "optax", "gymnasium", "mujoco"},
    "models": {"gymnasium", "mujoco"},
    "agents": {"gymnasium", "mujoco"},
    "weighting": {"gymnasium", "mujoco"},
}
"""Libraries that a package must not import."""

REPEATED = {"add_commands": "each module of pdml.cli adds its own commands"}
"""Public names that more than one module defines, and why."""

UNSAFE = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml"}
EVALUATING = {"eval", "exec", "compile", "__import__"}
"""Libraries and functions that can run code that stands in a file; numpy.load can as well."""

MOST_LINES, LONGEST_FUNCTION = 400, 60


@cache
def modules():
    """Return the syntax tree of every module, by its path in the package."""
    return {path.relative_to(SOURCE): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def package_of(path):
    return path.parts[0] if len(path.parts) > 1 else path.stem


def imported(path, tree):
    """Return the full names that a module imports, also inside functions and for type checkers only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_table_has_every_package():
    assert {package_of(path) for path in modules()} <= set(ALLOWED)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_is_below_it(package):
    wrong = []
    for path, tree in modules().items():
        for name in imported(path, tree) if package_of(path) == package else ():
            root, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if root == "pdml" and target != package and target not in ALLOWED[package]:
                wrong.append(f"{path} imports {name}")
    assert not wrong


@pytest.mark.parametrize("package", FORBIDDEN)
def test_a_package_does_without_some_libraries(package):
    wrong = []
    for path, tree in modules().items():
        for name in imported(path, tree) if package_of(path) == package else ():
            if name.partition(".")[0] in FORBIDDEN[package]:
                wrong.append(f"{path} imports {name}")
    assert not wrong


def test_settings_and_reports_load_neither_jax_nor_gymnasium():
    """Not by way of another module either; SciPy is loaded where an interval is computed."""
    names = [
        ".".join(("pdml", *path.with_suffix("").parts)).removesuffix(".__init__")
        for path in modules()
        if package_of(path) in ("config", "reporting")
    ]
    unwanted = FORBIDDEN["config"] | FORBIDDEN["reporting"] | {"scipy"}
    code = f"import {', '.join(names)}, sys; print(sorted({unwanted} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_found_without_another_import():
    code = "import pdml; pdml.data.from_minari; print([name for name in dir(pdml) if getattr(pdml, name) is None])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert set(pdml.__all__) < set(dir(pdml))


def test_the_fingerprint_of_learning_has_every_method():
    assert set(runpy.run_path(str(ROOT / "tools" / "fingerprint.py"))["CASES"]) == set(METHODS)


def test_nothing_that_is_read_can_run_code():
    """No file is unpickled, and no text is evaluated: somebody else's run is read as numbers and words."""
    wrong = []
    for path, tree in modules().items():
        wrong += [f"{path} imports {name}" for name in imported(path, tree) if name.partition(".")[0] in UNSAFE]
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        wrong += [f"{path} calls {call.id}" for call in calls if isinstance(call, ast.Name) and call.id in EVALUATING]
        reads = [call.value for call in calls if isinstance(call, ast.Attribute) and call.attr == "load"]
        wrong += [f"{path} calls np.load" for read in reads if isinstance(read, ast.Name) and read.id == "np"]
    assert not wrong


def test_only_training_writes_the_state_of_training():
    wrong = [
        f"{path}:{target.lineno} state.{target.attr}"
        for path, tree in modules().items()
        if path.parts[0] != "training" and path != Path("studies/benchmark.py")  # which has no run, and fills one
        for node in ast.walk(tree)
        for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
        if isinstance(target, ast.Attribute)
        and (isinstance(target.value, ast.Name) and target.value.id == "state")
        | (isinstance(target.value, ast.Attribute) and target.value.attr == "state")
    ]
    assert wrong == []


def test_no_module_is_too_long():
    lengths = {path: len((SOURCE / path).read_text().splitlines()) for path in modules()}
    assert {path: length for path, length in lengths.items() if length > MOST_LINES} == {}


def test_no_function_is_too_long():
    """Functions inside it count with it."""
    found = [
        f"{path}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION
    ]
    assert found == []


def test_a_public_name_is_defined_in_one_module_only():
    places = defaultdict(list)
    for path, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path))
    repeated = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert repeated.keys() == REPEATED.keys(), repeated
