/** docs/adding-a-resource.md: its code compiles, and the resource that it adds works. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import type { ControlServices, Module } from '../src/index.ts';
import { startWorld, type World } from '@releap/testing/world';

const ROOT = path.resolve(import.meta.dirname, '../../..');
const PAGE = 'docs/adding-a-resource.md';
const CONTRACT = 'packages/contract/src/wire/storage/note.ts';
const FOLDER = 'packages/control/src/storage/notes';
const FILES_OUTSIDE_MAX = 6;

/** The page's files by path: a path in a line of its own, then a block of code. */
function filesOf(page: string): Map<string, string> {
  const blocks = page.matchAll(/^`(packages\/\S+)`:\n\n```\w+\n(.*?)^```$/gms);
  return new Map([...blocks].map(([, file = '', code = '']) => [file, code]));
}

/** Paths in the first column of the page's table. */
function filesOutside(page: string): string[] {
  return [...page.matchAll(/^\| `(packages\/\S+)` \|/gm)].map(([, file = '']) => file);
}

let page: string;
let files: Map<string, string>;
/** Where the page's files are written: inside the workspace, so that packages resolve. */
let folder: string;
before(async () => {
  page = await readFile(path.join(ROOT, PAGE), 'utf8');
  files = filesOf(page);
  await mkdir(path.join(ROOT, 'build'), { recursive: true });
  folder = await mkdtemp(path.join(ROOT, 'build/adding-a-resource-'));
  for (const [file, code] of files) {
    const target = path.join(folder, file);
    await mkdir(path.dirname(target), { recursive: true });
    await writeFile(target, file.endsWith('.ts') ? withImports(file, code) : code);
  }
});
after(() => rm(folder, { recursive: true, force: true }));

/** The code with imports that resolve from the temporary folder: the page's files there, all others in the workspace. */
function withImports(file: string, code: string): string {
  const from = path.join(folder, path.dirname(file));
  const relative = (target: string): string => {
    const link = path.relative(from, target);
    return link.startsWith('.') ? link : `./${link}`;
  };
  const contract = relative(path.join(folder, CONTRACT));
  const exported = new Set(
    [...(files.get(CONTRACT) ?? '').matchAll(/^export const (\w+)/gm)].map(([, name]) => name ?? ''),
  );
  return code
    .replaceAll(/from '(\.[^']*)'/g, (_, specifier: string) => {
      const target = path.join(path.dirname(file), specifier);
      return `from '${relative(path.join(files.has(target) ? folder : ROOT, target))}'`;
    })
    .replaceAll(/import \{([^}]*)\} from '@releap\/contract';/g, (_, list: string) => {
      const names = list.split(',').flatMap((name) => (name.trim() === '' ? [] : [name.trim()]));
      const imports = (of: string[], source: string): string[] =>
        of.length === 0 ? [] : [`import { ${of.join(', ')} } from '${source}';`];
      return [
        ...imports(
          names.filter((name) => !exported.has(name)),
          '@releap/contract',
        ),
        ...imports(
          names.filter((name) => exported.has(name)),
          contract,
        ),
      ].join('\n');
    });
}

describe('the page on adding a resource', () => {
  it('names at most six files outside of the folder: those that it creates, and those that exist', () => {
    const outside = filesOutside(page);
    assert.ok(outside.length > 0 && outside.length <= FILES_OUTSIDE_MAX, outside.join(', '));
    for (const file of outside) assert.ok(files.has(file) || existsSync(path.join(ROOT, file)), file);
    for (const file of files.keys()) assert.ok(file.startsWith(FOLDER) || outside.includes(file), file);
  });

  it('has code that compiles', async () => {
    const tsconfig = path.join(folder, 'tsconfig.json');
    const references = ['contract', 'database', 'control'].map((name) => ({
      path: path.join(ROOT, 'packages', name),
    }));
    await writeFile(
      tsconfig,
      JSON.stringify({
        extends: path.join(ROOT, 'tsconfig.base.json'),
        compilerOptions: { rootDir: '.', outDir: 'types' },
        include: ['packages'],
        references,
      }),
    );
    const tsc = path.join(ROOT, 'node_modules/typescript/bin/tsc');
    const failed = await promisify(execFile)(process.execPath, [tsc, '-b', tsconfig]).then(
      () => undefined,
      (error: { stdout: string }) => error.stdout,
    );
    assert.equal(failed, undefined);
  });

  describe('adds a resource', () => {
    let world: World;
    before(async () => {
      const file = path.join(folder, FOLDER, 'module.ts');
      const { notesModule } = (await import(pathToFileURL(file).href)) as {
        notesModule: (context: ControlServices) => Module;
      };
      world = await startWorld({ modules: [notesModule] });
      const migration = [...files].find(([name]) => name.endsWith('.sql'))?.[1];
      await world.database.pool.query(migration ?? '');
    });
    after(() => world[Symbol.asyncDispose]());

    it('whose routes create and list, page by page, in one project', async () => {
      for (const text of ['one', 'two', 'three']) {
        const created = await world.call('POST', '/notes', { text });
        assert.deepEqual([created.status, created.body.text], [200, text]);
      }
      const first = await world.call('GET', '/notes?limit=2');
      const next = await world.call('GET', `/notes?limit=2&cursor=${first.body.next_cursor}`);
      const texts = [...first.body.notes, ...next.body.notes].map((note: { text: string }) => note.text);
      assert.deepEqual([texts, next.body.next_cursor], [['three', 'two', 'one'], null]);
      const stranger = await world.stranger();
      assert.deepEqual((await stranger('GET', '/notes')).body, { notes: [], next_cursor: null });
      assert.equal((await world.call('GET', '/notes?cursor=x')).status, 400);
      assert.equal((await world.call('POST', '/notes', { text: 'x'.repeat(1001) })).status, 400);
    });

    it('that creates one note for a repeated request', async () => {
      const again = { headers: { 'idempotency-key': 'note-1' } };
      const project = await world.stranger();
      const [one, two] = [
        await project('POST', '/notes', { text: 'once' }, again),
        await project('POST', '/notes', { text: 'once' }, again),
      ];
      assert.equal(one.body.id, two.body.id);
      assert.equal((await project('GET', '/notes')).body.notes.length, 1);
    });

    it('with a metric, a periodic task and a teardown step', async () => {
      const metrics = await world.operator('GET', '/metrics');
      assert.match(metrics.text, /^releap_notes_created_total 4$/m);
      const project = await world.stranger();
      await project('POST', '/notes', { text: 'expires' });
      await world.database.pool.query('update notes set expires_at = now() where project_id = $1', [
        project.projectId,
      ]);
      await world.control.runTask('note-expiry');
      assert.equal((await project('GET', '/notes')).body.notes.length, 0);
      await project('POST', '/notes', { text: 'torn down' });
      await world.database.pool.query(
        'update projects set deleted_at = now(), teardown_after = now() where id = $1',
        [project.projectId],
      );
      await world.control.runTask('teardown');
      const { rowCount } = await world.database.pool.query('select from notes where project_id = $1', [
        project.projectId,
      ]);
      assert.equal(rowCount, 0);
    });
  });
});
