"""Chat templates: Jinja text from a model's files, run in a sandbox, with what transformers gives templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

__all__ = ["ChatTemplate"]


class ChatTemplate:
    """A compiled template. Templates come with models, from strangers: they see plain data and no attribute of it."""

    def __init__(self, text: str, tokens: Mapping[str, str]) -> None:
        """`tokens` are the special tokens by name, such as bos_token. Raises what Jinja raises for a wrong template."""
        self._template = _environment().from_string(text)
        self._tokens = dict(tokens)

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        """The text for `messages`; whatever the template raises comes through."""
        plain = [dict(message) for message in messages]
        given = {"messages": plain, "tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
        text: str = self._template.render(**{**self._tokens, **given})
        return text


def _environment() -> Any:
    """The sandbox, set up as transformers does: templates are written for that."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import CallBlock
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """`{% generation %}` marks what the model wrote; here it is written as it stands."""

        tags = {"generation"}  # noqa: RUF012 - Jinja's own way

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

        def _same(self, caller: Any) -> Any:
            return caller()

    class PlainNamespace(Namespace):
        """No underscore names, which lead to Python's own."""

        def __init__(*args: Any, **kwargs: Any) -> None:
            own = dict(*args[1:], **kwargs)
            for name in own:
                _check(name)
            Namespace.__init__(args[0], own)

        def __setitem__(self, name: str, value: Any) -> None:
            _check(name)
            super().__setitem__(name, value)

    def _check(name: str) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a chat template may not store '{name}' in a namespace")

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda format: datetime.now().strftime(format),
        "dict": _Dicts(),
        "namespace": PlainNamespace,
    }
    return environment


class _Dicts:
    """`dict` as templates may use it, without the attributes of Python's class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is: Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
