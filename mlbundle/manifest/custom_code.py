"""Looks at the Python code of a manifest without running it: does it parse, does it define the function."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass

MAX_CHARACTERS = 1 << 18


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
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError as error:
        return CodeFault(f"the code is no Python: {error.msg}", error.lineno or 0, error.offset or 0)
    except (ValueError, RecursionError, MemoryError) as error:
        return CodeFault(f"the code can't be parsed: {str(error) or type(error).__name__}")
    return _definition_fault(tree, function)


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
    if not _takes_two(chosen.args):
        message = f"{chosen.name} does not take two positional arguments (env, data)"
        return CodeFault(message, chosen.lineno, chosen.col_offset + 1)
    return None


def _binds(tree: ast.Module, name: str) -> bool:
    """Whether a statement at the top level gives the name a value in another way than by `def`."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        else:
            continue
        if name in names:
            return True
    return False


def _takes_two(arguments: ast.arguments) -> bool:
    positional = len(arguments.posonlyargs) + len(arguments.args)
    least = positional - len(arguments.defaults)
    needs_keywords = any(default is None for default in arguments.kw_defaults)
    return least <= 2 and (positional >= 2 or arguments.vararg is not None) and not needs_keywords
