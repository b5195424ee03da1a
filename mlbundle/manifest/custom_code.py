"""Looks at the Python code of a manifest without running it: does it parse, does it define what is called."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass

MAX_CHARACTERS = 1 << 18

_PREDICTOR = "Predictor"
_CALLS = {"open": ("model", "options"), "predict": ("handle", "batch"), "close": ("handle",)}
"""What a predictor must have -> its arguments after `self`."""
_OPTIONAL_CALLS = {"prepare": ("handle", "feeds")}


@dataclass(frozen=True, slots=True)
class CodeFault:
    """What is wrong with code; `line` and `column` count from 1 inside it, 0 when it is about the whole."""

    message: str
    line: int = 0
    column: int = 0


def code_fault(source: str, function: str) -> CodeFault | None:
    """Return why `source` can't serve as a side of the pipeline; None when it can.

    It must define `function`, or exactly one function, that can be called with two positional arguments: env and
    data. The code is parsed, never executed.
    """
    if len(source) > MAX_CHARACTERS:
        return CodeFault(f"the code is longer than {MAX_CHARACTERS:,} characters")
    tree = _parsed(source)
    return tree if isinstance(tree, CodeFault) else _definition_fault(tree, function)


def predictor_fault(source: bytes) -> CodeFault | None:
    """Return why the content of a file can't serve as a predictor; None when it can, as far as one sees.

    It must define a class `Predictor` with the methods open, predict and close; of what it imports, inherits or puts
    together in another way only a run knows. The code is parsed, never executed.
    """
    tree = _parsed(source)
    if isinstance(tree, CodeFault):
        return tree
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == _PREDICTOR]
    if not found:
        made = any(isinstance(node, ast.FunctionDef) and node.name == _PREDICTOR for node in tree.body)
        return (
            None if made or _binds(tree, _PREDICTOR) else CodeFault(f"the code defines no class {_PREDICTOR}")
        )
    return _class_fault(found[-1])


def _parsed(source: str | bytes) -> ast.Module | CodeFault:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except SyntaxError as error:
        return CodeFault(f"the code is no Python: {error.msg}", error.lineno or 0, max(0, error.offset or 0))
    except (ValueError, RecursionError, MemoryError) as error:
        return CodeFault(f"the code can't be parsed: {str(error) or type(error).__name__}")


def _class_fault(node: ast.ClassDef) -> CodeFault | None:
    defined = {
        item.name: item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for name, arguments in {**_CALLS, **_OPTIONAL_CALLS}.items():
        method = defined.get(name)
        if isinstance(method, ast.AsyncFunctionDef):
            return CodeFault(
                f"{_PREDICTOR}.{name} is an async function", method.lineno, method.col_offset + 1
            )
        # What a decorator makes of it, only a run knows.
        if method is not None and not method.decorator_list and not _takes(method.args, 1 + len(arguments)):
            signature = f"{name}(self, {', '.join(arguments)})"
            return CodeFault(
                f"{_PREDICTOR}.{name} is not called so: {signature}", method.lineno, method.col_offset + 1
            )
    known = {*defined, *_assigned(node.body)}
    missing = [name for name in _CALLS if name not in known]
    if missing and not node.bases and not node.keywords and not node.decorator_list:
        return CodeFault(
            f"{_PREDICTOR} has no {' and no '.join(f'{name}()' for name in missing)}",
            node.lineno,
            node.col_offset + 1,
        )
    return None


def _definition_fault(tree: ast.Module, name: str) -> CodeFault | None:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    named = [node for node in functions if node.name == name]
    if not named and _binds(tree, name):
        return None
    chosen = named[-1] if named else functions[0] if len(functions) == 1 else None
    if chosen is None:
        count = f"{len(functions)} functions, none of them" if functions else "no function"
        return CodeFault(f"the code defines {count} {name}(env, data)")
    if isinstance(chosen, ast.AsyncFunctionDef):
        return CodeFault(f"{chosen.name} is an async function", chosen.lineno, chosen.col_offset + 1)
    if not _takes(chosen.args, 2):
        message = f"{chosen.name} does not take two positional arguments (env, data)"
        return CodeFault(message, chosen.lineno, chosen.col_offset + 1)
    return None


def _binds(tree: ast.Module, name: str) -> bool:
    """Whether a statement at the top level gives the name a value in another way than by `def`."""
    return name in _assigned(tree.body)


def _assigned(body: list[ast.stmt]) -> set[str]:
    """Return the names that statements import or assign."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _takes(arguments: ast.arguments, count: int) -> bool:
    """Return whether a function can be called with so many positional arguments."""
    positional = len(arguments.posonlyargs) + len(arguments.args)
    least = positional - len(arguments.defaults)
    needs_keywords = any(default is None for default in arguments.kw_defaults)
    return least <= count and (positional >= count or arguments.vararg is not None) and not needs_keywords
