"""The rooms of the house and who may import whom (ARCHITECTURE.md), read from the source itself."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

# From the ground up. A room imports from lower floors and from itself; rooms of one floor are strangers.
FLOORS = [
    ["errors", "records", "tenancy", "wording", "lazily", "config", "telemetry", "host"],
    ["kernels"],
    ["formats", "index", "integrity", "disk"],
    ["verify"],
    ["storage"],
    ["bucket"],
    ["broker", "security", "protocol", "interchange", "kafka_client"],
    ["evidence", "wire_client"],
    ["embedded", "mirror"],
    ["server"],
    ["aio", "inspection"],
    ["spark"],
    ["testing", "cli"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# The same inside storage, whose rooms stand on each other: an import points to an earlier one.
STORAGE = [
    "meta",
    "log",
    "chain",
    "maintenance",
    "shared",
    "sink",
    "readonly",
    "directory",
    "offline",
    "backup",
]
PURE_ROOMS = {"kernels", "formats", "index", "integrity", "protocol", "security"}
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
    "disk/files.py",
    "disk/posix.py",
    "disk/direct.py",
    "config/loading.py",
    "host/clock.py",
    "host/machine.py",
    "host/process.py",
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
# What turns bytes or text into code, and the only module that may use it, if any: one unpickles what it
# pickled itself and nobody can reach meanwhile, the other compiles declarations of this package.
RUNS_CODE = {
    "pickle": "spark/jobs/tasks.py",
    "exec": "protocol/source.py",
    "compile": "protocol/source.py",
    **dict.fromkeys(("cloudpickle", "dill", "marshal", "shelve", "jsonpickle", "runpy", "eval"), ""),
}


def modules() -> list[Path]:
    return sorted(SOURCE.joinpath("cordwood").rglob("*.py"))


def is_door(module: Path) -> bool:
    return module.name == "__init__.py"


def room_of(module: Path) -> str:
    relative = module.relative_to(SOURCE / "cordwood")
    return relative.parts[0].removesuffix(".py")


@functools.cache
def parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text())


@functools.cache
def imports_of(module: Path) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are absolute"
            assert node.module is not None
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def name_of(module: Path) -> str:
    """Return the dotted name of a module; that of a room's door is the room's."""
    return ".".join(module.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def own_imports(module: Path) -> list[tuple[int, str]]:
    """Return the line and the dotted name of each module of ours that *module* imports."""
    found = []
    for line, name in imports_of(module):
        if name.startswith("cordwood."):
            while name not in NAMES:
                name = name.rpartition(".")[0]
            found.append((line, name))
    return [(line, name) for line, name in found if name != "cordwood"]


NAMES = {name_of(module): module for module in modules()}
ROOMS = {name for name, module in NAMES.items() if module.name == "__init__.py"}


def room_around(name: str) -> str:
    """Return the room that a module stands in; a door stands in its own room."""
    return name if name in ROOMS else name.rpartition(".")[0]


def is_within(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def offered(room: str) -> set[str]:
    """Return the ``__all__`` of a room's door."""
    return {
        str(element.value)
        for node in parsed(NAMES[room]).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for element in getattr(node.value, "elts", [])
        if isinstance(element, ast.Constant)
    }


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """Keep no tree for the tests of other modules, some of which count memory."""
    yield
    parsed.cache_clear()
    imports_of.cache_clear()


def test_imports_point_down_and_strangers_stay_strangers() -> None:
    checked = 0
    for module in modules():
        room = room_of(module)
        if room == "__init__":
            continue
        assert room in FLOOR, f"{module}: {room} is no room of the house; add it to ARCHITECTURE.md and here"
        for line, name in own_imports(module):
            checked += 1
            target = name.split(".")[1]
            allowed = target == room or FLOOR[target] < FLOOR[room] or FLOOR[target] == FLOOR[room] == 0
            assert allowed, f"{module}:{line}: {room} may not import {target}"
    print(f"{checked} imports point down")
    assert checked > 1500


