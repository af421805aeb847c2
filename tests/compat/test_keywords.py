"""Public callables of PopTorch and PopTorch Geometric accept upstream's argument names."""

import csv
import importlib
import inspect
from enum import Enum
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData

from popgeo import compat
from tests.support.old_names import take_names_back


@pytest.fixture(scope="module", autouse=True)
def _old_names():
    compat.enable(shadow=True)
    yield
    take_names_back()


def path(num_nodes: int) -> Data:
    there = torch.stack([torch.arange(num_nodes - 1), torch.arange(1, num_nodes)])
    return Data(
        x=torch.ones(num_nodes, 2), edge_index=there, y=torch.zeros(1), pos=torch.arange(1.0 * num_nodes)[:, None]
    )


GRAPHS = [path(n) for n in (2, 3, 4, 3)]
X = torch.arange(6.0).reshape(3, 2)
TWICE = {"lr": 0.1, "weight_decay": 0.0, "loss_scaling": 2.0, "accum_type": torch.float32}
MOMENTS = {f"{order}_order_momentum_accum_type": torch.float32 for order in ("first", "second")}


def weights() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(2))]


def calls() -> dict[str, dict[str, object]]:
    """Return all public callables with all arguments by upstream's names."""
    import poptorch
    import poptorch_geometric as geometric

    class Parser(poptorch.ICustomArgParser):
        def yieldTensors(self, struct):
            yield struct.part

        def reconstruct(self, original_structure, tensor_iterator):
            return next(tensor_iterator)

    sizes, options = geometric.FixedSizeOptions(num_nodes=12, num_edges=20, num_graphs=3), poptorch.Options
    of_two = geometric.FixedSizeOptions(num_nodes=12, num_edges=20)
    ring = Data(x=torch.ones(8, 1), edge_index=torch.tensor([[*range(8)], [*range(1, 8), 0]]))
    clusters = {"cluster_data": ClusterData(ring, num_parts=4, log=False), "fixed_size_options": of_two}
    clusters |= {"batch_size": 1, "over_size_strategy": geometric.OverSizeStrategy.TrimNodes, "add_pad_masks": True}
    graphs = {"dataset": GRAPHS, "batch_size": 3, "shuffle": False, "follow_batch": None, "exclude_keys": None}
    fixed = {**graphs, "fixed_size_options": sizes, "over_size_strategy": geometric.OverSizeStrategy.Error}
    fixed |= {"fixed_size_strategy": geometric.FixedSizeStrategy.PadToMax, "add_pad_masks": True}
    seeds = {"data": ring, "num_neighbors": [1], "input_nodes": None, "input_time": None, "replace": False}
    seeds |= {"directed": True, "disjoint": False, "temporal_strategy": "uniform", "time_attr": None, "transform": None}
    seeds |= {"is_sorted": False, "filter_per_worker": True, "neighbor_sampler": None, "batch_size": 2}
    seeds |= {"fixed_size_options": of_two, "add_pad_masks": True, "follow_batch": None, "exclude_keys": None}
    seeds |= {"transform_sampler_output": None, "over_size_strategy": geometric.OverSizeStrategy.TrimNodesAndEdges}
    pads = {"node_pad_value": 0.0, "edge_pad_value": 0.0, "graph_pad_value": 0.0, "pad_graph_defaults": None}
    searched = {"batch_x": torch.zeros(3, dtype=torch.int64), "batch_y": torch.zeros(3, dtype=torch.int64)}
    tensor, mode = {"tensor": X}, poptorch.OverlapMode.NoOverlap
    asynchronous = {"buffer_size": 1, "miss_sleep_time_in_ms": 0.1, "load_indefinitely": True, "early_preload": False}
    asynchronous |= {"sharing_strategy": poptorch.SharingStrategy.ForkServer, "rebatched_size": None}
    collate = {"add_masks_to_batch": True, "trim_nodes": False, "trim_edges": False}
    collate |= {"follow_batch": None, "exclude_keys": None}
    return {
        "poptorch.AsynchronousDataAccessor": {"dataset": [X], **asynchronous},
        "poptorch.Block": {"user_id": "a", "ipu_id": 0},
        "poptorch.BeginBlock": {"layer_to_call": nn.ReLU(), "user_id": "a", "ipu_id": 0},
        "poptorch.BlockFunction": {"user_id": "a", "ipu_id": 0},
        "poptorch.CPU": {"layer_to_call": torch.relu, "ID": "a"},
        "poptorch.DataLoader": {
            "options": options(), "dataset": X, "batch_size": 1, "shuffle": False, "num_workers": 0, "drop_last": True,
            "persistent_workers": None, "auto_distributed_partitioning": True, "async_options": None,
            "mode": poptorch.DataLoaderMode.Sync, "rebatched_worker_size": None, "batch_sampler": None,
        },
        "poptorch.NameScope": {"name": "a"},
        "poptorch.PoplarExecutor": {
            "model": nn.ReLU(), "options": None, "training": False, "poptorch_version": "3.3.0", "optimizer": None,
            "user_model": None,
        },
        "poptorch.Stage.ipu": {"self": poptorch.Stage("a"), "ipu": 1},
        "poptorch.cond": {
            "condition": torch.tensor([True]), "then_body": torch.relu, "then_inps": [X], "else_body": torch.abs,
            "else_inps": [X],
        },
        "poptorch.dynamic_slice": {**tensor, "dim": 0, "start": torch.tensor(1), "size": 2, "step": 1},
        "poptorch.dynamic_update": {"input": X, "src": X[:1], "dim": 0, "start": torch.tensor([1]), "size": 1},
        "poptorch.flattenTensorStructure": {"structure": [X]},
        "poptorch.module_repr": {"m": nn.ReLU()},
        "poptorch.reconstructTensorStructure": {"structure": [X], "values": [X]},
        "poptorch.removeBlocks": {"module": nn.ReLU()},
        "poptorch.for_loop": {"count": 2, "body": torch.relu, "inputs": [X]},
        "poptorch.fps": {"src": X, "ptr": [0, 3], "ratio": 0.5, "random_start": False},
        "poptorch.identity_loss": {"x": X, "reduction": "mean"},
        "poptorch.inferenceModel": {"model": nn.ReLU(), "options": None},
        "poptorch.ipuHardwareIsAvailable": {"num_ipus": 1},
        "poptorch.ipu_print_tensor": {
            **tensor, "title": "t", "print_gradient": True, "summarise_threshold": 9, "edge_items": 3, "digits": 4,
            "max_line_width": 80, "float_format": "auto", "separator": ", ", "open_bracket": "[", "close_bracket": "]",
        },
        "poptorch.nearest": {"x": X, "y": X, "batch_x": [0, 0, 1], "batch_y": [0, 0, 1]},
        "poptorch.nop": tensor,
        "poptorch.registerCustomArgParser": {"arg_data_type": Parser, "arg_parser": Parser()},
        "poptorch.registerPreCompileHook": {"hook": dict},
        "poptorch.registerPostCompileHook": {"hook": dict},
        "poptorch.serializedMatMul": {
            "lhs": X, "rhs": X.t(), "mode": poptorch.MatMulSerializationMode.Disabled, "factor": 0,
            "keep_precision": False,
        },
        "poptorch.setLogLevel": {"level": "WARN"},
        "poptorch.set_available_memory": {**tensor, "available_memory_proportion": 0.5},
        "poptorch.set_overlap_for_input": {"input_tensors": X, "mode": mode},
        "poptorch.set_overlap_for_output": {"output_tensors": X, "mode": mode},
        "poptorch.trainingModel": {"model": nn.Linear(1, 1), "options": None, "optimizer": None},
        "poptorch.Options.anchorTensor": {
            "self": options(), "short_name": "a", "long_name": "b", "output_mode": None, "output_return_period": 1,
        },
        "poptorch.Options.inputReplicaGrouping": {
            "self": options(), "input_group_size": 1, "input_group_type": poptorch.CommGroupType.Consecutive,
        },
        "poptorch.Options.outputMode": {
            "self": options(), "output_mode": poptorch.OutputMode.EveryN, "output_return_period": 2,
        },
        "poptorch.optim.SGD": {
            "params": weights(), **TWICE, "momentum": 0.9, "dampening": 0.0, "nesterov": False, "maximize": False,
            "velocity_scaling": 1.0, "use_combined_accum": True, "velocity_accum_type": torch.float32,
            "max_grad_norm": 1.0,
        },
        "poptorch.optim.Adam": {
            "params": weights(), **TWICE, **MOMENTS, "betas": (0.9, 0.99), "eps": 1e-8, "amsgrad": False,
            "maximize": False, "max_grad_norm": 1.0,
        },
        "poptorch.optim.AdamW": {
            "params": weights(), **TWICE, **MOMENTS, "betas": (0.9, 0.99), "eps": 1e-8, "amsgrad": False,
            "bias_correction": True, "max_grad_norm": 1.0,
        },
        "poptorch.optim.LAMB": {
            "params": weights(), **TWICE, **MOMENTS, "betas": (0.9, 0.99), "eps": 1e-8, "bias_correction": True,
            "max_weight_norm": 10.0, "max_grad_norm": 1.0,
        },
        "poptorch.optim.RMSprop": {
            "params": weights(), **TWICE, **MOMENTS, "alpha": 0.9, "eps": 1e-8, "momentum": 0.9, "centered": True,
            "use_tf_variant": True,
        },
        "poptorch.optim.VariableAttributes": {"variable_attributes": ["lr"], "allowed_attributes": ["lr", "eps"]},
        "poptorch.profiling.Channel": {"name": "a"},
        "poptorch.profiling.Channel.instrument": {"self": poptorch.profiling.Channel("a"), "obj": X},
        "poptorch.profiling.Channel.tracepoint": {"self": poptorch.profiling.Channel("a"), "name": "b"},
        "poptorch.poptorch_core.setPopartLogLevel": {"level": "WARN"},
        "poptorch.testing.allclose": {"a": X, "b": X},
        "poptorch_geometric.FixedSizeOptions": {"num_nodes": 8, "num_edges": 9, "num_graphs": 2, **pads},
        "poptorch_geometric.FixedSizeOptions.from_dataset": {"dataset": GRAPHS, "batch_size": 3, "sample_limit": 2},
        "poptorch_geometric.FixedSizeOptions.from_loader": {"loader": GRAPHS, "sample_limit": 2},
        "poptorch_geometric.FixedSizeOptions.to_hetero": {
            "self": geometric.FixedSizeOptions(num_nodes=9), "node_types": ["a"], "edge_types": [("a", "to", "a")],
        },
        "poptorch_geometric.TrainingStepper": {
            "model": nn.Linear(1, 1), "lr": 0.1, "optimizer": poptorch.optim.Adam, "options": None, "rtol": None,
            "atol": None, "enable_fp_exception": False,
        },
        "poptorch_geometric.make_exclude_keys": {"include_keys": ["x"], "data": GRAPHS[0]},
        "poptorch_geometric.set_aggregation_dim_size": {"model": nn.ReLU(), "dim_size": 3},
        "poptorch_geometric.call_once": {"function": dict},
        "poptorch_geometric.collate.Collater": {"follow_batch": None, "exclude_keys": None},
        "poptorch_geometric.collate.CombinedBatchingCollater": {"collater": list, "mini_batch_size": 2},
        "poptorch_geometric.collate.FixedSizeCollater": {"fixed_size_options": sizes, **collate},
        "poptorch_geometric.dataloader.DataLoader": {**graphs, "options": options()},
        "poptorch_geometric.dataloader.FixedSizeDataLoader": {**fixed, "options": options()},
        "poptorch_geometric.dataloader.CustomFixedSizeDataLoader": {
            "dataset": GRAPHS, "batch_size": 3, "num_nodes": 12, "collater_args": {"num_edges": 20},
        },
        "poptorch_geometric.pyg_dataloader.DataLoader": graphs,
        "poptorch_geometric.pyg_dataloader.FixedSizeDataLoader": fixed,
        "poptorch_geometric.pyg_cluster_loader.FixedSizeClusterLoader": clusters,
        "poptorch_geometric.cluster_loader.FixedSizeClusterLoader": {**clusters, "options": options()},
        "poptorch_geometric.neighbor_loader.FixedSizeNeighborLoader": {**seeds, "options": options()},
        "poptorch_geometric.neighbor_loader.PyGFixedSizeNeighborLoader": seeds,
        "poptorch_geometric.fixed_size_options.validate_num_graphs": {"num_graphs": 2},
        "poptorch_geometric.masker.LayerMasker": {"masker": geometric.masker.NoMasker()},
        "poptorch_geometric.masker.PreLayerMasker": {"masker": geometric.masker.NoMasker()},
        "poptorch_geometric.stream_packing_sampler.StreamPackingSampler": {
            "data_source": GRAPHS, "max_num_graphs": 2, "max_num_nodes": 9, "max_num_edges": 9, "base_sampler": None,
            "allow_skip_data": False,
        },
        "poptorch_geometric.ops.knn": {"x": X, "y": X, "k": 2, **searched},
        "poptorch_geometric.ops.knn_graph": {
            "x": X, "k": 2, "batch": None, "loop": True, "flow": "source_to_target", "cosine": False, "num_workers": 1,
        },
        "poptorch_geometric.ops.knn_interpolate": {"x": X, "pos_x": X, "pos_y": X, **searched, "k": 2},
        "poptorch_geometric.ops.radius": {"x": X, "y": X, "r": 1.0, **searched, "max_num_neighbors": 2},
        "poptorch_geometric.ops.radius_graph": {
            "x": X, "r": 1.0, "batch": None, "loop": True, "max_num_neighbors": 2, "flow": "source_to_target",
        },
        # Release 3.2 took the sizes one by one.
        "poptorch_geometric.batch_sampler.FixedBatchSampler": {
            "data_source": GRAPHS, "num_graphs": 2, "num_nodes": 9, "num_edges": 9, "sampler": None,
            "allow_skip_data": False,
        },
    }  # fmt: skip


