"""tools/house.py names the files of a crate that import each other, over any path."""

import subprocess
import sys

import pytest

from harness import places


@pytest.fixture
def check(tmp_path):
    """Runs the checker on a crate of these files; returns the circles that it names, each as the files from one back to it."""

    def run(files):
        for name, text in files.items():
            file = tmp_path / "src" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        script = [sys.executable, places.ROOT / "tools" / "house.py", tmp_path]
        done = subprocess.run(script, capture_output=True, text=True)
        named = [line.partition(": ")[2].split(" -> ") for line in done.stderr.splitlines()]
        assert done.returncode == bool(named), done.stderr
        return [[file.removeprefix(f"{tmp_path}/src/") for file in circle] for circle in named]

    return run


@pytest.mark.parametrize(
    "back",
    [
        "use crate::a::A;",
        "use super::a;",
        "use crate::{b, a::{self, A}};",
        "pub(crate) use crate::{\n    b,\n    a as other,\n};",
        "fn f() { crate::a::g() }",
        "fn f(a: super::a::A) {}",
        "mod tests { use super::super::a; }",
        "fn f<'a>(quote: char) { if quote == '\"' { crate::a::g() } }",
        "macro_rules! call { () => { $crate::a::g() } }",
    ],
)
def test_a_circle_of_two_is_named_however_it_is_written(check, back):
    assert check({"lib.rs": "mod a;\nmod b;", "a.rs": "use crate::b::B;", "b.rs": back}) == [["a.rs", "b.rs", "a.rs"]]


def test_a_long_circle_is_named_once(check):
    files = {
        "lib.rs": "mod a;\nmod room;",
        "a.rs": "use crate::room;\nfn f() { room::b::g() }",
        "room/mod.rs": "pub mod b;\npub mod c;",
        "room/b.rs": "use super::c::C;",
        "room/c.rs": "use crate::a::A;",
    }
    assert check(files) == [["a.rs", "room/b.rs", "room/c.rs", "a.rs"]]


def test_a_re_export_and_what_the_parent_defines_are_imports(check):
    through = {"lib.rs": "mod a;\nmod room;", "a.rs": "use crate::room::B;", "room/b.rs": "use crate::a::A;"}
    assert check({**through, "room/mod.rs": "mod b;\npub use b::B;"}) == [["a.rs", "room/mod.rs", "room/b.rs", "a.rs"]]
    assert check({"lib.rs": "mod a;\nuse a::A;", "a.rs": "use crate::f;"}) == [["a.rs", "lib.rs", "a.rs"]]


def test_what_runs_downwards_is_no_circle(check):
    files = {
        "lib.rs": "mod a;\nmod b;\nuse a::A;",
        "a.rs": "use crate::b::B;\nuse crate::c;\nuse fence::a::X;\nfn f() { std::mem::take() }",
        "c.rs": "pub(in crate::a) fn f() {}",
        "b.rs": 'use crate::c;\n// crate::a::A\n/* use crate::a; */ const A: &str = "crate::a"; const B: &str = r#"crate::a"#;',
    }
    assert check({**files, "d.rs": "mod tests { use super::*; }"}) == []


def test_a_crate_that_is_not_there_is_an_error(tmp_path):
    script = [sys.executable, places.ROOT / "tools" / "house.py", tmp_path / "nowhere"]
    assert subprocess.run(script, capture_output=True).returncode != 0
