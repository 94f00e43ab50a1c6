"""Root finders for the restricted equation, and the gradient through its solution."""

from viscos.roots.equation import DataEquation as DataEquation
from viscos.roots.equation import LatentEquation as LatentEquation
from viscos.roots.equation import RootFinder as RootFinder
from viscos.roots.gradient import implicit as implicit
from viscos.roots.methods.anderson import Anderson as Anderson
from viscos.roots.methods.fallback import ByFlow as ByFlow
from viscos.roots.methods.fallback import Fallback as Fallback
from viscos.roots.methods.fallback import OnData as OnData
from viscos.roots.methods.fallback import hasty as hasty
from viscos.roots.methods.fixed_point import AlternatingFixedPoint as AlternatingFixedPoint
from viscos.roots.methods.newton_krylov import NewtonKrylov as NewtonKrylov
from viscos.roots.methods.path import Path as Path
from viscos.roots.named import anderson as anderson
from viscos.roots.named import auto as auto
from viscos.roots.named import newton_krylov as newton_krylov
from viscos.roots.named import paper as paper
from viscos.roots.named import path as path
