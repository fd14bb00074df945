"""Who may import whom: downward only; and what `fjord` exports exists."""

import ast
from pathlib import Path

import fjord

SOURCE = Path(fjord.__file__).parent
LAYERS = [
    {"core"},
    {"elastic", "data", "devices", "models"},
    {"training"},
    {"federated"},
    {"engines"},
    {"experiments"},
    {"report", "deploy"},
    {"cli"},
]
ONLY_IN = {
    "matplotlib": "report",
    "jinja2": "report",
    "flwr": "engines",
    "ray": "engines",
    "psutil": "engines",
    "datasets": "data",
    "flwr_datasets": "data",
    "PIL": "data",
    "typer": "cli",
    "tensorboard": "experiments",
    "wandb": "experiments",
    "onnx": "deploy",
    "onnxruntime": "deploy",
    "onnxscript": "deploy",
    "executorch": "deploy",
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found


def modules() -> list[tuple[str, Path]]:
    """Every module of a room, with the room's name."""
    return [(path.relative_to(SOURCE).parts[0], path) for path in SOURCE.glob("*/**/*.py")]


def test_the_top_floor_has_one_module():
    assert [path.name for path in SOURCE.glob("*.py")] == ["__init__.py"]


def test_every_room_is_in_a_layer():
    assert {room for room, _ in modules()} == set.union(*LAYERS)


def test_imports_go_downward():
    rank = {room: place for place, rooms in enumerate(LAYERS) for room in rooms}
    for room, path in modules():
        for module in imports(path):
            if module.startswith("fjord."):
                other = module.split(".")[1]
                assert other == room or rank[other] < rank[room], f"{path} imports {module}"


def test_the_package_knows_nothing_of_what_lies_outside_the_wheel():
    for _, path in modules():
        outside = {"reproduction", "benchmarks", "tests"}
        assert not {module.split(".")[0] for module in imports(path)} & outside, path


def test_optional_libraries_stay_in_their_rooms():
    for room, path in modules():
        for module in imports(path):
            assert ONLY_IN.get(module.split(".")[0], room) == room, f"{path} imports {module}"


def test_report_reads_run_folders_and_no_training_code():
    allowed = (
        "fjord.core.",
        "fjord.report",
        "fjord.experiments.runs",
        "fjord.experiments.settings",
    )
    for path in (SOURCE / "report").glob("*.py"):
        for module in imports(path):
            assert not module.startswith("fjord") or module.startswith(allowed), path


def test_tests_mirror_the_package():
    """The tests of a module are found by its name: tests/ROOM/test_MODULE*.py."""
    tests = Path(__file__).parent
    for path in tests.glob("*/**/test_*.py"):
        room = path.parent.relative_to(tests)
        if room.parts[0] == "reproduction":
            source = SOURCE.parents[1] / room
        else:
            source = SOURCE / room
        names = {module.stem for module in source.glob("*.py")}
        names |= {folder.name for folder in source.iterdir() if folder.is_dir()}
        words = path.stem.removeprefix("test_").split("_")
        starts = {"_".join(words[:count]) for count in range(1, len(words) + 1)}
        assert starts & names, f"{path}: no module of {source} has this name"


def test_what_is_exported_exists():
    assert len(set(fjord.__all__)) == len(fjord.__all__)
    for name in fjord.__all__:
        assert getattr(fjord, name) is not None


def test_no_public_name_hides_a_room():
    rooms = {room for room, _ in modules()}
    assert not rooms & set(fjord.__all__)
