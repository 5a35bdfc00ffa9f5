"""The tests: `python3 -m unittest` runs every test_*.py.

Not tests: support.py, session_records.py and tickets.py, which tests share; doomed.py, a process that a
test kills; bench.py, which measures.
"""
