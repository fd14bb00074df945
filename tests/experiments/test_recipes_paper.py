"""The recipes of the paper's tasks have the numbers of its appendix."""

import pytest
from folders import DATA, as_bytes, needs, own_folders, pictures, pixels, small_cifar, write  # noqa: F401

from fjord.experiments.recipes.paper import RECIPES


@pytest.mark.parametrize(
    ("name", "batch_size", "lr"),
    [
        ("cifar10", 32, 0.1),
        ("femnist", 16, 0.1),
        ("femnist-digits", 16, 0.1),
        ("emnist-skewed", 16, 0.1),
        ("shakespeare", 4, 1.0),
    ],
)
def test_recipes_have_the_numbers_of_the_papers_appendix(
    name: str, batch_size: int, lr: float
) -> None:
    recipe = RECIPES[name]()
    assert (recipe.name, recipe.batch_size, recipe.lr) == (name, batch_size, lr)
    assert (recipe.num_rounds, recipe.cohort_size, recipe.local_epochs) == (500, 10, 1)
    assert (recipe.momentum, recipe.decay, [str(m) for m in recipe.milestones]) == (
        0.0,
        0.1,
        ["1/2", "3/4"],
    )
    assert (recipe.norms, recipe.tiers, len(recipe.widths.widths)) == ("layers", "uniform-5", 5)
