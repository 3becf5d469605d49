import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createContext, Script } from 'node:vm';
import { build } from 'esbuild';

test('the client bundles for a browser, and calls with the globals of one', async () => {
  const { outputFiles } = await build({
    entryPoints: [fileURLToPath(new URL('../src/index.ts', import.meta.url))],
    bundle: true,
    write: false,
    platform: 'browser',
    format: 'iife',
    globalName: 'sdk',
    logLevel: 'silent',
  });
  const asked: string[] = [];
  const browser = {
    AbortController,
    AbortSignal,
    clearTimeout,
    crypto,
    fetch: (url: URL) => {
      asked.push(url.href);
      return Promise.resolve(new Response('{"vms":[],"next_cursor":null}'));
    },
    ReadableStream,
    setTimeout,
    TextDecoder,
    TextEncoder,
    URL,
  };
  const context = createContext(browser);
  new Script(`${outputFiles[0]?.text ?? ''}\n;globalThis.sdk = sdk;`).runInContext(context);
  const answer: unknown = await new Script(
    'sdk.client(sdk.operations, { baseUrl: "http://api.example/" }).listSandboxes({ query: { limit: 5 } })',
  ).runInContext(context);
  assert.equal(JSON.stringify(answer), '{"vms":[],"next_cursor":null}');
  assert.deepEqual(asked, ['http://api.example/vms?limit=5']);
});
