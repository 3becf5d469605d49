import assert from 'node:assert/strict';
import { test } from 'node:test';
import { openDatabase, queryOne, statement } from '@releap/database';
import { eventually } from '@releap/testing/eventually';
import { freshDatabase } from '@releap/testing/postgres';
import { pino, type Logger } from 'pino';
import { loggerOptions } from '../src/log/logger-options.ts';

const PID = statement<{ pid: number }>('log-errors-pid', 'select pg_backend_pid() as pid');
const END = statement<{ ended: boolean }>('log-errors-end', 'select pg_terminate_backend($1) as ended');
const PROJECT = statement(
  'log-errors-project',
  "insert into projects (id, org_id, name) values ($1, $1, 'x')",
);

interface Line {
  msg: string;
  err: Record<string, unknown>;
}

function collect(): { log: Logger; lines: Line[] } {
  const lines: Line[] = [];
  const write = (text: string): void => void lines.push(JSON.parse(text) as Line);
  return { log: pino(loggerOptions('info'), { write }), lines };
}

test('a connection that breaks is logged with its message, code and severity, not with its client', async () => {
  const { log, lines } = collect();
  await using broken = openDatabase({ url: await freshDatabase(), log });
  await using other = openDatabase({ url: broken.url, log });
  const backend = await queryOne(broken.pool, PID);
  await queryOne(other.pool, END, [backend?.pid]);
  const line = await eventually('a line is logged', () => lines[0]);
  assert.match(line.msg, /a database connection broke/);
  assert.deepEqual(
    { code: line.err['code'], severity: line.err['severity'] },
    { code: '57P01', severity: 'FATAL' },
  );
  assert.match(String(line.err['message']), /terminating connection/);
  assert.equal(line.err['client'], undefined);
  assert.ok(!JSON.stringify(line).includes('pg_backend_pid'), 'a prepared statement is in the log');
});

test('a refused statement is logged without the values of its row', async () => {
  const { log, lines } = collect();
  await using database = openDatabase({ url: await freshDatabase(), log });
  const id = 'f2f4b1f4-0000-4000-8000-000000000001';
  await assert.rejects(queryOne(database.pool, PROJECT, [id]), (error: Error & { detail?: string }) => {
    assert.match(error.detail ?? '', new RegExp(id), 'the error itself has the value');
    log.error({ err: error }, 'refused');
    return true;
  });
  assert.equal(lines[0]?.err['code'], '23503');
  assert.ok(!JSON.stringify(lines[0]).includes(id));
});

test('an error is logged with its causes and plain properties, and without objects', () => {
  const { log, lines } = collect();
  const error = new Error('outer', { cause: new Error('inner') });
  log.warn({ err: Object.assign(error, { exitCode: 3, stderr: 'e'.repeat(5_000), request: { big: 'x' } }) });
  const logged = lines[0]?.err;
  assert.equal(logged?.['message'], 'outer: inner');
  assert.match(String(logged?.['stack']), /caused by: Error: inner/);
  assert.equal(logged?.['exitCode'], 3);
  assert.equal(String(logged?.['stderr']).length, 1_000);
  assert.equal(logged?.['request'], undefined);
});

test('the errors of an aggregate are logged by the same rules, and not all of them', () => {
  const { log, lines } = collect();
  const errors = Array.from({ length: 20 }, (_, i) =>
    Object.assign(new Error(`no ${i}`), { code: 'E', of: {} }),
  );
  log.warn({ err: new AggregateError(errors, 'all failed') });
  const inner = lines[0]?.err['aggregateErrors'] as Record<string, unknown>[];
  assert.equal(inner.length, 8);
  assert.deepEqual({ ...inner[0], stack: '' }, { type: 'Error', message: 'no 0', stack: '', code: 'E' });
});
