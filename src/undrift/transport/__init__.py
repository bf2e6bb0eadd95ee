"""Clients that are not in the server's process: what is sent to them, and the one half that answers everywhere."""

from undrift.transport.admission import admit
from undrift.transport.faults import Faults, FaultyTransport
from undrift.transport.in_process import InProcess
from undrift.transport.order import Answers, ClientsLostError, LostStatesError, Order, TooFewAnswersError, Transport
from undrift.transport.site import Site, Trainees

__all__ = [
    "Answers",
    "ClientsLostError",
    "Faults",
    "FaultyTransport",
    "InProcess",
    "LostStatesError",
    "Order",
    "Site",
    "TooFewAnswersError",
    "Trainees",
    "Transport",
    "admit",
]
