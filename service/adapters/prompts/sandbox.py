"""The environment in which a model's chat template runs.

Owns what a template may call and how large what it makes may be. A template comes with the
weights, so it is as untrusted as they are: no attribute that leads out of the sandbox, no loader,
no change to what it is given, and no value above the size limit. Time is bounded through sizes
and a limit on the turns of all loops together.

Differences from Hugging Face's environment, which templates are written for: the filters and
string methods that only pad are absent (`center`, `wordwrap`, `ljust`, `zfill` and their like);
the rest is as there (trim_blocks, lstrip_blocks, loop controls, `tojson` without HTML escapes).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import loopcontrols
from jinja2.filters import do_indent
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_TURNS = 200_000
"""Turns of all loops of one rendering; 1,024 messages with some 20 parts each need a tenth."""

_PADDING = frozenset(
    {"center", "ljust", "rjust", "zfill", "expandtabs", "translate", "maketrans", "format", "format_map"}
)
_SIZED = (str, list, tuple)
_FILTERS_AWAY = ("center", "format", "pprint", "random", "urlize", "wordwrap", "xmlattr", "filesizeformat")
_MAX_INDENT = 64


class TemplateTooLarge(Exception):
    """The template makes more text, or turns its loops more often, than allowed."""


class TemplateRefusal(Exception):
    """The template itself refuses the messages, with `raise_exception`."""


class _Bounded(NodeTransformer):
    """Send each `~` and each loop's iterable through a check."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("bounded_concat", node.nodes, node.lineno)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _call("bounded_items", [cast(nodes.Expr, node.iter)], node.lineno)
        return node


def _call(name: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    call = nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)
    call.set_lineno(line)
    return call


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """A sandbox for one template; one rendering at a time uses it."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` bounds each string and list that an expression makes."""
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], autoescape=False)
        self._max = max_bytes
        self._turns = 0
        for name in _FILTERS_AWAY:
            self.filters.pop(name, None)
        self.filters["tojson"] = self._to_json
        self.filters["indent"] = self._indent
        self.filters["replace"] = self._replace
        self.filters["join"] = self._join
        self.globals = {
            name: self.globals[name] for name in ("range", "dict", "namespace", "cycler", "joiner")
        }
        self.globals["raise_exception"] = _refuse

    def begin(self) -> None:
        """Start counting a new rendering's turns."""
        self._turns = 0

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Bounded().visit(tree)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Also keep away what only pads text."""
        if isinstance(obj, str | bytes) and attr in _PADDING:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Bound what `*`, `**`, `%` and `+` make."""
        if operator == "*":
            for text, times in ((left, right), (right, left)):
                if isinstance(text, str | bytes | list | tuple) and isinstance(times, int):
                    self._check(len(text) * max(times, 0))
        elif operator == "**":
            self._check(abs(right) if isinstance(right, int | float) else 0, limit=64)
        elif operator == "%" and isinstance(left, str | bytes):
            raise jinja2.exceptions.SecurityError("text formatting with % is not available")
        elif operator == "+" and isinstance(left, _SIZED) and isinstance(right, _SIZED):
            self._check(len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Bound what string methods make."""
        self = __self
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            if name == "replace":
                return self._replace(owner, *args, **kwargs)
            if name == "join":
                return self._join(args[0] if args else (), owner)
        return super().call(__context, __obj, *args, **kwargs)

    def bounded_concat(self, *parts: Any) -> str:
        """Do `~`."""
        texts = [str(part) for part in parts]
        self._check(sum(map(len, texts)))
        return "".join(texts)

    def bounded_items(self, items: Iterable[Any]) -> Iterable[Any]:
        """Count a loop's turns."""
        if isinstance(items, list | tuple | dict | str | range):
            self._turn(len(items))
            return items
        return self._counted(items)

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._turn(1)
            yield item

    def _turn(self, count: int) -> None:
        self._turns += count
        if self._turns > MAX_TURNS:
            raise TemplateTooLarge

    def _check(self, size: float, limit: int | None = None) -> None:
        if size > (self._max if limit is None else limit):
            raise TemplateTooLarge

    def _replace(self, value: Any, old: str, new: str, count: int | None = None) -> str:
        text, old, new = str(value), str(old), str(new)
        self._check(len(text) + (text.count(old) if old else len(text) + 1) * len(new))
        return text.replace(old, new, -1 if count is None else count)

    def _join(self, items: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        if attribute is not None:
            items = [self.getattr(item, attribute) for item in items]
        texts = [str(item) for item in items]
        self._check(sum(map(len, texts)) + len(str(d)) * len(texts))
        return str(d).join(texts)

    def _indent(self, text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        spaces = len(width) if isinstance(width, str) else width
        self._check(spaces, limit=_MAX_INDENT)
        self._check(len(text) + text.count("\n") * spaces)
        return str(do_indent(text, width, first, blank))

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        self._check(indent or 0, limit=_MAX_INDENT)
        text = json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        self._check(len(text))
        return text


def _refuse(message: object = "") -> NoReturn:
    raise TemplateRefusal(str(message))
