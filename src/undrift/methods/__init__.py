"""What algorithms are made of: corrections, averaging, aggregation rules, message codecs."""
