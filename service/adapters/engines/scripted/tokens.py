"""The scripted engine's vocabulary: bytes, three special tokens, script pieces, numbered words.

Tools and calls are no part of its prompts: a script says what is generated.

Prompts are tokenised to bytes; what is generated has ids of its own. Decoding is exact for every
mix, so a continuation by ids and one by text feed the same bytes. A script piece's id is its place
in the script, which stands in the prompt: another process decodes it alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from service.domain.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from service.ports.engine import PromptError

BOS = 256
TURN_START = 257
TURN_END = 258
SPECIALS = {"<|bos|>": BOS, "<|im_start|>": TURN_START, "<|im_end|>": TURN_END}
EOS = TURN_END
PIECE_BASE = 1024
"""Ids from here on are the pieces of the prompt's script, in order."""
WORD_BASE = 1 << 16
WORDS = (
    "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath",
    "inlet", "jetty", "knoll", "ledge", "marsh", "north", "ocean", "plain",
    "quiet", "river", "stone", "trail", "upper", "vale", "water", "xenon",
    "yield", "zephyr", "arbor", "brook", "creek", "dune", "estuary", "ford",
)  # fmt: skip
POSITIONS = 4096
VOCABULARY_SIZE = WORD_BASE + len(WORDS) * POSITIONS

_SPECIAL = re.compile("|".join(re.escape(text) for text in SPECIALS))
_SPECIAL_BYTES = {i: text.encode() for text, i in SPECIALS.items()}
_POSITION = re.compile(rb" (?:" + "|".join(WORDS).encode() + rb")(\d{1,4})\Z")


def encode(text: str) -> tuple[int, ...]:
    """Return the ids of plain text. Raises `PromptError` for lone surrogates."""
    try:
        return tuple(text.encode())
    except UnicodeEncodeError as error:
        raise PromptError("the prompt is not valid Unicode text") from error


def encode_prompt(prompt: Prompt, continuation: str) -> tuple[int, ...]:
    """Return what is fed: ChatML for messages, exactly one beginning-of-sequence token."""
    match prompt:
        case TextPrompt(text):
            ids = _with_specials(text)
            head = () if ids[:1] == (BOS,) else (BOS,)
            return head + ids + encode(continuation)
        case TokenPrompt(token_ids):
            if not all(0 <= i < VOCABULARY_SIZE for i in token_ids):
                raise PromptError(f"token ids must be below {VOCABULARY_SIZE}")
            return token_ids + encode(continuation)
        case ChatPrompt(messages):
            ids = (BOS,)
            for message in messages:
                turn = encode(f"{message.role}\n{message.content}")
                ids += (TURN_START, *turn, TURN_END, *b"\n")
            if prompt.continue_final_message:
                return (*ids[: -len((TURN_END, *b"\n"))], *encode(continuation))
            return (*ids, TURN_START, *b"assistant\n", *encode(continuation))


def word_id(word: int, position: int) -> int:
    """Return the token that says the word with this number, at this place of the text."""
    return WORD_BASE + position * len(WORDS) + word


def word_bytes(token_id: int) -> bytes:
    """Return the text of a word token."""
    position, word = divmod(token_id - WORD_BASE, len(WORDS))
    return f" {WORDS[word]}{position}".encode()


def word_position(context: bytes) -> int:
    """Return the place of the word that `context` ends with; 0 if it does not end with one."""
    found = _POSITION.search(context[-16:])
    return int(found[1]) if found else 0


def decode(token_ids: Sequence[int], pieces: Sequence[bytes] = ()) -> bytes:
    """Return the bytes of ids; special tokens as they are written, unknown pieces as nothing."""
    if all(i < 256 for i in token_ids):
        return bytes(token_ids)
    return b"".join(_decode_one(i, pieces) for i in token_ids)


def _decode_one(token_id: int, pieces: Sequence[bytes]) -> bytes:
    if token_id < 256:
        return bytes((token_id,))
    if token_id >= WORD_BASE:
        return word_bytes(token_id)
    if token_id < PIECE_BASE:
        return _SPECIAL_BYTES.get(token_id, b"")
    place = token_id - PIECE_BASE
    return pieces[place] if place < len(pieces) else b""


def _with_specials(text: str) -> tuple[int, ...]:
    ids: tuple[int, ...] = ()
    start = 0
    for found in _SPECIAL.finditer(text):
        ids += (*encode(text[start : found.start()]), SPECIALS[found[0]])
        start = found.end()
    return ids + encode(text[start:])
