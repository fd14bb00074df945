"""Build a submodel from the user's own modules: a copy of the model around the cut tensors.

The sizes that `torch.nn` layers remember are corrected; so are integer attributes of user modules that a
tensor's size explains in every instance of the class, where the submodel does not work without.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fjord.elastic.errors import ElasticityError
from fjord.elastic.module_tensors import copy_module
from fjord.elastic.plan import UnitSelection, WidthPlan

Shapes = dict[str, tuple[int, ...]]
Attribute = tuple[type, str]
"""A class of the user's and the name of an integer its instances remember."""
Meaning = tuple[str, str, int]
"""What an integer attribute stands for: "size" or "units", a tensor below the module, an axis."""
GATES = {"LSTM": 4, "GRU": 3}


def cut_module(
    template: nn.Module,
    tensors: Mapping[str, Tensor],
    plan: WidthPlan,
    kept: UnitSelection,
    attributes: frozenset[Attribute],
) -> nn.Module:
    """Return a copy of the template that holds the cut tensors; tied tensors stay tied."""
    net = copy_module(template, tensors)
    meanings = attribute_meanings(template, plan) if attributes else {}
    sizes = _Sizes(
        plan, kept, {key: meaning for key, meaning in meanings.items() if key in attributes}
    )
    for (name, module), full in zip(net.named_modules(), template.modules(), strict=True):
        _resize(module, full)
        if not _of_torch(module):
            _resize_attributes(module, full, f"{name}." if name else "", sizes)
    return net


def _of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _local_shapes(module: nn.Module) -> Shapes:
    tensors = {**module._parameters, **module._buffers}
    return {name: tuple(t.shape) for name, t in tensors.items() if t is not None}


def _resize(module: Any, full: nn.Module) -> None:
    """Correct the sizes that a `torch.nn` layer remembers beside its tensors."""
    new, old = _local_shapes(module), _local_shapes(full)
    if isinstance(module, nn.MultiheadAttention):
        _resize_attention(module)
    if new == old:
        return
    if isinstance(module, nn.Linear) and "weight" in new:
        module.out_features, module.in_features = new["weight"]
    elif isinstance(module, nn.Bilinear):
        module.out_features, module.in1_features, module.in2_features = new["weight"]
    elif isinstance(module, nn.modules.conv._ConvNd) and "weight" in new:
        _resize_convolution(module, new["weight"], old["weight"])
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        module.num_features = next(shape[0] for shape in new.values() if shape)
    elif isinstance(module, nn.LayerNorm | nn.RMSNorm) and "weight" in new:
        module.normalized_shape = new["weight"]
    elif isinstance(module, nn.GroupNorm) and "weight" in new:
        channels = new["weight"][0]
        module.num_groups = max(1, module.num_groups * channels // module.num_channels)
        module.num_channels = channels
    elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
        module.num_embeddings, module.embedding_dim = new["weight"]
    elif isinstance(module, nn.PReLU):
        module.num_parameters = new["weight"][0]
    elif isinstance(module, nn.RNNBase):
        _resize_recurrent(module, new)
    elif isinstance(module, nn.RNNCellBase):
        module.input_size, module.hidden_size = new["weight_ih"][1], new["weight_hh"][1]


def _resize_convolution(module: Any, new: tuple[int, ...], old: tuple[int, ...]) -> None:
    outer, inner = (1, 0) if module.transposed else (0, 1)
    module.groups = max(1, module.groups * new[0] // old[0]) if module.groups > 1 else 1
    module.out_channels = new[outer] * (module.groups if module.transposed else 1)
    module.in_channels = new[inner] * (1 if module.transposed else module.groups)


def _resize_recurrent(module: Any, new: Shapes) -> None:
    gates = GATES.get(module.mode, 1)
    module.input_size = new["weight_ih_l0"][1]
    module.hidden_size = new["weight_ih_l0"][0] // gates
    if module.proj_size:
        module.proj_size = new["weight_hr_l0"][0]
        if module.proj_size >= module.hidden_size:
            raise ElasticityError(
                f"nn.LSTM needs proj_size below hidden_size, but this width gives {module.proj_size} and "
                f"{module.hidden_size}: leave such a small width out, or freeze the layer"
            )


def _resize_attention(module: nn.MultiheadAttention) -> None:
    embed, inner = module.out_proj.weight.shape
    if embed != inner:
        raise ElasticityError(
            f"nn.MultiheadAttention needs an embedding of whole heads, but its layers have widths that give "
            f"{embed} channels outside and {inner} inside: give all layers around it one width"
        )
    module.embed_dim = embed
    module.num_heads = embed // module.head_dim
    if module.in_proj_weight is not None:
        module.kdim = module.vdim = embed
    else:
        module.kdim, module.vdim = module.k_proj_weight.shape[1], module.v_proj_weight.shape[1]


def attribute_meanings(model: nn.Module, plan: WidthPlan) -> dict[Attribute, set[Meaning]]:
    """Explain integer attributes of user modules by sizes below them.

    An explanation must hold in every instance of the class: a coincidence in one (as many heads as
    partitions) is ruled out by the others.
    """
    found: dict[Attribute, set[Meaning]] = {}
    for name, module in model.named_modules():
        if _of_torch(module):
            continue
        sizes = _sizes_below(name, plan)
        for key, value in vars(module).items():
            if type(value) is int and value > 1:
                known = found.get((type(module), key))
                here = sizes.get(value, set())
                found[type(module), key] = here if known is None else known & here
    return found


def _sizes_below(name: str, plan: WidthPlan) -> dict[int, set[Meaning]]:
    prefix = f"{name}." if name else ""
    sizes: dict[int, set[Meaning]] = {}
    for tensor, shape in plan.shapes.items():
        for dim, size in enumerate(shape) if tensor.startswith(prefix) else ():
            local = tensor[len(prefix) :]
            sizes.setdefault(size, set()).add(("size", local, dim))
            families = plan.families_of.get((tensor, dim), [])
            if len(families) == 1 and families[0].num_units != size:
                sizes.setdefault(families[0].num_units, set()).add(("units", local, dim))
    return sizes


class _Sizes:
    """Looks up what an explained attribute becomes in one cut."""

    def __init__(
        self, plan: WidthPlan, kept: UnitSelection, meanings: dict[Attribute, set[Meaning]]
    ) -> None:
        self.plan, self.kept, self.meanings, self.shapes = (
            plan,
            kept,
            meanings,
            plan.cut_shapes(kept),
        )

    def new_values(self, kind: type, key: str, prefix: str) -> set[int]:
        found = set()
        for meaning, local, dim in self.meanings.get((kind, key), ()):
            name, families = prefix + local, self.plan.families_of.get((prefix + local, dim), [])
            if meaning == "size" and name in self.shapes:
                found.add(self.shapes[name][dim])
            elif meaning == "units" and families:
                found.add(len(self.kept[families[0].name]))
        return found


def _resize_attributes(module: nn.Module, full: nn.Module, prefix: str, sizes: _Sizes) -> None:
    """Correct the integers a user module remembers, where their meaning is plain and not corrected yet."""
    for key, value in list(vars(module).items()):
        if type(value) is int and value > 1 and vars(full).get(key) == value:
            new = sizes.new_values(type(module), key, prefix)
            if len(new) == 1:
                setattr(module, key, new.pop())
