"""Tables and figures of papers as experiments; `leanbayes reproduce` runs them."""
