"""One table or figure of a paper a file; `leanbayes reproduce` runs them."""
