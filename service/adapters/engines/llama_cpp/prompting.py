"""Prompts to the ids that llama.cpp is fed.

Owns the model's tokenizer as the prompt code sees it. The library tokenises; whether it wants a
BOS is seen by asking, as a file's metadata may leave that open.
"""

from __future__ import annotations

from service.adapters.engines.llama_cpp import convert
from service.adapters.engines.llama_cpp.loopback import Loopback, LoopbackError
from service.adapters.engines.llama_cpp.vocabulary import Vocabulary
from service.adapters.prompts.chat_template import ChatTemplate
from service.adapters.prompts.no_blank import TokenizeWithoutBlank
from service.adapters.prompts.prompt_ids import prompt_ids
from service.adapters.prompts.tool_format import ToolFormat
from service.domain.request import Prompt
from service.ports.engine import PromptError

_PROBE = "\n"


class Prompting:
    """Turn prompts into ids. Thread-safe."""

    def __init__(self, loopback: Loopback, vocabulary: Vocabulary, template: str) -> None:
        """Ask the library what it does; `template` may be empty. Raises LoopbackError, ChatTemplateError."""
        self._loopback = loopback
        self._vocabulary = vocabulary
        plain, with_own = (self._ask(_PROBE, special=False, own=own) for own in (False, True))
        self._bos = with_own[0] if len(with_own) > len(plain) and with_own[0] not in plain[:1] else None
        self._tokenize = TokenizeWithoutBlank(self._ask, adds_blank=vocabulary.space_prefix)
        self._template = (
            ChatTemplate(
                template,
                bos_text=vocabulary.bos,
                eos_text=vocabulary.eos,
                special_tokens=vocabulary.special.values(),
            )
            if template
            else None
        )

    @property
    def has_template(self) -> bool:
        """Whether messages can be rendered."""
        return self._template is not None

    @property
    def tool_format(self) -> ToolFormat | None:
        """How the model writes calls; None if its template takes no tools."""
        return None if self._template is None else self._template.tool_format

    def ids(self, prompt: Prompt, continuation: str) -> tuple[int, ...]:
        """Return what is fed for `prompt` and then `continuation`. Raises PromptError."""
        try:
            ids = self._prompt_ids(prompt)
            if continuation:
                ids += tuple(self._tokenize(continuation, parse_special=False, at_start=False))
        except LoopbackError as error:
            raise PromptError("the prompt could not be tokenised") from error
        return ids

    def _prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        return prompt_ids(
            prompt,
            template=self._template,
            tokenize=self._tokenize,
            bos_id=self._bos,
            vocabulary_size=self._vocabulary.size,
        )

    def _ask(self, text: str, /, *, special: bool, own: bool = False) -> list[int]:
        body = {"content": text, "parse_special": special, "add_special": own}
        return convert.token_list(self._loopback.post("/tokenize", body))
