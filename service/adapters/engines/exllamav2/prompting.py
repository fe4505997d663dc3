"""Prompts to the ids that the model is fed, and the end of a turn as the template writes it.

Owns the model's tokenizer (Hugging Face's `tokenizers`) as the prompt code sees it. The library's
own tokenizer is used for nothing but its vocabulary size.
"""

from __future__ import annotations

import json

from tokenizers import Tokenizer

from service.adapters.engines.exllamav2.model_files import ModelFiles
from service.adapters.engines.exllamav2.vocabulary import Vocabulary
from service.adapters.prompts.chat_template import ChatTemplate, ChatTemplateError
from service.adapters.prompts.no_blank import TokenizeWithoutBlank
from service.adapters.prompts.prompt_ids import prompt_ids
from service.adapters.prompts.tool_format import ToolFormat
from service.domain.request import ChatMessage, Prompt
from service.ports.engine import EngineLoadError, PromptError

_ANSWER = "tailrace-answer"


class Prompting:
    """Turn prompts into ids. Thread-safe."""

    def __init__(self, files: ModelFiles, vocabulary: Vocabulary) -> None:
        """Build the tokenizers. Raises EngineLoadError."""
        source = json.dumps(dict(files.tokenizer))
        try:
            # Two of them: whether special tokens' text counts is a state of the object.
            self._plain, self._special = (Tokenizer.from_str(source) for _ in range(2))
        except Exception as error:
            raise EngineLoadError(f"{files.folder}/tokenizer.json cannot be used: {error}") from error
        for tokenizer in (self._plain, self._special):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._plain.encode_special_tokens = True
        self._vocabulary = vocabulary
        self._bos = self._wanted_bos(files)
        self._tokenize = TokenizeWithoutBlank(self._encode, adds_blank=vocabulary.space_prefix)
        self._template: ChatTemplate | None = None
        if files.chat_template:
            try:
                self._template = ChatTemplate(
                    files.chat_template,
                    bos_text=files.bos_text,
                    eos_text=files.eos_text,
                    special_tokens=vocabulary.special.values(),
                )
            except ChatTemplateError as error:
                raise EngineLoadError(f"{files.folder}: {error}: mend the template, or remove it") from error

    @property
    def has_template(self) -> bool:
        """Whether messages can be rendered."""
        return self._template is not None

    @property
    def tool_format(self) -> ToolFormat | None:
        """How the model writes calls; None if its template takes no tools."""
        return None if self._template is None else self._template.tool_format

    def turn_end_ids(self) -> tuple[int, ...]:
        """Return the special token that the template puts right behind an answer, if there is one."""
        if self._template is None:
            return ()
        messages = (ChatMessage("user", "?"), ChatMessage("assistant", _ANSWER), ChatMessage("user", "?"))
        try:
            text = "".join(segment.text for segment in self._template.render(messages))
        except PromptError:
            return ()
        _, found, after = text.partition(_ANSWER)
        after = after.lstrip()
        ending = [
            i for i, token in self._vocabulary.special.items() if found and token and after.startswith(token)
        ]
        return tuple(sorted(ending))

    def ids(self, prompt: Prompt, continuation: str) -> tuple[int, ...]:
        """Return what is fed for `prompt` and then `continuation`. Raises PromptError."""
        ids = self._prompt_ids(prompt)
        if continuation:
            ids += tuple(self._tokenize(continuation, parse_special=False, at_start=False))
        return ids

    def _prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        return prompt_ids(
            prompt,
            template=self._template,
            tokenize=self._tokenize,
            bos_id=self._bos,
            vocabulary_size=self._vocabulary.size,
        )

    def _encode(self, text: str, /, *, special: bool) -> list[int]:
        tokenizer = self._special if special else self._plain
        try:
            text.encode()
        except UnicodeEncodeError:
            raise PromptError("the prompt holds half a surrogate pair, which is no character") from None
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def _wanted_bos(self, files: ModelFiles) -> int | None:
        without, own = (self._special.encode("a", add_special_tokens=add).ids for add in (False, True))
        if len(own) > len(without) and own[0] not in without[:1]:
            return int(own[0])
        return self._vocabulary.id_of(files.bos_text) if files.adds_bos and files.bos_text else None
