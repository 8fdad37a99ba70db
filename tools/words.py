"""Checks the words of comments, texts and manuals: each idea by the field's own term.

Reads prose alone: comments and literals of Rust and SQL, comments and docstrings of Python, Markdown without its code. Names
that users have (`ranout`, `ran_out`) are names, not prose: they stand in backquotes or have an underscore.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A pattern, and what to write instead.
WORDS = [
    (r"told|tell(?:s|ing)? (?!\w+ (?:\w+ )?(?:apart|from)|the story)\w+|heard|who(?:ever)? listens", "propagate; replicas and the AOF; say, report, show"),
    (r"r[ua]ns? out(?! of)|running out(?! of)|run-out", "expire"),
    (r"look(?:s|ed|ing)? (?:at|again)", "check, recheck, read"),
    (r"l(?:et|ets|etting) go", "release"),
    (r"shut(?:s|ting)? (?:\w+ ){0,4}out", "lock out"),
    (r"lets? (?:\w+ ){0,2}in(?= |[.,;:)]|$)", "admit"),
    (r"prove[sd]? (?:no|the|its|a) fence", "requires a fence; declared with fence_use()"),
    (r"(?<!there )(?:is|are|was|were) no (?!longer|more|such)\w+", "is not a ..., must be a ..., there is no ..."),
    (r"and (?:its|the) like|and what else", "name them; a fenced_* function"),
    (r"the most that", "too many ... (X is N)"),
    (r"served in (?:the )?order|let to (?:its|their) end", "first in, first out; may finish"),
    (r"(?<!\")hand-overs?|handoffs?", "handover"),
]
PATTERNS = [(re.compile(rf"\b(?:{pattern})", re.IGNORECASE), instead) for pattern, instead in WORDS]
# What is read, by folder or file. Not the tables of tools/bench, whose rows are named in stored results.
ROOMS = """
    *.md docs fence packaging pg_fence/README.md redis_fencelock sql
    tests
    tools/*.py tools/*/*.py tools/*/README.md tools/fuzz/cargo/src
""".split()


def prose(path):
    """The lines of a file that people read, as (number, text)."""
    text = path.read_text()
    if path.suffix == ".py":
        return list(_of_python(text))
    if path.suffix == ".md":
        return list(_of_markdown(text))
    comment = r"//.*" if path.suffix == ".rs" else r"--.*|/\*[\s\S]*?\*/"
    literal = r'"(?:[^"\\]|\\.)*"' if path.suffix == ".rs" else r"'(?:[^']|'')*'"
    found = []
    for part in re.finditer(rf"{comment}|{literal}", text):
        first = text.count("\n", 0, part.start()) + 1
        found += enumerate(part.group().split("\n"), first)
    return found


def _of_python(text):
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            yield from enumerate(node.body[0].value.value.split("\n"), node.body[0].lineno)


def _of_markdown(text):
    in_code = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.startswith("    "):
            yield number, line


def hits(path):
    """Each wrong word of a file, as a line for the terminal."""
    for number, line in prose(path):
        words = re.sub(r"`[^`]*`|\w*_\w*", "_", line)
        for pattern, instead in PATTERNS:
            for found in pattern.finditer(words):
                yield f"{path.relative_to(ROOT)}:{number}: {found.group()!r}: write {instead}"


def main():
    listed = subprocess.run(["git", "--glob-pathspecs", "ls-files", *(sys.argv[1:] or ROOMS)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    paths = [ROOT / name for name in listed.stdout.split("\n") if name.endswith((".rs", ".sql", ".py", ".md"))]
    found = [hit for path in paths for hit in hits(path)]
    print("\n".join(found) or f"{len(paths)} files use the field's words")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
