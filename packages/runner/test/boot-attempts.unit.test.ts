import assert from 'node:assert/strict';
import { it } from 'node:test';
import { pino } from 'pino';
import { type BootAttempt, bootAttempts } from '../src/reconcile/boot-attempts.ts';

function world(boots: boolean, signal = new AbortController().signal) {
  const exits: string[] = [];
  const logged: { console?: string }[] = [];
  let cleared = 0;
  const write = (line: string): void => void logged.push(JSON.parse(line) as { console?: string });
  const options = {
    boots,
    events: { onExit: ({ reason }: { reason: string }) => void exits.push(reason), onClockOff: () => {} },
    onConsole: () => {},
    clear: async () => {
      await Promise.resolve();
      cleared += 1;
    },
    signal,
    log: pino({ level: 'warn' }, { write }),
  };
  return { options, exits, logged, cleared: () => cleared };
}

const ends = async ({ events, onConsole }: BootAttempt): Promise<never> => {
  onConsole(Buffer.from('Booting from ROM...'));
  events.onExit({ reason: 'the guest restarted, or crashed', guestEnd: undefined });
  return await Promise.reject(new Error('the guest restarted, or crashed'));
};

it('a guest that ends while it boots is booted once more, with the messages of its kernel', async () => {
  const { options, exits, logged, cleared } = world(true);
  const verbose: boolean[] = [];
  const result = await bootAttempts(options, async (attempt) => {
    verbose.push(attempt.verbose);
    return verbose.length === 1 ? await ends(attempt) : 'up';
  });
  assert.equal(result, 'up');
  assert.deepEqual([verbose, exits, cleared()], [[false, true], [], 1]);
  assert.deepEqual(
    logged.map(({ console }) => console),
    ['Booting from ROM...'],
  );
});

it('a guest that ends twice has failed, and its console is logged twice', async () => {
  const { options, exits, logged } = world(true);
  await assert.rejects(bootAttempts(options, ends), /the guest restarted/);
  assert.deepEqual([exits.length, logged.length], [1, 2]);
});

it('what has booted is not repeated: not a guest that fails otherwise, one that is restored, or one that is not wanted', async () => {
  const fails = async (): Promise<never> => await Promise.reject(new Error('no space'));
  for (const [{ options, cleared }, run] of [
    [world(true), fails],
    [world(false), ends],
    [world(true, AbortSignal.abort()), ends],
  ] as const) {
    await assert.rejects(bootAttempts(options, run));
    assert.equal(cleared(), 0);
  }
});

it('the end of a guest that has booted is reported', async () => {
  const { options, exits } = world(true);
  const events = await bootAttempts(options, async (attempt) => await Promise.resolve(attempt.events));
  events.onExit({ reason: 'powered off', guestEnd: 'powered off' });
  assert.deepEqual(exits, ['powered off']);
});
