"""The one direction of imports: a part imports only from parts above it (docs/structure.md)."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "jubako"
ORDER = ("errors", "core", "quant", "files", "arch", "text", "ops", "place", "engine", "measure", "serve", "cli")


def imported_parts(file: Path) -> set[str]:
    """Parts of the package that a module imports, at any place in it."""
    here = ("jubako", *file.relative_to(PACKAGE).parts)
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = here[: len(here) - node.level]
            path = (*base, *(node.module or "").split(".")) if node.module else base
            names = [path] if len(path) > 1 else [(*path, alias.name) for alias in node.names]
            found |= {name[1] for name in names}
    return found - {"_cpu"}


def test_a_part_imports_only_from_parts_above_it() -> None:
    parts = [file for file in PACKAGE.rglob("*.py") if file.parent != PACKAGE or file.stem in ORDER]
    assert len(parts) > 50
    for file in parts:
        part = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for other in imported_parts(file) & set(ORDER):
            assert ORDER.index(other) <= ORDER.index(part), f"{file.relative_to(PACKAGE)} imports {other}"


def test_the_map_names_every_part() -> None:
    text = (PACKAGE.parents[1] / "docs" / "structure.md").read_text()
    here = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert here <= {*ORDER, "models"}
    assert all(f"`{part}" in text for part in ORDER)
