"""NumPyro programs: taken apart into what may see a record and what may not."""

from tacit.models.programs.arguments import Arguments, signature_of, split_arguments
from tacit.models.programs.model import constrained, from_program
from tacit.models.programs.sites import Site
from tacit.models.programs.split import ProgramReport, SplitProgram, explain_program, split_program

__all__ = [
    "Arguments",
    "ProgramReport",
    "Site",
    "SplitProgram",
    "constrained",
    "explain_program",
    "from_program",
    "signature_of",
    "split_arguments",
    "split_program",
]
