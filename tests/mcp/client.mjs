// Real clients: npm @modelcontextprotocol/client 2.4 in both eras, and @modelcontextprotocol/sdk 1.32.
// usage: NODE_MODULES=<folder with both> node client.mjs URL
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const url = new URL(process.argv[2]);
const require = createRequire(pathToFileURL(`${process.env.NODE_MODULES}/x.js`));
const load = (name) => import(pathToFileURL(require.resolve(name)).href);

async function use(name, client, transport) {
  await client.connect(transport);
  const { tools } = await client.listTools();
  const byName = Object.fromEntries(tools.map((tool) => [tool.name, tool]));
  assert.equal(byName.json_schema_2020_12_tool.inputSchema.$defs.address.$anchor, 'addressDef');
  const call = (name, args = {}, ...more) => client.callTool({ name, arguments: args }, ...more);
  assert.equal((await call('greet', { name: 'Ada' })).content[0].text, 'Hello, Ada!');
  assert.deepEqual((await call('test_structured_output', { a: 2, b: 3 })).structuredContent, { sum: 5 });
  assert.equal((await call('test_error_handling')).isError, true);
  assert.equal((await call('test_image_content')).content[0].mimeType, 'image/png');
  await assert.rejects(call('no_such_tool'), (error) => error.code === -32602);
  await client.close();
  console.log(name, 'works');
}

const modern = await load('@modelcontextprotocol/client');
for (const mode of ['auto', 'legacy']) {
  const client = new modern.Client({ name: 'test', version: '1' }, { versionNegotiation: { mode } });
  await use(`client ${mode}`, client, new modern.StreamableHTTPClientTransport(url));
}
const { Client } = await load('@modelcontextprotocol/sdk/client/index.js');
const { StreamableHTTPClientTransport } = await load('@modelcontextprotocol/sdk/client/streamableHttp.js');
await use('sdk', new Client({ name: 'test', version: '1' }), new StreamableHTTPClientTransport(url));
