"""Models, their parts and their losses: results never depend on padding."""

from popgeo.nn.gcn import GCN as GCN
from popgeo.nn.gin import GIN as GIN
from popgeo.nn.gin import GINE as GINE
from popgeo.nn.gnn import GNN as GNN
from popgeo.nn.interaction import InteractionGraph as InteractionGraph
from popgeo.nn.interaction import KNNInteractionGraph as KNNInteractionGraph
from popgeo.nn.interaction import PairInteractionGraph as PairInteractionGraph
from popgeo.nn.interaction import PrecomputeInteractionGraph as PrecomputeInteractionGraph
from popgeo.nn.interaction import RadiusInteractionGraph as RadiusInteractionGraph
from popgeo.nn.loss import l1_loss as l1_loss
from popgeo.nn.loss import masked_mean as masked_mean
from popgeo.nn.loss import mse_loss as mse_loss
from popgeo.nn.mlp import MLP as MLP
from popgeo.nn.norm import BatchNorm as BatchNorm
from popgeo.nn.norm import GraphNorm as GraphNorm
from popgeo.nn.norm import InstanceNorm as InstanceNorm
from popgeo.nn.norm import LayerNorm as LayerNorm
from popgeo.nn.radial import CosineEnvelope as CosineEnvelope
from popgeo.nn.radial import GaussianSmearing as GaussianSmearing
from popgeo.nn.radial import PolynomialEnvelope as PolynomialEnvelope
from popgeo.nn.radial import ShiftedSoftplus as ShiftedSoftplus
from popgeo.nn.readout import AttentionalAggregation as AttentionalAggregation
from popgeo.nn.readout import InnerProductDecoder as InnerProductDecoder
from popgeo.nn.sage import GraphSAGE as GraphSAGE
from popgeo.nn.schnet import SchNet as SchNet
