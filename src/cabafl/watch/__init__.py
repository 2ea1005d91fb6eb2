"""The page that shows runs and fleets as they go: a server that only reads what they append."""
