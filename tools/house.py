"""Counts what keeps the source tree in order: ``python tools/house.py`` prints it, ``--check`` also holds it to limits.

imports in functions: of leanbayes itself; a module that needs one hides a cycle, or waits for an optional package.
getattr and hasattr: a contract between modules that is not written down as a type.
rooms that know a family: of the rooms outside a family's folder in methods/, those whose code names it.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "leanbayes"
APART = ("recipes",)
"""Rooms whose imports are counted by themselves: recipes are listed by the command line without importing torch."""
TABLES = ("__init__.py", "auto.py", "benchmark", "moved.py", "recipes")
"""Rooms whose business is to name methods: public and old names, methods to try and to time, papers' experiments."""
LIMITS = {
    "imports in functions": 57,
    "imports in functions of recipes": 0,
    "getattr and hasattr": 40,
    "median file": 109,
    "longest file": 337,
    "lines": 61_930,  # 40,669 before latents, conformal prediction, own data, segmentation, students, deploying
    "most rooms that know a family": 2,
}


def modules() -> dict[Path, ast.Module]:
    """Every source file, parsed."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


def room(path: Path) -> str:
    """The package or module directly below leanbayes that a file belongs to."""
    return path.relative_to(SOURCE).parts[0]


def imports_in_functions(tree: ast.Module) -> int:
    """How many imports of leanbayes stand inside of functions."""
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    found = {
        id(node): node for function in functions for node in ast.walk(function) if isinstance(node, ast.ImportFrom)
    }
    return sum(bool(node.level) or (node.module or "").startswith("leanbayes") for node in found.values())


def probes(tree: ast.Module) -> int:
    """How many calls of getattr and hasattr there are."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return sum(isinstance(function, ast.Name) and function.id in ("getattr", "hasattr") for function in calls)


def families(trees: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """The folders of methods/, each with the names of the methods that it registers."""
    found: dict[str, set[str]] = {}
    for path, tree in trees.items():
        parts = path.relative_to(SOURCE).parts
        if parts[0] == "methods" and len(parts) == 3 and parts[2] == "config.py":
            classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
            marked = {
                c.name for c in classes for d in c.decorator_list if isinstance(d, ast.Name) and d.id == "register"
            }
            found[parts[1]] = marked
    return found


def named(tree: ast.Module) -> Iterator[str]:
    """Every name that the code of a file uses or imports, and the last part of every module it imports from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
            if node.module is not None and "methods." in node.module:
                yield "methods/" + node.module.partition("methods.")[2].partition(".")[0]


def knowing(trees: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """For every family, the rooms outside methods/ that name it."""
    used: dict[str, set[str]] = {}
    for path, tree in trees.items():
        if room(path) not in (*TABLES, "methods"):
            used.setdefault(room(path), set()).update(named(tree))
    return {
        family: {where for where, names in used.items() if names & (methods | {f"methods/{family}"})}
        for family, methods in families(trees).items()
    }


def counts() -> dict[str, float]:
    """All counters by name."""
    trees = modules()
    inside = Counter({"": 0, **dict.fromkeys(APART, 0)})
    for path, tree in trees.items():
        inside[room(path) if room(path) in APART else ""] += imports_in_functions(tree)
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in trees]
    return {
        "imports in functions": inside[""],
        "imports in functions of recipes": inside["recipes"],
        "getattr and hasattr": sum(map(probes, trees.values())),
        "median file": statistics.median(lines),
        "longest file": max(lines),
        "lines": sum(lines),
        "most rooms that know a family": max(len(rooms) for rooms in knowing(trees).values()),
    }


def main() -> int:
    """Print every counter beside its limit; 1 where one is above it and ``--check`` is given."""
    found = counts()
    for name, value in found.items():
        print(f"{name:35s} {value:8,.0f}   at most {LIMITS[name]:,}" + ("" if value <= LIMITS[name] else "   <<<"))
    for family, rooms in knowing(modules()).items():
        print(f"  {family:20s} {', '.join(sorted(rooms)) or '-'}")
    return int("--check" in sys.argv[1:] and any(value > LIMITS[name] for name, value in found.items()))


if __name__ == "__main__":
    sys.exit(main())
