"""Programs written for PopTorch and PopTorch Geometric run unchanged: their modules, as thin doors over popgeo."""

from popgeo.compat.import_names import disable as disable
from popgeo.compat.import_names import enable as enable