def told_by_releases(name: str) -> dict[str, object]:
    """Return calls with the argument names of release 3.2."""
    sizes = {"num_nodes": 12, "num_edges": 20}
    masks = {"add_masks_to_batch": True, "trim_nodes": True, "trim_edges": True}
    clusters = ClusterData(path(8), num_parts=4, log=False)
    packed = {"dataset": GRAPHS, "batch_size": 3, "collater_args": {"add_masks_to_batch": True}, **sizes}
    clustered = {"cluster_data": clusters, "num_nodes": 12, "collater_args": {"num_edges": 20, "trim_nodes": True}}
    return {
        "poptorch_geometric.collate.FixedSizeCollater": {**sizes, "num_graphs": 3, "node_pad_value": 1.0, **masks},
        "poptorch_geometric.dataloader.FixedSizeDataLoader": packed,
        "poptorch_geometric.pyg_dataloader.FixedSizeDataLoader": packed,
        "poptorch_geometric.cluster_loader.FixedSizeClusterLoader": clustered,
        "poptorch_geometric.pyg_cluster_loader.FixedSizeClusterLoader": clustered,
    }[name]


def found(name: str) -> object:
    """Return the attribute or module of a dotted name."""
    parts = name.split(".")
    one: object = importlib.import_module(parts[0])
    for number, part in enumerate(parts[1:], start=2):
        one = getattr(one, part) if hasattr(one, part) else importlib.import_module(".".join(parts[:number]))
    return one


