"""`make demo` tells the truth: the story holds, and a story that does not hold is noticed."""

import re
import subprocess
import sys

from harness import places

TESTS = places.ROOT / "tests"


def tell(code="import demo, sys; sys.exit(demo.main())"):
    return subprocess.run([sys.executable, "-c", code], cwd=TESTS, stdout=subprocess.PIPE, text=True, timeout=100)


def test_the_story_holds_and_ends_at_1_1_and_2():
    told = tell()
    assert told.returncode == 0, told.stdout
    assert re.findall(r"the counter is (\d)", told.stdout) == ["1", "1", "2"]
    assert told.stdout.rstrip().endswith("claim first ended at 2.")


def test_a_story_that_does_not_hold_is_a_failure():
    told = tell("import demo, sys; demo._Worker.update = lambda *_: True; sys.exit(demo.main())")
    assert told.returncode == 1
    assert "THE STORY DOES NOT HOLD" in told.stdout
