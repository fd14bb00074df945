"""Text as characters of a fixed vocabulary, cut into sequences for guessing the next one (appendix, Shakespeare).

The vocabulary, its numbers and the cut are those of TensorFlow Federated, which the paper follows.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fjord.data.federated import IGNORED_TARGET

CHARACTERS = (
    "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
)
PADDING, UNKNOWN, BEGIN, END = 0, len(CHARACTERS) + 1, len(CHARACTERS) + 2, len(CHARACTERS) + 3
VOCABULARY = len(CHARACTERS) + 4
LENGTH = 80

Sequences = tuple[NDArray[np.uint8], NDArray[np.int8], NDArray[np.int64]]


def _numbers() -> NDArray[np.uint8]:
    """Return the number of each character by its code point; the last entry stands for all from 255 on."""
    numbers = np.full(256, UNKNOWN, np.uint8)
    numbers[[ord(c) for c in CHARACTERS]] = np.arange(1, len(CHARACTERS) + 1)
    return numbers


NUMBERS = _numbers()


def encode_text(text: str) -> NDArray[np.uint8]:
    """Return the number of each character.

    >>> numbered("dh\u00e9").tolist()
    [1, 2, 87]
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    return NUMBERS[np.minimum(codes, 255)]


def cut_sequences(texts: Sequence[str]) -> Sequences:
    """Cut each text, between its begin and its end, into sequences; return inputs, targets and sequences per text.

    A text is padded to a multiple of 81 characters. Of every 81 the first 80 are the input and the last 80 the
    target, so that the target is the next character everywhere; padding as a target is `IGNORED_TARGET`.
    """
    sizes = np.array([len(text) for text in texts], np.int64)
    pieces = -(-(sizes + 2) // (LENGTH + 1))
    starts = (np.cumsum(pieces) - pieces) * (LENGTH + 1)
    flat = np.full(int(pieces.sum()) * (LENGTH + 1), PADDING, np.uint8)
    flat[starts], flat[starts + sizes + 1] = BEGIN, END
    shifts = starts + 1 - (np.cumsum(sizes) - sizes)
    flat[np.arange(sizes.sum()) + np.repeat(shifts, sizes)] = encode_text("".join(texts))
    rows = flat.reshape(-1, LENGTH + 1)
    targets = rows[:, 1:].astype(np.int8)
    targets[targets == PADDING] = IGNORED_TARGET
    return np.ascontiguousarray(rows[:, :-1]), targets, pieces


def lines_from_windows(windows: Iterable[tuple[str, str]]) -> list[str]:
    """Put lines together again from windows (some characters, the next one) that were moved along them.

    LEAF moves a window of 80 over each line, which it fills up with spaces in front. A window that does not go on
    where the one before it ended begins another line.
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
    """Join lines that end in a line break with the ones after them: a text goes on until a line ends without."""
    texts: list[list[str]] = [[]]
    for line in lines:
        texts[-1].append(line)
        if not line.endswith("\n"):
            texts.append([])
    return ["".join(text).removesuffix("\n") for text in texts if text]
