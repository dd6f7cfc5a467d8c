"""The native kernel as an optional part of the installation; everything else is in pyproject.toml.

It is compiled where a C++ compiler is found, against the headers of jaxlib. They come from the
environment that tacit is installed into, or else from a jaxlib that is fetched for the build alone.
Where there is no compiler nothing is fetched, and JAX computes the same numbers.
"""

import importlib.util
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

_HERE = Path(__file__).parent
_JAXLIB = "0.10"

_spec = importlib.util.spec_from_file_location("build", _HERE / "src/tacit/native/build.py")
kernel = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kernel)


def headers():
    """Returns the folder of jaxlib's headers and its version, or None."""
    found = importlib.util.find_spec("jaxlib")
    folders = [Path(place) for place in found.submodule_search_locations] if found else []
    # An isolated build does not import from the environment that it builds for.
    folders += [Path(sysconfig.get_path(name)) / "jaxlib" for name in ("platlib", "purelib")]
    for folder in folders:
        if (folder / "include/xla/ffi/api/ffi.h").exists() and (folder / "version.py").exists():
            text = (folder / "version.py").read_text()
            version = re.search(r'^_version = "([\d.]+)"', text, re.MULTILINE)
            if version and version[1].startswith(f"{_JAXLIB}."):
                return folder / "include", version[1]
    return None


class BuildKernel(build_ext):
    """Compiles a plain shared library, which no version of Python shows in."""

    def get_ext_filename(self, name):
        """Leaves Python's version out of the name."""
        return str(Path(*name.split(".")[:-1]) / kernel.LIBRARY)

    def build_extension(self, extension):
        """Compiles the kernel, or says in a line why not."""
        target, found = Path(self.get_ext_fullpath(extension.name)), headers()
        try:
            if found is None:
                raise FileNotFoundError("jaxlib's headers are not there")
            include, version = found
            kernel.build(target, command=command, include=include, jaxlib_version=version)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"tacit: no native kernel ({error}); JAX computes the same", file=sys.stderr)


class AnyPython(bdist_wheel):
    """Names a wheel after the platform alone: one library serves all versions of Python."""

    def get_tag(self):
        """Keeps nothing of the tag but the platform."""
        tag = super().get_tag()
        return tag if self.root_is_pure else ("py3", "none", tag[2])


command = kernel.compiler()
if command is None:
    print("tacit: no C++ compiler, so no native kernel; JAX computes the same", file=sys.stderr)
setup(
    ext_modules=[Extension("tacit.native.kernel", [], optional=True)] if command else [],
    setup_requires=[f"jaxlib=={_JAXLIB}.*"] if command and headers() is None else [],
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": AnyPython},
)
