"""Changes an imported module in place, nearly as if its text had been another when it was imported."""

import gc
from collections import defaultdict
from types import CodeType, FunctionType, ModuleType
from typing import Any

PLAIN = (bool, int, float, str, type(None))


def change_module(module: ModuleType, text: str, functions: list[FunctionType]) -> bool:
    """Gives functions the code and the defaults, and classes and the module the plain values, that `text` has.

    `functions` are those of its file, as `functions_of` found them. False where that cannot be done. Objects that were
    made from the old ones, such as a constant that another module has imported, stay.
    """
    file = str(module.__file__)
    with open(file) as source:
        before, after = (codes_of(compile(each, file, "exec")) for each in (source.read(), text))
    fresh: dict[str, Any] = {name: value for name, value in vars(module).items() if name.startswith("__")}
    if "custom_op" not in text:  # an operator that is registered again is gone with the new module
        try:
            exec(compile(text, file, "exec"), fresh)
        except Exception:
            return False
    made = {_place(each): each for each in functions_of(file) if each.__globals__ is fresh}
    for function in functions:
        name, line = _place(function)
        lines = [code.co_firstlineno for code in before[name]]
        if len(after[name]) != len(lines):
            return False
        code = after[name][lines.index(line)]
        try:
            function.__code__ = code
        except ValueError:  # it uses another number of outer variables
            return False
        if twin := made.get((name, code.co_firstlineno)):
            _change_defaults(function, twin)
    _change_values(vars(module), fresh, module)
    for name, kind in fresh.items():
        was = vars(module).get(name)
        if isinstance(kind, type) and isinstance(was, type) and kind.__module__ == was.__module__ == module.__name__:
            _change_class(was, kind)
    return True


def codes_of(code: CodeType) -> dict[str, list[CodeType]]:
    """The code of each function, by its qualified name and in the order of their lines."""
    found: dict[str, list[CodeType]] = defaultdict(list)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found[each.co_qualname].append(each)
            for name, codes in codes_of(each).items():
                found[name] += codes
    return found


def functions_of(file: str) -> list[FunctionType]:
    """Every function that was made from the code of a file, if they are not frozen."""
    return [each for each in gc.get_objects() if type(each) is FunctionType and each.__code__.co_filename == file]


def _place(function: FunctionType) -> tuple[str, int]:
    return function.__code__.co_qualname, function.__code__.co_firstlineno


def _change_class(old: type, new: type) -> None:
    _change_values(vars(old), vars(new), old)
    fields = getattr(old, "__dataclass_fields__", {})
    for name, field in getattr(new, "__dataclass_fields__", {}).items():
        if name in fields and _plain(field.default) and _plain(fields[name].default):
            fields[name].default = field.default
    for name in ("__init__", "__eq__", "__hash__", "__repr__"):  # those of a dataclass are made from no file
        was, now = vars(old).get(name), vars(new).get(name)
        if isinstance(was, FunctionType) and isinstance(now, FunctionType) and was.__code__.co_filename == "<string>":
            _change_defaults(was, now)


def _change_defaults(old: FunctionType, new: FunctionType) -> None:
    if len(old.__defaults__ or ()) == len(new.__defaults__ or ()):
        pairs = zip(old.__defaults__ or (), new.__defaults__ or (), strict=True)
        old.__defaults__ = tuple(now if _plain(was) and _plain(now) else was for was, now in pairs) or None
    for name, now in (new.__kwdefaults__ or {}).items():
        if old.__kwdefaults__ and _plain(now) and _plain(old.__kwdefaults__.get(name)):
            old.__kwdefaults__[name] = now


def _change_values(old: Any, new: Any, owner: Any) -> None:
    for name, now in list(new.items()):
        if not name.startswith("__") and name in old and _plain(now) and _plain(old[name]):
            if repr(old[name]) != repr(now):
                setattr(owner, name, now)


def _plain(value: object) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(_plain(key) and _plain(each) for key, each in value.items())
    return type(value) in PLAIN
