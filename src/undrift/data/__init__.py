"""Data: federations, partitions, batches, augmentation."""

from undrift.data.datasets import available, load
from undrift.data.federated import FederatedData
from undrift.data.partition import partition

__all__ = ["FederatedData", "available", "load", "partition"]
