"""Where programs find the function that gives a module its own class back."""

from popgeo.compat.poptorch.wrapped_module import unwrap as unwrapIfWrapped  # noqa: F401