def test_the_rooms_of_storage_stand_on_each_other() -> None:
    checked = 0
    for module in modules():
        parts = name_of(module).split(".")
        if parts[1:2] != ["storage"] or len(parts) < 3:
            continue
        for line, name in own_imports(module):
            if is_within(name, "cordwood.storage"):
                checked += 1
                target = name.split(".")[2]
                assert STORAGE.index(target) <= STORAGE.index(parts[2]), f"{module}:{line}: imports {name}"
    print(f"{checked} imports within storage point down")
    assert checked > 300


def test_a_room_is_entered_by_its_door() -> None:
    """Code outside a room imports the room, and no module in it but one that the door offers as a whole."""
    checked, through_walls = 0, []
    for module in modules():
        for line, name in own_imports(module):
            checked += 1
            room = room_around(name)
            if room != "cordwood" and name not in ROOMS and not is_within(name_of(module), room):
                whole = (line, name) in imports_of(module) and name.rpartition(".")[2] in offered(room)
                if not whole:
                    through_walls.append(f"{module}:{line}: {name}")
    assert not through_walls, "\n".join(through_walls)
    print(f"{checked} imports go through doors")
    assert checked > 1500


def test_a_door_offers_what_it_says() -> None:
    """What a door imports from its room is for others, so it is in its ``__all__``."""
    for name in sorted(ROOMS - {"cordwood"}):
        tree = parsed(NAMES[name])
        own = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module is not None]
        brought = {
            alias.asname or alias.name
            for node in own
            if is_within(str(node.module), name)
            for alias in node.names
        }
        hidden = brought - offered(name)
        assert not hidden, f"{name} imports {sorted(hidden)} and does not offer it"
        # A module that is imported becomes an attribute of its room, and would take the place of such a name.
        from_modules = {
            alias.asname or alias.name for node in own if node.module != name for alias in node.names
        } | {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        masked = {each for each in from_modules if f"{name}.{each}" in NAMES}
        assert not masked, f"{name} offers {sorted(masked)} and has modules of that name"


def test_a_class_name_is_used_once() -> None:
    """One word, one meaning."""
    found: dict[str, str] = {}
    for module in modules():
        for node in parsed(module).body:
            if isinstance(node, ast.ClassDef):
                name = node.name.lstrip("_")
                assert name not in found, f"{module}:{node.lineno}: {name} is a class of {found[name]} too"
                found[name] = str(module)
    print(f"{len(found)} classes, each with a name of its own")
    assert len(found) > 800


MODULE_LINES_MAX, FOLDER_MODULES_MAX, FUNCTION_LINES_MAX = 500, 16, 60


def test_modules_folders_and_functions_are_short() -> None:
    """A module is read in one sitting, a folder listing at a glance, a function on one screen."""
    functions, too_long = 0, []
    folders = Counter(module.parent for module in modules() if not is_door(module))
    for module in modules():
        relative, text = str(module.relative_to(SOURCE / "cordwood")), module.read_text()
        if (lines := len(text.splitlines())) > MODULE_LINES_MAX:
            too_long.append(f"{relative}: {lines} lines")
        for node in ast.walk(parsed(module)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions += 1
                assert node.end_lineno is not None
                if (lines := node.end_lineno - node.lineno + 1) > FUNCTION_LINES_MAX:
                    too_long.append(f"{relative}:{node.lineno}: {node.name} has {lines} lines")
    too_long += [
        f"{folder}: {count} modules" for folder, count in folders.items() if count > FOLDER_MODULES_MAX
    ]
    assert not too_long, "\n".join(too_long)
    print(f"{functions} functions of {len(modules())} modules in {len(folders)} folders are short")
    assert functions > 3000


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
        if FLOOR.get(room_of(module), 99) > FLOOR["storage"] or relative in TOUCHES_OS:
            continue
        checked += 1
        for line, name in imports_of(module):
            assert name.split(".")[0] not in OPERATING_SYSTEM, (
                f"{module}:{line}: {name} belongs behind the seam"
            )
    assert checked >= 10


def test_the_server_starts_threads_and_waits_through_its_host_only() -> None:
    """So that a test can decide which thread runs when. A lock that is held for a moment is no such place."""
    checked = 0
    for module in modules():
        if room_of(module) == "server":
            checked += 1
            for line, name in imports_of(module):
                waits = name.split(".")[0] in ("threading", "queue", "time") and name != "threading.Lock"
                assert not waits, f"{module}:{line}: {name} comes from the host"
    assert checked > 30


def test_only_spark_imports_pyspark() -> None:
    for module in modules():
        for line, name in imports_of(module):
            assert not name.startswith("pyspark") or room_of(module) == "spark", f"{module}:{line}: {name}"


def test_only_the_kafka_client_imports_confluent_kafka() -> None:
    for module in modules():
        for line, name in imports_of(module):
            allowed = not name.startswith("confluent_kafka") or room_of(module) == "kafka_client"
            assert allowed, f"{module}:{line}: {name}"


def test_only_the_stores_of_the_bucket_import_obstore() -> None:
    """It is the network of an object store, and an extra: no other module knows which library that is."""
    found = set()
    for module in modules():
        for line, name in imports_of(module):
            if name.split(".")[0] == "obstore":
                found.add(name_of(module))
                assert is_within(name_of(module), "cordwood.bucket.stores"), f"{module}:{line}: {name}"
    assert found


def test_the_bucket_asks_neither_system_nor_clock_and_starts_no_thread() -> None:
    """Environment, time, randomness and threads are given to it; a lock held for a moment is no thread."""
    checked = 0
    for module in modules():
        if room_of(module) == "bucket":
            checked += 1
            for line, name in imports_of(module):
                allowed = name.split(".")[0] not in IMPURE or name == "threading.Lock"
                assert allowed, f"{module}:{line}: {name} comes from the caller"
    assert checked > 8


def test_no_input_becomes_code() -> None:
    """Options, files and requests are data: nothing unpickles, evaluates or runs them."""
    found = set()
    for module in modules():
        relative = str(module.relative_to(SOURCE / "cordwood"))
        named = {(line, part) for line, name in imports_of(module) for part in name.split(".")}
        calls = [node for node in ast.walk(parsed(module)) if isinstance(node, ast.Call)]
        named |= {(call.lineno, call.func.id) for call in calls if isinstance(call.func, ast.Name)}
        for line, name in named:
            assert RUNS_CODE.get(name, relative) == relative, f"{module}:{line}: {name} runs what it is given"
            found |= {name} & RUNS_CODE.keys()
        for call in calls:
            function = ast.unparse(call.func)
            assert function != "yaml.load", f"{module}:{call.lineno}: yaml.safe_load reads data only"
            assert function != "os.system", f"{module}:{call.lineno}: a shell runs its input"
            assert not any(word.arg == "shell" for word in call.keywords), f"{module}:{call.lineno}: as above"
    assert found == {"pickle", "exec", "compile"}


#: Fields of exceptions that are sentences or parts of one.
_SENTENCES = {"args", "what", "reason", "found", "expected", "strerror", "message", "holder"}
_COMPARING = {"startswith", "endswith", "find", "index", "count", "match", "fullmatch", "search", "findall"}


def decided_by_text(tree: ast.AST) -> tuple[int, list[int]]:
    """Count expressions that are the text of an exception; list the lines that compare one with a text."""
    errors = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    errors |= {
        node.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.arg) and re.search("Error|Exception", ast.unparse(node.annotation or node))
    }

    def is_text(node: ast.AST, names: set[str]) -> bool:
        match node:
            case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name)]):
                return name in errors
            case ast.FormattedValue(value=ast.Name(id=name)):
                return name in errors
            case ast.JoinedStr(values=parts):
                return any(is_text(part, names) for part in parts)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                return name in errors and attribute in _SENTENCES
            case ast.Subscript(value=inner):
                return is_text(inner, names)
            case ast.Call(func=ast.Attribute(value=inner, attr=method)):
                return hasattr(str, method) and is_text(inner, names)
            case ast.Name(id=name):
                return name in names
        return False

    texts, lines = 0, []
    for scope in ast.walk(tree):
        if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        names: set[str] = set()
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and is_text(node.value, names):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        for node in ast.walk(scope):
            texts += is_text(node, names)
            match node:
                case ast.Compare(left=left, ops=ops, comparators=others):
                    same = any(isinstance(op, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)) for op in ops)
                    found = same and any(is_text(each, names) for each in (left, *others))
                case ast.Call(func=ast.Attribute(value=inner, attr=method), args=given):
                    found = method in _COMPARING and any(is_text(each, names) for each in (inner, *given))
                case _:
                    found = False
            if found and isinstance(node, ast.expr):
                lines.append(node.lineno)
    return texts, lines


