"""Build a submodel from the user's own modules: a copy of the model around the cut tensors.

The sizes that `torch.nn` layers store are corrected. So are integer attributes of user modules, if
the submodel does not work otherwise and the size of a tensor explains the attribute in every
instance of the class.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fjord.elastic.errors import ElasticityError
from fjord.elastic.module_tensors import copy_module
from fjord.elastic.plan import UnitSelection, WidthPlan

Shapes = dict[str, tuple[int, ...]]
Attribute = tuple[type, str]
"""A class of the user's and the name of an integer attribute of its instances."""
Meaning = tuple[str, str, int]
"""What an integer attribute stands for: "size" or "units", a tensor below the module, an axis."""
GATES = {"LSTM": 4, "GRU": 3}


def cut_module(
    template: nn.Module,
    tensors: Mapping[str, Tensor],
    plan: WidthPlan,
    selection: UnitSelection,
    attributes: frozenset[Attribute],
) -> nn.Module:
    """Return a copy of the template that holds the cut tensors; tied tensors stay tied."""
    net = copy_module(template, tensors)
    meanings = {}
    if attributes:
        for attribute, explanations in attribute_meanings(template, plan).items():
            if attribute in attributes:
                meanings[attribute] = explanations
    sizes = _AttributeSizes(plan, selection, meanings)
    modules = zip(net.named_modules(), template.modules(), strict=True)
    for (name, module), full in modules:
        _resize_layer(module, full)
        if not _is_torch_layer(module):
            _resize_attributes(module, full, _name_prefix(name), sizes)
    return net


