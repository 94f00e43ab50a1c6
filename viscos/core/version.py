"""The version, said once: in the package's metadata."""

from importlib import metadata

try:
    __version__ = metadata.version("viscos")
except metadata.PackageNotFoundError:  # a source tree that was never installed
    __version__ = "unknown"
