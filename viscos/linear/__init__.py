"""Linear operators and linear solvers, which never know each other."""

from viscos.linear.cg import CG as CG
from viscos.linear.gmres import GMRES as GMRES
from viscos.linear.lifted import solve_lifted as solve_lifted
from viscos.linear.logabsdet import block_of as block_of
from viscos.linear.logabsdet import condition_estimate as condition_estimate
from viscos.linear.logabsdet import exact_value as exact_value
from viscos.linear.logabsdet import hidden_columns as hidden_columns
from viscos.linear.logabsdet import lanczos_value as lanczos_value
from viscos.linear.logabsdet import log_abs_det_block as log_abs_det_block
from viscos.linear.logabsdet import padded_blocks as padded_blocks
from viscos.linear.lowrank import LowRank as LowRank
from viscos.linear.neumann import Neumann as Neumann
from viscos.linear.operator import Block as Block
from viscos.linear.operator import Diagonal as Diagonal
from viscos.linear.operator import IdentityPlus as IdentityPlus
from viscos.linear.operator import Inverse as Inverse
from viscos.linear.operator import Jacobian as Jacobian
from viscos.linear.operator import LinearOperator as LinearOperator
from viscos.linear.operator import Matrix as Matrix
from viscos.linear.operator import Product as Product
from viscos.linear.operator import SharedSymmetric as SharedSymmetric
from viscos.linear.operator import dense as dense
from viscos.linear.operator import grouped as grouped
from viscos.linear.principal import PrincipalBlocks as PrincipalBlocks
from viscos.linear.principal import PrincipalInverse as PrincipalInverse
from viscos.linear.problem import LinearSolver as LinearSolver