def _is_torch_layer(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _name_prefix(path: str) -> str:
    """Return what the names of tensors below a module begin with."""
    return f"{path}." if path else ""


def _local_shapes(module: nn.Module) -> Shapes:
    """Return the shapes of a module's own parameters and buffers."""
    shapes = {}
    for name, tensor in {**module._parameters, **module._buffers}.items():
        if tensor is not None:
            shapes[name] = tuple(tensor.shape)
    return shapes


def _resize_layer(module: Any, full: nn.Module) -> None:
    """Correct the sizes that a `torch.nn` layer stores beside its tensors."""
    if isinstance(module, nn.MultiheadAttention):
        _resize_attention(module)
    new = _local_shapes(module)
    old = _local_shapes(full)
    if new == old:
        return
    if isinstance(module, nn.RNNBase):
        _resize_recurrent(module, new)
    elif isinstance(module, nn.RNNCellBase):
        module.input_size = new["weight_ih"][1]
        module.hidden_size = new["weight_hh"][1]
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        module.num_features = next(shape[0] for shape in new.values() if shape)
    elif "weight" in new:
        _resize_weighted(module, new["weight"], old["weight"])
    elif isinstance(module, nn.Bilinear | nn.Embedding | nn.EmbeddingBag | nn.PReLU):
        kind = type(module).__name__
        raise ElasticityError(f"{kind} has no tensor named weight to take its sizes from")


def _resize_weighted(
    module: Any,
    new: tuple[int, ...],
    old: tuple[int, ...],
) -> None:
    """Correct the sizes of a layer that follow from the shape of its weight."""
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = new
    elif isinstance(module, nn.Bilinear):
        module.out_features, module.in1_features, module.in2_features = new
    elif isinstance(module, nn.modules.conv._ConvNd):
        _resize_convolution(module, new, old)
    elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
        module.normalized_shape = new
    elif isinstance(module, nn.GroupNorm):
        channels = new[0]
        groups = module.num_groups * channels // module.num_channels
        module.num_groups = max(1, groups)
        module.num_channels = channels
    elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
        module.num_embeddings, module.embedding_dim = new
    elif isinstance(module, nn.PReLU):
        module.num_parameters = new[0]


def _resize_convolution(
    module: Any,
    new: tuple[int, ...],
    old: tuple[int, ...],
) -> None:
    groups = 1
    if module.groups > 1:
        groups = max(1, module.groups * new[0] // old[0])
    module.groups = groups
    if module.transposed:
        module.in_channels = new[0]
        module.out_channels = new[1] * groups
    else:
        module.in_channels = new[1] * groups
        module.out_channels = new[0]


def _resize_recurrent(module: Any, new: Shapes) -> None:
    gates = GATES.get(module.mode, 1)
    rows, columns = new["weight_ih_l0"]
    module.input_size = columns
    module.hidden_size = rows // gates
    if module.proj_size:
        module.proj_size = new["weight_hr_l0"][0]
        if module.proj_size >= module.hidden_size:
            raise ElasticityError(
                "nn.LSTM needs proj_size below hidden_size, but this width gives "
                f"{module.proj_size} and {module.hidden_size}: leave such a small width out, or "
                "freeze the layer"
            )


def _resize_attention(module: nn.MultiheadAttention) -> None:
    outer, inner = module.out_proj.weight.shape
    if outer != inner:
        raise ElasticityError(
            "nn.MultiheadAttention needs an embedding of whole heads, but its layers have widths "
            f"that give {outer} channels outside and {inner} inside: give all layers around it "
            "one width"
        )
    module.embed_dim = outer
    module.num_heads = outer // module.head_dim
    if module.in_proj_weight is not None:
        module.kdim = outer
        module.vdim = outer
    else:
        module.kdim = module.k_proj_weight.shape[1]
        module.vdim = module.v_proj_weight.shape[1]


def attribute_meanings(model: nn.Module, plan: WidthPlan) -> dict[Attribute, set[Meaning]]:
    """Explain integer attributes of user modules by sizes below them.

    An explanation must hold in every instance of the class: a coincidence in one (as many heads as
    partitions) is ruled out by the others.
    """
    meanings: dict[Attribute, set[Meaning]] = {}
    for name, module in model.named_modules():
        if _is_torch_layer(module):
            continue
        sizes = _sizes_below(name, plan)
        for key, value in vars(module).items():
            if not _may_be_size(value):
                continue
            attribute = (type(module), key)
            explanations = sizes.get(value, set())
            if attribute in meanings:
                meanings[attribute] = meanings[attribute] & explanations
            else:
                meanings[attribute] = explanations
    return meanings


def _may_be_size(value: object) -> bool:
    return type(value) is int and value > 1


def _sizes_below(name: str, plan: WidthPlan) -> dict[int, set[Meaning]]:
    """Return what each number could mean in a module, by the tensors below it."""
    prefix = _name_prefix(name)
    sizes: dict[int, set[Meaning]] = defaultdict(set)
    for tensor, shape in plan.shapes.items():
        if not tensor.startswith(prefix):
            continue
        local_name = tensor.removeprefix(prefix)
        for dim, size in enumerate(shape):
            sizes[size].add(("size", local_name, dim))
            families = plan.families_of.get((tensor, dim), [])
            if len(families) != 1:
                continue
            num_units = families[0].num_units
            if num_units != size:
                sizes[num_units].add(("units", local_name, dim))
    return sizes


class _AttributeSizes:
    """Computes the value that an explained attribute has in one cut."""

    def __init__(
        self,
        plan: WidthPlan,
        selection: UnitSelection,
        meanings: dict[Attribute, set[Meaning]],
    ) -> None:
        self.plan = plan
        self.selection = selection
        self.meanings = meanings
        self.shapes = plan.cut_shapes(selection)

    def new_values(
        self,
        kind: type,
        key: str,
        prefix: str,
    ) -> set[int]:
        """Return the values according to each meaning; one value only if they agree."""
        values = set()
        for meaning, local_name, dim in self.meanings.get((kind, key), ()):
            name = prefix + local_name
            families = self.plan.families_of.get((name, dim), [])
            if meaning == "size" and name in self.shapes:
                values.add(self.shapes[name][dim])
            elif meaning == "units" and families:
                units = self.selection[families[0].name]
                values.add(len(units))
        return values


def _resize_attributes(
    module: nn.Module,
    full: nn.Module,
    prefix: str,
    sizes: _AttributeSizes,
) -> None:
    """Correct the integer attributes of a user module whose new value is unambiguous.

    An attribute that differs from the full model's has been corrected already.
    """
    for key, value in list(vars(module).items()):
        if not _may_be_size(value):
            continue
        if vars(full).get(key) != value:
            continue
        new_values = sizes.new_values(type(module), key, prefix)
        if len(new_values) == 1:
            setattr(module, key, new_values.pop())
