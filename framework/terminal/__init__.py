"""What commands share: their options, output, errors and questions, and the work on several shards."""
