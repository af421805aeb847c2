"""A simulated IPU: compiles a training or inference step once, runs it, and accounts for it."""

from popgeo.ipu.check import check_static as check_static
from popgeo.ipu.compiled_model import CompiledModel as CompiledModel
from popgeo.ipu.compiler.static_shapes import DynamicShapeError as DynamicShapeError
from popgeo.ipu.compiler.static_shapes import Problem as Problem
from popgeo.ipu.executable import Executable as Executable
from popgeo.ipu.executable import compile as compile
from popgeo.ipu.executor import inference_model as inference_model
from popgeo.ipu.executor import training_model as training_model
from popgeo.ipu.loss import identity_loss as identity_loss
from popgeo.ipu.options import Options as Options
from popgeo.ipu.options import OutputMode as OutputMode
from popgeo.ipu.options import Reduction as Reduction
from popgeo.ipu.profile.memory import OutOfTileMemory as OutOfTileMemory
from popgeo.ipu.report import Report as Report
from popgeo.ipu.target import IpuTarget as IpuTarget
from popgeo.ipu.tile_exact import TileExact as TileExact
