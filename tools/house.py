"""Fails where files of a crate import each other in a circle: `python3 tools/house.py fence redis_fencelock`.

Reads paths, not types: `use` trees, and paths that begin with `crate`, `super`, `self`, a submodule or an imported module.
A declaration `mod x;` is not an import. A re-export is one, so importing through it leads on to the file that it names.
"""

import re
import sys
from pathlib import Path

# Comments, strings and characters, in the order in which Rust reads them; a lifetime is none of these.
HIDDEN = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | b?r(\#*)".*?"\1 | [bc]?"(?:\\.|[^"\\])*" | b?'(?:\\[^\n]*?|[^'\\\n])'""", re.S | re.X
)
VISIBILITY = re.compile(r"\bpub\([^)]*\)")
TOKEN = re.compile(r"\b(?:(use)\s+([^;]+);|mod\s+(\w+)\s*([{;]))|([{}])|(?<![\w:.])\w+(?:::\w+)+")


def circles(crate):
    """Yields a shortest circle of each group of files that import each other."""
    imports = {file: imported(crate, file) for file in sorted(crate.glob("src/**/*.rs"))}
    assert imports, f"{crate}/src holds no Rust"
    done = set()
    for file in imports:
        if file not in done and (circle := shortest(imports, file)):
            done.update(circle)
            yield circle


def shortest(imports, start):
    """The files on a shortest way from `start` back to it, or None."""
    came_from, ways = {}, [start]
    for file in ways:
        for other in sorted(imports.get(file, ())):
            if other == start:
                circle = [start, file]
                while circle[-1] != start:
                    circle.append(came_from[circle[-1]])
                return circle[::-1]
            if other not in came_from:
                came_from[other] = file
                ways.append(other)
    return None


def imported(crate, file):
    """The other files of the crate whose names `file` uses."""
    text = VISIBILITY.sub("pub", HIDDEN.sub("''", file.read_text()))
    own = module_of(crate, file)
    tokens = list(TOKEN.finditer(text))
    modules = {token[3]: [*own, token[3]] for token in tokens if token[3] and token[4] == ";"}
    paths, inside = [], []  # inside: for each open brace the name of its module, or None
    for token in tokens:
        here = [*own, *filter(None, inside)]
        if token[1]:
            for path, name in leaves(token[2]):
                path = absolute(path, here, modules)
                paths.append(path)
                if path and file_of(crate, path) and module_of(crate, file_of(crate, path)) == path:
                    modules.setdefault(name, path)
        elif token[3] and token[4] == "{":
            inside.append(token[3])
        elif token[5] == "{":
            inside.append(None)
        elif token[5] == "}":
            inside.pop()
        elif not token[3]:
            paths.append(absolute(token[0].split("::"), here, modules))
    return {file_of(crate, path) for path in paths if path is not None} - {file}


def leaves(tree):
    """`a::{b, c::{self as d}}` as the paths `a::b` and `a::c`, each with the name that it gets here."""
    tree = tree.strip()
    if (brace := tree.find("{")) < 0:
        path, _, name = re.sub(r"\s+", " ", tree).partition(" as ")
        path = [part for part in path.strip().split("::") if part and part != "*"]
        path = path[:-1] if path[1:] and path[-1] == "self" else path
        if path:
            yield path, name or path[-1]
        return
    depth, part = 0, ""
    for letter in tree[brace + 1 : tree.rindex("}")] + ",":
        depth += (letter == "{") - (letter == "}")
        if letter == "," and not depth:
            if part.strip():
                yield from leaves(tree[:brace] + part.strip())
            part = ""
        else:
            part += letter


def absolute(path, here, modules):
    """A path from the root of the crate; None where it leads out of the crate or names something local."""
    if path[0] == "crate":
        return path[1:]
    if path[0] in ("self", "super"):
        while path and path[0] in ("self", "super"):
            here = here[:-1] if path[0] == "super" else here
            path = path[1:]
        return [*here, *path]
    return [*modules[path[0]], *path[1:]] if path[0] in modules else None


def module_of(crate, file):
    parts = list(file.relative_to(crate / "src").with_suffix("").parts)
    return parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts


def file_of(crate, path):
    """The file of the innermost module that the path leads into."""
    for end in range(len(path), 0, -1):
        folder = crate.joinpath("src", *path[:end])
        for file in (folder.with_suffix(".rs"), folder / "mod.rs"):
            if file.exists():
                return file
    return crate / "src/lib.rs"


def main(crates):
    found = [circle for crate in crates for circle in circles(Path(crate))]
    for circle in found:
        print("files import each other:", " -> ".join(map(str, circle)), file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
