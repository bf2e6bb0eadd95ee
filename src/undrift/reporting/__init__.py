"""From records of finished runs to tables, sentences and pages. Knows records, not runs."""
