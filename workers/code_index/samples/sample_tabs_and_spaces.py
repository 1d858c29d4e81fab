"""One block is indented by a tab, then by spaces."""


def total(prices):
	result = 0
        for price in prices:
		result += price
	return result
