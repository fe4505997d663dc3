"""Owns a whole output as blocks: texts and tool calls, in the order they came."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from edge.protocol.tool_calls import Arguments, CallBegun, CallEnded, Piece, Text, ToolCallReader


@dataclass(slots=True)
class TextBlock:
    """Text between calls."""

    text: str


@dataclass(slots=True)
class CallBlock:
    """A tool call."""

    index: int
    name: str
    arguments: str = ""
    is_whole: bool = False
    """Whether its arguments are a whole JSON value."""


Block = TextBlock | CallBlock


class Blocks:
    """Gathers pieces."""

    __slots__ = ("all",)

    def __init__(self) -> None:
        self.all: list[Block] = []

    def take(self, pieces: Iterable[Piece]) -> None:
        """Add pieces."""
        for piece in pieces:
            last = self.all[-1] if self.all else None
            match piece:
                case Text(text):
                    if isinstance(last, TextBlock):
                        last.text += text
                    else:
                        self.all.append(TextBlock(text))
                case CallBegun(index, name):
                    self.all.append(CallBlock(index, name))
                case Arguments(_, text):
                    assert isinstance(last, CallBlock), "a call is begun"
                    last.arguments += text
                case CallEnded(_, is_whole):
                    assert isinstance(last, CallBlock), "a call is begun"
                    last.is_whole = is_whole
                case _:
                    assert_never(piece)

    @property
    def text(self) -> str:
        """All texts, joined by line feeds."""
        return "\n".join(block.text for block in self.all if isinstance(block, TextBlock))

    @property
    def calls(self) -> list[CallBlock]:
        """All calls."""
        return [block for block in self.all if isinstance(block, CallBlock)]


def read_blocks(text: str, reader: ToolCallReader | None) -> Blocks:
    """Return a whole output; all of it is text without a reader."""
    blocks = Blocks()
    if reader is None:
        blocks.take([Text(text)] if text else [])
        return blocks
    blocks.take(reader.take(text))
    blocks.take(reader.finish())
    return blocks
