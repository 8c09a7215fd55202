"""One room a section: each is a function from the record to a `Section`."""
