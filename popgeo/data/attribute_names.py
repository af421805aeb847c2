"""Names of attributes: whose rows they hold, which of them batches make themselves, and which are never padded."""

SPLIT_MASKS = ("train_mask", "val_mask", "test_mask")
"""Of nodes that are trained on, and of others."""
TRIMMED = ("num_trimmed_nodes", "num_trimmed_edges")
"""What each graph has lost."""

COUNT_NODES = ("x", "feat", "pos", "node_type", "n_id")
"""PyG counts nodes by their rows."""
COUNT_EDGES = ("edge_index", "edge_weight", "edge_attr", "edge_type", "e_id")
"""PyG counts edges by their rows."""
OF_NODES = {*COUNT_NODES, "z", "batch", "nodes_mask", *SPLIT_MASKS, "forces", "charges", "magmoms"}
"""One row a node; so has any other name with `node` in it, where the numbers agree."""
OF_EDGES = {*COUNT_EDGES, "edges_mask", "edge_shift"}
"""One row an edge; so has any other name with `edge` in it, where the numbers agree."""
OF_GRAPHS = {"graphs_mask", *TRIMMED}
"""One row a graph."""
OF_STRUCTURES = {"cell", "pbc", "stress", "virial", "virials", "dipole", "quadrupole"}
"""Of the graph, also if it has as many rows as nodes."""
LABELS = {"y", "label", "labels", "target", "targets", "energy", "charge", "weight", "smiles", "name", "idx"}
LABELS |= {"cutoff", *OF_STRUCTURES}
"""If a graph has one row, the row is the graph's, though it may have one node, too."""
NODE_FEATURES, EDGE_FEATURES = {"x", "pos"}, {"edge_index", "edge_attr", "edge_weight"}
"""Never a graph's: a wrong number of rows is an error."""

NUMBERS = {*OF_NODES, *OF_EDGES}
"""Tensors: a list of these would be left as it is by PyG, silently."""

JOINS = {"edge_index", "ptr", "rowptr"}
"""How nodes, edges and graphs are joined."""
MADE_BY_BATCH = {"batch", "ptr", "num_nodes", "num_edges"}
"""PyG's collate makes them again for a batch, or keeps them as plain numbers."""
MADE_BY_SAMPLING = ("seeds_mask", "tree", *TRIMMED)
"""A batch of a large graph carries them."""
MADE_FOR_LINKS = ("edge_label_index", "edge_label", "edge_label_mask")
"""A batch of seeds that are edges carries them."""

NEVER_PADDED = {*SPLIT_MASKS, *MADE_BY_SAMPLING, "edge_label_mask", "n_id", "e_id"}
"""What padding is filled with whatever fills features: it is not trained on, not a seed, and names an existing row."""

PADDED_WITH = {"edge_shift": 1e3}
"""What fills these if no value is given: an edge of length 0 has no direction, and its derivatives are NaN, so where
edges carry a shift those of padding are longer than any cutoff (1,732 in the unit of positions)."""
