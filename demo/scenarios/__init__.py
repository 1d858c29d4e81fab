"""Three scenarios of tasks (``framework.tasks``): enrol products, import a spreadsheet, export orders."""
