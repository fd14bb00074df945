"""Text as character numbers, cut into sequences for next-character prediction (appendix).

The vocabulary, its numbers and the cut are those of TensorFlow Federated, which the paper follows.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fjord.data.federated import IGNORED_TARGET

CHARACTERS = (
    "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
)
PADDING = 0
UNKNOWN = len(CHARACTERS) + 1
BEGIN = len(CHARACTERS) + 2
END = len(CHARACTERS) + 3
VOCABULARY = len(CHARACTERS) + 4
LENGTH = 80
"""Characters of a sequence."""
BLOCK = LENGTH + 1
"""What a sequence is cut from: its characters, and the one after each of them."""

Sequences = tuple[NDArray[np.uint8], NDArray[np.int8], NDArray[np.int64]]
"""Inputs, targets, and the number of sequences of each text."""


def _character_numbers() -> NDArray[np.uint8]:
    """Return the number of each character by its code point; the last is for all from 255 on."""
    numbers = np.full(256, UNKNOWN, np.uint8)
    for number, character in enumerate(CHARACTERS, 1):
        numbers[ord(character)] = number
    return numbers


CHARACTER_NUMBERS = _character_numbers()


def encode_text(text: str) -> NDArray[np.uint8]:
    """Return the number of each character.

    >>> encode_text("dh\u00e9").tolist()
    [1, 2, 87]
    """
    encoded = text.encode("utf-32-le", "surrogatepass")
    code_points = np.frombuffer(encoded, "<u4")
    return CHARACTER_NUMBERS[np.minimum(code_points, 255)]


def cut_sequences(texts: Sequence[str]) -> Sequences:
    """Cut each text into sequences; return inputs, targets and the number of sequences per text.

    A text stands between a begin and an end, and is padded to a multiple of 81 characters. Of every
    81 the first 80 are the input and the last 80 the target, so that the target is the next
    character everywhere; padding as a target is `IGNORED_TARGET`.
    """
    sizes = np.array([len(text) for text in texts], np.int64)
    num_blocks = -(-(sizes + 2) // BLOCK)  # begin and end are two more; rounded up
    begins = (np.cumsum(num_blocks) - num_blocks) * BLOCK
    num_characters = int(num_blocks.sum()) * BLOCK
    flat = np.full(num_characters, PADDING, np.uint8)
    flat[begins] = BEGIN
    flat[begins + sizes + 1] = END
    # How far each text moves from its place in the joined texts to its place in the blocks.
    offsets = np.cumsum(sizes) - sizes
    shifts = begins + 1 - offsets
    places = np.arange(sizes.sum()) + np.repeat(shifts, sizes)
    joined_texts = "".join(texts)
    flat[places] = encode_text(joined_texts)
    blocks = flat.reshape(-1, BLOCK)
    inputs = np.ascontiguousarray(blocks[:, :-1])
    targets = blocks[:, 1:].astype(np.int8)
    targets[targets == PADDING] = IGNORED_TARGET
    return inputs, targets, num_blocks


def lines_from_windows(windows: Iterable[tuple[str, str]]) -> list[str]:
    """Restore lines from windows (some characters, the next one) that were moved along them.

    LEAF moves a window of 80 over each line, which it pads with spaces in front. A window that does
    not continue where the one before it ended begins another line.
    """
    lines: list[list[str]] = []
    expected = None
    for window, following in windows:
        if window == expected:
            lines[-1].append(following)
        else:
            lines.append([window.lstrip(" "), following])
        expected = window[1:] + following
    return ["".join(line) for line in lines]


def join_lines(lines: Iterable[str]) -> list[str]:
    r"""Join lines that end in a line break with the next ones; a text ends without one.

    >>> join_lines(["To be,", "or not\n", "to be"])
    ['To be,', 'or not\nto be']
    """
    texts = []
    current_lines: list[str] = []
    for line in lines:
        current_lines.append(line)
        if not line.endswith("\n"):
            texts.append(_join_text(current_lines))
            current_lines = []
    if current_lines:
        texts.append(_join_text(current_lines))
    return texts


def _join_text(lines: list[str]) -> str:
    return "".join(lines).removesuffix("\n")
