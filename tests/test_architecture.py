"""The rooms of the house and who may import whom (ARCHITECTURE.md), read from the source itself."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

# Lower number, lower line: a module imports from strictly lower lines, or from its own room.
LINES = {
    "errors": 0,
    "records": 0,
    "tenancy": 0,
    "config": 0,
    "setting_kinds": 0,
    "telemetry": 0,
    "clock": 0,
    "process": 0,
    "properties": 0,
    "kafka_settings": 0,
    "kernels": 1,
    "formats": 2,
    "index": 2,
    "integrity": 2,
    "storage": 3,
    "broker": 4,
    "interchange": 4,
    "protocol": 4,
    "server": 5,
    "embedded": 5,
    "replay": 5,
    "scan": 5,
    "spark": 6,
    "cli": 7,
}
PURE_ROOMS = {"kernels", "formats", "index", "integrity", "protocol"}
IMPURE = {
    "os",
    "io",
    "time",
    "datetime",
    "random",
    "secrets",
    "threading",
    "asyncio",
    "logging",
    "socket",
    "pathlib",
}
# The one seam to the operating system, and the one reader of the environment and of the clock.
TOUCHES_OS = {
    "storage/files.py",
    "storage/posix_files.py",
    "storage/direct_files.py",
    "config.py",
    "clock.py",
    "process.py",
}
OPERATING_SYSTEM = {
    "os",
    "fcntl",
    "mmap",
    "socket",
    "time",
    "random",
    "secrets",
    "pathlib",
    "shutil",
    "tempfile",
}


def modules() -> list[Path]:
    return sorted(SOURCE.joinpath("cordwood").rglob("*.py"))


def room_of(module: Path) -> str:
    relative = module.relative_to(SOURCE / "cordwood")
    return relative.parts[0].removesuffix(".py")


def imports_of(module: Path) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are absolute"
            assert node.module is not None
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def own_imports(module: Path) -> list[tuple[int, str]]:
    return [(line, name.split(".")[1]) for line, name in imports_of(module) if name.startswith("cordwood.")]


def test_imports_point_down_and_strangers_stay_strangers() -> None:
    checked = 0
    for module in modules():
        room = room_of(module)
        checked += 1
        if room == "__init__":
            continue
        assert room in LINES, f"{module}: {room} is no room of the house; add it to ARCHITECTURE.md and here"
        for line, target in own_imports(module):
            allowed = (
                target == room
                or LINES.get(target, 99) < LINES[room]
                or (LINES[room] == LINES.get(target) == 0)
                or (room, target) == ("embedded", "scan")
            )
            assert allowed, f"{module}:{line}: {room} may not import {target}"
    print(f"import rules held over {checked} modules")
    assert checked >= 12


def test_pure_rooms_know_no_clock_no_files_no_threads() -> None:
    checked = 0
    for module in modules():
        if room_of(module) not in PURE_ROOMS:
            continue
        checked += 1
        for line, name in imports_of(module):
            assert name.split(".")[0] not in IMPURE, f"{module}:{line}: a pure room imports {name}"
    print(f"purity held over {checked} modules")
    assert checked >= 6


def test_only_the_seam_touches_the_operating_system_below_the_broker() -> None:
    checked = 0
    for module in modules():
        relative = str(module.relative_to(SOURCE / "cordwood"))
        if LINES.get(room_of(module), 99) > LINES["storage"] or relative in TOUCHES_OS:
            continue
        checked += 1
        for line, name in imports_of(module):
            assert name.split(".")[0] not in OPERATING_SYSTEM, (
                f"{module}:{line}: {name} belongs behind the seam"
            )
    assert checked >= 10


def test_only_spark_imports_pyspark() -> None:
    for module in modules():
        for line, name in imports_of(module):
            assert not name.startswith("pyspark") or room_of(module) == "spark", f"{module}:{line}: {name}"


def test_the_map_names_every_room() -> None:
    """ARCHITECTURE.md is how a newcomer finds a module, so it knows all of them."""
    page = (SOURCE.parent / "ARCHITECTURE.md").read_text()
    relative = [module.relative_to(SOURCE / "cordwood") for module in modules()]
    unnamed = [
        str(path)
        for path in relative
        if path.name not in page and f"{path.parts[0]}/" not in page and path.name != "__init__.py"
    ]
    assert not unnamed, f"ARCHITECTURE.md does not name {unnamed}"
    storage = [path.name for path in relative if path.parts[0] == "storage" and len(path.parts) == 2]
    assert [name for name in storage if name not in page and name != "__init__.py"] == []
