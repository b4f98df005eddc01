"""Rows say which code and which machine made them."""

import platform
import subprocess

import jax
import pytest

from focus_jax.bench import origin


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package committed to a repository that holds results too."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "code.py").write_text("1\n")
    (tmp_path / "rows.jsonl").write_text("")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "--quiet", "-m", "First")
    monkeypatch.setattr(origin, "PACKAGE", package)
    return package


def git(folder, *arguments):
    return subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True).stdout.strip()


def test_a_commit_is_that_of_the_package(package):
    assert origin.commit() == git(package, "rev-parse", "HEAD")
    (package.parent / "rows.jsonl").write_text("{}\n")
    assert origin.commit() == git(package, "rev-parse", "HEAD")


@pytest.mark.parametrize("name", ["code.py", "new.py"])
def test_uncommitted_code_is_said_to_be(package, name):
    (package / name).write_text("2\n")
    assert origin.commit() == git(package, "rev-parse", "HEAD") + "-dirty"


def test_outside_of_git_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(origin, "PACKAGE", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert origin.commit() is None


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ("processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx avx2\n", "Some CPU avx2"),
        ("model name\t: Some CPU\nflags\t\t: avx avx2 avx512f avx512dq\n", "Some CPU avx512f"),
        ("model name\t: Some CPU\nflags\t\t: fpu sse2\n", "Some CPU"),
        ("processor\t: 0\nFeatures\t: fp asimd\n", platform.machine()),
    ],
)
def test_cpus_of_one_name_are_told_apart_by_their_vectors(facts, told, tmp_path, monkeypatch):
    monkeypatch.setattr(origin, "CPU_FACTS", tmp_path / "cpuinfo")
    assert origin.cpu() == platform.machine()
    origin.CPU_FACTS.write_text(facts)
    assert origin.cpu() == told


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="about CPUs")
def test_a_machine_has_its_cores():
    assert origin.machine().startswith(origin.cpu())
    assert origin.machine().endswith(" cores")
