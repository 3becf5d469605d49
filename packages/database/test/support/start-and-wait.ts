/** Starts the instance of the folder given, prints the server's pid, and waits to be killed. */
import { pino } from 'pino';
import { startPostgres } from '../../src/index.ts';

const [dir] = process.argv.slice(2);
if (dir === undefined) throw new Error('usage: start-and-wait.ts <folder>');
const pg = await startPostgres({ dir, log: pino({ level: 'silent' }) });
console.log(pg.pid);
setInterval(() => undefined, 60_000);
