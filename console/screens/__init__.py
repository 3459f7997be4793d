"""What opens above a view: help, a question, a confirmation."""
