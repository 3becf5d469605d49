/** A worker in a process of its own, which kills itself where the test says, or is killed by it. */
import { openDatabase } from '@releap/database';
import { pino } from 'pino';
import { createSender } from '../../src/functions/invocations/send.ts';
import { createWorker } from '../../src/functions/invocations/worker.ts';
import { PRICES } from './billing.ts';

/** `leased`: nothing was sent. `answered`: nothing is recorded. `recording`: the statement was sent. */
export type CrashPoint = 'leased' | 'answered' | 'recording' | 'none';

const env = (name: string): string => process.env[name] ?? '';
const crashAt = env('TEST_CRASH') as CrashPoint;
const crash = (): never => {
  process.kill(process.pid, 'SIGKILL');
  // The signal ends the process before this returns.
  for (;;);
};

const database = openDatabase({
  url: env('TEST_DATABASE_URL'),
  log: pino({ level: 'silent' }),
  connections: 3,
});
const { pool } = database;
if (crashAt === 'recording') {
  const query = pool.query.bind(pool) as (...of: unknown[]) => unknown;
  const replaced = (...of: unknown[]): unknown => {
    const running = query(...of);
    // Time for the statement to be sent, and perhaps to be run.
    if ((of[0] as { name?: string }).name === 'invocations-record') setTimeout(crash, Math.random() * 10);
    return running;
  };
  Object.assign(pool, { query: replaced });
}
const { send } = createSender();
const worker = createWorker({
  database,
  prices: PRICES,
  async send(request) {
    if (crashAt === 'leased') crash();
    const outcome = await send(request);
    return crashAt === 'answered' ? crash() : outcome;
  },
  gatewayOf: () => Promise.resolve(env('TEST_GATEWAY')),
  tokenFor: () => Promise.resolve('token'),
  log: pino({ level: 'silent' }),
  leaseMs: Number(env('TEST_LEASE_MS')),
  retryMs: 10,
});
process.on('disconnect', () => process.exit());
const period = Number(env('TEST_LEASE_MS')) / 3;
setInterval(() => void worker.renewLeases().catch(() => undefined), period);
setInterval(() => void worker.sweep().catch(() => undefined), period);
setInterval(() => worker.kick(), period);
worker.kick();
process.send?.('running');
