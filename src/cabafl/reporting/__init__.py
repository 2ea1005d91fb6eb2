"""Tables, figures and pages from finished run folders."""
