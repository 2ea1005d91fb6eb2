"""House rules: no class name twice, no long file, no long function."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = sorted((ROOT / "src" / "cabafl").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION = 400, 40


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_class_names_are_unique() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in PACKAGE:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name_of(path))
    assert len(homes) > 100
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


@pytest.mark.parametrize("path", [*PACKAGE, *TESTS], ids=name_of)
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST_FILE
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FUNCTION} == {}
