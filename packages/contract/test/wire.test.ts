import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createContext, Script } from 'node:vm';
import { build } from 'esbuild';

const WIRE = new URL('../src/wire/', import.meta.url);

test('wire/ imports only itself, typebox and the types of the runner protocol', () => {
  for (const file of readdirSync(WIRE)) {
    const source = readFileSync(new URL(file, WIRE), 'utf8');
    for (const [statement, from = ''] of source.matchAll(/^(?:import|export)\b[^;]*?\bfrom '([^']+)';/gm)) {
      const allowed =
        from === 'typebox' ||
        /^\.\/[a-z-]+\.ts$/.test(from) ||
        (statement.startsWith('import type ') && /^\.\.\/runner(?:-link\.ts|\/[a-z-]+\.ts)$/.test(from));
      assert.ok(allowed, `${file} imports ${from}`);
    }
  }
});

test('wire/ bundles for a browser, and its bundle runs without the globals of Node', async () => {
  const { outputFiles } = await build({
    entryPoints: [fileURLToPath(new URL('index.ts', WIRE))],
    bundle: true,
    write: false,
    platform: 'browser',
    format: 'iife',
    globalName: 'wire',
    logLevel: 'silent',
  });
  const bundle = outputFiles[0]?.text ?? '';
  // A new context has the globals of the language alone; of a browser's own this one gets what TypeBox needs.
  const context = createContext({ TextEncoder });
  new Script(`${bundle}\n;globalThis.wire = wire;`).runInContext(context);
  const seen: unknown = new Script(
    'JSON.stringify([wire.operations.getSandbox.path, wire.parseSandboxId("none"), typeof process, typeof Buffer])',
  ).runInContext(context);
  assert.equal(seen, JSON.stringify(['/vms/:id', null, 'undefined', 'undefined']));
});
