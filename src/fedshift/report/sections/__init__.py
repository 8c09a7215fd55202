"""The sections of the report: each module has a function from the record to a `Section`."""
