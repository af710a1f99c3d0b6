"""A small graph with in-run memory that proposes an answer to an event."""

from threadkeep.agent.candidates.graph import candidate_graph
from threadkeep.agent.candidates.state import Candidate, CandidateError, CandidateOutcome, CandidateState

__all__ = ["Candidate", "CandidateError", "CandidateOutcome", "CandidateState", "candidate_graph"]
