"""Flight recorder of a loader: which samples each step delivered, as logs that `prove` can verify."""

from concurrent_loader.recorder.flight_recorder import FlightRecorder, start_record
from concurrent_loader.recorder.proof import EpochProof, Problem, Proof
from concurrent_loader.recorder.prove import prove

__all__ = ["EpochProof", "FlightRecorder", "Problem", "Proof", "prove", "start_record"]