def called(name: str, arguments: dict[str, object]) -> object:
    """Call the object of a dotted name. The `self` of a method comes first."""
    given = dict(arguments)
    own = [given.pop("self")] if "self" in given else []
    return found(name)(*own, **given)  # type: ignore[operator]


def test_everything_takes_its_arguments_by_upstreams_names():
    for name, arguments in calls().items():
        try:
            made = called(name, arguments)
        except TypeError as error:
            raise AssertionError(f"{name} does not take its keywords: {error}") from error
        if "Loader" in name.rpartition(".")[2]:
            assert next(iter(made)) is not None, name


@pytest.mark.parametrize(
    "name",
    [f"poptorch_geometric.{part}.FixedSizeDataLoader" for part in ("dataloader", "pyg_dataloader")]
    + [f"poptorch_geometric.{part}.FixedSizeClusterLoader" for part in ("cluster_loader", "pyg_cluster_loader")],
)
def test_loaders_take_the_words_of_release_3_2(name):
    batch = next(iter(called(name, told_by_releases(name))))
    assert (batch.num_nodes, batch.num_edges) == (12, 20)


def test_the_collater_takes_the_words_of_release_3_2_by_name_and_by_position():
    name = "poptorch_geometric.collate.FixedSizeCollater"
    for collate in (called(name, told_by_releases(name)), found(name)(12, 20, 3, 1.0)):
        batch = collate(GRAPHS[:2])
        assert (batch.num_nodes, batch.num_edges, batch.num_graphs) == (12, 20, 3)
        assert batch.x[-1].tolist() == [1.0, 1.0]


def test_nothing_public_that_has_keywords_is_left_out_of_this_test():
    asked = {id(found(name)) for name in calls()}
    with Path(__file__).with_name("published_names.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if not row["left_out_because"] and "._" not in row["module"]]
    for module, name in ((row["module"], name) for row in rows for name in row["names"].split()):
        one = getattr(importlib.import_module(module), name)
        if not callable(one) or not getattr(one, "__module__", "").startswith("popgeo.") or id(one) in asked:
            continue
        if isinstance(one, type) and issubclass(one, (Enum, BaseException, nn.Module)):
            continue
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        keywords = [p.name for p in inspect.signature(one).parameters.values() if p.kind not in variadic]
        assert not keywords or name in _ELSEWHERE, f"call {name} by {keywords} in `calls`"


# Two always raise, and one reads a file: other tests call them.
_ELSEWHERE = {"ctc_beam_search_decoder", "custom_op", "load"}
