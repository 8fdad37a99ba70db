"""The public workflows run what is there: targets of the Makefile, every cell of the matrix, and nothing that may write."""

import re

import pytest
import yaml
from yamllint import linter
from yamllint.config import YamlLintConfig

from harness.places import ROOT
from matrix.cells import CELLS

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

each = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def steps(path):
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


@each
def test_a_workflow_is_clean_yaml(path):
    config = YamlLintConfig(file=ROOT / ".github" / "yamllint.yaml")
    assert list(linter.run(path.read_text(), config)) == []


@each
def test_a_workflow_runs_targets_that_are_there(path):
    commands = "\n".join(step.get("run", "") for step in steps(path))
    named = set(re.findall(r"\bmake ([a-z-]+)", commands))
    assert named <= TARGETS
    for script in re.findall(r"^(\.\S+)", commands, re.MULTILINE):
        assert (ROOT / script).stat().st_mode & 0o111, script


@each
def test_a_workflow_may_only_read_and_names_the_version_of_each_action(path):
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used and all(re.fullmatch(r"actions/[a-z-]+@v\d+", name) for name in used)


def test_the_matrix_of_the_workflow_has_every_cell():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    assert jobs["matrix"]["strategy"]["matrix"]["cell"] == [cell.name for cell in CELLS]
    assert jobs["matrix"]["strategy"]["fail-fast"] is False
