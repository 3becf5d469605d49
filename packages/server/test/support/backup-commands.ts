/** `releap backup` and `releap restore` as processes, and what tests look at. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { access, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { buffer } from 'node:stream/consumers';
import type { Database } from '@releap/database';
import { programOf } from '@releap/testing/program';
import { extract, pack } from 'tar-stream';

export const MAIN = programOf(path.join(import.meta.dirname, '../../src/main.ts'));

export interface Place {
  home: string;
  databaseUrl: string;
  store: string;
}

export interface Outcome {
  code: number | null;
  stdout: string;
  stderr: string;
}

export function environment({ home, databaseUrl, store }: Place, passphrase?: string): NodeJS.ProcessEnv {
  return {
    ...process.env,
    RELEAP_HOME: home,
    DATABASE_URL: databaseUrl,
    RELEAP_STORE: store,
    RELEAP_LOG_LEVEL: 'warn',
    RELEAP_BACKUP_PASSPHRASE: passphrase ?? '',
  };
}

export function start(
  place: Place,
  args: string[],
  passphrase?: string,
): { child: ChildProcess; ended: Promise<Outcome> } {
  const child = spawn(process.execPath, [MAIN, ...args], {
    env: environment(place, passphrase),
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const outcome: Outcome = { code: null, stdout: '', stderr: '' };
  child.stdout.on('data', (chunk: Buffer) => (outcome.stdout += chunk.toString('latin1')));
  child.stderr.on('data', (chunk: Buffer) => (outcome.stderr += chunk.toString('utf8')));
  const ended = new Promise<Outcome>((resolve) =>
    child.once('close', (code) => resolve(Object.assign(outcome, { code }))),
  );
  return { child, ended };
}

export async function succeed(place: Place, args: string[], passphrase?: string): Promise<Outcome> {
  const outcome = await start(place, args, passphrase).ended;
  assert.equal(outcome.code, 0, outcome.stderr);
  return outcome;
}

export async function refused(
  place: Place,
  args: string[],
  reason: RegExp,
  passphrase?: string,
): Promise<void> {
  const { code, stderr } = await start(place, args, passphrase).ended;
  assert.notEqual(code, 0);
  assert.match(stderr, reason);
}

/** Digest of the rows of each table. A restore raises generations and disconnects hosts. */
export async function contentOf(database: Database): Promise<Record<string, string>> {
  const { rows: tables } = await database.pool.query<{ name: string }>(
    `select relname as name from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and not relispartition
        and relname <> 'schema_migrations' order by 1`,
  );
  const content: Record<string, string> = {};
  for (const { name } of tables) {
    const { rows } = await database.pool.query<{ digest: string }>(
      `select count(*) || ' ' || coalesce(md5(string_agg(t, ',' order by t)), '') as digest
         from (select (to_jsonb(r) - $1::text[])::text as t from ${name} r) s`,
      [['generation', ...(name === 'runners' ? ['status', 'ready'] : [])]],
    );
    content[name] = rows[0]?.digest ?? '';
  }
  return content;
}

export const exists = (file: string): Promise<boolean> =>
  access(file).then(
    () => true,
    () => false,
  );

/** Copies an archive, with other content of its entries; undefined leaves one out. */
export async function rewrite(
  source: string,
  target: string,
  change: (name: string, content: Buffer) => Buffer | undefined,
): Promise<void> {
  const [input, output] = [extract(), pack()];
  const copied = buffer(output as AsyncIterable<Buffer>);
  input.end(await readFile(source));
  for await (const entry of input) {
    const content = change(entry.header.name, await buffer(entry as AsyncIterable<Buffer>));
    if (content !== undefined) output.entry({ name: entry.header.name }, content);
  }
  output.finalize();
  await writeFile(target, await copied);
}
