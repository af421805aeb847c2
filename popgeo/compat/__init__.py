"""PopTorch's and PopTorch Geometric's names over popgeo, so that programs written for them run unchanged."""

from popgeo.compat.import_names import disable as disable
from popgeo.compat.import_names import enable as enable
