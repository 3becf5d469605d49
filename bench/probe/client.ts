/**
 * A client that talks to an echo server every millisecond, and remembers when it was answered: the next byte goes out
 * a millisecond after the last one, or with the answer where that took longer. Started by `probe.ts`, which asks for
 * what it needs over the channel between them. Its clock is the machine's monotonic one, which all processes share.
 */
import { connect, type Socket } from 'node:net';

export type Question =
  | { type: 'connect'; host: string; port: number }
  | { type: 'disconnect' }
  /** Milliseconds of the monotonic clock; answered when the server has answered once more after `to`. */
  | { type: 'gap'; from: number; to: number }
  | { type: 'last' };

export type Answer =
  | { type: 'done' }
  | { type: 'gap'; largest: number; at: number; answers: number }
  | { type: 'last'; at: number }
  | { type: 'error'; error: string };

const INTERVAL_MS = 1;
/** Answers that are remembered: more than a quarter of an hour. */
const REMEMBERED = 1 << 20;
const PATIENCE_MS = 20_000;

const now = (): number => Number(process.hrtime.bigint()) / 1e6;
const answeredAt = new Float64Array(REMEMBERED);
let answers = 0;
let socket: Socket | undefined;
let waiting: { after: number; tell: () => void } | undefined;

async function open(host: string, port: number): Promise<void> {
  socket?.destroy();
  answers = 0;
  const mine = connect({ host, port, noDelay: true });
  socket = mine;
  const first = Promise.withResolvers<void>();
  let sentAt = 0;
  const send = (): void => {
    sentAt = now();
    if (socket === mine && mine.writable) mine.write('.');
  };
  mine.once('connect', send);
  mine.once('error', first.reject);
  mine.on('error', () => undefined);
  mine.once('close', () => first.reject(new Error('the echo server hung up')));
  mine.on('data', () => {
    const at = now();
    answeredAt[answers++ % REMEMBERED] = at;
    first.resolve();
    if (waiting !== undefined && at > waiting.after) waiting.tell();
    const rest = INTERVAL_MS - (at - sentAt);
    if (rest > 0) setTimeout(send, rest);
    else send();
  });
  await first.promise;
}

const answered = (index: number): number => answeredAt[index % REMEMBERED] ?? Number.NaN;

/** The longest time between two answers that lies in part between `from` and `to`. */
async function gap(from: number, to: number): Promise<Answer> {
  if (answered(answers - 1) <= to) {
    const later = Promise.withResolvers<void>();
    waiting = { after: to, tell: later.resolve };
    const timer = setTimeout(() => later.reject(new Error('the echo server does not answer')), PATIENCE_MS);
    await later.promise.finally(() => {
      clearTimeout(timer);
      waiting = undefined;
    });
  }
  const oldest = Math.max(0, answers - REMEMBERED);
  if (answers === 0 || answered(oldest) > from)
    throw new Error('it was not connected yet at the beginning of that time');
  let [largest, at, within] = [0, from, 0];
  for (let next = answers - 1; next > oldest && answered(next) > from; next--) {
    if (answered(next - 1) >= to) continue;
    within++;
    const took = answered(next) - answered(next - 1);
    if (took > largest) [largest, at] = [took, answered(next - 1)];
  }
  return { type: 'gap', largest, at, answers: within };
}

async function answer(question: Question): Promise<Answer> {
  if (question.type === 'gap') return await gap(question.from, question.to);
  if (question.type === 'last') return { type: 'last', at: answered(answers - 1) };
  if (question.type === 'connect') await open(question.host, question.port);
  else socket?.destroy();
  return { type: 'done' };
}

process.on('message', (question: Question) => {
  answer(question)
    .catch((error: unknown): Answer => ({ type: 'error', error: (error as Error).message }))
    .then((said) => process.send?.(said))
    .catch(() => process.exit(1));
});
process.once('disconnect', () => process.exit(0));
