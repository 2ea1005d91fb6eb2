"""`cabafl tune`: a search for the best values of some keys, by successive halving of runs that are resumed."""
