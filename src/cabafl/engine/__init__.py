"""What both engines share: the server a method talks to, whatever its clock."""
