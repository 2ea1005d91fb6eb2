"""The engines that carry out what a method decides: one in virtual time, one on the wall clock, and what they share."""