@pytest.mark.parametrize(
    "decision",
    [
        "str(error).startswith('Spark: ')",
        "not str(error).endswith('is not a data directory')",
        "'whole buffer' in str(error)",
        "error.found != 'zeros'",
        "'x' in f'{error}'.lower()",
        "error.args[0] == 'x'",
        "PATTERN.search(str(error))",
    ],
)
def test_a_decision_by_the_text_of_an_error_is_found(decision: str) -> None:
    plain = f"def f():\n  try:\n    g()\n  except E as error:\n    if {decision}:\n      raise"
    assert decided_by_text(ast.parse(plain))[1] == [5]
    assigned = plain.replace(f"if {decision}", f"text = str(error)\n    if {decision}")
    assert decided_by_text(ast.parse(assigned.replace("if str(error)", "if text")))[1] == [6]
    passed = f"def f(error: CordwoodError):\n  return {decision}"
    assert decided_by_text(ast.parse(passed))[1] == [2]


def test_no_decision_is_made_by_the_text_of_an_error() -> None:
    """A class or a field says which error it is; its sentence is for people, and may be rewritten."""
    checked = 0
    for module in modules():
        texts, lines = decided_by_text(parsed(module))
        assert lines == [], f"{module}: a class or a field of the error should decide this"
        checked += texts
    print(f"{checked} texts of errors decide nothing")
    assert checked > 100


