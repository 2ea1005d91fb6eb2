"""The paper by name: runs what a table or figure needs and writes it with the paper's values beside ours."""
