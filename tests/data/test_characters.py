"""Text as numbers, cut into sequences, and lines restored from LEAF's windows."""

from folders import moved_over
from hypothesis import given, settings
from hypothesis import strategies as st

from fjord.data.characters import (
    BEGIN,
    CHARACTERS,
    END,
    LENGTH,
    PADDING,
    UNKNOWN,
    VOCABULARY,
    cut_sequences,
    join_lines,
    lines_from_windows,
)
from fjord.data.federated import IGNORED_TARGET


def literal(text: str) -> list[list[int]]:
    """Return the pieces of 81 of one text, character by character."""
    tokens = [BEGIN]
    for character in text:
        tokens.append(CHARACTERS.index(character) + 1 if character in CHARACTERS else UNKNOWN)
    tokens.append(END)
    while len(tokens) % 81:
        tokens.append(PADDING)
    return [tokens[i : i + 81] for i in range(0, len(tokens), 81)]


texts = st.one_of(
    st.text(max_size=30),
    st.text(st.sampled_from(CHARACTERS), max_size=300),
    st.builds(
        lambda n, c: c * n,
        st.sampled_from([0, 78, 79, 80, 81, 159, 160, 161, 162]),
        st.characters(),
    ),
)


@given(st.lists(texts, max_size=6))
def test_sequences_equal_those_made_character_by_character(given_texts):
    inputs, targets, pieces = cut_sequences(given_texts)
    wanted = [literal(text) for text in given_texts]
    rows = [row for text in wanted for row in text]
    assert pieces.tolist() == [len(text) for text in wanted]
    assert inputs.tolist() == [row[:80] for row in rows]
    assert targets.tolist() == [
        [IGNORED_TARGET if t == PADDING else t for t in row[1:]] for row in rows
    ]


@given(st.lists(texts, min_size=1, max_size=6))
def test_a_target_is_the_next_input_unless_it_is_padding(given_texts):
    inputs, targets, _ = cut_sequences(given_texts)
    assert inputs.dtype == "uint8"
    assert targets.dtype == "int8"
    assert inputs.max() < VOCABULARY
    following, target = inputs[:, 1:], targets[:, :-1]
    counts = target != IGNORED_TARGET
    assert (following[counts] == target[counts]).all()
    assert (following[~counts] == PADDING).all()


def test_the_vocabulary_is_that_of_the_paper():
    assert len(set(CHARACTERS)) == len(CHARACTERS) == 86
    assert sorted({PADDING, UNKNOWN, BEGIN, END} | set(range(1, 87))) == list(range(90))
    assert (VOCABULARY, LENGTH, IGNORED_TARGET) == (90, 80, -100)


lines = st.lists(
    st.text(st.sampled_from("ab ,"), max_size=200).map(lambda text: text + "\n"),
    min_size=1,
    max_size=5,
)


@settings(max_examples=50)
@given(lines)
def test_lines_are_put_together_again_from_the_windows_of_leaf(given_lines):
    windows = [window for line in given_lines for window in moved_over(line)]
    assert lines_from_windows(windows) == given_lines
    assert join_lines(given_lines) == ["".join(given_lines)[:-1]]


def test_a_window_out_of_order_is_a_text_of_its_own():
    windows = moved_over("To be, or not to be\n")
    assert lines_from_windows([windows[5], windows[9], windows[10]]) == ["To be,", "To be, or n"]
    assert join_lines(["To be,", "or\n", "not"]) == ["To be,", "or\nnot"]
