"""What the summary of a model says."""

from tiny_models import elastic_motif


def test_the_summary_names_families_layers_and_reasons():
    text = elastic_motif().summary()
    for words in (
        "inner.weight[0]",
        "stem, bn, back",
        "15",
        "model output",
        "kernel positions",
        "the model's own modules",
    ):
        assert words in text
    assert "not from its modules: Built by module" in elastic_motif("sizes in forward").summary()
