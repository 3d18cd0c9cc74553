"""The paper's tables and figures as data, the runner that fills them with our numbers, and the report."""
