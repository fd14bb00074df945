"""Characters drawn by writers: a federated image task made from a seed, with nothing to download.

The 62 characters are strokes on a grid. Every writer has a hand of its own (slant, size, pen, the
way each character is formed) and favourite characters, so that clients differ as people do.
"""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fjord.core.errors import UserError
from fjord.core.seeding import ShuffledRange, derive_seed
from fjord.data.federated import Batch, GeneratedData, TestSet

STROKES = """
0 30 51 57 38 17 11 30|1 12 30 38|2 02 20 40 62 08 68|3 00 60 33 53 66 48 18 06|4 48 40 05 65
5 60 10 03 43 65 67 48 08|6 50 20 04 06 28 48 66 54 24 05|7 00 60 28
8 34 11 20 40 51 34 05 07 18 58 67 65 34|9 62 40 20 02 14 44 62 68|A 08 30 68, 15 55
B 08 00 40 51 53 44 04, 44 65 67 58 08|C 61 40 20 02 06 28 48 67|D 00 08 38 66 62 30 00
E 60 00 08 68, 04 44|F 60 00 08, 04 44|G 61 40 20 02 06 28 48 66 65 35|H 00 08, 60 68, 04 64
I 10 50, 30 38, 18 58|J 20 60, 50 56 38 18 06|K 00 08, 60 04 68|L 00 08 68|M 08 00 34 60 68
N 08 00 68 60|O 20 40 62 66 48 28 06 02 20|P 08 00 40 61 63 44 04
Q 20 40 62 66 48 28 06 02 20, 46 68|R 08 00 40 61 63 44 04, 34 68|S 61 40 20 02 13 55 66 48 28 07
T 00 60, 30 38|U 00 06 28 48 66 60|V 00 38 60|W 00 18 33 58 60|X 00 68, 60 08|Y 00 34 60, 34 38
Z 00 60 08 68|a 53 58, 54 33 13 05 06 18 38 57|b 00 08, 05 23 43 55 56 48 28 07
c 54 33 23 05 06 28 38 57|d 50 58, 55 33 13 05 06 18 38 57|e 05 55 54 33 23 05 06 28 38 57
f 50 30 22 28, 04 44|g 53 58 49 19, 54 33 13 05 17 37 55|h 00 08, 05 23 43 55 58|i 33 38, 30 31
j 43 47 39 18, 40 41|k 00 08, 53 05 58|l 20 26 38 48|m 03 08, 04 13 23 34 38, 34 43 53 64 68
n 03 08, 04 23 43 54 58|o 23 33 55 56 38 28 06 05 23|p 03 09, 04 23 43 54 55 47 27 06
q 53 59, 54 33 13 04 05 17 37 56|r 13 18, 15 33 53|s 54 33 13 04 15 45 56 48 18 07
t 30 37 48 58, 13 53|u 03 06 28 38 56, 53 58|v 03 28 53|w 03 18 35 48 63|x 03 58, 53 08
y 03 27, 53 19|z 03 53 08 58
"""
IMAGE_SIZE = 28


Segment = tuple[tuple[float, float], tuple[float, float]]
"""Two points of a line."""


def _read_font() -> tuple[Tensor, Tensor]:
    """Return the strokes as segments: (character, segment, end, xy), and which of them exist."""
    all_segments = []
    for line in STROKES.strip().splitlines():
        for character in line.split("|"):
            all_segments.append(_read_segments(character))
    most = max(map(len, all_segments))
    padded_segments = []
    existing = []
    for segments in all_segments:
        num_missing = most - len(segments)
        padded_segments.append(segments + segments[-1:] * num_missing)
        existing.append([True] * len(segments) + [False] * num_missing)
    return torch.tensor(padded_segments), torch.tensor(existing)


def _read_segments(character: str) -> list[Segment]:
    """Return the segments of a character such as "T 00 60, 30 38"."""
    segments: list[Segment] = []
    for stroke in character[2:].split(","):
        points = []
        for point in stroke.split():
            points.append((float(point[0]), float(point[1])))
        segments += pairwise(points)
    return segments


FONT, IS_INKED = _read_font()
NUM_CLASSES = len(FONT)


