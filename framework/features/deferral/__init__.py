"""Drop or defer jobs of a class by flags of operators."""
