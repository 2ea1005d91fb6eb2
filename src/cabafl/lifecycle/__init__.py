"""One run from start to finish, on either clock."""
