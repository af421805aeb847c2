"""Models, their parts and their losses: results never depend on padding."""

from typing import TYPE_CHECKING

from popgeo.lazy_names import lazy_names

if TYPE_CHECKING:
    from popgeo.nn.atom_targets import element_energies as element_energies
    from popgeo.nn.atom_targets import matrix_to_voigt as matrix_to_voigt
    from popgeo.nn.atom_targets import voigt_to_matrix as voigt_to_matrix
    from popgeo.nn.encodings import LaplacianEncoding as LaplacianEncoding
    from popgeo.nn.encodings import PairDistances as PairDistances
    from popgeo.nn.encodings import RandomWalkEncoding as RandomWalkEncoding
    from popgeo.nn.encodings import ShortestPaths as ShortestPaths
    from popgeo.nn.encodings import draw_signs as draw_signs
    from popgeo.nn.entity_ranks import KnownTriples as KnownTriples
    from popgeo.nn.entity_ranks import rank_entities as rank_entities
    from popgeo.nn.fixed_size import to_fixed_size as to_fixed_size
    from popgeo.nn.forces import energy_and_forces as energy_and_forces
    from popgeo.nn.forces import energy_forces_and_stress as energy_forces_and_stress
    from popgeo.nn.graph_attention import AttentionForm as AttentionForm
    from popgeo.nn.graph_attention import GraphAttention as GraphAttention
    from popgeo.nn.graph_attention import SameGraph as SameGraph
    from popgeo.nn.graph_attention import cheaper_form as cheaper_form
    from popgeo.nn.interaction_graph import InteractionGraph as InteractionGraph
    from popgeo.nn.interaction_graph import KNNInteractionGraph as KNNInteractionGraph
    from popgeo.nn.interaction_graph import PairInteractionGraph as PairInteractionGraph
    from popgeo.nn.interaction_graph import PrecomputeInteractionGraph as PrecomputeInteractionGraph
    from popgeo.nn.interaction_graph import RadiusInteractionGraph as RadiusInteractionGraph
    from popgeo.nn.loss import binary_cross_entropy as binary_cross_entropy
    from popgeo.nn.loss import cross_entropy as cross_entropy
    from popgeo.nn.loss import huber_loss as huber_loss
    from popgeo.nn.loss import known_labels as known_labels
    from popgeo.nn.loss import l1_loss as l1_loss
    from popgeo.nn.loss import masked_mean as masked_mean
    from popgeo.nn.loss import mse_loss as mse_loss
    from popgeo.nn.metrics import accuracy as accuracy
    from popgeo.nn.metrics import average_precision as average_precision
    from popgeo.nn.metrics import mean_absolute_error as mean_absolute_error
    from popgeo.nn.metrics import mean_over_tasks as mean_over_tasks
    from popgeo.nn.metrics import pearson_r as pearson_r
    from popgeo.nn.metrics import r2_score as r2_score
    from popgeo.nn.metrics import roc_auc as roc_auc
    from popgeo.nn.metrics import root_mean_squared_error as root_mean_squared_error
    from popgeo.nn.mlp import MLP as MLP
    from popgeo.nn.models.complex import ComplEx as ComplEx
    from popgeo.nn.models.distmult import DistMult as DistMult
    from popgeo.nn.models.gcn import GCN as GCN
    from popgeo.nn.models.gin import GIN as GIN
    from popgeo.nn.models.gin import GINE as GINE
    from popgeo.nn.models.gnn import GNN as GNN
    from popgeo.nn.models.gps import GPS as GPS
    from popgeo.nn.models.gps import GPSConv as GPSConv
    from popgeo.nn.models.gps_plus_plus import GPSPlusPlus as GPSPlusPlus
    from popgeo.nn.models.knowledge_graph import KnowledgeGraphModel as KnowledgeGraphModel
    from popgeo.nn.models.knowledge_graph import Side as Side
    from popgeo.nn.models.multitask import Multitask as Multitask
    from popgeo.nn.models.multitask import Task as Task
    from popgeo.nn.models.nbfnet import NBFNet as NBFNet
    from popgeo.nn.models.nbfnet import own_links as own_links
    from popgeo.nn.models.painn import PaiNN as PaiNN
    from popgeo.nn.models.rotate import RotatE as RotatE
    from popgeo.nn.models.sage import GraphSAGE as GraphSAGE
    from popgeo.nn.models.schnet import SchNet as SchNet
    from popgeo.nn.models.tgn import TGN as TGN
    from popgeo.nn.models.transe import TransE as TransE
    from popgeo.nn.noisy_nodes import Denoiser as Denoiser
    from popgeo.nn.norm import BatchNorm as BatchNorm
    from popgeo.nn.norm import GraphNorm as GraphNorm
    from popgeo.nn.norm import InstanceNorm as InstanceNorm
    from popgeo.nn.norm import LayerNorm as LayerNorm
    from popgeo.nn.pair_bias import PairBias as PairBias
    from popgeo.nn.parallel.embedding import ParallelEmbedding as ParallelEmbedding
    from popgeo.nn.parallel.linear import ColumnParallelLinear as ColumnParallelLinear
    from popgeo.nn.parallel.linear import ParallelLinear2D as ParallelLinear2D
    from popgeo.nn.parallel.linear import RowParallelLinear as RowParallelLinear
    from popgeo.nn.parallel.parallel_attention import ParallelAttention as ParallelAttention
    from popgeo.nn.parallel.shard_model import join_shards as join_shards
    from popgeo.nn.parallel.shard_model import keep_shards as keep_shards
    from popgeo.nn.parallel.shard_model import shard_linears as shard_linears
    from popgeo.nn.parallel.sharded_module import Cut as Cut
    from popgeo.nn.parallel.sharded_training import ShardedTraining as ShardedTraining
    from popgeo.nn.radial import BesselBasis as BesselBasis
    from popgeo.nn.radial import CosineEnvelope as CosineEnvelope
    from popgeo.nn.radial import GaussianSmearing as GaussianSmearing
    from popgeo.nn.radial import PolynomialEnvelope as PolynomialEnvelope
    from popgeo.nn.radial import ShiftedSoftplus as ShiftedSoftplus
    from popgeo.nn.ranks import Ranks as Ranks
    from popgeo.nn.ranks import filtered_ranks as filtered_ranks
    from popgeo.nn.readout import AttentionalAggregation as AttentionalAggregation
    from popgeo.nn.readout import InnerProductDecoder as InnerProductDecoder
    from popgeo.nn.triple_loss import LogSigmoidLoss as LogSigmoidLoss
    from popgeo.nn.triple_loss import SoftmaxLoss as SoftmaxLoss
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
