"""A merge that nobody finished."""

LIMITS = {
<<<<<<< ours
    "files": 100,
=======
    "files": 200,
>>>>>>> theirs
}