def draw_character(
    labels: Tensor,
    hand: int,
    generator: torch.Generator,
) -> Tensor:
    """Draw these characters in the hand of a writer, who is a seed."""
    style = torch.Generator().manual_seed(hand)
    shape = torch.randn(6, generator=style) * 0.2
    slant, tilt, shift_x, shift_y, tall, wide = shape.tolist()
    strength = torch.rand(2, generator=style) * 0.8 + 0.6
    pen, ink = strength.tolist()
    habit = torch.randn(FONT.shape, generator=style) * 0.35
    own_font = FONT + habit
    segments = own_font[labels]
    wobble = torch.randn(segments.shape, generator=generator) * 0.3
    segments = segments + wobble
    centre = torch.tensor([3.0, 4.5])
    width = 2.5 * (1 + wide)
    height = 2.3 * (1 + tall)
    segments = (segments - centre) * torch.tensor([width, height])
    turn = torch.tensor([[1.0, tilt], [slant - tilt, 1.0]])
    shift = torch.tensor([shift_x, shift_y]) * 5
    moved = torch.randn(len(labels), 1, 1, 2, generator=generator) + shift
    segments = segments @ turn + moved + IMAGE_SIZE / 2
    distance = _pixel_distances(segments, IS_INKED[labels])
    darkness = torch.sigmoid(3 * (pen - distance))
    picture = darkness * min(1.0, ink)
    noise = torch.randn(picture.shape, generator=generator)
    noisy = picture + 0.15 * noise
    return noisy.clamp(0, 1).reshape(-1, 1, IMAGE_SIZE, IMAGE_SIZE)


def _pixel_distances(segments: Tensor, is_inked: Tensor) -> Tensor:
    """Return how far each pixel is from the nearest segment.

    Letters of the names: N characters, S segments, P pixels.
    """
    line = torch.arange(IMAGE_SIZE) + 0.5
    grid = torch.meshgrid(line, line, indexing="xy")
    pixels = torch.stack(grid, -1).reshape(-1, 2)
    start = segments[:, :, 0]
    along = segments[:, :, 1] - start
    directions = along.mT.transpose(0, 1).reshape(2, -1)
    num_characters, num_segments, _ = along.shape
    reach_NSP = (pixels @ directions).T.reshape(num_characters, num_segments, -1)
    offset_NS = (start * along).sum(-1)
    reach_NSP = reach_NSP - offset_NS[..., None]
    squared_length_NS = along.square().sum(-1).clamp(min=1e-6)
    part_NSP = (reach_NSP / squared_length_NS[..., None]).clamp(0, 1)
    start_x, start_y = start.split(1, -1)
    along_x, along_y = along.split(1, -1)
    x_NSP = start_x + part_NSP * along_x - pixels[:, 0]
    y_NSP = start_y + part_NSP * along_y - pixels[:, 1]
    squared_NSP = x_NSP * x_NSP + y_NSP * y_NSP
    squared_NSP = squared_NSP.masked_fill(~is_inked[..., None], 1e6)
    return squared_NSP.amin(1).sqrt()


def draw_writer(
    seed: int,
    client_id: int,
    count: int,
    part: str,
    skew: float,
) -> Batch:
    """Return some examples of one writer, whose choice of characters is skewed (Dirichlet)."""
    generator = torch.Generator().manual_seed(
        derive_seed(
            seed,
            "writer",
            client_id,
            part,
        )
    )
    taste = np.random.default_rng(
        derive_seed(
            seed,
            "writer",
            client_id,
            "taste",
        )
    )
    preferences = torch.from_numpy(taste.dirichlet([skew] * NUM_CLASSES))
    labels = torch.multinomial(
        preferences,
        count,
        replacement=True,
        generator=generator,
    )
    hand = derive_seed(seed, "writer", client_id, "hand")
    return draw_character(labels, hand, generator), labels


def writers(
    seed: int,
    num_clients: int = 200,
    *,
    examples: int = 120,
    held_out: int = 20,
    skew: float = 0.5,
) -> GeneratedData:
    """Return a population of writers; the test set holds out examples of at most 200 of them."""
    if num_clients < 1 or examples < 1 or held_out < 1:
        given = f"num_clients={num_clients}, examples={examples}, held_out={held_out}"
        raise UserError(f"{given} must be at least 1")
    order = ShuffledRange(num_clients, derive_seed(seed, "test writers"))
    num_tested = min(200, num_clients)
    tested_clients = sorted(order[place] for place in range(num_tested))
    all_inputs = []
    all_targets = []
    for client in tested_clients:
        inputs, targets = draw_writer(seed, client, held_out, "test", skew)
        all_inputs.append(inputs)
        all_targets.append(targets)
    owners = torch.tensor(tested_clients).repeat_interleave(held_out)
    return GeneratedData(
        num_clients,
        lambda client: draw_writer(seed, client, examples, "train", skew),
        TestSet(torch.cat(all_inputs), torch.cat(all_targets), owners),
        count=lambda client: examples,
    )