#: What handlers may use of the node, which has the topics of all orgs: it needs no name of a topic, or takes
#: one that a tenant found.
_OF_THE_NODE = {
    "directory.free_bytes",
    "directory.identity",
    "directory.path",
    "find_news",
    "may_acknowledge",
    "new_producer_id",
    "peek",
    "read",
    "sink.execute",
    "topics.config_of",
    "topics.epochs",
}


def test_handlers_find_topics_through_their_tenant_only() -> None:
    used = set()
    for module in modules():
        if is_within(name_of(module), "cordwood.server.handlers"):
            for node in ast.walk(parsed(module)):
                if isinstance(node, ast.Attribute):
                    used |= set(
                        re.findall(r"context\.node\.((?:directory|topics|sink)\.\w+|\w+)$", ast.unparse(node))
                    )
    assert used - {"directory", "topics", "sink"} == _OF_THE_NODE


def test_the_map_names_every_room() -> None:
    """ARCHITECTURE.md is how a newcomer finds a module, so it knows all of them."""
    page = (SOURCE.parent / "ARCHITECTURE.md").read_text()
    relative = [module.relative_to(SOURCE / "cordwood") for module in modules()]
    top = [path.name for path in relative if len(path.parts) == 1 and path.name != "__init__.py"]
    assert [name for name in top if name not in page] == []
    folders = {f"{path.parent}/" for path in relative if len(path.parts) > 1}
    assert sorted(folder for folder in folders if f"`{folder}`" not in page) == []
    rows = re.findall(r"^\| `([^`]+/)` \|(.*)\|$", page, re.MULTILINE)
    assert len(dict(rows)) == len(rows), "a room has two rows"
    named = {f"{room}{word}" for room, text in rows for word in re.findall(r"`(\w+)`", text)}
    listed = [path for path in relative if path.parts[0] in {"storage", "disk", "formats", "integrity"}]
    missing = [str(path) for path in listed if str(path.with_suffix("")) not in named]
    assert [path for path in missing if not path.endswith("__init__.py")] == []
