"""A merge with a conflict."""

LIMITS = {
<<<<<<< ours
    "files": 100,
=======
    "files": 200,
>>>>>>> theirs
}
