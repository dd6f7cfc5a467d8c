"""NumPyro programs: taken apart into what may see a record and what may not."""

from tacit.models.programs.model import constrained, from_program
from tacit.models.programs.split import ProgramReport, explain_program

__all__ = ["ProgramReport", "constrained", "explain_program", "from_program"]
