"""Who may import whom: downward only; and what `fjord` exports exists."""

import ast
from pathlib import Path

import fjord

SOURCE = Path(fjord.__file__).parent
LAYERS = [
    {"width", "seeding", "threads", "extras"},
    {"elastic", "models"},
    {"data"},
    {"objective", "footprint", "devices", "merge"},
    {"optim", "evaluate"},
    {"train", "inference", "shortage"},
    {"local"},
    {"check", "methods", "strategies", "timing", "answers"},
    {"narrow"},
    {"engines"},
    {"federation", "settings"},
    {"experiment"},
    {"runs", "logs", "profiling"},
    {"runner"},
    {"central"},
    {"recipes", "report"},
    {"reproduce"},
    {"app", "exports"},
    {"cli"},
]
ONLY_IN = {
    "matplotlib": "report",
    "flwr": "engines",
    "ray": "engines",
    "datasets": "data",
    "flwr_datasets": "data",
    "PIL": "data",
    "typer": "cli",
    "tensorboard": "logs",
    "wandb": "logs",
    "onnx": "exports",
    "onnxruntime": "exports",
    "onnxscript": "exports",
    "executorch": "exports",
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def test_imports_go_downward():
    rank = {name: i for i, names in enumerate(LAYERS) for name in names}
    for path in SOURCE.rglob("*.py"):
        here = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if here == "__init__":
            continue
        for module in imports(path):
            if module.startswith("fjord."):
                there = room(module)
                assert there == here or rank[there] < rank[here], f"{path.name} imports {module}"


def test_optional_libraries_stay_in_their_rooms():
    for path in SOURCE.rglob("*.py"):
        here = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for module in imports(path):
            assert ONLY_IN.get(module.split(".")[0], here) == here, f"{path} imports {module}"


def test_report_reads_run_folders_and_no_training_code():
    for path in (SOURCE / "report").glob("*.py"):
        allowed = {"fjord.runs", "fjord.width", "fjord.extras"}
        assert {m for m in imports(path) if m.startswith("fjord") and not m.startswith("fjord.report")} <= allowed


def test_what_is_exported_exists():
    assert len(set(fjord.__all__)) == len(fjord.__all__)
    for name in fjord.__all__:
        assert getattr(fjord, name) is not None
