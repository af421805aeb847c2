"""The contents of a batch of fixed size: every tensor with its shape, order and padding, and the types for them.

A batch is a `Batch` of PyG, with three differences. Its shapes never change, so it ends in padding. Masks distinguish
real rows from padding. `num_nodes`, `num_edges` and `num_graphs` count slots, padding included, while `num_real_nodes`,
`num_real_edges` and `num_real_graphs` count without padding. `len(batch)` and `to_data_list()` use real graphs only.

Let N, E and G be `num_nodes`, `num_edges` and `num_graphs` of `FixedSizeOptions`: the *slots*. Let n, e and g be the
numbers of real nodes, edges and graphs of a batch. At least one node and one graph are padding:

    n <= N - 1        e <= E        g <= G - 1

Real rows come first, graph after graph, and equal `Batch.from_data_list` to the last bit; padding rows come last. Graph
number g is *the padding graph*: it owns all N - n padding nodes and all E - e padding edges. Graphs g + 1 to G - 1 are
empty. A padding edge joins padding nodes, so no message of padding reaches a real node.

    tensor          shape       real rows                           padding rows
    x, pos, z ...   [N, ...]    the nodes                           node_pad_value, 0 by default
    edge_index      [2, E]      source, destination; counted        n, n: loops on the first padding node; with
                                through the batch                   spread_padding_edges n to N - 1, evenly, in order
    edge_attr ...   [E, ...]    the edges                           edge_pad_value, 0 by default (1e3 for edge_shift)
    y ...           [G, ...]    the graphs                          graph_pad_value, 0 by default
    batch           [N]         the graph of each node              g
    ptr             [G + 1]     each graph's first node             ptr[g] = n, and N from ptr[g + 1] on
    nodes_mask      [N]         True                                False
    edges_mask      [E]         True                                False
    graphs_mask     [G]         True                                False

Some batches hold more:

- `rowptr` [N + 1], with `sort_edges`. Edges are then sorted by destination, and those that end at node i are
  `rowptr[i]` to `rowptr[i + 1]`. It counts padding edges too, so `rowptr[N]` is E.
- `NAME_batch` and `NAME_ptr`, for each name in `follow_batch`: the `batch` and the `ptr` of the rows of NAME.
- A graph attribute with k rows per graph is [k * G, ...]. If k differs between graphs, it is [`num_rows[NAME]`, ...]:
  the rows of all graphs, then padding.
- Any other attribute that PyG increments, such as `face`, refers in its padding to the first row after the real rows.
- `train_mask`, `val_mask` and `test_mask` are False in padding, whatever fills other node attributes.
- An attribute that is not a tensor, such as a name, is a list of G entries. Padding repeats the first entry, unless
  `pad_graph_defaults` has another value.
- `num_trimmed_nodes` and `num_trimmed_edges` [G], if trimming is allowed: the nodes and edges that each graph has lost.

Indices are int64, or int32 with `index_dtype`: `edge_index`, `batch`, `ptr`, `rowptr`, and every other attribute that
PyG increments.

Two graphs by hand, in 8 node slots, 7 edge slots and 4 graph slots: so n = 5, e = 5, g = 2, node 5 is the first padding
node and graph 2 the padding graph.

    graph 0: 2 nodes, edges 1 -> 0, 0 -> 1               nodes 0 and 1 of the batch
    graph 1: 3 nodes, edges 0 -> 1, 2 -> 1, 1 -> 2       nodes 2, 3 and 4: its edges are 2 -> 3, 4 -> 3, 3 -> 4

>>> from torch_geometric.data import Data
>>> from popgeo.data import FixedSizeCollater, FixedSizeOptions
>>> pair = Data(z=torch.tensor([8, 1]), edge_index=torch.tensor([[1, 0], [0, 1]]), y=torch.tensor([0.5]))
>>> path = Data(z=torch.tensor([6, 7, 6]), edge_index=torch.tensor([[0, 2, 1], [1, 1, 2]]), y=torch.tensor([0.25]))
>>> sizes = FixedSizeOptions(num_nodes=8, num_edges=7, num_graphs=4)
>>> batch = FixedSizeCollater(sizes, add_masks_to_batch=True, sort_edges=True)([pair, path])
>>> batch.z                                # five real nodes, three of padding
tensor([8, 1, 6, 7, 6, 0, 0, 0])
>>> batch.edge_index                       # five real edges, two loops on node 5
tensor([[1, 0, 2, 4, 3, 5, 5],
        [0, 1, 3, 3, 4, 5, 5]])
>>> batch.y                                # two real graphs, the padding graph, an empty one
tensor([0.5000, 0.2500, 0.0000, 0.0000])
>>> batch.batch                            # the padding nodes belong to graph 2
tensor([0, 0, 1, 1, 1, 2, 2, 2])
>>> batch.ptr                              # graph 3 starts, and ends, at 8
tensor([0, 2, 5, 8, 8])
>>> batch.nodes_mask.int(), batch.edges_mask.int(), batch.graphs_mask.int()
(tensor([1, 1, 1, 1, 1, 0, 0, 0], dtype=torch.int32),
 tensor([1, 1, 1, 1, 1, 0, 0], dtype=torch.int32),
 tensor([1, 1, 0, 0], dtype=torch.int32))
>>> batch.rowptr                           # no edge ends at node 2; edges 2 and 3 end at node 3
tensor([0, 1, 2, 2, 4, 5, 7, 7, 7])
>>> batch.num_nodes, batch.num_edges, batch.num_graphs
(8, 7, 4)
>>> batch.num_real_nodes, batch.num_real_edges, batch.num_real_graphs, len(batch)
(5, 5, 2, 2)

*Heterogeneous graphs.* N is a number for each node type, E one for each edge type, and at least one node of every type
is padding. Each node type's store has its own `x`, `batch`, `ptr` and `nodes_mask`; each edge type's store has its own
`edge_index`, `edges_mask` and `rowptr` [N of the destination type + 1]. Row 0 of `edge_index` counts nodes of the
source type, row 1 nodes of the destination type; a padding edge joins the first padding nodes of both. Attributes of
graphs and `graphs_mask` belong to the batch itself.

*Several batches in one item.* The loader's `options` may ask for k batches at once, as PopTorch does.
Every tensor is then the k tensors, concatenated on dimension 0: `x` is [k * N, ...], `edge_index` [2 * k, E], `batch`
[k * N], `ptr` [k * (G + 1)]. Indices start again in each; `num_nodes`, `num_edges` and `num_graphs` count one batch.
"""

