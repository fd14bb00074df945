"""Elastic models: any `nn.Module` as a nest of plain submodels."""
