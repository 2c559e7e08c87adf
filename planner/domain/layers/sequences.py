"""Layers of sequences: embeddings, normalisation over features, some of the positions, patches of images.

n: sub-batch [samples]; s: positions; h: features; V: rows of a table; E = n·s·h; N: patches of an image, s = N + 1.

=================  ========================================  ==========================================
call               forward                                   backward
=================  ========================================  ==========================================
embedding          2E, 8-byte number of each token           V·h to clear, 3E to add rows, the numbers
... by position    2·s·h, once for all samples               E + V·h (a sum over samples)
sum of tables      3E each, an ``add``                       0
layer_norm         2E                                        3E of inputs, and 2E of parameters
windows            2E, a copy; 4E where they are shifted     the same
positions          0, a view; 2E of some that are picked     E in clearing, 2 of those taken
class token        2E, a ``concat`` of transposed patches    2E of patches, and E, a sum over samples
... positions      3E, an ``add``
=================  ========================================  ==========================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD
from planner.domain.layers.record import (
    INPUT,
    Attribute,
    Call,
    Layer,
    LayerKind,
    Lowering,
    Shape,
    Share,
    Site,
    fixed,
    passes,
    per_sample,
    traffic,
)
from planner.errors import ParameterError

__all__ = ["KINDS"]

TOKEN_BYTES = 8
"""Of a token's number, as PyTorch keeps it."""
STATISTICS_BYTES = 8
"""Of a position that layer normalisation works on: mean and scale in fp32."""
ROOT_BYTES = 4
"""Of a position that normalisation by the root mean square works on: its scale in fp32."""
TABLES = ("vocabulary", "positions", "types")


