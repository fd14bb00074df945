"""From a model's own graph to labels that say which units belong together."""
