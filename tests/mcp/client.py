"""A real client, PyPI mcp 2.3, in every mode it has. usage: client.py URL"""
import asyncio
import sys

import mcp


async def use(url: str, mode: str, revision: str) -> None:
    async with mcp.Client(url, mode=mode) as client:
        assert client.protocol_version == revision, client.protocol_version
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["json_schema_2020_12_tool"].input_schema["$defs"]["address"]["$anchor"] == "addressDef"
        answer = await client.call_tool("greet", {"name": "Ada"})
        assert not answer.is_error and answer.content[0].text == "Hello, Ada!", answer
        answer = await client.call_tool("test_structured_output", {"a": 2, "b": 3})
        assert answer.structured_content == {"sum": 5}, answer
        answer = await client.call_tool("test_error_handling", {})
        assert answer.is_error, answer
        reports: list[float] = []

        async def report(done: float, total: float | None, message: str | None) -> None:
            reports.append(done)

        await client.call_tool("test_tool_with_progress", {}, progress_callback=report)
        assert reports == [0, 50, 100], reports
        try:
            await client.call_tool("no_such_tool", {})
        except mcp.MCPError as error:
            assert error.code == -32602, error
        else:
            raise AssertionError("an unknown tool was called")


async def main(url: str) -> None:
    for mode, revision in [("auto", "2026-07-28"), ("legacy", "2025-11-25"), ("2026-07-28", "2026-07-28")]:
        await use(url, mode, revision)
        print(mode, "works")


asyncio.run(main(sys.argv[1]))
