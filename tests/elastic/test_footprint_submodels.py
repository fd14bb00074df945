"""Costs of submodels of any widths, without cutting them."""

from searched import X, trained

from fjord.elastic.footprint import count_macs, submodel_bytes, submodel_macs


def test_costs_of_any_widths_are_those_of_the_cut_network():
    model = trained(9, 6, norm=True, epochs=1)
    for widths in ("2/3", {"0": "1/3", "3": "1"}):
        net = model.cut(widths)
        assert submodel_macs(model, widths, (X[:1],)) == count_macs(net, (X[:1],))
        tensors = [*net.parameters(), *net.buffers()]
        assert submodel_bytes(model, widths) == sum(t.numel() * t.element_size() for t in tensors)
