"""The paper's tables and figures as data, the runner, and the report."""
