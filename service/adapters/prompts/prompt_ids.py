"""A prompt of any kind to the ids that are fed, with a model's template and tokenizer."""

from __future__ import annotations

from typing import assert_never

from service.adapters.prompts.chat_template import ChatTemplate
from service.adapters.prompts.special_ids import Segment, Tokenize, checked_ids, segment_ids
from service.domain.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from service.ports.engine import PromptError


def prompt_ids(
    prompt: Prompt,
    *,
    template: ChatTemplate | None,
    tokenize: Tokenize,
    bos_id: int | None,
    vocabulary_size: int,
) -> tuple[int, ...]:
    """Return the ids of `prompt`; `bos_id` is None where the model wants no BOS.

    Raises:
        PromptError: it cannot be rendered, is empty, or holds an id that the model does not have.
    """
    segments: tuple[Segment, ...] = ()
    match prompt:
        case TokenPrompt(token_ids):
            return checked_ids(token_ids, vocabulary_size)
        case TextPrompt(text):
            segments = (Segment(text, special=True),)
        case ChatPrompt(messages, tools):
            if template is None:
                raise PromptError("this model has no chat template: send a text prompt")
            segments = template.render(
                messages,
                tools,
                call=prompt.forced_tool is not None,
                unfinished=prompt.continue_final_message,
            )
        case _ as unreachable:
            assert_never(unreachable)
    return checked_ids(segment_ids(segments, tokenize, bos_id), vocabulary_size)
