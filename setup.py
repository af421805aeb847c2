"""Build the compiled library of popgeo; all other settings of the package are in pyproject.toml.

The library is plain C++17 with a C ABI, loaded with ctypes, so one wheel (`py3-none-<platform>`) serves every Python.
It is optional: without a working compiler, the installation succeeds and popgeo uses torch instead.
"""

import os
import platform
import tempfile
import zlib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

CSRC = Path("popgeo/native/csrc")
SOURCES = sorted(str(path) for path in CSRC.glob("*.cpp"))
FLAGS = ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden"]
FLAGS += ["-ffp-contract=off", "-fno-math-errno"]  # contraction changes last bits; errno makes a root a call
FLAGS += os.environ.get("CXXFLAGS", "").split()  # last, so that the user's flags take precedence
OPENMP = "-fopenmp"
CHECKSUM = zlib.crc32(
    b"".join(path.read_bytes() for path in sorted(CSRC.glob("*.[ch]*")))
)  # the same sum as in popgeo/native/library.py
# Compiled again for each set of newer processors; the right version is chosen at loading.
KERNEL_NAMES = (
    "kernels",
    "chains",
    "elements",
    "filter",
    "interaction",
    "point_search",
    "products",
    "rounding",
    "sums",
    "tensor_product",
)
KERNELS = [str(CSRC / f"{name}.cpp") for name in KERNEL_NAMES]
WITH_ISAS = os.environ.get("POPGEO_ISAS") != "none"  # none: only kernels for every processor, which compile faster
ISAS = {
    "v3": ["-mavx2", "-mf16c", "-mfma"],
    "v4": ["-mavx2", "-mf16c", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"],
}


class BuildLibrary(build_ext):
    """The build of `popgeo/native/_popgeo.so`: no module init function, no Python ABI in the file name."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the path of the library, without a Python ABI."""
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """Return no symbols, since the library has no module init function."""
        return []

    def build_extension(self, ext: Extension) -> None:
        """Compile and link the library with all flags that the compiler supports."""
        if self.compiler.compiler_type == "msvc":
            raise CompileError("popgeo's kernels need GCC or Clang (vector extensions); pure torch is used instead.")
        flags = list(FLAGS)
        if self._compiles([OPENMP]):
            flags.append(OPENMP)
            ext.extra_link_args = [OPENMP]
        is_x86 = platform.machine().lower() in ("x86_64", "amd64")
        for isa, options in ISAS.items() if is_x86 and WITH_ISAS else ():
            if self._compiles(options):
                ext.extra_objects += self.compiler.compile(
                    KERNELS,
                    output_dir=str(Path(self.build_temp) / isa),
                    extra_postargs=[*flags, *options, f"-DPOPGEO_ISA={isa}"],
                )
                ext.define_macros.append((f"POPGEO_HAS_{isa.upper()}", None))
        ext.extra_compile_args = flags
        super().build_extension(ext)

    def _compiles(self, flags: list[str]) -> bool:
        """Check whether the compiler and the linker support the flags (Apple's Clang has no OpenMP)."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "probe.cpp"
            source.write_text("int main() { return 0; }\n")
            try:
                objects = self.compiler.compile([str(source)], output_dir=folder, extra_postargs=flags)
                self.compiler.link_executable(objects, str(Path(folder) / "probe"), extra_postargs=flags)
            except (CompileError, LinkError):
                return False
        return True


class PlatformWheel(bdist_wheel):
    """A wheel with a tag for the platform, and for every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag of the wheel: any Python 3, no ABI, this platform."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "popgeo.native._popgeo",
            sources=SOURCES,
            define_macros=[("POPGEO_SOURCES", f"{CHECKSUM}u")],
            depends=[str(path) for path in sorted(CSRC.glob("*.h"))],
            language="c++",
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
)