def _embedded(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    (positions,), rows = inputs[0], layer.integer("positions")
    if layer.inputs != (INPUT,):
        raise ParameterError(f"layer {layer.name}: input", f"{INPUT}, the numbers of tokens", layer.inputs[0])
    if 0 < rows < positions:
        raise ParameterError(f"layer {layer.name}: positions", f"0, or at least the {positions} of a sample", rows)
    return (positions, layer.integer("features"))


def _embedding(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Yield looking up a row a token, of each table, and their sum; backward, the gradients of the tables."""
    layer, elements = site.layer, site.output_elements
    index_bytes = TOKEN_BYTES * site.input_elements
    for table in ("vocabulary", "types"):
        if layer.integer(table):
            table_elements = layer.integer(table) * layer.integer("features")
            work = (per_sample(elements), (table_elements, 3 * elements), per_sample(index_bytes))
            yield Call("embedding", FORWARD, traffic(elements, 2 * elements, index_bytes))
            yield Call("embedding", BACKWARD_WEIGHT, work)
    if layer.integer("positions"):
        table_elements = layer.integer("positions") * layer.integer("features")
        yield Call("embedding", FORWARD, (fixed(elements), fixed(2 * elements), fixed(index_bytes)))
        yield Call("embedding", BACKWARD_WEIGHT, (per_sample(elements), (table_elements, elements), fixed(0)))
    sums = sum(layer.integer(table) > 0 for table in ("positions", "types"))
    if sums:
        yield Call("add", FORWARD, traffic(elements, 3 * elements), fixed(sums))


def _embedding_kept(site: Site, itemsize: int) -> int:
    """Numbers of tokens, less what was counted for them as the network's input, and of their types."""
    return (TOKEN_BYTES * (2 if site.layer.integer("types") else 1) - itemsize) * site.input_elements


def _layer_norm(site: Site, _lowering: Lowering) -> Iterator[Call]:
    elements = site.output_elements
    rows, backward = per_sample(elements // site.output[-1]), (5 if site.trained else 3) * elements
    return passes("layer_norm", site, (*traffic(elements, 2 * elements), rows), (*traffic(elements, backward), rows))


def _root_normed(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    *rest, features = inputs[0]
    if layer.integer("features") > features:
        raise ParameterError(
            f"layer {layer.name}: features", f"at most the {features} it reads", layer.integer("features")
        )
    return (*rest, layer.integer("features") or features)


def _taken(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    start, count, positions = layer.integer("start"), layer.integer("count"), inputs[0][0]
    if start + count > positions:
        raise ParameterError(f"layer {layer.name}: start + count", f"at most the {positions} it reads", start + count)
    return (count, *inputs[0][1:])


def _take(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Yield picking positions that do not lie together; backward clears the gradient of all and copies theirs."""
    if site.layer.attributes["scattered"]:
        yield Call("copy", FORWARD, traffic(site.output_elements, 2 * site.output_elements))
    yield from _first_position(site, _lowering)


def _with_class_token(_layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    features, height, width = inputs[0]
    return (height * width + 1, features)


def _class_token(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Yield patches put in a row behind the token, and the positions added; backward the gradients of all three."""
    elements, patches = site.output_elements, site.input_elements
    yield Call("concat", FORWARD, traffic(elements, 2 * elements))
    yield Call("add", FORWARD, (per_sample(elements), (elements, 2 * elements), fixed(0)))
    if site.trained:
        yield Call("add", BACKWARD_DATA, (per_sample(elements), (elements, elements), fixed(0)))
    if site.input_gradients[0]:
        yield Call("concat", BACKWARD_DATA, traffic(patches, 2 * patches))


def _windowed(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    (positions, features), height, side = inputs[0], layer.integer("height"), layer.integer("side")
    if positions % height or height % side or positions // height % side:
        rule = f"a divisor of both sides of the {positions} positions it reads, in {height} rows"
        raise ParameterError(f"layer {layer.name}: side", rule, side)
    return (positions // side**2, features * side**2) if layer.attributes["merged"] else inputs[0]


def _windows(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Yield a copy into the other order, and one that rolls the image where windows are shifted; the same backward."""
    work = traffic(site.output_elements, 2 * site.output_elements)
    for _ in range(1 + bool(site.layer.integer("shift"))):
        yield from passes("copy", site, work, work)


def _windows_module(_torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return what puts the positions of an image into the order of its windows, or back."""
    height, side, shift = layer.integer("height"), layer.integer("side"), layer.integer("shift")
    sides = (height // side, side, inputs[0][0] // height // side, side)

    def ordered(image: Any) -> Any:
        image = image.roll((-shift, -shift), (1, 2)) if shift else image
        rows = image.unflatten(2, sides[2:]).unflatten(1, sides[:2]).transpose(2, 3)
        return rows.flatten(3).flatten(1, 2) if layer.attributes["merged"] else rows.flatten(1, 4)

    def back(sequence: Any) -> Any:
        rows = sequence.unflatten(1, (sides[0], sides[2], side, side)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return (rows.roll((shift, shift), (1, 2)) if shift else rows).flatten(1, 2)

    return back if layer.attributes["back"] else lambda sequence: ordered(sequence.unflatten(1, (height, -1)))


def _first_position(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Forward is a view; backward clears the gradient of the whole sequence and copies that of one position."""
    if site.has_gradient:
        moved_elements = site.input_elements + 2 * site.output_elements
        yield Call("copy", BACKWARD_DATA, traffic(site.input_elements, moved_elements))


def _embedding_module(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return the sum of the rows of a token, of its position, and of type 0; ``words`` is the table of tokens."""
    (positions,), features = inputs[0], layer.integer("features")

    class Embedding(torch.nn.Module):  # type: ignore[misc]  # imported as Any
        def __init__(self) -> None:
            super().__init__()
            rows = {key: layer.integer(key) for key in ("vocabulary", "positions", "types")}
            self.words = torch.nn.Embedding(rows["vocabulary"], features)
            self.positions = torch.nn.Embedding(rows["positions"], features) if rows["positions"] else None
            self.types = torch.nn.Embedding(rows["types"], features) if rows["types"] else None

        def forward(self, tokens: Any) -> Any:
            rows = self.words(tokens)
            if self.positions is not None:
                rows = rows + self.positions(torch.arange(positions, device=tokens.device))
            return rows if self.types is None else rows + self.types(torch.zeros_like(tokens))

    return Embedding()


def _root_norm_module(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return normalisation over features, or over the first of them, by the root of their mean square."""
    features = layer.integer("features") or inputs[0][-1]

    class RootNorm(torch.nn.RMSNorm):  # type: ignore[misc]  # imported as Any
        def forward(self, sequence: Any) -> Any:
            return super().forward(sequence if features == sequence.shape[-1] else sequence[..., :features])

    return RootNorm(features)


def _positions_module(torch: Any, layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    """Return what takes some positions: a view of those that lie together, else a copy."""
    start, count = layer.integer("start"), layer.integer("count")
    if not layer.attributes["scattered"]:
        return lambda sequence: sequence[:, start : start + count]
    return lambda sequence: sequence.index_select(1, torch.arange(start, start + count, device=sequence.device))


def _class_token_module(torch: Any, _layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return patches in a row behind a learned token, with learned positions added."""
    features, height, width = inputs[0]

    class ClassToken(torch.nn.Module):  # type: ignore[misc]  # imported as Any
        def __init__(self) -> None:
            super().__init__()
            self.token = torch.nn.Parameter(torch.zeros(1, 1, features))
            self.positions = torch.nn.Parameter(torch.zeros(1, height * width + 1, features))

        def forward(self, patches: Any) -> Any:
            row = patches.flatten(2).transpose(1, 2)
            return torch.cat((self.token.expand(len(row), -1, -1), row), dim=1) + self.positions

    return ClassToken()


KINDS = {
    "embedding": LayerKind(
        {
            "vocabulary": Attribute("int", None, "rows of the table of tokens"),
            "features": Attribute("int", None, "features of a token"),
            "positions": Attribute("int", 0, "rows of the table that is added by position; 0: none", least=0),
            "types": Attribute("int", 0, "rows of the table that is added by type of token; 0: none", least=0),
        },
        _embedded,
        (1,),
        parameters=lambda layer, _shape: tuple(
            layer.integer("features") * rows for table in TABLES if (rows := layer.integer(table))
        ),
        calls=_embedding,
        kept_besides=_embedding_kept,
        computes="fp32",
        share=lambda _layer: Share("vocabulary", is_rounded_up=True),
        module=_embedding_module,
    ),
    "layer_norm": LayerKind(
        {"shift": Attribute("bool", default=True, doc="whether a shift is added", quiet=True)},
        ranks=(1, 2),
        parameters=lambda layer, shape: (shape[-1],) * (1 + bool(layer.attributes["shift"])),
        calls=_layer_norm,
        keeps=lambda _layer: (True, False),
        kept_besides=lambda site, _itemsize: STATISTICS_BYTES * (site.output_elements // site.output[-1]),
        computes="fp32 on gpu",
        module=lambda torch, layer, inputs: torch.nn.LayerNorm(inputs[0][-1], bias=bool(layer.attributes["shift"])),
    ),
    "rms_norm": LayerKind(
        {"features": Attribute("int", 0, "first features, which alone are passed on; 0: all", least=0)},
        _root_normed,
        (1, 2),
        parameters=lambda layer, shape: (layer.integer("features") or shape[-1],),
        calls=_layer_norm,
        keeps=lambda _layer: (True, False),
        kept_besides=lambda site, _itemsize: ROOT_BYTES * (site.output_elements // site.output[-1]),
        computes="fp32 on gpu",
        module=_root_norm_module,
    ),
    "positions": LayerKind(
        {
            "start": Attribute("int", 0, "first position that is passed on", least=0),
            "count": Attribute("int", None, "positions that are passed on"),
            "scattered": Attribute("bool", default=False, doc="whether they do not lie together, and are copied"),
        },
        _taken,
        (2,),
        calls=_take,
        module=_positions_module,
    ),
    "windows": LayerKind(
        {
            "height": Attribute("int", None, "rows of the image that the positions are of"),
            "side": Attribute("int", 7, "height and width of a window"),
            "shift": Attribute("int", 0, "rows and columns by which windows are shifted", least=0),
            "back": Attribute("bool", default=False, doc="whether positions come back into the order of the image"),
            "merged": Attribute("bool", default=False, doc="whether a window becomes one position with all features"),
        },
        _windowed,
        (2,),
        calls=_windows,
        module=_windows_module,
    ),
    "class_token": LayerKind(
        {},
        _with_class_token,
        (3,),
        parameters=lambda _layer, shape: (shape[0], shape[0] * (shape[1] * shape[2] + 1)),
        calls=_class_token,
        computes="fp32",
        module=_class_token_module,
    ),
    "first_position": LayerKind(
        {},
        lambda _layer, inputs: inputs[0][1:],
        (2,),
        calls=_first_position,
        is_view=True,
        module=lambda _torch, _layer, _inputs: lambda sequence: sequence[:, 0],
    ),
}
