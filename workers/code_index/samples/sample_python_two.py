"""The print statement of Python 2."""


def report(count):
    print "files:", count
