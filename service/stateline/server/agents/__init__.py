"""Answer agents at `/mcp`, by the Model Context Protocol: each tool is a request of the HTTP contract."""
