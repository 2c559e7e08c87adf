"""The direction of imports, their cycles, the homes of heavy packages and the sizes of files, from the syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import planner

ROOT = Path(planner.__file__).parent

BASE = {"errors", "units", "numbers"}
DOMAIN = BASE | {"domain"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "units": {"errors"},
    "numbers": set(),
    "domain": BASE,
    "workload": DOMAIN,
    "costs": DOMAIN | {"workload"},
    "sources": DOMAIN | {"workload", "costs"},
    "steps": DOMAIN | {"workload", "costs", "sources"},
    "fitting": DOMAIN | {"workload", "costs", "sources", "steps"},
    "search": DOMAIN | {"workload", "costs", "sources", "steps", "fitting"},
    "scoring": DOMAIN | {"workload", "costs", "sources", "steps", "fitting"},
    "networks": DOMAIN,
    "probes": DOMAIN | {"workload"},
    "formats": DOMAIN,
    "report": DOMAIN,
    "render": DOMAIN,
    "catalog": DOMAIN | {"networks", "formats"},
}
ALLOWED |= {"sessions": set(ALLOWED) - {"report"}}
"""Room -> rooms that it may import besides itself; ``cli`` may import everything."""

HOMES: Mapping[str, tuple[str, ...]] = {
    "torch": ("probes", "networks/torch_module.py"),
    "onnx": ("networks/onnx_file.py",),
    "PIL": ("probes/inputs.py",),
    "sklearn": ("fitting/estimators.py",),
    "pandas": ("formats/tables.py",),
    "optuna": ("search/optuna_search.py", "search/optuna_study.py"),
    "sqlalchemy": ("search/optuna_study.py",),
    "matplotlib": ("report/plots.py",),
    "typer": ("cli",),
    "rich": ("cli/streams.py",),
    "scipy": ("fitting/estimators.py",),
    "jsonschema": (),
    "yaml": (),
    "kubernetes_validate": (),
}
"""Package -> the only places that may import it; a test-only package has none."""

LAZY = {"torch", "onnx", "PIL", "sklearn", "scipy", "pandas", "optuna", "sqlalchemy", "matplotlib", "rich"}
"""Packages imported only inside the function that needs them, so that commands start fast."""


@cache
def parsed(source: str) -> ast.Module:
    """Return the tree of a file, which several rules look at."""
    return ast.parse(source)


def sources(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text() for path in sorted(root.rglob("*.py"))}


def room(path: str) -> str:
    """Return the room of a file: its folder, or its own name at the top."""
    return path.split("/", 1)[0].removesuffix(".py")


@cache
def imports(source: str) -> tuple[tuple[str, bool], ...]:
    """Return (dotted name imported, whether it is loaded with the module)."""
    return tuple(_imports(parsed(source)))


def _imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    inner = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.FunctionDef | ast.AsyncFunctionDef) or _is_for_types_only(block)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) not in inner) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield from ((f"{module}.{alias.name}", id(node) not in inner) for alias in node.names)


def _is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def room_violations(files: Mapping[str, str]) -> list[str]:
    found = []
    for path, source in files.items():
        here = room(path)
        if here in {"api", "cli", "__init__", "__main__"}:
            continue
        for name, _ in imports(source):
            parts = name.split(".")
            if parts[0] == "planner" and len(parts) > 1:
                there = parts[1]
                if there not in ALLOWED.get(here, set()) | {here, "__version__"}:
                    found.append(f"{path} imports {name}")
    return found


def home_violations(files: Mapping[str, str]) -> list[str]:
    found = []
    for path, source in files.items():
        for name, at_top in imports(source):
            package = name.split(".")[0]
            homes = HOMES.get(package)
            if homes is not None and path not in homes and room(path) not in homes:
                found.append(f"{path} imports {package}, whose home is {homes}")
            if package in LAZY and at_top:
                found.append(f"{path} imports {package} at module level")
    return found


def cycles(files: Mapping[str, str]) -> list[list[str]]:
    """Return the strongly connected groups of modules that have more than one member, late imports counted."""
    modules = {"planner." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in files}
    modules |= {"planner"}
    graph: dict[str, set[str]] = {}
    for path, source in files.items():
        here = "planner." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        targets = set()
        for name, _ in imports(source):
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and target not in {here, "planner"}:
                targets.add(target)
        graph[here] = targets
    return [sorted(group) for group in _components(graph) if len(group) > 1]


def _components(graph: Mapping[str, set[str]]) -> list[set[str]]:
    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for target in graph.get(todo.pop(), set()):
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        return seen

    reachable = {node: reach(node) for node in graph}
    groups = [{node} | {n for n in reachable[node] if node in reachable.get(n, set())} for node in graph]
    return [set(group) for group in {frozenset(g) for g in groups}]


def long_functions(source: str, most: int) -> list[str]:
    """Return functions whose statements (docstring apart) span more than ``most`` lines."""
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            if (node.body[-1].end_lineno or 0) - body[0].lineno + 1 > most:
                found.append(node.name)
    return found


FILES = sources(ROOT)


def test_imports_point_one_way() -> None:
    assert room_violations(FILES) == []


def test_heavy_packages_have_one_home() -> None:
    assert home_violations(FILES) == []


def test_no_circle_of_imports() -> None:
    assert cycles(FILES) == []


def test_tests_and_scripts_stay_short() -> None:
    checkout = Path(__file__).parent.parent
    others = [path for folder in ("tests", "validation", "benchmarks") for path in (checkout / folder).rglob("*.py")]
    assert [path.name for path in others if path.read_text().count("\n") > 600] == []


@pytest.mark.parametrize("path", FILES)
def test_files_and_functions_stay_short(path: str) -> None:
    assert FILES[path].count("\n") <= 600
    assert long_functions(FILES[path], 80) == []


def test_every_file_says_what_it_is_for() -> None:
    assert [path for path, source in FILES.items() if not ast.get_docstring(parsed(source))] == []


def test_the_checks_see_what_they_look_for() -> None:
    """A check that finds nothing on a wrong tree would pass on every tree."""
    wrong = {
        "workload/a.py": "from planner.steps import b\nimport sklearn.linear_model\n",
        "steps/b.py": "from planner.steps import c\n",
        "steps/c.py": "def f():\n    from planner.steps.b import x\n",
    }
    assert room_violations(wrong) == ["workload/a.py imports planner.steps.b"]
    assert len(home_violations(wrong)) == 2
    assert cycles(wrong) == [["planner.steps.b", "planner.steps.c"]]
    assert long_functions("def f():\n" + "    x = 1\n" * 51, 50) == ["f"]
