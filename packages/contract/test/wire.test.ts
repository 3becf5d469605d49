import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createContext, Script } from 'node:vm';
import { build } from 'esbuild';

const WIRE = new URL('../src/wire/', import.meta.url);

/** The folders of wire/, from the ground up: a file imports from its own and from those before it. */
const FOLDERS = ['platform', 'tenancy', 'storage', 'compute', 'edge', 'functions', 'toolbox', 'internal'];

const filesOfWire = (): string[] =>
  readdirSync(WIRE, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.ts'));

/** What a file of wire/ imports and exports from other files: paths below wire/, or names of packages. */
function importsOf(file: string): string[] {
  const source = readFileSync(new URL(file, WIRE), 'utf8');
  const statements = source.matchAll(/^(?:import|export)\b[^;]*?\bfrom '([^']+)';/gm);
  return [...statements].map(([, from = '']) =>
    from.startsWith('.') ? path.normalize(path.join(path.dirname(file), from)) : from,
  );
}

test('wire/ imports only itself and typebox', () => {
  const files = filesOfWire();
  for (const file of files)
    for (const from of importsOf(file))
      assert.ok(from === 'typebox' || files.includes(from), `${file} imports ${from}`);
});

test('the folders of wire/ import downwards', () => {
  for (const file of filesOfWire()) {
    const folder = path.dirname(file);
    if (folder === '.') continue;
    const floor = FOLDERS.indexOf(folder);
    assert.notEqual(floor, -1, `${folder} is not among the folders of wire/ in this test`);
    for (const from of importsOf(file)) {
      const other = FOLDERS.indexOf(path.dirname(from));
      assert.ok(from === 'typebox' || (other !== -1 && other <= floor), `${file} imports ${from}`);
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
