"""A simulated IPU: compiles a training or inference step once, runs it, and accounts for it."""

from popgeo.capture.blocks import BeginBlock as BeginBlock
from popgeo.capture.blocks import Block as Block
from popgeo.capture.check_static import check_static as check_static
from popgeo.capture.control_flow import cond as cond
from popgeo.capture.control_flow import for_loop as for_loop
from popgeo.capture.identity_loss import identity_loss as identity_loss
from popgeo.capture.identity_loss import losses_marked as losses_marked
from popgeo.capture.print_tensor import print_tensor as print_tensor
from popgeo.capture.refused_shapes import DynamicShapeError as DynamicShapeError
from popgeo.engine.compiled_step import CompiledStep as CompiledStep
from popgeo.engine.loss_scaling import LossScaling as LossScaling
from popgeo.engine.step_options import OutputMode as OutputMode
from popgeo.engine.step_options import Reduction as Reduction
from popgeo.ipu.fits_in_memory import OutOfTileMemory as OutOfTileMemory
from popgeo.ipu.options import Options as Options
from popgeo.ipu.report.report import Pipeline as Pipeline
from popgeo.ipu.report.report import Report as Report
from popgeo.ipu.stage_choices import Schedule as Schedule
from popgeo.ipu.stage_choices import Stage as Stage
from popgeo.ipu.systems.estimate import estimate as estimate
from popgeo.ipu.systems.estimate import pipeline as pipeline
from popgeo.ipu.target import IpuTarget as IpuTarget
from popgeo.ipu.tile_exact import TileExact as TileExact
from popgeo.ipu.wrap_model import compile as compile
from popgeo.ipu.wrap_model import inference_model as inference_model
from popgeo.ipu.wrap_model import training_model as training_model
