from framework.feature import Late


def test_late_part_is_equal_by_its_path() -> None:
    assert Late[object]("a:b") == Late[object]("a:b") != Late[object]("a:c")
    assert hash(Late[object]("a:b")) == hash(Late[object]("a:b"))


def test_late_part_loads_the_object_that_it_names() -> None:
    late: Late[type[Late[object]]] = Late("framework.feature:Late")
    assert late.load() is Late
