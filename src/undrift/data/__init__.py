"""Data: named data sets, users' own, partitions, batches, augmentation."""

from undrift.data.datasets import add, available, default_partition, default_settings, full_name, get, is_local, load
from undrift.data.federated import FederatedData
from undrift.data.partition import partition

__all__ = [
    "FederatedData",
    "add",
    "available",
    "default_partition",
    "default_settings",
    "full_name",
    "get",
    "is_local",
    "load",
    "partition",
]
