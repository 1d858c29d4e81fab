"""The health of databases: indicators, what they last said, and the gate that heeds it."""