from dataclasses import dataclass
from enum import IntEnum

import torch

from popgeo.data.axes import Attribute, Axis, StoreKey
from popgeo.data.fixed_size_options import FixedSizeOptions


class SlotKind(IntEnum):
    """The rule that fills a slot."""

    COPY = 0
    """The rows of the graphs, unchanged."""
    SHIFT = 1
    """The rows of the graphs plus the sum of `__inc__` of all earlier graphs, as in `edge_index`."""
    SEGMENT = 2
    """The graph of each row, as in `batch`."""
    POINTER = 3
    """The first row of each graph, as in `ptr`."""
    MASK = 4
    """True for rows of real graphs."""
    ROW_POINTER = 5
    """The first edge of each node, if edges are sorted by destination."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Slot:
    """One tensor of a batch.

    Args:
        store: The node or edge type.
        name: The name of the tensor.
        kind: The rule that fills it.
        axis: The axis of its rows.
        shape: The shape of the tensor.
        dtype: The type of its elements.
        num_slots: Rows along the axis, padding included.
        fixed_rows: Whether every graph, padding or not, has the same number of rows along the axis.
        attribute: The attribute of the graphs that fills the tensor. Default: None, the batch makes it.
        outer: Elements before the dimension of rows: 2 for an `edge_index`.
        inner: Elements of one row.
        pad_value: The value of padding.
        ends: For edges: the node axis at each end, and the node slots of a batch there.
        largest: For `batch`: rows of the dataset's largest graph, if known.
        spread: Whether padding edges are distributed evenly over all padding nodes. Default: all at the first one.
    """

    store: StoreKey
    name: str
    kind: SlotKind
    axis: Axis
    shape: tuple[int, ...]
    dtype: torch.dtype
    num_slots: int
    fixed_rows: bool = False
    attribute: Attribute | None = None
    outer: int = 1
    inner: int = 1
    pad_value: float = 0.0
    ends: tuple[tuple[Axis, int], ...] = ()
    largest: int | None = None
    spread: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """All tensors of a batch, and the attributes that are lists."""

    slots: tuple[Slot, ...]
    lists: tuple[Attribute, ...]
    options: FixedSizeOptions
