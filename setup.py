"""Builds the one compiled library of popgeo; everything else about the package is in pyproject.toml.

The library is plain C++17 with a C ABI, loaded with ctypes, so one wheel (`py3-none-<platform>`) serves every Python.
It is optional: where no compiler works the install goes on and popgeo falls back to torch.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = sorted(str(path) for path in Path("popgeo/native/csrc").glob("*.cpp"))


class BuildLibrary(build_ext):
    """Compiles `popgeo/native/_popgeo.so`: no module init function, no Python ABI in the file name."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []


class PlatformWheel(bdist_wheel):
    """Tags the wheel for the platform but for no particular Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "popgeo.native._popgeo",
            sources=SOURCES,
            language="c++",
            extra_compile_args=["-std=c++17", "-O3", "-fopenmp", "-ffp-contract=off", "-fvisibility=hidden"],
            extra_link_args=["-fopenmp"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
)
