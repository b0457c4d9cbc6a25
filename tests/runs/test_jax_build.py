"""JAX computes every row right, and a build that does not is refused before anything is done."""

import os
import subprocess
import sys

import jax
import pytest

from pdml.cli import main
from pdml.core.errors import UserError
from pdml.runs import device, jax_build

AS_USERS_COMPILE = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")
CODE = "from pdml.runs.jax_build import wrong_rows; print(*wrong_rows(1e-5))"


def test_every_row_is_right_as_users_compile():
    env = {name: value for name, value in os.environ.items() if name not in AS_USERS_COMPILE}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "0 0\n", done.stderr


def test_every_row_is_right_as_tests_compile():
    assert jax_build.wrong_rows(1e-5) == (0, 0)


@pytest.mark.parametrize(("fault", "wrong"), [(1.13, (1, 1)), (1.0001, (0, 0))])
def test_a_row_that_is_computed_wrong_is_found(monkeypatch, fault, wrong):
    """JAX 0.10.2 was 13 % off; rounding is not a fault."""
    real = jax.jit

    def with_fault(function):
        return lambda *arguments: real(function)(*arguments).at[3].multiply(fault)

    monkeypatch.setattr(jax, "jit", with_fault)
    assert jax_build.wrong_rows() == wrong


@pytest.fixture
def computed(monkeypatch):
    """Count how often the programs are computed; they are right."""
    calls = []
    monkeypatch.setattr(jax_build, "wrong_rows", lambda: calls.append(1) or (0, 0))
    return calls


def test_a_build_that_has_passed_is_computed_once(tmp_path, computed, monkeypatch):
    for _ in range(3):
        jax_build.require_right_rows(tmp_path / "cache")
    assert len(computed) == 1
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=true")  # compiles other code
    jax_build.require_right_rows(tmp_path / "cache")
    assert len(computed) == 2
    monkeypatch.setattr(jax_build, "package_version", lambda name: "0.99")
    jax_build.require_right_rows(tmp_path / "cache")
    assert len(computed) == 3


def test_where_nothing_can_be_remembered_it_is_computed_at_every_start(tmp_path, computed):
    (tmp_path / "file").write_text("")
    for _ in range(2):
        jax_build.require_right_rows(tmp_path / "file")
    assert len(computed) == 2


def test_a_broken_build_is_refused_by_name_at_every_start(tmp_path, monkeypatch):
    monkeypatch.setattr(jax_build, "_small_chained_products", lambda tolerance: 3)
    monkeypatch.setattr(jax_build, "_vmapped_product_and_sum", lambda tolerance: 0)
    monkeypatch.setattr(jax_build, "package_version", lambda name: "0.10.2")
    for _ in range(2):
        with pytest.raises(UserError, match=r"^jaxlib 0\.10\.2: computes wrong rows on this machine \(0 and 3"):
            jax_build.require_right_rows(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_run_begins_with_a_broken_build(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(jax_build, "wrong_rows", lambda: (12, 0))
    monkeypatch.setattr(device, "cache_dir", lambda: tmp_path / "cache")
    assert main(["train", "--steps", "5000", "--run-dir", str(tmp_path / "run")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("pdml: jaxlib 0.")
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
